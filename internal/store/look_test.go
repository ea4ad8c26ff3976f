package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Who looks sees what is there, writes nothing, makes nothing and leaves nothing.
func TestLook(t *testing.T) {
	home := t.TempDir()
	if _, _, err := Look(t.Context(), home); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("where there is none: %v", err)
	}
	if left, err := os.ReadDir(home); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
	s, err := Open(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	made, err := s.InsertSandbox(t.Context(), Sandbox{})
	if err != nil {
		t.Fatal(err)
	}
	look, schema, err := Look(t.Context(), home) // beside one that writes
	if err != nil || schema.Has == 0 || schema.Has != schema.Knows {
		t.Fatalf("schema %+v, %v", schema, err)
	}
	if _, err := look.Sandbox(t.Context(), made.ID); err != nil {
		t.Error(err)
	}
	if _, err := look.InsertSandbox(t.Context(), Sandbox{}); err == nil {
		t.Error("it wrote")
	}
	if err := look.QuickCheck(t.Context()); err != nil {
		t.Error(err)
	}
	if at, err := look.Newest(t.Context()); err != nil || time.Since(at) > time.Minute || at.After(time.Now()) {
		t.Errorf("the newest is of %v, %v", at, err)
	}
	if err := errors.Join(look.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(home, File))
	if err != nil {
		t.Fatal(err)
	}
	look, _, err = Look(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(look.QuickCheck(t.Context()), look.Close()); err != nil {
		t.Error(err)
	}
	after, err := os.ReadFile(filepath.Join(home, File))
	if err != nil || string(after) != string(before) {
		t.Errorf("the file changed, %v", err)
	}
	for _, name := range []string{File + "-wal", File + "-shm"} {
		if _, err := os.Stat(filepath.Join(home, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("it left %s: %v", name, err)
		}
	}
}

// A database of another version is looked at as it is.
func TestLookAtAnotherVersion(t *testing.T) {
	home := t.TempDir()
	s, err := Open(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.db.ExecContext(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (999, 1)`)
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	look, schema, err := Look(t.Context(), home)
	if err != nil || schema.Has != 999 || schema.Knows >= 999 {
		t.Fatalf("schema %+v, %v", schema, err)
	}
	if err := look.Close(); err != nil {
		t.Error(err)
	}
}

func TestQuickCheckFindsDamage(t *testing.T) {
	home := t.TempDir()
	s, err := Open(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		if _, err := s.InsertSandbox(t.Context(), Sandbox{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(home, File)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	junk := make([]byte, 4096)
	for i := range junk {
		junk[i] = 0xa5
	}
	for at := int64(8 * 4096); at < info.Size(); at += 4096 {
		if _, err := f.WriteAt(junk, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	look, _, err := Look(t.Context(), home)
	if err != nil {
		return // it is so damaged that it cannot be opened, which is found as well
	}
	defer look.Close()
	if err := look.QuickCheck(t.Context()); !errors.Is(err, ErrDamaged) {
		t.Errorf("a damaged database: %v", err)
	}
}

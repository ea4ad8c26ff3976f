package secret

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestSealed(t *testing.T) {
	home := t.TempDir()
	s, err := Open(home)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(home, "bus"), 0o700); err != nil {
		t.Fatal(err)
	}
	const name = "bus/keys.age"
	if _, err := s.Sealed(name); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	plain := []byte(`{"seed":"SOAAA"}`)
	for _, want := range [][]byte{plain, []byte("second")} {
		if err := s.SetSealed(t.Context(), name, want); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Sealed(name); err != nil || !bytes.Equal(got, want) {
			t.Fatal(got, err)
		}
	}
	path := filepath.Join(home, name)
	raw, err := os.ReadFile(path)
	if err != nil || bytes.Contains(raw, []byte("second")) {
		t.Fatal("it is there in the clear", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatal(info.Mode(), err)
	}

	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sealed(name); !errors.Is(err, ErrKey) {
		t.Error("others may read it:", err)
	}
	if err := os.WriteFile(path, append(raw[:len(raw)-1:len(raw)-1], raw[len(raw)-1]^1), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sealed(name); !errors.Is(err, ErrDamaged) {
		t.Error("another byte:", err)
	}
	key := filepath.Join(home, KeyFile)
	if err := os.Rename(key, key+".away"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sealed(name); !errors.Is(err, ErrKey) {
		t.Error("no key:", err)
	}
	// A new key would lose what the old one encrypted, be it this file or another.
	if err := s.SetSealed(t.Context(), name, plain); !errors.Is(err, ErrKey) {
		t.Error("no key:", err)
	}
	if err := os.Rename(path, filepath.Join(home, File)); err != nil {
		t.Fatal(err)
	}
	if err := s.SetSealed(t.Context(), name, plain); !errors.Is(err, ErrKey) {
		t.Error("no key:", err)
	}
	if _, err := os.Stat(key); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a key was made", err)
	}
}

func TestSealedNames(t *testing.T) {
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "keys", "../keys.age", "/etc/keys.age", "bus/../keys.age", File, "a//b.age"} {
		if err := s.SetSealed(t.Context(), name, nil); err == nil {
			t.Errorf("%q was written", name)
		}
		if _, err := s.Sealed(name); err == nil {
			t.Errorf("%q was read", name)
		}
	}
}

package beneath

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPermissionsStay(t *testing.T) {
	p, ctx := newPlace(t), t.Context()
	for _, c := range []struct{ mode, want uint32 }{{0o755, 0o755}, {0o600, 0o600}, {0o646, 0o646}, {0o4755, 0o755}, {0o6711, 0o711}, {0o222, 0o222}} {
		put(t, p.at("f"), "old")
		must(t, unix.Chmod(p.at("f"), c.mode))
		must(t, p.WriteFile(ctx, "f", []byte("new")))
		var st unix.Stat_t
		must(t, unix.Stat(p.at("f"), &st))
		if got := st.Mode & 0o7777; got != c.want {
			t.Errorf("%04o became %04o", c.mode, got)
		}
		must(t, os.Remove(p.at("f")))
	}
	put(t, p.at("f"), "old")
	must(t, os.Chmod(p.at("f"), 0o555))
	wantError(t, "a file that nobody may write", p.WriteFile(ctx, "f", []byte("new")), ErrReadOnly, "mode 0555", "chmod u+w f")
	wantFile(t, p.at("f"), "old")
}

// With root's rights, what is written in a user's folder is the user's.
func TestOwnersStay(t *testing.T) {
	needsRoot(t)
	p, ctx := newPlace(t), t.Context()
	put(t, p.at("d/f"), "old")
	must(t, os.Chown(p.at("d/f"), 4001, 4002))
	must(t, os.Chown(p.at("d"), 5001, 5002))
	must(t, p.WriteFile(ctx, "d/f", []byte("new")))
	must(t, p.WriteFile(ctx, "d/e/new", []byte("new")))
	must(t, p.MakeDir(ctx, "d/e/deep"))
	for name, want := range map[string][2]uint32{"d/f": {4001, 4002}, "d/e": {5001, 5002}, "d/e/new": {5001, 5002}, "d/e/deep": {5001, 5002}} {
		var st unix.Stat_t
		must(t, unix.Lstat(p.at(name), &st))
		if got := [2]uint32{st.Uid, st.Gid}; got != want {
			t.Errorf("%s belongs to %d, want %d", name, got, want)
		}
	}
	// Only a new folder changes hands, not one that was put where it was made.
	must(t, os.MkdirAll(p.at("full/x"), 0o755))
	for _, name := range []string{"full", "full/x"} {
		fd, err := unix.Open(p.at(name), unix.O_PATH|unix.O_DIRECTORY, 0)
		must(t, err)
		defer unix.Close(fd)
		parent, err := unix.Open(p.at("d"), unix.O_PATH|unix.O_DIRECTORY, 0)
		must(t, err)
		defer unix.Close(parent)
		must(t, inherit(parent, fd))
		var st unix.Stat_t
		must(t, unix.Fstat(fd, &st))
		if given := st.Uid == 5001; given != (name == "full/x") {
			t.Errorf("%s belongs to %d", name, st.Uid)
		}
	}
}

// Who may not give files away keeps what is written instead of failing.
func TestOwnerWithoutRights(t *testing.T) {
	needsRoot(t)
	p := newPlace(t)
	put(t, p.at("f"), "old")
	for _, name := range []string{"f", "."} {
		must(t, os.Chown(p.at(name), 4001, 4002))
		must(t, os.Chmod(p.at(name), 0o777))
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this function
		_, err := unix.SetfsuidRetUid(4003)
		if err == nil {
			err = errors.Join(p.WriteFile(t.Context(), "f", []byte("new")), p.WriteFile(t.Context(), "d/f", []byte("new")))
		}
		done <- err
	}()
	must(t, <-done)
	for _, name := range []string{"f", "d", "d/f"} {
		var st unix.Stat_t
		must(t, unix.Lstat(p.at(name), &st))
		if st.Uid != 4003 {
			t.Errorf("%s belongs to %d", name, st.Uid)
		}
	}
	wantFile(t, p.at("f"), "new")
}

// Who reads while a file is written sees what was there or what comes, never a part.
func TestReadersSeeOldOrNew(t *testing.T) {
	p, ctx := newPlace(t), t.Context()
	texts := [][]byte{bytes.Repeat([]byte("a"), 3<<20), bytes.Repeat([]byte("b"), 2<<20)}
	must(t, p.WriteFile(ctx, "f", texts[0]))
	done := make(chan error, 1)
	go func() {
		for i := range 60 {
			if err := p.WriteFile(ctx, "f", texts[i%2]); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for {
		got, err := p.ReadFile(ctx, "f", 4<<20)
		must(t, err)
		if !bytes.Equal(got, texts[0]) && !bytes.Equal(got, texts[1]) {
			t.Fatalf("%d bytes, of %q", len(got), got[:1])
		}
		select {
		case err := <-done:
			must(t, err)
			return
		default:
		}
	}
}

func TestFullDisk(t *testing.T) {
	p, ctx := newPlace(t), t.Context()
	withMounts(t, func() {
		must(t, unix.Mount("ravi", p.dir, "tmpfs", 0, "size=64k"))
		r, err := Open(p.dir)
		must(t, err)
		defer r.Close()
		must(t, r.WriteFile(ctx, "d/f", []byte("old")))
		err = r.WriteFile(ctx, "d/f", make([]byte, 1<<20))
		wantError(t, "a file larger than the disk", err, unix.ENOSPC, "d/f", "was not written", "no space left")
		// The disk is seen by this thread alone, so not by what os.ReadFile and its like do elsewhere.
		if got, err := r.ReadFile(ctx, "d/f", 99); err != nil || string(got) != "old" {
			t.Errorf("%q, %v", got, err)
		}
		if entries, _, err := r.List(ctx, "d", 1, 9); err != nil || strings.Join(paths(entries), " ") != "d/f" {
			t.Errorf("%v, %v", paths(entries), err)
		}
	})
}

func TestNothingIsLeftBeside(t *testing.T) {
	p, ctx := newPlace(t), t.Context()
	must(t, os.MkdirAll(p.at("d/sub/x"), 0o755))
	must(t, p.WriteFile(ctx, "d/f", []byte("1")))
	must(t, p.WriteFile(ctx, "d/f", []byte("2")))
	if err := p.WriteFile(ctx, "d/sub", nil); !errors.Is(err, ErrNotFile) {
		t.Error(err)
	}
	names, err := fs.Glob(os.DirFS(p.dir), "d/*")
	if err != nil || strings.Join(names, " ") != "d/f d/sub" {
		t.Errorf("%v, %v", names, err)
	}
}

// spy is a context that is looked at with every step of what it is given to.
type spy struct {
	context.Context
	look func() error
}

func (s spy) Err() error { return s.look() }

// While a file is written, nobody can read of the new what nobody could read of the old; and a write that is given up
// leaves the old.
func TestHalfWritten(t *testing.T) {
	p := newPlace(t)
	put(t, p.at("secret"), "old")
	must(t, os.Chmod(p.at("secret"), 0o600))
	var sizes []int64
	stop := false
	ctx := spy{t.Context(), func() error {
		names, err := fs.Glob(os.DirFS(p.dir), ".ravi-*")
		must(t, err)
		for _, name := range names {
			info, err := os.Lstat(p.at(name))
			must(t, err)
			if info.Mode() != 0o600 {
				t.Errorf("half of a private file has the mode %v", info.Mode())
			}
			sizes = append(sizes, info.Size())
			if stop && info.Size() > 0 {
				return context.Canceled
			}
		}
		return nil
	}}
	big := bytes.Repeat([]byte("x"), 3*chunk)
	must(t, p.WriteFile(ctx, "secret", big))
	if len(sizes) != 3 || sizes[2] != 2*chunk {
		t.Errorf("the context was looked at after %d bytes", sizes)
	}
	stop = true
	wantError(t, "a write that is given up", p.WriteFile(ctx, "secret", []byte(strings.Repeat("y", 2*chunk))), context.Canceled)
	wantFile(t, p.at("secret"), string(big))
	if names, err := fs.Glob(os.DirFS(p.dir), ".ravi-*"); err != nil || len(names) != 0 {
		t.Errorf("%v, %v", names, err)
	}
	// A read looks at it, too.
	ended := false
	_, err := p.ReadFile(spy{t.Context(), func() error {
		if ended {
			return context.Canceled
		}
		ended = true
		return nil
	}}, "secret", 1<<30)
	wantError(t, "a read that is given up", err, context.Canceled)
}

// Several at once make the same folders, and each finds them made.
func TestFoldersMadeAtOnce(t *testing.T) {
	p := newPlace(t)
	errs := make(chan error)
	for i := range 8 {
		go func() {
			var err error
			for j := range 200 {
				err = errors.Join(err, p.WriteFile(t.Context(), fmt.Sprintf("%d/a/b/c/%d", j, i), nil))
			}
			errs <- err
		}()
	}
	for range 8 {
		must(t, <-errs)
	}
}

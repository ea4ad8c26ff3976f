package programs

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"
)

// embed has this process contain these programs, for one test.
func embed(t *testing.T, files fstest.MapFS) {
	t.Helper()
	old := embedded
	t.Cleanup(func() { embedded = old })
	Register(files)
}

// all are programs with these contents, and their sums.
func all(guest, others string) fstest.MapFS {
	files := fstest.MapFS{}
	var list strings.Builder
	for name, text := range map[string]string{"ravi-guest": guest, "ravi-keeper": others, "ravi-relay": others, "ravi-gateway": others, "ravi-kernel": others} {
		files[name] = &fstest.MapFile{Data: []byte(text)}
		fmt.Fprintf(&list, "%x  %s\n", sha256.Sum256([]byte(text)), name)
	}
	files[sums] = &fstest.MapFile{Data: []byte(list.String())}
	return files
}

func TestLayOut(t *testing.T) {
	home := t.TempDir()
	embed(t, all("guest 1", "other 1"))
	first, err := layOut(home)
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{first.Guest: "guest 1", first.Keeper: "other 1", first.Relay: "other 1", first.Kernel: "other 1"} {
		b, err := os.ReadFile(path)
		if err != nil || string(b) != text {
			t.Errorf("%s: %q %v", path, b, err)
		}
		st, err := os.Stat(path)
		if err != nil || st.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v %v", path, st, err)
		}
	}
	again, err := layOut(home)
	if err != nil || again != first {
		t.Errorf("again: %+v %v, want %+v", again, err, first)
	}
	// Another version does not replace what sandboxes that run were made with.
	embed(t, all("guest 2", "other 1"))
	second, err := layOut(home)
	if err != nil || second.Guest == first.Guest {
		t.Errorf("another version: %+v %v", second, err)
	}
	if b, err := os.ReadFile(first.Guest); err != nil || string(b) != "guest 1" {
		t.Errorf("the first version is now %q %v", b, err)
	}
	left, err := filepath.Glob(filepath.Join(home, "lib", "new-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

func TestLayOutAtOnce(t *testing.T) {
	home := t.TempDir()
	embed(t, all(strings.Repeat("g", 1<<20), strings.Repeat("k", 1<<20)))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s, err := layOut(home)
			if err != nil {
				t.Error(err)
				return
			}
			if st, err := os.Stat(s.Guest); err != nil || st.Size() != 1<<20 {
				t.Errorf("%v %v", st, err)
			}
		})
	}
	wg.Wait()
}

// What was changed on disk must not be run.
func TestLayOutRefusesWhatWasChanged(t *testing.T) {
	home := t.TempDir()
	embed(t, all("guest", "keeper"))
	s, err := layOut(home)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Guest, []byte("evil!"), 0o755); err != nil {
		t.Fatal(err)
	}
	again, err := layOut(home)
	if err != nil {
		return // told
	}
	if b, err := os.ReadFile(again.Guest); err != nil || string(b) != "guest" {
		t.Errorf("it would run %q %v", b, err)
	}
}

func TestMissing(t *testing.T) {
	t.Run("all parts", func(t *testing.T) {
		embed(t, fstest.MapFS{"ravi-guest": {Data: []byte("x")}})
		if _, err := Find(t.Context(), t.TempDir()); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "make build") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a part", func(t *testing.T) {
		files := all("guest", "other")
		delete(files, "ravi-relay")
		embed(t, files)
		if _, err := Find(t.Context(), t.TempDir()); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "ravi-relay") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("the right part", func(t *testing.T) {
		files := all("guest", "other")
		files["ravi-guest"].Data = []byte("older")
		embed(t, files)
		if _, err := Find(t.Context(), t.TempDir()); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "make build") {
			t.Errorf("got %v", err)
		}
	})
	script := filepath.Join(t.TempDir(), "ravi")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho no JSON\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"no file": "/no/such/ravi", "another program": script} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(EnvProgram, path)
			if _, err := Find(t.Context(), t.TempDir()); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("not in PATH", func(t *testing.T) {
		t.Setenv(EnvProgram, "")
		t.Setenv("PATH", t.TempDir())
		if _, err := Find(t.Context(), t.TempDir()); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), EnvProgram) {
			t.Errorf("got %v", err)
		}
	})
}

// A failure is not remembered: what is missing may come.
func TestFindAfterAFailure(t *testing.T) {
	home := t.TempDir()
	t.Setenv(EnvProgram, "/no/such/ravi")
	if _, err := Find(t.Context(), home); err == nil {
		t.Fatal("found")
	}
	script := filepath.Join(t.TempDir(), "ravi")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho '{\"kernel\":\"n\",\"relay\":\"r\",\"guest\":\"g\",\"keeper\":\"k\"}'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv(EnvProgram, script)
	if s, err := Find(t.Context(), home); err != nil || s != (Set{Kernel: "n", Relay: "r", Guest: "g", Keeper: "k"}) {
		t.Errorf("got %+v %v", s, err)
	}
}

func TestRemoveUnused(t *testing.T) {
	home := t.TempDir()
	program, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	embed(t, all(string(program), "other 1"))
	used, err := layOut(home)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(used.Guest, "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	embed(t, all("guest 2", "other 2"))
	unused, err := layOut(home)
	if err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-time.Hour)
	for _, s := range []Set{used, unused} {
		if err := os.Chtimes(filepath.Dir(s.Kernel), long, long); err != nil {
			t.Fatal(err)
		}
	}
	cut := filepath.Join(home, "lib", "new-123")
	if err := os.Mkdir(cut, 0o700); err != nil {
		t.Fatal(err)
	}
	embed(t, all("guest 3", "other 3"))
	n, err := RemoveUnused(t.Context(), home)
	if err != nil || n != 1 {
		t.Errorf("%d versions removed, %v", n, err)
	}
	for path, there := range map[string]bool{used.Guest: true, unused.Guest: false, cut: true} {
		if _, err := os.Stat(path); (err == nil) != there {
			t.Errorf("%s: %v", path, err)
		}
	}
	now, err := Find(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(now.Kernel); err != nil {
		t.Error(err)
	}
}

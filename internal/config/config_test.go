package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestHome(t *testing.T) {
	user := t.TempDir()
	t.Setenv("HOME", user)
	t.Setenv("RAVI_HOME", "")
	home, err := Home()
	if err != nil || home != filepath.Join(user, ".ravi") {
		t.Fatalf("got %q, %v", home, err)
	}
	info, err := os.Stat(home)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Fatalf("got %v, %v", info.Mode(), err)
	}
	elsewhere := filepath.Join(t.TempDir(), "a", "b")
	t.Setenv("RAVI_HOME", elsewhere+"/./")
	for range 2 {
		if home, err := Home(); err != nil || home != elsewhere {
			t.Fatalf("got %q, %v", home, err)
		}
	}
}

func TestHomeIsClosedToReaders(t *testing.T) {
	home := t.TempDir()
	if err := os.Chmod(home, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("RAVI_HOME", home)
	if _, err := Home(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(home); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
}

func TestHomeRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		make func(t *testing.T, path string)
		want string
	}{
		"link":          {func(t *testing.T, path string) { must(t, os.Symlink(t.TempDir(), path)) }, "is a symbolic link"},
		"dangling link": {func(t *testing.T, path string) { must(t, os.Symlink("/nowhere", path)) }, "is a symbolic link"},
		"file":          {func(t *testing.T, path string) { must(t, os.WriteFile(path, nil, 0o600)) }, "cannot make Ravi's home directory"},
		"group":         {func(t *testing.T, path string) { must(t, os.Mkdir(path, 0o700)); must(t, os.Chmod(path, 0o720)) }, "others may write"},
		"world":         {func(t *testing.T, path string) { must(t, os.Mkdir(path, 0o700)); must(t, os.Chmod(path, 0o702)) }, "others may write"},
		"owner": {func(t *testing.T, path string) {
			if os.Geteuid() != 0 {
				t.Skip("SKIP-FEATURE: only root can give a directory away")
			}
			must(t, os.Mkdir(path, 0o700))
			must(t, os.Chown(path, 12345, 12345))
		}, "belongs to user 12345"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "home")
			c.make(t, path)
			t.Setenv("RAVI_HOME", path)
			_, err := Home()
			var hint *HintError
			if !errors.As(err, &hint) || !strings.Contains(err.Error(), c.want) || hint.Hint == "" {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("relative", func(t *testing.T) {
		t.Setenv("RAVI_HOME", "here")
		if _, err := Home(); err == nil || !strings.Contains(err.Error(), "not an absolute path") {
			t.Errorf("got %v", err)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

type block struct {
	Backend   string
	MemoryMib int
}

func TestLoad(t *testing.T) {
	home := t.TempDir()
	c, err := Load(home)
	must(t, err)
	b := block{Backend: "auto"}
	if err := c.Sandbox(&b); err != nil || b != (block{Backend: "auto"}) {
		t.Errorf("without a file: %+v, %v", b, err)
	}
	must(t, os.WriteFile(filepath.Join(home, File), []byte(`{"tools":{"sandbox":{"memoryMib":512}}}`), 0o600))
	c, err = Load(home)
	must(t, err)
	if err := c.Sandbox(&b); err != nil || b != (block{Backend: "auto", MemoryMib: 512}) {
		t.Errorf("got %+v, %v", b, err)
	}
}

func TestLoadRefusals(t *testing.T) {
	home := t.TempDir()
	path := filepath.Join(home, File)
	for name, c := range map[string]struct{ in, want string }{
		"unknown key":        {`{"tool":{}}`, path + `:1:2: tool: unknown key; did you mean tools?`},
		"in the block":       {"{\"tools\":{\n\"sandbox\":{\"backend\":1}}}", path + `:2:22: tools.sandbox.backend: expected a string, got a number`},
		"key in the block":   {`{"tools":{"sandbox":{"bakcend":"x"}}}`, path + `:1:22: tools.sandbox.bakcend: unknown key; did you mean backend?`},
		"twice in the block": {`{"tools":{"sandbox":{"backend":"x","backend":"y"}}}`, path + `:1:36: tools.sandbox.backend: given twice: keep one of them`},
		"syntax":             {"{\n", path + `:2:1: not valid JSON: unexpected end of JSON input`},
		"empty":              {"", path + `:1:1: there is no JSON here; the smallest valid document is {}`},
		"too large":          {strings.Repeat(" ", maxSize) + "{}", "is larger than"},
	} {
		t.Run(name, func(t *testing.T) {
			must(t, os.WriteFile(path, []byte(c.in), 0o600))
			cfg, err := Load(home)
			if err == nil {
				err = cfg.Sandbox(&block{})
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
	t.Run("not a file", func(t *testing.T) {
		must(t, os.Remove(path))
		must(t, syscall.Mkfifo(path, 0o600))
		if _, err := Load(home); err == nil || !strings.Contains(err.Error(), "is not a file") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("unreadable", func(t *testing.T) {
		if os.Geteuid() == 0 {
			t.Skip("SKIP-FEATURE: root reads everything")
		}
		must(t, os.Remove(path))
		must(t, os.WriteFile(path, []byte("{}"), 0o000))
		if _, err := Load(home); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("got %v", err)
		}
	})
}

package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLogIsBegunAnew(t *testing.T) {
	path := filepath.Join(home(t), LogFile)
	l, err := openLog(path, 100, false)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		if _, err := fmt.Fprintf(l, "line %02d\n", i); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	all := ""
	for n := logFiles - 1; n >= 0; n-- {
		file := filepath.Join(filepath.Dir(path), LogName(n))
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(file); err != nil || len(b) > 100 || info.Mode() != 0o600 {
			t.Errorf("%s has %d bytes, mode %v, %v", file, len(b), info.Mode(), err)
		}
		all += string(b)
	}
	if !strings.HasSuffix(all, "line 58\nline 59\n") || strings.Count(all, "\n") < 25 {
		t.Errorf("the end is not whole: %q", all)
	}
	if _, err := os.Lstat(path + ".3"); err == nil {
		t.Error("there are more of them than there may be")
	}
	// One that goes on with what is there knows how large that is.
	if l, err = openLog(path, 100, false); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fmt.Fprintln(l, strings.Repeat("x", 90))
	if b, err := os.ReadFile(path); err != nil || strings.Count(string(b), "\n") != 1 {
		t.Errorf("after it was opened again: %q, %v", b, err)
	}
}

func TestLogPlaces(t *testing.T) {
	dir := home(t)
	if err := os.Symlink("/dev/full", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenLog(filepath.Join(dir, "link"), false); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a symlink: %v", err)
	}
	if _, err := OpenLog(filepath.Join(dir, "pipe"), false); err == nil {
		t.Error("a pipe is taken for a log")
	}
}

func TestLoggerWritesNothingThatHarms(t *testing.T) {
	for _, text := range []bool{false, true} {
		var b bytes.Buffer
		NewLogger(&b, text).Error("bad \x1b[2J\u009b \u202e", "key", "rctx_AbC-12_x", "url", "/x?k=rctx%5fAbC", "err", errors.New("a\nb rctx_zzz"))
		got := b.String()
		if strings.Contains(got, "AbC") || strings.Contains(got, "zzz") {
			t.Errorf("a key is in it: %s", got)
		}
		if strings.ContainsAny(got, "\x1b\u009b\u202e") || strings.Count(got, "\n") != 1 {
			t.Errorf("a terminal would obey it: %q", got)
		}
	}
}

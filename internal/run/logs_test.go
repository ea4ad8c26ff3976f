package run

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	var user bytes.Buffer
	l, err := newLog(path, &user, redactor())
	must(t, err)
	text := "a " + value + " b " + value[:len(value)-1]
	for i := range len(text) {
		if n, err := l.Write([]byte(text[i : i+1])); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if got, want := user.String(), "a [secret TOKEN] b "; got != want {
		t.Errorf("before the end the user sees %q, want %q", got, want)
	}
	l.close()
	l.close()
	want := "a [secret TOKEN] b " + value[:len(value)-1]
	if got, err := os.ReadFile(path); err != nil || string(got) != want || user.String() != want {
		t.Errorf("the log has %q, the user %q, %v", got, &user, err)
	}
	if l.total != int64(len(text)) || l.left != 0 {
		t.Errorf("%d bytes, %d left, of %d", l.total, l.left, len(text))
	}
}

func TestLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := newLog(path, failing{}, redactor())
	must(t, err)
	l.room = 20
	// The room is for what is written, not for what was said.
	if _, err := l.Write([]byte(value + "12345" + value)); err != nil {
		t.Fatal(err)
	}
	l.close()
	if got, err := os.ReadFile(path); err != nil || string(got) != "[secret TOKEN]12345[\n... (13 bytes more are not in this log) ...\n" {
		t.Errorf("got %q, %v", got, err)
	}
	if l.left != 13 || l.total != int64(2*len(value)+5) {
		t.Errorf("%d left of %d", l.left, l.total)
	}
}

// failing is a user whose end of the pipe is gone.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("gone") }

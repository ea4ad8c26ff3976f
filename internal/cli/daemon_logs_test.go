package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Whoever follows a log gets every line once and whole, while it grows and when it is begun anew.
func TestFollowLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "daemon.log")
	f := follower{path: path}
	defer f.close()
	more := func(want string) {
		t.Helper()
		got, err := f.more()
		if err != nil || string(got) != want {
			t.Errorf("got %q, want %q, %v", got, want, err)
		}
	}
	write := func(text string) {
		t.Helper()
		log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = fmt.Fprint(log, text)
			log.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	more("")
	write("one\ntw")
	more("one\n")
	more("")
	write("o\n")
	more("two\n")
	write("three\n")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	more("three\n")
	write("four\n")
	more("four\n")
	write("five\n")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write("six\n")
	more("five\nsix\n")
}

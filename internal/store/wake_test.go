package store

import (
	"encoding/binary"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What another connection writes wakes; what other files have written to them does not.
func TestWake(t *testing.T) {
	home := t.TempDir()
	s, err := Open(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w, err := Wake(home)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	other, err := Open(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for len(w.C) > 0 { // of opening it
		<-w.C
	}
	for i := range 3 {
		if _, err := other.InsertAgent(t.Context(), Agent{Name: string(rune('a' + i))}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-w.C:
		case <-time.After(2 * time.Minute):
			t.Fatal("nobody was woken")
		}
	}
	if _, err := Wake(filepath.Join(home, "nowhere")); err == nil {
		t.Error("a folder that is not there is listened to")
	}
}

// event is one of inotify, as the kernel writes it.
func event(mask uint32, name string) (b []byte) {
	padded := append([]byte(name), make([]byte, 16-len(name)%16)...)
	b = binary.NativeEndian.AppendUint32(b, 1)
	b = binary.NativeEndian.AppendUint32(b, mask)
	b = binary.NativeEndian.AppendUint32(b, 0)
	return append(binary.NativeEndian.AppendUint32(b, uint32(len(padded))), padded...)
}

func TestWhatWakes(t *testing.T) {
	log, other := event(unix.IN_MODIFY, "ravi.db-wal"), event(unix.IN_MODIFY, "ravi.db-wal2")
	for what, c := range map[string]struct {
		events []byte
		want   bool
	}{
		"nothing": {nil, false}, "another file": {other, false}, "the log": {log, true}, "the log behind another": {append(other, log...), true},
		"too many": {event(unix.IN_Q_OVERFLOW, ""), true},
	} {
		if got := named(c.events, "ravi.db-wal"); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}

package link

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What one end of a lane writes the other reads, each way on its own.
func TestLane(t *testing.T) {
	ours, theirs, err := NewLane()
	if err != nil {
		t.Fatal(err)
	}
	size := func() (all [2]int) {
		for i, f := range theirs.Files() {
			if all[i], err = unix.FcntlInt(f.Fd(), unix.F_GETPIPE_SZ, 0); err != nil {
				t.Fatal(err)
			}
		}
		return all
	}
	if got := size(); got[0] > os.Getpagesize() || got[1] > os.Getpagesize() {
		t.Errorf("one that is not used holds %d", got)
	}
	ours.Widen()
	if got := size(); got[0] != laneSize || got[1] != laneSize {
		t.Errorf("one that is used holds %d", got)
	}
	for _, way := range []struct{ from, to *os.File }{{ours.W, theirs.R}, {theirs.W, ours.R}} {
		if _, err := way.from.WriteString("hello"); err != nil {
			t.Fatal(err)
		}
		way.from.Close()
		if b, err := io.ReadAll(way.to); err != nil || string(b) != "hello" {
			t.Errorf("read %q, %v", b, err)
		}
		way.to.Close()
	}
}

// A guest takes its lanes in their order, and what it starts gets none of them.
func TestOpenLanes(t *testing.T) {
	const first, lanes = 700, 2 // where this process has nothing
	var ours []End
	for i := range lanes {
		a, b, err := NewLane()
		if err != nil {
			t.Fatal(err)
		}
		for j, f := range b.Files() {
			if err := unix.Dup3(int(f.Fd()), first+2*i+j, 0); err != nil {
				t.Fatal(err)
			}
		}
		b.Close()
		ours = append(ours, a)
		defer a.Close()
	}
	if _, err := OpenLanes(first, lanes+1); err == nil || !strings.Contains(err.Error(), "descriptor 704 is not") {
		t.Errorf("one that is not there: %v", err)
	}
	if null, err := os.Open(os.DevNull); err != nil {
		t.Fatal(err)
	} else if _, err := OpenLanes(int(null.Fd()), 1); err == nil {
		t.Error("what is no pipe is a lane")
	} else {
		null.Close()
	}
	all, err := OpenLanes(first, lanes)
	if err != nil || len(all) != lanes {
		t.Fatal(len(all), err)
	}
	for i, end := range all {
		defer end.Close()
		if _, err := end.W.Write([]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1)
		if _, err := ours[i].R.Read(b); err != nil || b[0] != byte(i) {
			t.Errorf("lane %d: read %v, %v", i, b, err)
		}
	}
	out, err := exec.Command("ls", "/proc/self/fd").Output()
	if err != nil || strings.Contains(string(out), "70") {
		t.Errorf("a program has %q, %v", out, err)
	}
}

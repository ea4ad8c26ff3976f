package procid

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestSelf(t *testing.T) {
	id, err := Self()
	if err != nil || id.PID != os.Getpid() || id.Start == 0 {
		t.Fatalf("got %v, %v", id, err)
	}
	if !Alive(id) {
		t.Fatal("this process is not alive")
	}
	if stranger := (ID{PID: id.PID, Start: id.Start + 1}); Alive(stranger) {
		t.Fatal("a process with the same number and another start counts as the same")
	}
}

func TestEndOfAProcess(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := Of(cmd.Process.Pid)
	if err != nil || !Alive(id) {
		t.Fatalf("a running child: %v, %v", id, err)
	}
	in.Close()
	// Wait for the end without reaping: the zombie has the number and the start, but runs no more.
	if err := waitUnreaped(id.PID); err != nil {
		t.Fatal(err)
	}
	if Alive(id) {
		t.Error("a zombie counts as alive")
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if Alive(id) {
		t.Error("a reaped process counts as alive")
	}
	if _, err := Of(id.PID); !errors.Is(err, ErrGone) {
		t.Errorf("got %v, want ErrGone", err)
	}
}

func TestNobody(t *testing.T) {
	for _, id := range []ID{{}, {PID: -1}, {PID: 1 << 30, Start: 1}} {
		if Alive(id) {
			t.Errorf("%v is alive", id)
		}
	}
}

func TestParseStat(t *testing.T) {
	tail := " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 424242 20"
	for name, c := range map[string]struct {
		in    string
		start uint64
		bad   bool
	}{
		"plain":           {in: "12 (cat)" + tail, start: 424242},
		"hostile name":    {in: "12 (a) Z 1 2) (b)" + tail, start: 424242},
		"newline in name": {in: "12 (a\nb)" + tail, start: 424242},
		"short":           {in: "12 (cat) S 1", bad: true},
		"no name":         {in: strings.Repeat("1 ", 30), bad: true},
		"not a number":    {in: strings.Replace("12 (cat)"+tail, "424242", "x", 1), bad: true},
		"empty":           {bad: true},
	} {
		state, start, err := parseStat([]byte(c.in))
		if (err != nil) != c.bad || start != c.start || (!c.bad && state != 'S') {
			t.Errorf("%s: got %c, %d, %v", name, state, start, err)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("1 (a) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21"))
	f.Fuzz(func(t *testing.T, in []byte) { parseStat(in) })
}

package guest

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"ravi/internal/guestapi/process"
	"ravi/internal/link"
)

// guestWithLanes is a guest that was born with n lanes, and the owner's ends of them.
func guestWithLanes(t *testing.T, n int) (*guestTest, []link.End) {
	t.Helper()
	var ours, theirs []link.End
	for range n {
		a, b, err := link.NewLane()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { a.Close(); b.Close() })
		ours, theirs = append(ours, a), append(theirs, b)
	}
	return startGuest(t, Options{Lanes: theirs}), ours
}

func withLane(msg *process.StartRequest, number uint32) *process.StartRequest {
	msg.Lane = &number
	return msg
}

// A lane is a process's input and output, of which the agent keeps nothing; errors and the end come the ordinary way.
func TestLane(t *testing.T) {
	g, lanes := guestWithLanes(t, 2)
	r := g.start(t, testContext(t), withLane(sh(`read x; echo "<$x>"; echo trouble >&2; cat; exit 3`), 2))
	if _, err := lanes[1].W.WriteString("one\ntwo"); err != nil {
		t.Fatal(err)
	}
	_, err := g.Process.SendInput(testContext(t), connect.NewRequest(&process.SendInputRequest{
		Process: byPid(r.pid), Input: &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte("x")}},
	}))
	wantCode(t, err, connect.CodeFailedPrecondition)
	lanes[1].W.Close()
	// Its end shows, so nobody else holds it.
	if b, err := io.ReadAll(lanes[1].R); err != nil || string(b) != "<one>\ntwo" {
		t.Errorf("it wrote %q, %v", b, err)
	}
	if end := r.wait(); end.GetExitCode() != 3 || end.GetOutputLeft() {
		t.Errorf("the end is %v", end)
	}
	if r.stdout.Len() != 0 || r.stderr.String() != "trouble\n" {
		t.Errorf("by the link came %q and %q", r.stdout.String(), r.stderr.String())
	}
}

// What a process leaves behind may hold its lane, so no other gets it.
func TestLaneIsUsedOnce(t *testing.T) {
	g, lanes := guestWithLanes(t, 1)
	for _, number := range []uint32{0, 2, 1 << 31} {
		_, err := g.tryStart(t, testContext(t), withLane(sh("exit 0"), number))
		wantCode(t, err, connect.CodeInvalidArgument)
	}
	terminal := withLane(sh("exit 0"), 1)
	terminal.Pty = &process.PTY{Size: &process.PTY_Size{Cols: 80, Rows: 24}}
	_, err := g.tryStart(t, testContext(t), terminal)
	wantCode(t, err, connect.CodeInvalidArgument)
	// What could not be started has not used it.
	lost := filepath.Join(g.home, "lost")
	if err := os.WriteFile(lost, []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range []string{"no-such-command", lost} {
		_, err = g.tryStart(t, testContext(t), withLane(&process.StartRequest{Process: &process.ProcessConfig{Cmd: cmd}}, 1))
		wantCode(t, err, connect.CodeNotFound)
	}
	left := filepath.Join(g.home, "left")
	r := g.start(t, testContext(t), withLane(sh(`(while [ ! -e `+left+` ]; do sleep 0.01; done; echo late) 2>/dev/null & echo soon`), 1))
	if end := r.wait(); end.GetExitCode() != 0 {
		t.Errorf("the end is %v", end)
	}
	_, err = g.tryStart(t, testContext(t), withLane(sh("echo stolen"), 1))
	wantCode(t, err, connect.CodeInvalidArgument)
	if err := os.WriteFile(left, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(lanes[0].R); err != nil || string(b) != "soon\nlate\n" {
		t.Errorf("out came %q, %v", b, err)
	}
}

// However many ask for a lane at once, one gets it.
func TestLaneOfMany(t *testing.T) {
	g, lanes := guestWithLanes(t, 1)
	const many = 16
	got := make(chan error, many)
	for range many {
		go func() {
			r, err := g.tryStart(t, testContext(t), withLane(sh("echo mine"), 1))
			if err == nil {
				err = r.drain()
			}
			got <- err
		}()
	}
	with := 0
	for range many {
		if err := <-got; err == nil {
			with++
		} else {
			wantCode(t, err, connect.CodeInvalidArgument)
		}
	}
	if err := lanes[0].R.SetReadDeadline(time.Time{}); err == nil {
		t.Error("an end that blocks has deadlines: this test is of something else")
	}
	b, err := io.ReadAll(lanes[0].R)
	if with != 1 || err != nil || strings.Count(string(b), "mine") != 1 {
		t.Errorf("%d have it; out came %q, %v", with, b, err)
	}
}

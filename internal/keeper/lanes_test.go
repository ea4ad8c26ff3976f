package keeper

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ravi/internal/link"
)

// keeperOf serves what is asked of a control socket, as a supervisor does.
func keeperOf(t *testing.T, s *supervisor, say ...string) *Handle {
	t.Helper()
	dir := t.TempDir()
	l, err := listen(filepath.Join(dir, ControlSocket))
	if err != nil {
		t.Fatal(err)
	}
	s.lines = make(chan line)
	done, over := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		l.Close()
		close(done)
		<-over // the lanes are its own until then
	})
	go s.accept(l)
	go func() {
		defer close(over)
		for {
			select {
			case got := <-s.lines:
				if got.req == nil {
					got.conn.Close()
					continue
				}
				for _, text := range say {
					_, _ = got.conn.Write([]byte(text)) // the caller may have gone
				}
				s.giveLane(got.conn)
			case <-done:
				return
			}
		}
	}()
	return &Handle{dir: dir}
}

// newSupervisor has lanes, of which the guest's ends are given.
func newSupervisor(t *testing.T, p Plan) (*supervisor, []*os.File) {
	t.Helper()
	s := &supervisor{plan: p}
	guest, err := s.makeLanes()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, f := range guest {
			f.Close()
		}
		for _, l := range s.lanes {
			l.Close()
		}
	})
	return s, guest
}

// Each lane is handed out once, in the order of the guest's descriptors, and is then the owner's alone.
func TestLanesAreHandedOut(t *testing.T) {
	s, guest := newSupervisor(t, Plan{Lanes: 2})
	// What is told to all comes on the same connection.
	h := keeperOf(t, s, "{\"event\":\"ready\"}\n", "{\"op\":\"stats\"}\n{\"event\":", "\"x\"}\n")
	for i := range 2 {
		lane, err := h.Lane(t.Context())
		if err != nil || lane.Number != uint32(i+1) {
			t.Fatalf("lane %d: %d, %v", i+1, lane.Number, err)
		}
		in, out := guest[2*i], guest[2*i+1]
		if _, err := lane.W.WriteString("to"); err != nil {
			t.Fatal(err)
		}
		if _, err := out.WriteString("fro"); err != nil {
			t.Fatal(err)
		}
		out.Close()
		if b, err := io.ReadAll(lane.R); err != nil || string(b) != "fro" {
			t.Errorf("lane %d: read %q, %v", i+1, b, err)
		}
		for _, f := range lane.Files() {
			if size, err := unix.FcntlInt(f.Fd(), unix.F_GETPIPE_SZ, 0); err != nil || size < 64<<10 {
				t.Errorf("lane %d holds %d bytes: %v", i+1, size, err)
			}
			flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
			if err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("lane %d passes to programs: %v", i+1, err)
			}
		}
		// The supervisor has kept nothing: the end comes with the owner's.
		lane.Close()
		if b, err := io.ReadAll(in); err != nil || string(b) != "to" {
			t.Errorf("lane %d: the guest read %q, %v", i+1, b, err)
		}
	}
	if _, err := h.Lane(t.Context()); !errors.Is(err, ErrNoLane) || !strings.Contains(err.Error(), "it had 2") {
		t.Errorf("a third: %v", err)
	}
}

func TestNoLanes(t *testing.T) {
	for _, tc := range []struct {
		plan Plan
		want string
	}{{Plan{}, "this kind"}, {Plan{Lanes: 2, Resume: true}, "restored"}} {
		s, guest := newSupervisor(t, tc.plan)
		if len(guest) != 2*tc.plan.Lanes {
			t.Errorf("%+v: the guest gets %d descriptors", tc.plan, len(guest))
		}
		if _, err := keeperOf(t, s).Lane(t.Context()); !errors.Is(err, ErrNoLane) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v", tc.plan, err)
		}
		// What was in use when the sandbox was saved sees its end.
		for i := 0; i < len(guest); i += 2 {
			if b, err := io.ReadAll(guest[i]); err != nil || len(b) != 0 {
				t.Errorf("%+v: read %q, %v", tc.plan, b, err)
			}
		}
	}
}

// Whatever answers, nothing is taken for a lane that is none, no descriptor is left open, and nobody waits for ever.
func TestAnswersThatAreNoLane(t *testing.T) {
	lane, guest, err := link.NewLane()
	if err != nil {
		t.Fatal(err)
	}
	defer lane.Close()
	two := []int{int(guest.R.Fd()), int(guest.W.Fd())}
	for name, tc := range map[string]struct {
		say string
		fds []int
	}{
		"none":                {`{"op":"lane","lane":1}` + "\n", nil},
		"one":                 {`{"op":"lane","lane":1}` + "\n", two[:1]},
		"no number":           {`{"op":"lane"}` + "\n", two},
		"an error":            {`{"op":"lane","lane":1,"error":"no"}` + "\n", two},
		"no JSON":             {"lane 1\n", two},
		"half a line":         {`{"op":"lane","lane":1}`, two},
		"nothing":             {"", nil},
		"a line without end":  {strings.Repeat("x", maxLine+8<<10), nil},
		"another's answer":    {`{"op":"stats","lane":1}` + "\n", two},
		"no descriptors then": {`{"op":"lane","error":"none"}` + "\n", two},
	} {
		ours, theirs := pair(t)
		go func() {
			to := theirs.(*net.UnixConn)
			if tc.say != "" {
				var rights []byte
				if tc.fds != nil {
					rights = unix.UnixRights(tc.fds...)
				}
				n, _, _ := to.WriteMsgUnix([]byte(tc.say), rights, nil)
				_, _ = to.Write([]byte(tc.say[n:])) // it stops to listen at some length
			}
			to.Close()
		}()
		before := open(t)
		got, err := askLane(ours.(*net.UnixConn))
		if err == nil {
			got.Close()
			t.Errorf("%s: it is a lane", name)
		}
		if after := open(t); after > before {
			t.Errorf("%s: %d descriptors are open, %d before", name, after, before)
		}
		ours.Close()
	}
	guest.Close()
	s, _ := newSupervisor(t, Plan{Lanes: 1})
	h := keeperOf(t, s)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(io.ErrNoProgress)
	if _, err := h.Lane(ctx); !errors.Is(err, io.ErrNoProgress) && !errors.Is(err, context.Canceled) {
		t.Errorf("one that has gone: %v", err)
	}
	if _, err := (&Handle{dir: t.TempDir()}).Lane(t.Context()); !errors.Is(err, ErrGone) {
		t.Errorf("of a keeper that is gone: %v", err)
	}
}

// open counts the pipes that this process has open.
func open(t *testing.T) (n int) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, "pipe:") {
			n++
		}
	}
	return n
}

package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/link"
)

// Lane is the owner's end of a lane: R is what the process writes, W what it
// reads. The guest knows it by its number, which begins with 1.
type Lane struct {
	Number uint32
	link.End
}

// ErrNoLane says that a sandbox has no lane to give.
var ErrNoLane = errors.New("the sandbox has no lane to give")

// makeLanes makes the plan's lanes, and returns the guest's ends.
func (s *supervisor) makeLanes() ([]*os.File, error) {
	var guest []*os.File
	for i := range s.plan.Lanes {
		ours, theirs, err := link.NewLane()
		if err != nil {
			return nil, err
		}
		guest = append(guest, theirs.Files()...)
		if s.plan.Resume {
			// The guest needs something in the place of those that it had. Which
			// of them it has used, nobody here knows.
			ours.Close()
			continue
		}
		s.lanes = append(s.lanes, Lane{uint32(i + 1), ours})
	}
	return guest, nil
}

// giveLane hands out the next lane. Nothing of it stays here: not a byte of it
// is read by the supervisor, and what the guest writes to one that nobody has
// stays in its pipe.
func (s *supervisor) giveLane(c net.Conn) {
	none := func(why string) { s.answer(c, Reply{Op: "lane", Error: why}) }
	to, ok := c.(*net.UnixConn)
	switch {
	case !ok || s.plan.Lanes == 0:
		none("this kind has none")
		return
	case s.plan.Resume:
		none("one that was restored has none")
		return
	case len(s.lanes) == 0:
		none(fmt.Sprintf("it had %d, and each serves one process", s.plan.Lanes))
		return
	}
	lane := s.lanes[0]
	s.lanes = s.lanes[1:]
	defer lane.Close()
	b, err := json.Marshal(Reply{Op: "lane", Lane: lane.Number})
	if err != nil {
		return // cannot happen: Reply has only plain fields
	}
	_ = to.SetWriteDeadline(time.Now().Add(2 * time.Second))
	// Whoever does not get it has gone.
	_, _, _ = to.WriteMsgUnix(append(b, '\n'), unix.UnixRights(int(lane.R.Fd()), int(lane.W.Fd())), nil)
}

// Lane takes a lane of the sandbox, which serves one process; ErrNoLane, with
// the reason, if there is none left. Who takes it closes it.
func (h *Handle) Lane(ctx context.Context) (Lane, error) {
	// Descriptors are asked for on a connection of its own, on which nothing
	// else comes but what is told to all.
	conn, err := dialIn(ctx, h.dir, ControlSocket)
	if err != nil {
		return Lane{}, fmt.Errorf("%w: %w", ErrGone, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	lane, err := askLane(conn.(*net.UnixConn))
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return lane, err
}

func askLane(conn *net.UnixConn) (lane Lane, err error) {
	b, err := json.Marshal(Request{Op: "lane"})
	if err != nil {
		return lane, err
	}
	if _, err := conn.Write(append(b, '\n')); err != nil {
		return lane, fmt.Errorf("%w: %w", ErrGone, err)
	}
	var got []int
	defer func() {
		for _, fd := range got {
			unix.Close(fd)
		}
	}()
	said, buf, rights := []byte(nil), make([]byte, 4<<10), make([]byte, unix.CmsgSpace(2*4))
	for len(said) <= maxLine {
		n, m, _, _, err := conn.ReadMsgUnix(buf, rights)
		if fds, err := descriptors(rights[:m]); err == nil {
			got = append(got, fds...)
		}
		if n == 0 || err != nil {
			return lane, errors.Join(ErrGone, err)
		}
		said = append(said, buf[:n]...)
		for {
			one, rest, whole := bytes.Cut(said, []byte{'\n'})
			if !whole {
				break
			}
			said = rest
			var m Reply
			if err := json.Unmarshal(one, &m); err != nil {
				return lane, fmt.Errorf("the keeper's answer: %w", err)
			}
			switch {
			case m.Op != "lane": // an event
			case m.Error != "": // which is also what a keeper says that knows of none
				return lane, fmt.Errorf("%w: %s", ErrNoLane, m.Error)
			case m.Lane == 0 || len(got) != 2:
				return lane, fmt.Errorf("the keeper's answer holds no lane, but %d descriptors", len(got))
			default:
				if lane.End, err = openLane(got[0], got[1]); err != nil {
					return lane, err
				}
				lane.Number, got = m.Lane, nil
				return lane, nil
			}
		}
	}
	return lane, fmt.Errorf("the keeper says more than %d bytes", maxLine)
}

// descriptors are those that came with a message.
func descriptors(rights []byte) ([]int, error) {
	all, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return unix.ParseUnixRights(&all[0])
}

// openLane makes files of an owner's end that can be waited for with a limit.
func openLane(r, w int) (link.End, error) {
	for _, fd := range []int{r, w} {
		if err := unix.SetNonblock(fd, true); err != nil {
			return link.End{}, err
		}
	}
	end := link.End{R: os.NewFile(uintptr(r), "lane"), W: os.NewFile(uintptr(w), "lane")}
	end.Widen()
	return end, nil
}

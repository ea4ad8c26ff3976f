package keeper

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Handle is an owner's hold on one keeper. It may be used by several
// goroutines.
type Handle struct {
	dir  string
	conn net.Conn

	wired chan struct{} // closed once the relay can be called
	ready chan struct{} // closed once the sandbox is made or has failed
	ended chan struct{} // closed once it is gone

	asking  sync.Mutex // one request at a time
	answers chan Reply
	pid     int

	mu     sync.Mutex // guards what follows
	plan   *Plan      // of an owner, who cleans up after a supervisor that was killed
	relay  seenProc
	failed *Reply
	notes  []string
	end    Reply
	let    bool // go of the sandbox, which may live on
}

// Start starts a supervisor, program being ravi-keeper, and hands it the plan.
// It does not wait until the sandbox is made: see Ready. attr may place the
// supervisor in namespaces. The supervisor, and no other process, has the files
// of held open for as long as it lives.
func Start(program string, plan Plan, attr *syscall.SysProcAttr, held ...*os.File) (*Handle, error) {
	b, err := json.Marshal(plan)
	if err != nil {
		return nil, err
	}
	// Written down before anything is made, for whoever must clean up or
	// attaches, and never half.
	note := func(name string, b []byte) error {
		path := filepath.Join(plan.Dir, name)
		return errors.Join(os.WriteFile(path+".new", b, 0o600), os.Rename(path+".new", path))
	}
	if plan.Owner != nil {
		err = note(OwnerFile, plan.Owner)
	}
	if err := errors.Join(err, note(PlanFile, b)); err != nil {
		return nil, fmt.Errorf("recording the sandbox: %w", err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control-end")
	defer theirs.Close()
	defer ours.Close()
	if attr == nil {
		attr = &syscall.SysProcAttr{}
	}
	attr.Setsid = true // a terminal's signals are for the owner alone
	cmd := &exec.Cmd{
		Path:        program,
		Args:        []string{"ravi-keeper", "supervise"},
		Env:         []string{"GOMAXPROCS=1", "GOGC=50"},
		Dir:         "/",
		ExtraFiles:  append([]*os.File{theirs}, held...),
		SysProcAttr: attr,
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start the keeper %s: %w", program, err)
	}
	go func() { _ = cmd.Wait() }() // reap it; its end shows on the socket
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(append(b, '\n')); err != nil {
		conn.Close()
		return nil, fmt.Errorf("handing the keeper its plan: %w", err)
	}
	h := newHandle(plan.Dir, &plan, conn)
	h.pid = cmd.Process.Pid
	return h, nil
}

func newHandle(dir string, plan *Plan, conn net.Conn) *Handle {
	h := &Handle{
		dir: dir, conn: conn, plan: plan,
		wired: make(chan struct{}), ready: make(chan struct{}), ended: make(chan struct{}),
		answers: make(chan Reply, 1),
	}
	if plan == nil {
		close(h.wired) // whoever started it saw to that
	}
	go h.listen()
	return h
}

func (h *Handle) listen() {
	r := bufio.NewReader(h.conn)
	var once sync.Once
	made := func() { once.Do(func() { close(h.ready) }) }
	last, told := Reply{Event: "ended", Reason: ReasonRelay}, false
	failed := Reply{Event: "failed", Reason: ReasonRelay, Error: "the sandbox's keeper ended without a word"}
	for {
		var m Reply
		if err := readLine(r, &m); err != nil {
			break
		}
		h.mu.Lock()
		switch m.Event {
		case "wired":
			h.relay = seenProc{pid: m.RelayPID, start: m.RelayStart}
			h.mu.Unlock()
			close(h.wired)
		case "ready":
			h.notes = m.Notes
			h.mu.Unlock()
			made()
		case "failed":
			h.failed = &m
			h.mu.Unlock()
			made()
		case "ended":
			last, told = m, true
			h.mu.Unlock()
		default:
			h.mu.Unlock()
			select {
			case h.answers <- m:
			default:
			}
		}
	}
	h.mu.Lock()
	let, plan, relay := h.let, h.plan, h.relay
	h.mu.Unlock()
	if let && !told {
		last.Reason = ReasonDetached
	}
	if !told && !let && plan != nil {
		// The supervisor was killed before it could remove anything. The
		// relay's end is under way then, and until it is over a maker may make
		// again what is removed here.
		if err := errors.Join(relay.endNow(time.Now().Add(removeTime)), Remove(*plan)); err != nil {
			last.Error = err.Error()
		}
	}
	h.mu.Lock()
	h.end = last
	if told {
		failed.Error, failed.Reason, failed.Detail = last.Error, last.Reason, last.Detail
	}
	if h.failed == nil {
		h.failed = &failed
	}
	h.mu.Unlock()
	close(h.ended)
	made()
}

// Ready waits until the sandbox is made. What it returns besides an error are
// things that the user should be told once.
func (h *Handle) Ready(ctx context.Context) ([]string, error) {
	select {
	case <-h.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failed != nil {
		return nil, &Failure{Reply: *h.failed}
	}
	return h.notes, nil
}

// Failure is why a keeper could not do what it was asked.
type Failure struct{ Reply }

func (f *Failure) Error() string {
	switch {
	case f.Reply.Error != "":
		return f.Reply.Error
	case f.Reply.Detail != "":
		return "the sandbox ended: " + f.Reply.Reason + ": " + f.Reply.Detail
	default:
		return "the sandbox ended: " + f.Reply.Reason
	}
}

// Ended is closed once the sandbox, and all that was made for it, is gone.
func (h *Handle) Ended() <-chan struct{} { return h.ended }

// End says why it ended; valid after Ended.
func (h *Handle) End() Reply {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.end
}

// PID is the supervisor's process id.
func (h *Handle) PID() int { return h.pid }

// Dial connects to the relay, which serves the guest agent's protocol. That may
// be before the guest agent is there; what is asked of it then waits.
func (h *Handle) Dial(ctx context.Context) (net.Conn, error) {
	select {
	case <-h.wired:
		return dialIn(ctx, h.dir, LinkSocket)
	case <-h.ended:
		return nil, ErrGone
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// ask sends one request and waits for its answer.
func (h *Handle) ask(ctx context.Context, req Request) (Reply, error) {
	h.asking.Lock()
	defer h.asking.Unlock()
	b, err := json.Marshal(req)
	if err != nil {
		return Reply{}, err
	}
	if _, err := h.conn.Write(append(b, '\n')); err != nil {
		return Reply{}, fmt.Errorf("%w: %w", ErrGone, err)
	}
	for {
		select {
		case m := <-h.answers:
			if m.Op != req.Op {
				continue // the late answer to a request that was given up
			}
			if m.Error != "" {
				return m, &Failure{Reply: m}
			}
			return m, nil
		case <-h.ended:
			return Reply{}, ErrGone
		case <-ctx.Done():
			return Reply{}, context.Cause(ctx)
		}
	}
}

// Pause freezes everything in the sandbox; Resume lets it go on.
func (h *Handle) Pause(ctx context.Context) error {
	_, err := h.ask(ctx, Request{Op: "pause"})
	return err
}

// Resume undoes Pause.
func (h *Handle) Resume(ctx context.Context) error {
	_, err := h.ask(ctx, Request{Op: "resume"})
	return err
}

// Checkpoint saves the sandbox's state in dir; the sandbox goes on.
func (h *Handle) Checkpoint(ctx context.Context, dir string) error {
	_, err := h.ask(ctx, Request{Op: "checkpoint", Dir: dir})
	return err
}

// Stats asks what the host sees of the sandbox.
func (h *Handle) Stats(ctx context.Context) (Stats, error) {
	m, err := h.ask(ctx, Request{Op: "stats"})
	if err != nil || m.Stats == nil {
		return Stats{}, err
	}
	return *m.Stats, nil
}

// Close ends the sandbox and waits until all of it is gone. It is idempotent.
func (h *Handle) Close(ctx context.Context) error {
	return h.EndFor(ctx, ReasonClosed)
}

// EndFor is Close with a reason of the caller's.
func (h *Handle) EndFor(ctx context.Context, reason string) error {
	b, err := json.Marshal(Request{Op: "end", Reason: reason})
	if err != nil {
		return err
	}
	_, _ = h.conn.Write(append(b, '\n')) // if this fails it is over already
	select {
	case <-h.ended:
	case <-ctx.Done():
		return fmt.Errorf("waiting for the sandbox's end: %w", context.Cause(ctx))
	}
	h.conn.Close()
	if end := h.End(); end.Error != "" {
		return errors.New(end.Error)
	}
	return nil
}

// Detach lets go of the sandbox without ending it, for another owner to attach
// within the grace.
func (h *Handle) Detach() {
	h.mu.Lock()
	h.let = true
	h.mu.Unlock()
	h.conn.Close()
	<-h.ended
}

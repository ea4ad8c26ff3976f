package keeper

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/link"
	"ravi/internal/network/tap"
)

// supervisor is the privileged half of a keeper. All of it runs on the main
// goroutine, which is locked to the main thread, for two reasons: children are
// tied to the thread that started them by PR_SET_PDEATHSIG, and the process
// namespace for children belongs to one thread.
type supervisor struct {
	plan  Plan
	relay *exec.Cmd
	maker *exec.Cmd
	exits chan exit
	lines chan line
	conns map[net.Conn]*peer
	// notes are what the maker wants the owner to know.
	notes []string
	ready bool
	net   netParts
	// lanes are the owner's ends of those that nobody has yet, by their numbers.
	lanes []Lane
	// makerDone gets the maker's answer.
	makerDone chan MakerReply
	makerLog  *os.File
	// wired is which process the relay is.
	wired Reply
}

// exit says that a child ended.
type exit struct {
	cmd   *exec.Cmd
	state *os.ProcessState
}

// line is one request, or with a nil request the end of a connection.
type line struct {
	conn net.Conn
	req  *Request
}

// peer is one connection on the control socket.
type peer struct{ owner bool }

// Supervise runs the supervisor: control is the connection to the owner that
// started it, whose end is the owner's end. The caller must have locked the
// main thread. It returns when the sandbox and all that was made for it is
// gone.
func Supervise(control *os.File) error {
	conn, err := net.FileConn(control)
	if err != nil {
		return fmt.Errorf("the control socket: %w", err)
	}
	control.Close()
	r := bufio.NewReaderSize(conn, 64<<10)
	var plan Plan
	if err := readLine(r, &plan); err != nil {
		return fmt.Errorf("reading the plan: %w", err)
	}
	s := &supervisor{
		plan:      plan,
		exits:     make(chan exit, 4),
		lines:     make(chan line),
		conns:     map[net.Conn]*peer{conn: {owner: true}},
		makerDone: make(chan MakerReply, 4),
	}
	go s.read(conn, r)
	reason := s.run()
	detail := s.tailOfLog()
	err = s.remove()
	last := Reply{Event: "ended", Reason: reason, Detail: detail}
	if err != nil {
		last.Error = err.Error()
	}
	s.tell(last)
	return err
}

func (s *supervisor) run() (reason string) {
	if s.plan.SameProcesses {
		// Whatever a process of the sandbox leaves behind becomes a child of
		// this one, and so is found in the end.
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			s.tell(Reply{Event: "failed", Error: "cannot adopt the sandbox's orphans: " + err.Error()})
			return ReasonFailed
		}
	}
	listener, guestEnd, err := s.wires()
	if err != nil {
		s.tell(Reply{Event: "failed", Error: err.Error()})
		return ReasonFailed
	}
	go s.accept(listener)
	defer listener.Close()
	if s.plan.Network != nil {
		if err := s.plug(); err != nil {
			hint := ""
			if errors.Is(err, tap.ErrNoDevice) {
				hint = "let users make network devices, as most distributions do: sudo chmod 0666 /dev/net/tun; or run ravi as root"
			}
			s.tell(Reply{Event: "failed", Error: err.Error(), Hint: hint})
			return ReasonFailed
		}
		guestEnd = append(guestEnd, s.net.namespace)
	}
	lanes, err := s.makeLanes()
	if err != nil {
		s.tell(Reply{Event: "failed", Error: err.Error()})
		return ReasonFailed
	}
	guestEnd = append(guestEnd, lanes...)
	relay, _ := look(s.relay.Process.Pid) // of one that has ended nothing is left to end
	s.wired = Reply{Event: "wired", RelayPID: relay.pid, RelayStart: relay.start}
	s.tell(s.wired)
	if err := s.startMaker("make", "", guestEnd); err != nil {
		s.tell(Reply{Event: "failed", Error: err.Error()})
		return ReasonFailed
	}
	for _, f := range guestEnd {
		f.Close()
	}

	var grace <-chan time.Time
	pending := "" // the request that a maker is at work on
	var asker net.Conn
	for {
		select {
		case e := <-s.exits:
			switch {
			case e.cmd == s.relay:
				return s.whyRelayEnded(e.state)
			case e.cmd == s.net.gateway, e.cmd == s.net.dialer:
				return s.whyEnded(ReasonNetwork)
			case e.cmd == s.maker:
				s.maker = nil
				if s.plan.Stays && s.ready {
					return s.whyMakerEnded()
				}
			}

		case m := <-s.makerDone:
			if !s.ready {
				if m.Error != "" {
					s.tell(Reply{Event: "failed", Error: m.Error, Hint: m.Hint, Reason: s.whyEnded(ReasonFailed)})
					return ReasonFailed
				}
				s.ready, s.notes = true, m.Notes
				s.tell(Reply{Event: "ready", Notes: m.Notes})
				continue
			}
			s.answer(asker, Reply{Op: pending, Error: m.Error, Hint: m.Hint})
			pending = ""

		case l := <-s.lines:
			p := s.conns[l.conn]
			if p == nil {
				p = &peer{}
				s.conns[l.conn] = p
			}
			if l.req == nil {
				l.conn.Close()
				delete(s.conns, l.conn)
				if !p.owner {
					continue
				}
				if s.plan.Grace <= 0 {
					return ReasonOwnerGone
				}
				grace = time.After(s.plan.Grace)
				continue
			}
			switch req := *l.req; req.Op {
			case "attach", "watch":
				r := Reply{Op: req.Op}
				if req.Op == "attach" {
					if !p.owner && s.owned() {
						s.answer(l.conn, Reply{Op: req.Op, Error: ErrOwned.Error(), Reason: reasonOwned})
						continue
					}
					p.owner, grace = true, nil
					if req.Grace != nil {
						s.plan.Grace = *req.Grace
					}
					r.RelayPID, r.RelayStart = s.wired.RelayPID, s.wired.RelayStart
				}
				s.answer(l.conn, r)
				if s.ready {
					s.answer(l.conn, Reply{Event: "ready", Notes: s.notes})
				}
			case "network":
				r := Reply{Op: req.Op}
				if err := s.replacePolicy(req.Policy); err != nil {
					r.Error = err.Error()
				}
				s.answer(l.conn, r)
			case "lane":
				s.giveLane(l.conn)
			case "stats":
				st := s.stats()
				s.answer(l.conn, Reply{Op: req.Op, Stats: &st})
			case "end":
				if req.Reason == "" {
					return ReasonClosed
				}
				return req.Reason
			case "pause", "resume", "checkpoint":
				switch {
				case s.plan.Stays:
					s.answer(l.conn, Reply{Op: req.Op, Error: "this kind of sandbox cannot do that"})
				case !s.ready || pending != "":
					s.answer(l.conn, Reply{Op: req.Op, Error: "the sandbox cannot do this now", Hint: "wait until it is made and what was asked before is done"})
				default:
					if err := s.startMaker(req.Op, req.Dir, nil); err != nil {
						s.answer(l.conn, Reply{Op: req.Op, Error: err.Error()})
						continue
					}
					pending, asker = req.Op, l.conn
				}
			default:
				s.answer(l.conn, Reply{Op: req.Op, Error: fmt.Sprintf("unknown request %q", req.Op)})
			}

		case <-grace:
			return ReasonOwnerGone
		}
	}
}

// stats is what the host sees of the sandbox.
func (s *supervisor) stats() Stats {
	if !s.plan.Stays {
		return readStats(s.plan.Cgroup)
	}
	// On the host the kernel may count nothing for it. All of it descends from
	// this process.
	return (&tree{id: s.plan.ID, root: os.Getpid()}).stats(s.relay.Process.Pid)
}

// wires makes the two sockets that the owner uses and the link, and starts the
// relay, which becomes PID 1 of the sandbox's process namespace if that has one.
func (s *supervisor) wires() (net.Listener, []*os.File, error) {
	control, err := listen(filepath.Join(s.plan.Dir, ControlSocket))
	if err != nil {
		return nil, nil, err
	}
	linkListener, err := listen(filepath.Join(s.plan.Dir, LinkSocket))
	if err != nil {
		return nil, nil, err
	}
	defer linkListener.Close()
	served, err := linkListener.File()
	if err != nil {
		return nil, nil, err
	}
	defer served.Close()
	ours, theirs, err := link.New()
	if err != nil {
		return nil, nil, err
	}
	defer ours.Close()

	s.relay = &exec.Cmd{
		Path:       s.plan.Relay,
		Args:       []string{"ravi-relay", fmt.Sprint(s.plan.RelayUID), fmt.Sprint(s.plan.RelayGID)},
		Env:        s.relayEnv(),
		Stderr:     s.log(),
		ExtraFiles: append(ours.Files(), served),
		SysProcAttr: &syscall.SysProcAttr{
			Pdeathsig:  syscall.SIGKILL,
			Setsid:     true,
			Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS,
		},
	}
	if s.plan.SameProcesses && os.Geteuid() != 0 {
		// An ordinary user has no namespaces to put it in, and the sandbox is
		// not in one. It gives up system calls and memory all the same.
		s.relay.SysProcAttr.Cloneflags = 0
	}
	if err := s.start(s.relay); err != nil {
		return nil, nil, fmt.Errorf("cannot start the relay in a process namespace of its own: %w", err)
	}
	if s.plan.SameProcesses {
		return control, theirs.Files(), nil
	}
	// From here on every child of this thread is born into that namespace.
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", s.relay.Process.Pid))
	if err != nil {
		return nil, nil, err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWPID); err != nil {
		return nil, nil, fmt.Errorf("cannot enter the sandbox's process namespace: %w", err)
	}
	return control, theirs.Files(), nil
}

func (s *supervisor) relayEnv() []string {
	env := []string{"GOMEMLIMIT=96MiB", "GOMAXPROCS=2"}
	if s.plan.Resume {
		env = append(env, link.EnvToken+"="+s.plan.LinkToken)
	}
	return env
}

// start starts a child and reports its end on s.exits.
func (s *supervisor) start(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		// The error of Wait is the state once more.
		_ = cmd.Wait()
		s.exits <- exit{cmd, cmd.ProcessState}
	}()
	return nil
}

func (s *supervisor) log() *os.File {
	if s.makerLog == nil {
		f, err := os.OpenFile(filepath.Join(s.plan.Dir, MakerLog), os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil // the null device; the log is a help, not a need
		}
		s.makerLog = f
	}
	return s.makerLog
}

// startMaker starts the maker for one operation; its answer comes on
// s.makerDone.
func (s *supervisor) startMaker(op, dir string, guestEnd []*os.File) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "maker"), os.NewFile(uintptr(fds[1]), "maker-end")
	defer theirs.Close()
	cmd := &exec.Cmd{
		Path:        s.plan.Maker,
		Args:        s.plan.MakerArgs,
		Env:         []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Dir:         "/",
		Stderr:      s.log(),
		ExtraFiles:  append([]*os.File{theirs}, guestEnd...),
		SysProcAttr: &syscall.SysProcAttr{Setsid: true}, // it dies with the relay, its init
	}
	if !s.plan.KeepMounts {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNS
	}
	if err := s.start(cmd); err != nil {
		ours.Close()
		return fmt.Errorf("cannot start %s: %w", s.plan.Maker, err)
	}
	s.maker = cmd
	req := MakerRequest{Op: op, Dir: dir, Request: s.plan.Request}
	go func() {
		defer ours.Close()
		var reply MakerReply
		// A maker that is gone shows in the reading.
		_ = json.NewEncoder(ours).Encode(req)
		if err := readLine(bufio.NewReader(ours), &reply); err != nil {
			reply.Error = "the maker ended without an answer"
			if tail := s.tailOfLog(); tail != "" {
				reply.Error += ": " + tail
			}
		}
		s.makerDone <- reply
	}()
	return nil
}

// tailOfLog is the last part of what the maker said, for an error message.
func (s *supervisor) tailOfLog() string {
	b, err := os.ReadFile(filepath.Join(s.plan.Dir, MakerLog))
	if err != nil {
		return ""
	}
	const most = 2000
	if len(b) > most {
		b = b[len(b)-most:]
	}
	return strings.TrimSpace(string(b))
}

// whyEnded is oom when the kernel has killed for memory, and else what the
// caller thinks.
func (s *supervisor) whyEnded(otherwise string) string {
	if readStats(s.plan.Cgroup).OOMKills > 0 {
		return ReasonOOM
	}
	return otherwise
}

// whyMakerEnded is for a maker that is the sandbox. It ends before the relay
// also when it is the relay that ended, since the init of a process namespace
// takes all in it along first.
func (s *supervisor) whyMakerEnded() string {
	select {
	case e := <-s.exits:
		if e.cmd == s.relay {
			return s.whyRelayEnded(e.state)
		}
	case <-time.After(time.Second):
	}
	return s.whyEnded(ReasonDied)
}

func (s *supervisor) whyRelayEnded(st *os.ProcessState) string {
	switch st.ExitCode() {
	case RelayLinkClosed:
		return s.whyEnded(ReasonDied)
	case RelayViolation:
		return ReasonViolation
	default:
		return s.whyEnded(ReasonRelay)
	}
}

// remove ends every process of the sandbox and removes what was made for it.
func (s *supervisor) remove() error {
	if s.relay != nil && s.relay.Process != nil && s.relay.ProcessState == nil {
		// The relay is the init of the process namespace: the kernel kills the
		// rest, and the wait returns only when nothing is left of it.
		_ = s.relay.Process.Kill()
		for s.relay.ProcessState == nil {
			e := <-s.exits
			if e.cmd == s.relay {
				break
			}
		}
	}
	if s.plan.SameProcesses {
		err := (&tree{id: s.plan.ID, root: os.Getpid()}).end(time.Now().Add(removeTime))
		s.reap()
		if err != nil {
			return errors.Join(err, Remove(s.plan))
		}
	}
	return Remove(s.plan)
}

// reap collects the children that were adopted. Of those that were started
// here the relay is over by now, and nobody asks for the maker's state.
func (s *supervisor) reap() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if pid <= 0 && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// removeTime bounds how long the end of a sandbox's processes is awaited.
const removeTime = 5 * time.Second

// Remove removes what a plan names: processes by their control group or their
// mark, the groups and the directory. It is idempotent; the sweep calls it for
// a sandbox whose supervisor was killed.
func Remove(p Plan) error {
	deadline := time.Now().Add(removeTime)
	err := killCgroup(p.Cgroup, deadline)
	if p.SameProcesses {
		err = errors.Join(err, (&tree{id: p.ID}).end(deadline))
	}
	return errors.Join(err, removeCgroups(p.Cgroup, deadline), removeDir(p.Dir))
}

// owned says whether the sandbox has an owner that lives. There is one at most.
// That one is gone shows in the reading, which may come after another has asked
// to take over; so it is looked at here. One that has hung up is no owner from
// now on.
func (s *supervisor) owned() bool {
	for c, p := range s.conns {
		if p.owner && !hungUp(c) {
			return true
		}
		p.owner = false
	}
	return false
}

// tell sends an event to everyone who listens.
func (s *supervisor) tell(r Reply) {
	for c := range s.conns {
		s.answer(c, r)
	}
}

func (s *supervisor) answer(c net.Conn, r Reply) {
	if c == nil {
		return
	}
	b, err := json.Marshal(r)
	if err != nil {
		return // cannot happen: Reply has only plain fields
	}
	// An owner that does not read must not stop the supervisor.
	_ = c.SetWriteDeadline(time.Now().Add(2 * time.Second))
	_, _ = c.Write(append(b, '\n'))
}

func (s *supervisor) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go s.read(c, bufio.NewReader(c))
	}
}

func (s *supervisor) read(c net.Conn, r *bufio.Reader) {
	for {
		var req Request
		if err := readLine(r, &req); err != nil {
			s.lines <- line{c, nil}
			return
		}
		s.lines <- line{c, &req}
	}
}

// listen makes a unix socket in a directory that only its owner can enter,
// closed to others from its first moment.
func listen(path string) (*net.UnixListener, error) {
	old := unix.Umask(0o177)
	defer unix.Umask(old)
	// By way of the open directory the path is short; a unix address holds 108
	// bytes.
	dir, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	short := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	return l, nil
}

func readLine(r *bufio.Reader, into any) error {
	var b []byte
	for {
		part, err := r.ReadSlice('\n')
		b = append(b, part...)
		if len(b) > maxLine {
			return fmt.Errorf("a line of more than %d bytes", maxLine)
		}
		if err == nil {
			return json.Unmarshal(b, into)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			if errors.Is(err, io.EOF) && len(b) > 0 {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
}

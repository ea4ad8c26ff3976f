package guest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/guestapi"
	"ravi/internal/guestapi/process"
	"ravi/internal/link"
)

// proc is a started process.
type proc struct {
	// heard says that it got input since its last output: what it writes then is an answer that somebody waits for.
	heard  atomic.Bool
	pid    int
	id     string // its mark in the environment, which its descendants inherit
	tag    string
	user   string
	config *process.ProcessConfig
	out    *output

	stdinMu sync.Mutex // keeps writes whole and in order
	stdin   *os.File   // nil when there is none
	master  *os.File   // the terminal, nil without one

	killed atomic.Bool   // by killTree
	exited chan struct{} // closed when the process itself is over

	mu       sync.Mutex
	oom      bool
	timedOut bool
}

// startSpec is what a process is started with.
type startSpec struct {
	config  *process.ProcessConfig
	tag     string
	user    account
	env     []string // whole, the mark excepted
	cwd     string
	stdin   bool
	size    *process.PTY_Size // non-nil for a terminal
	lane    uint32            // 0: its input and output go through here
	attach  bool
	onEnded func(*proc)
}

// drainAfterExit is how long the output of an ended process is awaited when
// something else holds it open.
const drainAfterExit = time.Second

// markName is the variable whose value tells to which started process another
// one belongs, however it was forked.
const markName = "RAVI_PROC"

// start starts a process. With spec.attach the returned reader has it all
// from the first byte.
func (s *Server) start(spec startSpec) (_ *proc, _ *outputReader, err error) {
	if err := checkDir(spec.cwd); err != nil {
		return nil, nil, err
	}
	path, err := lookPath(spec.config.GetCmd(), spec.cwd, spec.env)
	if err != nil {
		return nil, nil, err
	}
	p := &proc{
		id:     randomID(),
		tag:    spec.tag,
		user:   spec.user.name,
		config: spec.config,
		out:    newOutput(s.opts.SpoolDir, s.opts.SpoolBytes),
		exited: make(chan struct{}),
	}
	attr := &syscall.ProcAttr{
		Dir: spec.cwd,
		Env: append(spec.env, markName+"="+p.id),
		Sys: &syscall.SysProcAttr{Setsid: true},
	}
	if os.Geteuid() == 0 {
		attr.Sys.Credential = &syscall.Credential{Uid: spec.user.uid, Gid: spec.user.gid, Groups: spec.user.groups}
	} else if int(spec.user.uid) != os.Geteuid() {
		return nil, nil, fmt.Errorf("only root can start processes of user %q: %w", spec.user.name, fs.ErrPermission)
	}
	var lane link.End
	if spec.lane != 0 {
		if lane, err = s.lanes.take(spec.lane); err != nil {
			return nil, nil, err
		}
		defer func() {
			if err != nil {
				s.lanes.giveBack(spec.lane, lane)
			} else {
				lane.Close() // it is the process's now
			}
		}()
	}
	wires, err := p.wire(spec, lane, attr)
	if err != nil {
		return nil, nil, err
	}
	var reader *outputReader
	if spec.attach {
		reader = p.out.attach()
	}
	argv := append([]string{spec.config.GetCmd()}, spec.config.GetArgs()...)
	pid, status, err := s.reaper.start(path, argv, attr)
	wires.closeChildEnds()
	if err != nil {
		wires.closeAll()
		return nil, nil, startError(spec.config.GetCmd(), spec.cwd, err)
	}
	p.pid = pid
	s.procs.add(p)
	go s.follow(p, wires, status, spec.onEnded)
	return p, reader, nil
}

// wiring is the descriptors between a process and the agent.
type wiring struct {
	child   []*os.File
	sources map[stream]*os.File
}

func (w *wiring) closeChildEnds() {
	for _, f := range w.child {
		f.Close()
	}
}

func (w *wiring) closeAll() {
	w.closeChildEnds()
	for _, f := range w.sources {
		f.Close()
	}
}

// wire makes the process's standard descriptors.
func (p *proc) wire(spec startSpec, lane link.End, attr *syscall.ProcAttr) (*wiring, error) {
	w := &wiring{sources: make(map[stream]*os.File)}
	if spec.size != nil {
		master, slave, err := openTerminal()
		if err != nil {
			return nil, err
		}
		w.child = []*os.File{slave}
		w.sources[terminal] = master
		// The size is there before the program is, so that its first question
		// gets the right answer.
		if err := setSize(master, spec.size); err != nil {
			w.closeAll()
			return nil, err
		}
		if os.Geteuid() == 0 {
			// Programs open their terminal again by name (tmux, gpg, script).
			if err := slave.Chown(int(spec.user.uid), -1); err != nil {
				w.closeAll()
				return nil, fmt.Errorf("hand over the terminal: %w", err)
			}
		}
		fd, err := blockingFd(slave)
		if err != nil {
			w.closeAll()
			return nil, err
		}
		attr.Files = []uintptr{fd, fd, fd}
		attr.Sys.Setctty = true
		p.master = master
		return w, nil
	}
	fail := func(err error) (*wiring, error) {
		w.closeAll()
		if p.stdin != nil {
			p.stdin.Close()
		}
		return nil, fmt.Errorf("make pipes: %w", err)
	}
	var stdin *os.File
	var err error
	outputs := []stream{stdout, stderr}
	switch {
	case spec.lane != 0:
		attr.Files = []uintptr{lane.R.Fd(), lane.W.Fd()}
		outputs = outputs[1:]
	case spec.stdin:
		stdin, p.stdin, err = newPipe(1)
	default:
		stdin, err = blockingFile(unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0))
	}
	if err != nil {
		return fail(err)
	}
	if stdin != nil {
		w.child = append(w.child, stdin)
	}
	for _, kind := range outputs {
		theirs, ours, err := newPipe(0)
		if err != nil {
			return fail(err)
		}
		w.child = append(w.child, theirs)
		w.sources[kind] = ours
	}
	for _, f := range w.child {
		attr.Files = append(attr.Files, f.Fd())
	}
	return w, nil
}

// maxPipe is the largest size that a pipe may have without special rights.
const maxPipe = 1 << 20

// newPipe makes a pipe of which the agent keeps the end with the given index.
// Only that one does not block, and is known to Go's poller: programs expect
// theirs to block, and to the poller it would only be a reason to wake up.
func newPipe(oursAt int) (theirs, ours *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	// More room than usual, so that both sides have to wait less often. A kernel
	// that does not want to leaves it as it was, which is as right.
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, maxPipe)
	err = unix.SetNonblock(fds[oursAt], true)
	theirs, ours = os.NewFile(uintptr(fds[1-oursAt]), "pipe"), os.NewFile(uintptr(fds[oursAt]), "pipe")
	if err != nil {
		theirs.Close()
		ours.Close()
		return nil, nil, err
	}
	return theirs, ours, nil
}

// blockingFile is a descriptor that was just opened.
func blockingFile(fd int, err error) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "file"), nil
}

// blockingFd makes f what a program expects its standard descriptors to be:
// Go's own ends of pipes do not block.
func blockingFd(f *os.File) (uintptr, error) {
	fd := f.Fd()
	if err := unix.SetNonblock(int(fd), false); err != nil {
		return 0, fmt.Errorf("make %s blocking: %w", f.Name(), err)
	}
	return fd, nil
}

// follow moves the process's output until it is over, and records its end.
func (s *Server) follow(p *proc, w *wiring, status <-chan syscall.WaitStatus, onEnded func(*proc)) {
	pumps := make(chan bool, len(w.sources))
	for kind, f := range w.sources {
		go func() { pumps <- p.pump(kind, f) }()
	}
	ws := <-status
	close(p.exited)
	if p.killed.Load() && ws.Signaled() && ws.Signal() == unix.SIGHUP {
		// gVisor sends it to a group of which one is stopped, as killTree does, whenever one leaves it.
		ws = syscall.WaitStatus(unix.SIGKILL)
	}
	if p.stdin != nil {
		// Wakes a writer that waits for a reader that is gone.
		p.stdin.Close()
	}
	deadline := time.Now().Add(drainAfterExit)
	for _, f := range w.sources {
		if err := f.SetReadDeadline(deadline); err != nil {
			// It cannot be waited for with a limit, so it is not waited for.
			f.Close()
		}
	}
	left := false
	for range w.sources {
		left = <-pumps || left
	}
	p.mu.Lock()
	end := endEvent(ws)
	end.Oom, end.TimedOut, end.OutputLeft = p.oom, p.timedOut, left
	p.mu.Unlock()
	s.procs.ended(p) // before anybody is told: who was told does not find it among those that run
	p.out.finish(end)
	if onEnded != nil {
		onEnded(p)
	}
}

// Most programs write in small pieces, and each message costs every process on
// the way to the owner a turn. So output that follows on other output within
// burst is given the time to gather, while what comes alone, or after input,
// goes out at once.
const (
	firstChunk = 8 << 10
	burst      = 2 * time.Millisecond
	gather     = time.Millisecond
)

// available reads what is there now, and does not wait for more.
func available(f *os.File, into []byte) (n int) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	// An error, or the end, is met again by whoever reads next.
	_ = raw.Control(func(fd uintptr) { n, _ = unix.Read(int(fd), into) })
	return max(n, 0)
}

// pump publishes what comes out of f until its end, or until the deadline
// that follow sets. In the latter case it says so, and a goroutine of its own
// reads and drops what a grandchild may still write, so that this neither
// blocks nor ends by SIGPIPE.
func (p *proc) pump(kind stream, f *os.File) (left bool) {
	size := guestapi.MaxChunk
	if kind == terminal {
		size = guestapi.MaxPTYChunk
	}
	buf := make([]byte, firstChunk)
	var last time.Time
	for {
		n, err := f.Read(buf)
		if err == nil && n < len(buf) && !p.heard.Swap(false) && time.Since(last) < burst {
			time.Sleep(gather)
			n += available(f, buf[n:])
		}
		if n > 0 {
			p.out.publish(chunk{stream: kind, data: append([]byte(nil), buf[:n]...)})
			last = time.Now()
		}
		if n == len(buf) && n < size {
			buf = make([]byte, min(4*n, size))
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			if p.drain(kind, f) {
				f.Close()
				return false
			}
			go drop(f)
			return true
		default:
			// EOF of a pipe, EIO of a terminal that nobody holds any more.
			f.Close()
			return false
		}
	}
}

// drain publishes what is in f now. What the process itself wrote is among
// it, and no more than a pipe holds is taken: a grandchild that writes without
// end must not keep the process from ending. It says whether that was all.
func (p *proc) drain(kind stream, f *os.File) (end bool) {
	raw, err := f.SyscallConn()
	if err != nil {
		return true
	}
	total := 0
	_ = raw.Control(func(fd uintptr) {
		for total < maxPipe {
			buf := make([]byte, guestapi.MaxPTYChunk)
			n, err := unix.Read(int(fd), buf)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if n <= 0 {
				end = !errors.Is(err, unix.EAGAIN)
				return
			}
			total += n
			p.out.publish(chunk{stream: kind, data: buf[:n]})
		}
	})
	return end
}

func drop(f *os.File) {
	defer f.Close()
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, f)
}

// endEvent tells how a process ended, the way E2B's envd does.
func endEvent(ws syscall.WaitStatus) *process.ProcessEvent_EndEvent {
	if ws.Signaled() {
		status := "signal: " + signalName(ws.Signal())
		if ws.CoreDump() {
			status += " (core dumped)"
		}
		return &process.ProcessEvent_EndEvent{
			ExitCode: -1, Status: status, Error: &status, Signal: int32(ws.Signal()),
		}
	}
	end := &process.ProcessEvent_EndEvent{
		ExitCode: int32(ws.ExitStatus()), Exited: true, Status: fmt.Sprintf("exit status %d", ws.ExitStatus()),
	}
	if end.ExitCode != 0 {
		end.Error = &end.Status
	}
	return end
}

func signalName(sig syscall.Signal) string { return sig.String() }

// writeInput writes to the process's input. Writes are whole and in order; one
// waits until the process has taken it, or is over, or cancel is closed.
func (p *proc) writeInput(data []byte, toTerminal bool, cancel <-chan struct{}) error {
	f := p.stdin
	switch {
	case toTerminal && p.master == nil:
		return fmt.Errorf("%w: process %d has no terminal", errBadState, p.pid)
	case toTerminal:
		f = p.master
	case p.master != nil:
		return fmt.Errorf("%w: process %d has a terminal: send pty input", errBadState, p.pid)
	case f == nil:
		return fmt.Errorf("%w: stdin of process %d is not open: start it with stdin", errBadState, p.pid)
	}
	if len(data) == 0 {
		return nil
	}
	p.stdinMu.Lock()
	defer p.stdinMu.Unlock()
	if err := f.SetWriteDeadline(time.Time{}); err != nil && !errors.Is(err, os.ErrNoDeadline) {
		return inputError(p, err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	defer func() {
		close(stop)
		<-stopped // before the next write, which it would end
	}()
	go func() {
		defer close(stopped)
		select {
		case <-cancel:
		case <-p.exited:
		case <-stop:
			return
		}
		_ = f.SetWriteDeadline(time.Unix(1, 0))
	}()
	p.heard.Store(true)
	_, err := f.Write(data)
	return inputError(p, err)
}

func inputError(p *proc, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrClosed), errors.Is(err, unix.EPIPE), errors.Is(err, unix.EIO):
		return fmt.Errorf("%w: process %d does not read its input any more", errBadState, p.pid)
	}
	return fmt.Errorf("write to process %d: %w", p.pid, err)
}

// closeStdin gives the process an end of file.
func (p *proc) closeStdin() error {
	switch {
	case p.master != nil:
		return fmt.Errorf("%w: process %d has a terminal, whose input cannot be closed: send it the byte 4", errBadState, p.pid)
	case p.stdin == nil:
		return fmt.Errorf("%w: stdin of process %d is not open", errBadState, p.pid)
	}
	if err := p.stdin.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close stdin of process %d: %w", p.pid, err)
	}
	return nil
}

// Errors of starting, told apart since clients map them to exit codes.
var (
	errNoProcess   = errors.New("no such process")
	errBadState    = errors.New("not possible now")
	errBadArgument = errors.New("invalid argument")
	errNoCommand   = errors.New("command not found")
	errNotExec     = errors.New("command cannot be executed")
)

func checkDir(cwd string) error {
	info, err := os.Stat(cwd)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: cwd '%s': %w", errBadArgument, cwd, err)
	}
	if err != nil || !info.IsDir() {
		return fmt.Errorf("%w: cwd '%s' does not exist", errBadArgument, cwd)
	}
	return nil
}

// lookPath finds a command the way a shell does, by the process's own PATH.
func lookPath(cmd, cwd string, env []string) (string, error) {
	if cmd == "" || strings.ContainsRune(cmd, 0) {
		return "", fmt.Errorf("%w: the command is empty or has a NUL byte", errBadArgument)
	}
	if strings.Contains(cmd, "/") {
		path := cmd
		if !filepath.IsAbs(path) {
			path = filepath.Join(cwd, path)
		}
		return path, runnable(cmd, path)
	}
	var denied error
	for _, dir := range filepath.SplitList(envValue(env, "PATH")) {
		path := filepath.Join(dir, cmd)
		if !filepath.IsAbs(path) {
			path = filepath.Join(cwd, path)
		}
		err := runnable(cmd, path)
		if err == nil {
			return path, nil
		}
		if denied == nil && errors.Is(err, errNotExec) {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", fmt.Errorf("%w: '%s'", errNoCommand, cmd)
}

func runnable(cmd, path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("%w: '%s'", errNoCommand, cmd)
	case info.IsDir():
		return fmt.Errorf("%w: '%s' is a directory", errNotExec, cmd)
	case info.Mode()&0o111 == 0:
		return fmt.Errorf("%w: '%s' is not executable", errNotExec, cmd)
	}
	return nil
}

// startError puts what the kernel said into words.
func startError(cmd, cwd string, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		// The file is there, so it is its interpreter that is not.
		return fmt.Errorf("%w: '%s' (or the interpreter that it names)", errNoCommand, cmd)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOEXEC), errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%w: '%s' in '%s': %w", errNotExec, cmd, cwd, err)
	case errors.Is(err, unix.E2BIG):
		return fmt.Errorf("%w: arguments and environment of '%s' are too long", errBadArgument, cmd)
	}
	return fmt.Errorf("start '%s': %w", cmd, err)
}

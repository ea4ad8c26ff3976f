package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"ravi/internal/guard"
)

// ErrInUse: another program, or another configuration of this one, serves the
// socket of Config.Debug.
var ErrInUse = errors.New("the debug socket is in use")

// Auditor is what a Recorder is, besides, that writes down what is asked for by
// way of the debug socket. Without it, that stands in the program's log.
type Auditor interface {
	// DebugCall is called before a command is started in the sandbox id; an error
	// refuses it. action is exec or shell.
	DebugCall(ctx context.Context, action, id string, args []string) error
}

const (
	// debugClients bounds the connections to one debug socket, and debugCalls
	// the commands that are started by it and not over: one that takes all of
	// them leaves room for a look.
	debugClients = 128
	debugCalls   = 32
	// debugGoodbye is how long a client may take to read how its command ended
	// when the last sandbox is closed.
	debugGoodbye = 2 * time.Second
)

// debugServices are those of this process, by their paths. The lock is held
// while one begins or ends, so that another at the same path waits for it.
var debugServices = struct {
	sync.Mutex
	at map[string]*debugService
}{at: map[string]*debugService{}}

// debugService shows the sandboxes of this process on one socket.
type debugService struct {
	path     string
	max      int // bytes of one message
	server   *guard.Server
	served   chan error
	strange  *guard.Limiter // how often strangers are logged
	handlers sync.WaitGroup // requests

	mu       sync.Mutex
	boxes    []*debugBox // in the order in which they were opened
	calls    int
	sessions map[string]*debugCall
}

// debugBox is a sandbox that is shown.
type debugBox struct {
	*Sandbox
	service *debugService
	ctx     context.Context // of what is started in it
	cancel  context.CancelCauseFunc

	// These are under the lock of the service.
	since time.Time // when it was shown; zero: it is not, yet
	gone  bool
	calls sync.WaitGroup // that are not over
}

// joinDebug has the debug socket served, if the configuration says so: the first
// sandbox of a process begins it. What is there by then is shown by show.
func (s *Sandbox) joinDebug(home string) error {
	cfg := s.cfg.Debug
	if !cfg.Enabled {
		return nil
	}
	fail := func(err error, hint string) error {
		if told := new(guard.Error); hint == "" && errors.As(err, &told) {
			hint = told.Hint
		}
		return &InitError{Stage: "config", Err: fmt.Errorf("debug: %w", err), Hint: hint}
	}
	path, err := debugPath(home, cfg.Socket)
	if err != nil {
		return fail(err, "set debug.socket to a path beneath Ravi's home, or to an absolute one")
	}
	if err := s.hides(path); err != nil {
		return fail(err, "set debug.socket to a path that no sandbox sees, such as the default")
	}
	debugServices.Lock()
	defer debugServices.Unlock()
	d := debugServices.at[path]
	if d == nil {
		if d, err = serveDebug(path, cfg.MaxMessageBytes); err != nil {
			if errors.Is(err, guard.ErrInUse) {
				err = fmt.Errorf("%w: %w", ErrInUse, err)
			}
			return fail(err, "")
		}
		debugServices.at[path] = d
	} else if d.max != cfg.MaxMessageBytes {
		return fail(fmt.Errorf("%w: %s is served for messages of at most %d bytes, not %d", ErrInUse, path, d.max, cfg.MaxMessageBytes),
			"give all sandboxes of the program the same debug.max_message_bytes, or sockets of their own")
	}
	b := &debugBox{Sandbox: s, service: d}
	b.ctx, b.cancel = context.WithCancelCause(context.Background())
	d.mu.Lock()
	d.boxes = append(d.boxes, b)
	d.mu.Unlock()
	s.debug = b
	return nil
}

// show shows the sandbox, which is whole now.
func (b *debugBox) show() {
	if b == nil {
		return
	}
	b.service.mu.Lock()
	defer b.service.mu.Unlock()
	b.since = time.Now()
}

func debugPath(home, socket string) (string, error) {
	switch {
	case filepath.IsAbs(socket):
		return filepath.Clean(socket), nil
	case socket == "", !filepath.IsLocal(socket), filepath.Clean(socket) == ".":
		return "", fmt.Errorf("the socket %q does not lie beneath Ravi's home", socket)
	}
	return filepath.Join(home, socket), nil
}

// hides says whether the sandbox does not see a path of the host.
func (s *Sandbox) hides(path string) error {
	places := []string{path}
	// What is there of its folder is taken for what it really is.
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			places = append(places, filepath.Join(real, strings.TrimPrefix(path, dir)))
			break
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	shown := []string{s.context}
	if s.workspace != "" {
		shown = append(shown, s.workspace)
	}
	for _, v := range s.volumes {
		shown = append(shown, v.Host)
	}
	for _, dir := range shown {
		for _, place := range places {
			if dir != "" && within(place, dir) {
				return fmt.Errorf("the socket %s lies in %s, which the sandbox sees", path, dir)
			}
		}
	}
	return nil
}

func serveDebug(path string, max int) (*debugService, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	l, err := guard.ListenUnix(path)
	if err != nil {
		return nil, err
	}
	d := &debugService{
		path: path, max: max, served: make(chan error, 1), sessions: map[string]*debugCall{},
		strange: guard.NewLimiter(1.0/60, 5, 1, nil),
	}
	d.server = guard.New(d.handler(), guard.Options{MaxBody: int64(max), MaxConns: debugClients})
	go func() {
		err := d.server.Serve(l)
		if err != nil {
			slog.Error("the debug socket is served no more", "socket", path, "error", err.Error())
		}
		d.served <- err
	}()
	return d, nil
}

// leave ends what was started in the sandbox by way of the socket, and shows it no
// more. With the last one the socket goes.
func (b *debugBox) leave() error {
	if b == nil {
		return nil
	}
	debugServices.Lock()
	defer debugServices.Unlock()
	d := b.service
	d.mu.Lock()
	if b.gone {
		d.mu.Unlock()
		return nil
	}
	b.gone = true
	d.boxes = slices.DeleteFunc(d.boxes, func(have *debugBox) bool { return have == b })
	last := len(d.boxes) == 0
	d.mu.Unlock()
	b.cancel(errors.New("the program lets go of the sandbox"))
	over := make(chan struct{})
	go func() { b.calls.Wait(); close(over) }()
	select {
	case <-over:
	case <-time.After(drainTime):
		// What cannot be killed is the sandbox's, and ends with it.
	}
	if !last {
		return nil
	}
	delete(debugServices.at, d.path)
	ctx, cancel := context.WithTimeout(context.Background(), debugGoodbye)
	defer cancel()
	// Its error is that clients did not read, and were cut.
	_ = d.server.Shutdown(ctx)
	d.handlers.Wait()
	return <-d.served
}

// find is the sandbox of an id, or of the beginning of one. The others that begin
// so are counted.
func (d *debugService) find(ref string) (found *debugBox, others int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, b := range d.boxes {
		switch {
		case b.since.IsZero() || ref == "" || !strings.HasPrefix(b.ID, ref):
		case found == nil:
			found = b
		default:
			others++
		}
	}
	return found, others
}

// begin counts a call in, if there is room and the sandbox is still shown.
func (b *debugBox) begin() error {
	d := b.service
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case b.gone:
		return ErrClosed
	case d.calls == debugCalls:
		return errDebugFull
	}
	d.calls++
	b.calls.Add(1)
	return nil
}

func (b *debugBox) end() {
	d := b.service
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls--
	b.calls.Done()
}

var errDebugFull = fmt.Errorf("%d commands run by way of this socket, which is the most", debugCalls)

// audit writes down that a command is about to be started.
func (b *debugBox) audit(ctx context.Context, action string, args []string, pid int) error {
	if a, ok := b.record.(Auditor); ok {
		return a.DebugCall(ctx, action, b.ID, args)
	}
	slog.InfoContext(ctx, "a command by way of the debug socket", "action", action, "sandbox", b.ID, "args", shortened(args), "peer", pid)
	return nil
}

// shortened is a command as it stands in a log.
func shortened(args []string) string {
	const most = 1000
	text := fmt.Sprintf("%+q", args)
	if len(text) > most {
		text = text[:most] + "…"
	}
	return text
}

package runner

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"ravi/internal/backend"
	"ravi/internal/backend/remote"
)

// Bounds of one session.
const (
	mostStreams = 1024             // at once
	headTime    = 30 * time.Second // for the first line of a stream, and for a session's first stream
	closeTime   = 30 * time.Second // for the end of a sandbox
	lastTime    = 2 * time.Second  // for what a network told last to get home
	byeTime     = 10 * time.Second // for home to end the session
	contentTime = 15 * time.Minute // for all folders to come
)

var (
	errOver    = errors.New("the session is over")
	errTooLate = errors.New("no sandbox was asked for in time")
	// errNonsense is of a session that did not keep to the protocol.
	errNonsense = errors.New("what the session says makes no sense")
)

// served is a session that is served.
type served struct {
	*Runner
	session remote.Session
	log     *slog.Logger
	cancel  context.CancelCauseFunc
	work    sync.WaitGroup // on streams

	once  atomic.Bool   // a sandbox was asked for
	asked chan struct{} // closed then
	made  chan struct{} // closed once inst is there
	inst  backend.Instance
	wants chan want // folders that are to come

	serving sync.Mutex
	serves  bool // visits are brought home

	telling sync.Mutex
	silent  bool           // the network tells no more
	told    sync.WaitGroup // connections that tell what it decides; none begins once it is silent
}

// Serve makes the sandbox that a session asks for, and serves it until the session or ctx ends; then the sandbox ends, and
// Serve returns: nil if it was the session that ended, or the sandbox. name is whom the log names.
func (r *Runner) Serve(ctx context.Context, session remote.Session, name string) error {
	caller := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &served{
		Runner: r, session: session, log: r.log.With("session", name), cancel: cancel,
		asked: make(chan struct{}), made: make(chan struct{}), wants: make(chan want, mostContents),
	}
	go func() {
		select {
		case <-session.Done():
			cancel(errOver)
		case <-ctx.Done():
		}
	}()
	go func() {
		select {
		case <-s.asked:
		case <-ctx.Done():
		case <-time.After(headTime):
			cancel(errTooLate)
		}
	}()
	var stopped atomic.Bool // from this side
	hangUp := context.AfterFunc(ctx, func() {
		select {
		case <-session.Done():
			return
		default:
			stopped.Store(true)
		}
		select {
		case <-s.asked: // the session ends with the sandbox
		default:
			session.Close()
		}
	})
	defer hangUp()
	slots := make(chan struct{}, mostStreams)
	for {
		c, err := session.Accept()
		if err != nil {
			cancel(errOver)
			break
		}
		select {
		case slots <- struct{}{}:
		default:
			c.Close()
			continue
		}
		s.work.Go(func() {
			defer func() { <-slots }()
			s.stream(ctx, remote.Wire(c))
		})
	}
	s.work.Wait()
	session.Close()
	why := context.Cause(ctx)
	// Who is stopped by the caller ends the sandbox, and with it the session, maybe before anything else is noted.
	byCaller := caller.Err() != nil && errors.Is(why, context.Cause(caller))
	if !errors.Is(why, errOver) && (byCaller || stopped.Load()) {
		return why
	}
	return nil
}

// stream serves one stream.
func (s *served) stream(ctx context.Context, c net.Conn) {
	defer c.Close()
	in := bufio.NewReaderSize(c, 16<<10)
	_ = c.SetReadDeadline(time.Now().Add(headTime))
	var head remote.Head
	if err := remote.ReadLine(in, remote.MaxHead, &head); err != nil {
		// Who gave up before a line was whole does no harm. What is no line at all comes from no home of ours.
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !isNet(err) {
			s.log.Warn("a session ends, since what it says makes no sense", "error", err)
			s.cancel(errNonsense)
		}
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	switch head.Kind {
	case remote.KindCreate:
		s.create(ctx, c, in, head.Spec)
		return
	case remote.KindContent:
		s.content(ctx, c, in, head.Digest)
		return
	}
	select {
	case <-s.made:
	default:
		_ = remote.WriteLine(c, remote.Failed(refuse("there is no sandbox yet")))
		return
	}
	switch head.Kind {
	case remote.KindDial:
		s.pass(ctx, c, in, s.inst.Dial)
	case remote.KindEvents:
		s.telling.Lock()
		silent := s.silent
		if !silent {
			s.told.Add(1)
		}
		s.telling.Unlock()
		if !silent {
			defer s.told.Done()
			s.pass(ctx, c, in, s.inst.DialEvents)
		}
	default:
		stop := context.AfterFunc(ctx, func() { c.Close() })
		defer stop()
		_ = remote.WriteLine(c, s.answer(ctx, head)) // who is gone misses nothing
	}
}

// isNet says whether an error is the connection's.
func isNet(err error) bool {
	var ne net.Error
	return errors.As(err, &ne)
}

// answer does what is asked.
func (s *served) answer(ctx context.Context, h remote.Head) (r remote.Reply) {
	var err error
	switch h.Kind {
	case remote.KindPause:
		err = s.inst.Pause(ctx)
	case remote.KindResume:
		err = s.inst.Resume(ctx)
	case remote.KindStats:
		st, serr := s.inst.Stats(ctx)
		r.Stats, err = &st, serr
	case remote.KindPolicy:
		policy, perr := s.checkNetwork(h.Policy)
		if err = perr; err == nil {
			err = s.inst.SetPolicy(ctx, policy)
		}
	case remote.KindServe:
		err = s.serve(ctx)
	case remote.KindEnd:
		ctx, cancel := context.WithTimeoutCause(ctx, closeTime, errors.New("it does not end"))
		defer cancel()
		err = s.inst.Close(ctx)
	default:
		err = refuse("%.40q is nothing that can be asked", h.Kind)
	}
	if err != nil {
		return remote.Failed(err)
	}
	return r
}

// pass carries bytes between a stream and a connection to the sandbox, until either is over.
func (s *served) pass(ctx context.Context, c net.Conn, in io.Reader, dial func(context.Context) (net.Conn, error)) {
	to, err := dial(ctx)
	if err != nil {
		return // that it is over says as much
	}
	defer to.Close()
	// What a network told last is still carried when the sandbox is over: to ends by itself then.
	stop := context.AfterFunc(ctx, func() { c.Close(); to.Close() })
	defer stop()
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = io.Copy(to, in)
		to.Close()
	}()
	_, _ = io.Copy(c, to)
	c.Close()
	<-over
}

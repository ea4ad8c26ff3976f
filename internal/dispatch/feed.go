package dispatch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"ravi/internal/run"
	"ravi/internal/store"
)

// What runs write into their folders, which is without secrets, is published to RunsStream as it comes: events a line
// each, logs in pieces. Each message says where in the file the next one begins, so whoever comes after a crash goes on
// there.

const (
	offsetHeader = "Ravi-Offset"
	feedEvery    = 100 * time.Millisecond
	feedAgain    = time.Second     // after a failure
	feedGivesUp  = 2 * time.Minute // of failures
	piece        = 32 << 10
	// mostFed is how much of one file is published, in bytes: a run that writes without end is not to have the stream forget
	// what the others did. All of it is in its folder.
	mostFed = 8 << 20
)

// feeds publish what runs write.
type feeds struct {
	ctx context.Context
	js  jetstream.JetStream
	log *slog.Logger

	all sync.WaitGroup
	mu  sync.Mutex
	of  map[string]*feedOf
}

type feedOf struct {
	over chan struct{} // closed when nothing more will come
	once sync.Once
}

func newFeeds(ctx context.Context, js jetstream.JetStream, log *slog.Logger) *feeds {
	return &feeds{ctx: ctx, js: js, log: log, of: map[string]*feedOf{}}
}

// follow publishes what a run writes, until finish.
func (f *feeds) follow(r store.Run) {
	if r.Dir == "" {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of[r.ID] != nil {
		return
	}
	one := &feedOf{over: make(chan struct{})}
	f.of[r.ID] = one
	for kind, name := range map[string]string{
		"event": run.EventsFile, "log.stdout": filepath.Join(run.LogsDir, "stdout.log"), "log.stderr": filepath.Join(run.LogsDir, "stderr.log"),
	} {
		f.all.Go(func() {
			t := tail{js: f.js, subject: "run." + r.ID + "." + kind, path: filepath.Join(r.Dir, name), lines: kind == "event"}
			if err := t.run(f.ctx, one.over); err != nil && f.ctx.Err() == nil {
				f.log.Warn("a run's output is not on the bus; it is in its folder", "run", r.ID, "file", name, "error", err.Error())
			}
		})
	}
}

// finish says that a run writes no more: what is left is published.
func (f *feeds) finish(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if one := f.of[id]; one != nil {
		one.once.Do(func() { close(one.over) })
		delete(f.of, id)
	}
}

// end waits for what is under way. The context has ended by then.
func (f *feeds) end() { f.all.Wait() }

// tail publishes a file that grows.
type tail struct {
	js      jetstream.JetStream
	subject string
	path    string
	lines   bool // a message for each

	at int64
}

// run publishes until it is over. A bus that takes nothing for a while, such as a cluster that lost a server, is asked again.
func (t *tail) run(ctx context.Context, over <-chan struct{}) error {
	var failing time.Time // since when
	for resumed, last := false, false; ; {
		var err error
		if !resumed {
			err = t.resume(ctx)
		}
		if err == nil {
			err = t.rest(ctx)
		}
		// What failed may have got there all the same, so where to go on is asked anew.
		resumed = err == nil
		wait := feedEvery
		switch {
		case err == nil && last:
			return nil
		case err == nil:
			failing = time.Time{}
		case failing.IsZero():
			failing = time.Now()
			fallthrough
		default:
			if time.Since(failing) > feedGivesUp {
				return err
			}
			wait = feedAgain
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-over:
			last, over = true, nil
		case <-time.After(wait):
		}
	}
}

// resume finds where the one before left off.
func (t *tail) resume(ctx context.Context) error {
	s, err := t.js.Stream(ctx, RunsStream)
	if err != nil {
		return err
	}
	m, err := s.GetLastMsgForSubject(ctx, t.subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if t.at, err = strconv.ParseInt(m.Header.Get(offsetHeader), 10, 64); err != nil || t.at < 0 {
		return fmt.Errorf("the last message of %s does not say where it ended", t.subject)
	}
	return nil
}

// rest publishes what there is now.
func (t *tail) rest(ctx context.Context) error {
	f, err := os.OpenFile(t.path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(t.at, io.SeekStart); err != nil {
		return err
	}
	in := bufio.NewReaderSize(f, piece)
	for t.at < mostFed {
		var part []byte
		var err error
		if t.lines {
			part, err = in.ReadSlice('\n') // a longer line comes in pieces
			if errors.Is(err, io.EOF) {
				return nil // half a line is not one yet
			}
		} else {
			part = make([]byte, piece)
			var n int
			n, err = io.ReadFull(in, part)
			part = part[:n]
		}
		if len(part) > 0 {
			if perr := t.send(ctx, part); perr != nil {
				return perr
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
	}
	return nil
}

func (t *tail) send(ctx context.Context, part []byte) error {
	next := t.at + int64(len(part))
	m := &nats.Msg{Subject: t.subject, Header: nats.Header{offsetHeader: {strconv.FormatInt(next, 10)}}, Data: part}
	if _, err := t.js.PublishMsg(ctx, m, jetstream.WithMsgID(fmt.Sprintf("%s-%d", t.subject, next))); err != nil {
		return err
	}
	t.at = next
	return nil
}

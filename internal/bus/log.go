package bus

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// linesPerSecond bounds what strangers can make the server say: each refused credential is a line.
const linesPerSecond = 10

// logger hands on what the server has to complain about. What it says of its work, and what is traced, goes nowhere:
// there the protocol would stand, credentials included.
type logger struct {
	to *slog.Logger

	// broken says that a stream could not be written, which the server tells nobody in another way.
	broken atomic.Bool

	mu     sync.Mutex
	why    string // the first fatal error
	hub    string // what was last said of the hub
	second int64
	lines  int
}

func (l *logger) Noticef(string, ...any) {}
func (l *logger) Debugf(string, ...any)  {}
func (l *logger) Tracef(string, ...any)  {}

func (l *logger) Warnf(format string, v ...any) { l.say(slog.LevelWarn, format, v) }

func (l *logger) Errorf(format string, v ...any) {
	if strings.Contains(format, "critical write error") {
		l.broken.Store(true)
	}
	l.say(slog.LevelError, format, v)
}

// Fatalf is a server that cannot go on; it must not end the process.
func (l *logger) Fatalf(format string, v ...any) {
	l.mu.Lock()
	if l.why == "" {
		l.why = strings.TrimSpace(fmt.Sprintf(format, v...))
	}
	l.mu.Unlock()
	l.say(slog.LevelError, format, v)
}

// fatal is what Fatalf was told, empty if nothing.
func (l *logger) fatal() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

// longestOfHub bounds what is kept of it, in bytes.
const longestOfHub = 300

// ofHub is what was last complained of about the hub, empty if nothing was.
func (l *logger) ofHub() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hub
}

func (l *logger) say(level slog.Level, format string, v []any) {
	l.mu.Lock()
	if text := fmt.Sprintf(format, v...); strings.Contains(strings.ToLower(text), "leafnode") {
		l.hub = strings.ToValidUTF8(text[:min(len(text), longestOfHub)], "")
	}
	if now := time.Now().Unix(); now != l.second {
		l.second, l.lines = now, 0
	}
	l.lines++
	lines := l.lines
	l.mu.Unlock()
	switch {
	case lines < linesPerSecond:
		l.to.Log(context.Background(), level, "the bus says", "text", fmt.Sprintf(format, v...))
	case lines == linesPerSecond:
		l.to.Log(context.Background(), slog.LevelWarn, "the bus says more in this second, which is left out")
	}
}

// complain logs what a connection has to say in passing, which the library would print.
func complain(to *slog.Logger) nats.ErrHandler {
	return func(_ *nats.Conn, sub *nats.Subscription, err error) {
		subject := ""
		if sub != nil {
			subject = sub.Subject
		}
		to.Warn("a connection to the bus complains", "error", err, "subject", subject)
	}
}

package daemon

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"regexp"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	safe "ravi/internal/term"
)

const (
	// logSize is how large a log becomes before the next one is begun, and logFiles how many there are then.
	logSize  = 10 << 20
	logFiles = 3
)

// LogName is the name of a log in Ravi's home; 0 is the one that is written, the others are older.
func LogName(n int) string {
	if n == 0 {
		return LogFile
	}
	return fmt.Sprintf("%s.%d", LogFile, n)
}

// Log is a log file that is begun anew when it is large. It is safe for concurrent use.
type Log struct {
	path string
	most int64
	// output says that it is this process's standard output and error as well, so that a crash is told in it.
	output bool

	mu   sync.Mutex
	file *os.File
	size int64
}

// OpenLog opens the log at path, closed to others. With output it becomes this process's standard output and error.
func OpenLog(path string, output bool) (*Log, error) { return openLog(path, logSize, output) }

func openLog(path string, most int64, output bool) (*Log, error) {
	l := &Log{path: path, most: most, output: output}
	return l, l.open()
}

func (l *Log) open() error {
	file, err := os.OpenFile(l.path, os.O_CREATE|os.O_RDWR|os.O_APPEND|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return fmt.Errorf("cannot open the daemon's log: %w", err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file", l.path)
	}
	if err == nil && l.output {
		err = errors.Join(unix.Dup3(int(file.Fd()), 1, 0), unix.Dup3(int(file.Fd()), 2, 0))
	}
	if err != nil {
		file.Close()
		return fmt.Errorf("cannot open the daemon's log: %w", err)
	}
	l.file, l.size = file, info.Size()
	return nil
}

// Write adds to the log.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(p)) > l.most {
		if err := l.turn(); err != nil {
			// Too large is better than cut off. It is tried again with the next line.
			fmt.Fprintf(l.file, "the log cannot be begun anew: %v\n", err)
		}
	}
	n, err := l.file.Write(p)
	l.size += int64(n)
	return n, err
}

// turn moves the logs one further, and begins a new one.
func (l *Log) turn() error {
	name := func(n int) string {
		if n == 0 {
			return l.path
		}
		return fmt.Sprintf("%s.%d", l.path, n)
	}
	for n := logFiles - 1; n > 0; n-- {
		if err := os.Rename(name(n-1), name(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	old := l.file
	if err := l.open(); err != nil {
		l.file = old
		return err
	}
	return old.Close()
}

// Close closes the log.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}

// NewLogger makes a daemon's logger: lines of text for people, else of JSON. What would be a secret, or would be obeyed
// by a terminal, is not written.
func NewLogger(w io.Writer, text bool) *slog.Logger {
	clean := cleaned{w}
	if text {
		return slog.New(slog.NewTextHandler(clean, nil))
	}
	return slog.New(slog.NewJSONHandler(clean, nil))
}

// contextKey is a key as callers show it, also where a byte of it is written in a URL's way.
var contextKey = regexp.MustCompile(`(?i)rctx(_|%5f)[A-Za-z0-9_%-]+`)

// cleaned is a writer of whole lines.
type cleaned struct{ to io.Writer }

func (c cleaned) Write(line []byte) (int, error) {
	clean := safe.SafeJSON(contextKey.ReplaceAll(line, []byte("rctx_…")))
	if _, err := c.to.Write(clean); err != nil {
		return 0, err
	}
	return len(line), nil
}

package run

import (
	"fmt"
	"io"
	"os"
)

// maxLog bounds one log file; a guest must not fill the host's disk.
const maxLog = 256 << 20

// log writes what the command writes to a file, bounded, and on to the user.
type log struct {
	file      *os.File
	next      io.Writer
	total     int64
	truncated bool
}

func newLog(path string, next io.Writer) (*log, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("making the command's log: %w", err)
	}
	return &log{file: f, next: next}, nil
}

func (l *log) Write(p []byte) (int, error) {
	keep := p
	if room := maxLog - l.total; int64(len(keep)) > room {
		keep = keep[:max(room, 0)]
		l.truncated = true
	}
	l.total += int64(len(p))
	if len(keep) > 0 {
		if _, err := l.file.Write(keep); err != nil {
			return 0, err
		}
	}
	if l.next != nil {
		if _, err := l.next.Write(p); err != nil {
			// The user's end is gone (a closed pipe): the run goes on, the log
			// has it all.
			l.next = nil
		}
	}
	return len(p), nil
}

func (l *log) close() {
	if l.truncated {
		fmt.Fprintf(l.file, "\n... (%d bytes more are not in this log) ...\n", l.total-maxLog)
	}
	l.file.Close()
}

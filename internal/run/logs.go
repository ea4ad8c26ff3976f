package run

import (
	"fmt"
	"io"
	"os"

	"ravi/internal/redact"
)

// maxLog bounds one log file; a guest must not fill the host's disk.
const maxLog = 256 << 20

// log writes what the command writes to a file, bounded, and on to the user,
// both without secrets.
type log struct {
	clean *redact.Writer // leads to the others
	file  *os.File
	next  io.Writer
	room  int64 // in the file
	left  int64 // bytes that are not in it
	total int64 // as the command wrote them
}

func newLog(path string, next io.Writer, r *redact.Redactor) (*log, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("making the command's log: %w", err)
	}
	l := &log{file: f, next: next, room: maxLog}
	l.clean = r.Writer(cleaned{l})
	return l, nil
}

func (l *log) Write(p []byte) (int, error) {
	l.total += int64(len(p))
	return l.clean.Write(p)
}

// cleaned takes what is left when the secrets are out.
type cleaned struct{ *log }

func (l cleaned) Write(p []byte) (int, error) {
	keep := p[:min(int64(len(p)), l.room)]
	l.room -= int64(len(keep))
	l.left += int64(len(p) - len(keep))
	if len(keep) > 0 {
		if _, err := l.file.Write(keep); err != nil {
			return 0, err
		}
	}
	if l.next != nil {
		if _, err := l.next.Write(p); err != nil {
			// The user's end is gone (a closed pipe): the run goes on, the log
			// has it all.
			l.log.next = nil
		}
	}
	return len(p), nil
}

// close ends the log; a second one does nothing.
func (l *log) close() {
	if l.file == nil {
		return
	}
	_ = l.clean.Close() // an error of the file was the command's to hear
	if l.left > 0 {
		fmt.Fprintf(l.file, "\n... (%d bytes more are not in this log) ...\n", l.left)
	}
	l.file.Close()
	l.file = nil
}

package mcphost

import (
	"bytes"
	"fmt"
	"sync"
)

// splitter is written to, and passes on what was written line by line, without the line's end. One goroutine at a time
// writes to it.
type splitter struct {
	most int // bytes of a line
	// line takes a line, which is its own to the end of the call only.
	line func([]byte)
	// long is called with a line that became too long, so far; the rest is another line.
	long func([]byte)
	buf  []byte
}

func (s *splitter) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		end := bytes.IndexByte(b, '\n')
		part := b
		if end >= 0 {
			part = b[:end]
		}
		if room := s.most - len(s.buf); len(part) > room {
			s.buf = append(s.buf, part[:room]...)
			s.long(s.buf)
			s.empty()
			b = b[room:]
			continue
		}
		if end < 0 {
			s.buf = append(s.buf, part...)
			break
		}
		if len(s.buf) > 0 {
			part = append(s.buf, part...)
			s.buf = part
		}
		s.line(part)
		s.empty()
		b = b[end+1:]
	}
	return n, nil
}

// finish passes on what has no end.
func (s *splitter) finish() {
	if len(s.buf) > 0 {
		s.line(s.buf)
	}
	s.empty()
}

// empty forgets the line, and does not keep the room that an unusual one took.
func (s *splitter) empty() {
	if s.buf = s.buf[:0]; cap(s.buf) > 64<<10 {
		s.buf = nil
	}
}

// quota tells the first of many things of a kind, says once that it goes on, and counts the rest.
type quota struct {
	most int
	say  func(string)
	what string // of which there are many

	mu   sync.Mutex
	seen int
}

func (q *quota) add(text string) {
	q.mu.Lock()
	q.seen++
	n := q.seen
	q.mu.Unlock()
	switch {
	case n <= q.most:
		q.say(text)
	case n == q.most+1:
		q.say(fmt.Sprintf("there are more than %d %s; the others are counted and not told", q.most, q.what))
	}
}

// finish says how many were not told.
func (q *quota) finish() {
	q.mu.Lock()
	n := q.seen - q.most
	q.mu.Unlock()
	if n > 0 {
		q.say(fmt.Sprintf("%d %s were not told", n, q.what))
	}
}

package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// stream says which output a chunk came from.
type stream byte

const (
	stdout stream = iota
	stderr
	terminal
)

// chunk is a piece of output. Its data is never changed once made.
type chunk struct {
	stream stream
	data   []byte
	kept   bool // it is in the spool as well as on its way to a live reader
}

// memorySpool is how much output waits in memory before a file is made.
const memorySpool = 256 << 10

// errSpoolFull is returned when a chunk cannot be kept now.
var errSpoolFull = errors.New("the spool is full")

// spool keeps output, in order, for a reader that is not there yet: a little
// in memory, then a bounded file without a name. It is not safe for
// concurrent use.
type spool struct {
	dir   string
	limit int64

	queue  []chunk
	queued int

	file        *os.File
	read, write int64
}

func (s *spool) empty() bool { return len(s.queue) == 0 && s.read == s.write }

// unread puts a chunk back to the front: it was taken and not delivered.
func (s *spool) unread(c chunk) {
	s.queue = append([]chunk{c}, s.queue...)
	s.queued += len(c.data)
}

// append keeps c, or returns errSpoolFull or what went wrong with the file; c
// is then not kept, not even in part.
func (s *spool) append(c chunk) error {
	if s.write == 0 && s.queued+len(c.data) <= memorySpool {
		s.queue = append(s.queue, c)
		s.queued += len(c.data)
		return nil
	}
	rec := make([]byte, recordHeader, recordHeader+len(c.data))
	rec[0] = byte(c.stream)
	binary.BigEndian.PutUint32(rec[1:], uint32(len(c.data)))
	rec = append(rec, c.data...)
	if s.write+int64(len(rec)) > s.limit {
		return errSpoolFull
	}
	if s.file == nil {
		f, err := namelessFile(s.dir)
		if err != nil {
			return err
		}
		s.file = f
	}
	// A short write leaves bytes behind the end that the next one overwrites.
	if _, err := s.file.WriteAt(rec, s.write); err != nil {
		return fmt.Errorf("keep output: %w", err)
	}
	s.write += int64(len(rec))
	return nil
}

const recordHeader = 5

// next takes the oldest chunk; ok is false when there is none.
func (s *spool) next() (c chunk, ok bool, err error) {
	if len(s.queue) > 0 {
		c = s.queue[0]
		s.queue[0] = chunk{}
		s.queue = s.queue[1:]
		s.queued -= len(c.data)
		return c, true, nil
	}
	if s.read == s.write {
		return chunk{}, false, nil
	}
	var head [recordHeader]byte
	if _, err := s.file.ReadAt(head[:], s.read); err != nil {
		return chunk{}, false, fmt.Errorf("read kept output: %w", err)
	}
	data := make([]byte, binary.BigEndian.Uint32(head[1:]))
	if _, err := s.file.ReadAt(data, s.read+recordHeader); err != nil && !errors.Is(err, io.EOF) {
		return chunk{}, false, fmt.Errorf("read kept output: %w", err)
	}
	s.read += recordHeader + int64(len(data))
	if s.read == s.write {
		// All read: give the space back and start over.
		s.read, s.write = 0, 0
		if err := s.file.Truncate(0); err != nil {
			return chunk{}, false, fmt.Errorf("free kept output: %w", err)
		}
	}
	return chunk{stream: stream(head[0]), data: data}, true, nil
}

func (s *spool) close() {
	if s.file != nil {
		s.file.Close()
	}
	s.file, s.queue, s.queued, s.read, s.write = nil, nil, 0, 0, 0
}

// namelessFile makes a file that only its descriptor leads to. gVisor has no
// O_TMPFILE, so it has a name for a moment, in a directory of root's alone.
func namelessFile(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the output spool: %w", err)
	}
	f, err := os.CreateTemp(dir, "output-*")
	if err != nil {
		return nil, fmt.Errorf("make the output spool: %w", err)
	}
	if err := os.Remove(filepath.Join(dir, filepath.Base(f.Name()))); err != nil {
		f.Close()
		return nil, fmt.Errorf("make the output spool: %w", err)
	}
	return f, nil
}

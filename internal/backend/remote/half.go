package remote

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// Half is a connection over a stream, each direction of which ends by itself, or is cut, as one of TCP: streams know only
// that all is over. The bytes travel in frames: two bytes of length, then so many. A length of 0 ends the direction, and
// cutFrame says that it was cut. A stream that is over without either was cut, too.
type Half struct {
	net.Conn
	in   *bufio.Reader
	left int // of the frame that is read
	over error

	mu     sync.Mutex // of writing
	ended  bool
	linger int
}

const (
	mostFrame = 32 << 10
	cutFrame  = 0xffff
	// lastTime bounds how long Close waits to say how a connection ends.
	lastTime = 2 * time.Second
)

// NewHalf makes one of a stream; what was read ahead of that is in r.
func NewHalf(c net.Conn, r *bufio.Reader) *Half { return &Half{Conn: c, in: r, linger: -1} }

// Read reads what the other side wrote.
func (h *Half) Read(b []byte) (int, error) {
	if h.over != nil {
		return 0, h.over
	}
	if len(b) == 0 {
		return 0, nil
	}
	if h.left == 0 {
		// Peeked at first: a deadline in between takes nothing away.
		head, err := h.in.Peek(2)
		if err != nil {
			return 0, h.cut(err)
		}
		n := binary.BigEndian.Uint16(head)
		_, _ = h.in.Discard(2)
		switch {
		case n == 0:
			h.over = io.EOF
			return 0, io.EOF
		case n == cutFrame:
			h.over = &net.OpError{Op: "read", Net: "tunnel", Err: syscall.ECONNRESET}
			return 0, h.over
		}
		h.left = int(n)
	}
	n, err := h.in.Read(b[:min(len(b), h.left)])
	h.left -= n
	if err != nil {
		err = h.cut(err)
	}
	return n, err
}

// cut is what an end of the stream means within the connection.
func (h *Half) cut(err error) error {
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return err
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	h.over = err
	return err
}

// Write writes b, in frames.
func (h *Half) Write(b []byte) (n int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return 0, net.ErrClosed
	}
	for len(b) > 0 {
		part := b[:min(len(b), mostFrame)]
		frame := binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(part)), uint16(len(part)))
		if _, err := h.Conn.Write(append(frame, part...)); err != nil {
			h.ended = true // what comes now would not be at the beginning of a frame
			return n, err
		}
		n += len(part)
		b = b[len(part):]
	}
	return n, nil
}

// CloseWrite ends what is written.
func (h *Half) CloseWrite() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.end(0)
}

func (h *Half) end(how uint16) error {
	if h.ended {
		return nil
	}
	h.ended = true
	_ = h.Conn.SetWriteDeadline(time.Now().Add(lastTime))
	_, err := h.Conn.Write(binary.BigEndian.AppendUint16(nil, how))
	return err
}

// SetLinger with 0 has Close cut the connection, as that of *net.TCPConn.
func (h *Half) SetLinger(sec int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.linger = sec
	return nil
}

// Close ends both directions.
func (h *Half) Close() error {
	// A Write that is under way and does not get on is cut.
	if h.mu.TryLock() {
		how := uint16(0)
		if h.linger == 0 {
			how = cutFrame
		}
		_ = h.end(how) // if it cannot be said, that is a cut as well
		h.mu.Unlock()
	}
	return h.Conn.Close()
}

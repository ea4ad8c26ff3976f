package intercept

import (
	"encoding/binary"
	"errors"
	"io"

	"ravi/internal/redact"
)

var (
	errReflected = errors.New("cut, since the server sent back the value of a secret over a WebSocket, where it cannot be replaced")
	errNotFrames = errors.New("cut, since the server sent something over a WebSocket that cannot be searched for secrets")
)

// frames reads what a server sends over a WebSocket, and hands it on as it is. A
// secret in the payload of a message, in however many fragments, ends it before
// its last bytes are handed on. A message that is whole never waits; of one that
// is not, as much waits as may be the beginning of a secret, whatever it is: see
// redact.Reader.Even.
type frames struct {
	src  io.Reader
	r    *redact.Redactor
	buf  []byte // read and not handed on
	pay  []bool // which of buf are payload of the message under way
	free int    // so much of buf may be handed on
	err  error

	head   []byte         // of a frame, as far as it came
	left   uint64         // of the frame's payload
	last   bool           // the frame is the message's last
	inside bool           // a message's payload comes, or a control frame's
	aside  bool           // the frame is a control frame: it stands between two of a message
	note   []byte         // the control frame's payload
	begun  bool           // a message is under way
	from   int            // where in buf the control frame begins
	find   *redact.Writer // looks through the message
}

const framesMost = 64 << 10 // what may come between two bytes of payload

func (f *frames) Read(p []byte) (int, error) {
	for f.free == 0 {
		if f.err != nil {
			return 0, f.err
		}
		piece := buffers.Get().(*[]byte)
		n, err := f.src.Read(*piece)
		if f.err = f.take((*piece)[:n]); f.err == nil {
			f.err = err
			f.release()
		}
		buffers.Put(piece)
	}
	n := copy(p, f.buf[:f.free])
	f.free -= n
	f.from = max(0, f.from-n)
	f.buf, f.pay = append(f.buf[:0], f.buf[n:]...), append(f.pay[:0], f.pay[n:]...)
	return n, nil
}

// take looks at what was read.
func (f *frames) take(b []byte) error {
	for len(b) > 0 {
		if !f.inside {
			if len(f.head) == 0 {
				f.from = len(f.buf)
			}
			f.head = append(f.head, b[0])
			f.keep(b[:1], false)
			b = b[1:]
			if err := f.begin(); err != nil {
				return err
			}
			continue
		}
		n := int(min(uint64(len(b)), f.left))
		f.keep(b[:n], !f.aside)
		if f.aside {
			f.note = append(f.note, b[:n]...)
		} else {
			if _, err := f.find.Write(b[:n]); err != nil {
				return err
			}
		}
		f.left -= uint64(n)
		b = b[n:]
		if err := f.end(); err != nil {
			return err
		}
	}
	return nil
}

func (f *frames) keep(b []byte, payload bool) {
	f.buf = append(f.buf, b...)
	for range b {
		f.pay = append(f.pay, payload)
	}
}

// begin reads a frame's head, if it is whole (RFC 6455, 5.2).
func (f *frames) begin() error {
	if len(f.head) < 2 {
		return nil
	}
	const more = 0x70 // bits of extensions, of which none was agreed on
	size := f.head[1] & 0x7f
	need := map[byte]int{126: 4, 127: 10}[size]
	switch {
	case f.head[0]&more != 0 || f.head[1]&0x80 != 0:
		return errNotFrames
	case len(f.head) < need:
		return nil
	}
	switch size {
	case 126:
		f.left = uint64(binary.BigEndian.Uint16(f.head[2:]))
	case 127:
		f.left = binary.BigEndian.Uint64(f.head[2:])
	default:
		f.left = uint64(size)
	}
	f.last, f.aside = f.head[0]&0x80 != 0, f.head[0]&8 != 0
	f.head, f.inside, f.note = f.head[:0], true, f.note[:0]
	switch {
	case f.aside && (f.left > 125 || !f.last):
		return errNotFrames
	case !f.aside && !f.begun:
		f.begun, f.find = true, f.r.Writer(io.Discard)
	}
	return f.end()
}

// end looks at what a frame had, if it is whole.
func (f *frames) end() error {
	if f.left == 0 {
		f.inside = false
	}
	switch {
	case f.aside && f.left == 0:
		f.aside = false
		if _, found := f.r.Found(string(f.note)); found {
			return errReflected
		}
	case !f.aside && f.left == 0 && f.last:
		if err := f.find.Close(); err != nil {
			return err
		}
		f.begun = false
	}
	if f.find != nil && f.find.Hits() > 0 {
		return errReflected
	}
	if !f.begun && !f.inside {
		f.free = len(f.buf)
	}
	return nil
}

// release has handed on what cannot be a secret's beginning any more.
func (f *frames) release() {
	most := len(f.buf)
	if f.aside {
		most = f.from
	}
	wait := max(0, f.r.Longest()-1)
	for at := len(f.buf); wait > 0 && at > f.free; at-- {
		if f.pay[at-1] {
			wait--
			most = min(most, at-1)
		}
	}
	f.free = max(f.free, most)
	if len(f.buf)-f.free > f.r.Longest()+framesMost {
		f.err = errNotFrames
	}
}

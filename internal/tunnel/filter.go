package tunnel

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// A yamux frame (its spec.md, version 0): version (1), type (1), flags (2), stream (4), length (4); data frames have
// length bytes behind.
const (
	muxHead = 12

	muxData   = 0
	muxWindow = 1
	muxPing   = 2
	muxFin    = 4 // a flag

	// streamWindow is how much of a stream is held for its reader. It is the least that yamux has.
	streamWindow = 256 << 10
)

// filter reads the frames of the other end before yamux does, for two things that yamux does not do. A session that dies
// looks to a stream's reader like the end that its writer made; so the filter notes the ends that came. And yamux answers
// a ping in a goroutine of its own, so who pings and does not read would make any number of them; we send none.
type filter struct {
	io.ReadWriteCloser
	fail func(error)

	body  uint32 // what is left of the data of a frame
	head  [muxHead]byte
	ready []byte // what of head is not read yet

	mu   sync.Mutex
	ends map[uint32]struct{} // streams whose writer ended them
}

func newFilter(c io.ReadWriteCloser, fail func(error)) *filter {
	return &filter{ReadWriteCloser: c, fail: fail, ends: map[uint32]struct{}{}}
}

func (f *filter) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(f.ready) == 0 && f.body == 0 {
		if _, err := io.ReadFull(f.ReadWriteCloser, f.head[:]); err != nil {
			return 0, err
		}
		if err := f.check(); err != nil {
			f.fail(err)
			return 0, err
		}
		f.ready = f.head[:]
	}
	if len(f.ready) > 0 {
		n := copy(p, f.ready)
		f.ready = f.ready[n:]
		return n, nil
	}
	n, err := f.ReadWriteCloser.Read(p[:min(len(p), int(f.body))])
	f.body -= uint32(n)
	return n, err
}

func (f *filter) check() error {
	kind, flags := f.head[1], binary.BigEndian.Uint16(f.head[2:])
	id, length := binary.BigEndian.Uint32(f.head[4:]), binary.BigEndian.Uint32(f.head[8:])
	switch {
	case kind == muxPing:
		return fmt.Errorf("%w: it pings", ErrProtocol)
	case kind == muxData && length > streamWindow:
		return fmt.Errorf("%w: %d bytes at once in a stream", ErrProtocol, length)
	case kind == muxData:
		f.body = length
	}
	if flags&muxFin != 0 && (kind == muxData || kind == muxWindow) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.ends) > 4*maxStreams {
			return fmt.Errorf("%w: it ends more streams than there are", ErrProtocol)
		}
		f.ends[id] = struct{}{}
	}
	return nil
}

// ended says whether the writer of the stream ended it.
func (f *filter) ended(id uint32) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, yes := f.ends[id]
	return yes
}

func (f *filter) forget(id uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.ends, id)
}

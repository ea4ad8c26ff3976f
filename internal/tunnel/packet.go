package tunnel

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
)

// A packet is one message of the bus. Its first byte is its kind.
//
//	hello, welcome: kind, box (see handshake.go)
//	frame:          kind, session (8 bytes), counter (8), sealed frame with its tag (16)
//
// All numbers are big-endian. A sealed frame is:
//
//	flags (1), seen (8), ack (8), credit (8), offset (8), data
//
// seen is one more than the highest counter taken from the other end; ack is the
// offset of the first byte that is not there yet; credit is the offset up to
// which bytes are taken; offset is where data begins. The end of the bytes
// (flagFin) takes one offset of its own.
const (
	kindHello   = 1
	kindWelcome = 2
	kindFrame   = 3

	idSize    = 8
	outerSize = 1 + idSize + 8
	tagSize   = 16
	headSize  = 1 + 4*8
	overhead  = outerSize + headSize + tagSize

	// maxPacket bounds a packet whatever the bus would take: a large one holds up the small ones of other sessions, and one
	// that is larger than the buffers that NATS reads with (32 KiB) is slower, as it is put together from pieces.
	maxPacket = 30 << 10
	// minPacket is the least that the bus must take.
	minPacket = 1 << 10
	// maxOffset is far beyond what a session can carry, and far from where sums wrap.
	maxOffset = 1 << 62
)

// Flags of a frame.
const (
	flagFin   = 1 << iota // the bytes end after data
	flagPing              // answer at once
	flagGap               // something is missing at ack: send from there
	flagAgain             // the sender was away: whatever was sent since may be lost
	flagOver              // the session is over; data is one byte that says why
	flagsAll  = flagFin | flagPing | flagGap | flagAgain | flagOver
)

// Why a session is over, in a frame with flagOver.
const (
	overClosed   = 1
	overReplaced = 2
	overProtocol = 3
	overBusy     = 4
)

type sessionID [idSize]byte

var errPacket = errors.New("not a packet of this session")

type frame struct {
	flags                     byte
	seen, ack, credit, offset uint64
	data                      []byte
}

// head writes all of a frame but its data.
func (f *frame) head(dst []byte) []byte {
	dst = append(dst, f.flags)
	for _, n := range []uint64{f.seen, f.ack, f.credit, f.offset} {
		dst = binary.BigEndian.AppendUint64(dst, n)
	}
	return dst
}

// parseFrame reads an opened frame. Its data is part of plain.
func parseFrame(plain []byte) (frame, error) {
	if len(plain) < headSize {
		return frame{}, fmt.Errorf("%w: a frame of %d bytes", ErrProtocol, len(plain))
	}
	number := func(i int) uint64 { return binary.BigEndian.Uint64(plain[1+8*i:]) }
	f := frame{flags: plain[0], seen: number(0), ack: number(1), credit: number(2), offset: number(3), data: plain[headSize:]}
	switch {
	case f.flags&^flagsAll != 0:
		return frame{}, fmt.Errorf("%w: a frame with unknown flags %#x", ErrProtocol, f.flags)
	case f.ack > maxOffset || f.credit > maxOffset || f.offset > maxOffset:
		return frame{}, fmt.Errorf("%w: a frame far beyond any end", ErrProtocol)
	case f.flags&flagOver != 0 && len(f.data) != 1:
		return frame{}, fmt.Errorf("%w: an end without its reason", ErrProtocol)
	}
	return f, nil
}

// sealing is one direction of a session: its key, and the next counter.
type sealing struct {
	aead cipher.AEAD
	id   sessionID
	next uint64 // the next counter to send, or the lowest that is taken
}

func newSealing(key []byte, id sessionID) (*sealing, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	return &sealing{aead: aead, id: id}, nil
}

func nonce(counter uint64) []byte {
	out := make([]byte, 12)
	binary.BigEndian.PutUint64(out[4:], counter)
	return out
}

// begin writes what stands before a sealed frame.
func (s *sealing) begin(dst []byte, counter uint64) []byte {
	dst = append(append(dst, kindFrame), s.id[:]...)
	return binary.BigEndian.AppendUint64(dst, counter)
}

// seal seals what stands after begin, in place. The packet has room for the tag.
func (s *sealing) seal(packet []byte, counter uint64) []byte {
	return s.aead.Seal(packet[:outerSize], nonce(counter), packet[outerSize:], packet[:outerSize])
}

// open opens a packet in place and returns the frame's bytes. A counter is taken once, and never one that is lower than
// another that was taken: what comes late is as good as lost.
func (s *sealing) open(packet []byte) ([]byte, error) {
	id, counter, ok := frameID(packet)
	if !ok || id != s.id || counter < s.next {
		return nil, errPacket
	}
	plain, err := s.aead.Open(packet[outerSize:outerSize], nonce(counter), packet[outerSize:], packet[:outerSize])
	if err != nil {
		return nil, errPacket
	}
	s.next = counter + 1
	return plain, nil
}

// frameID says which session a frame claims to be of, and its counter.
func frameID(packet []byte) (id sessionID, counter uint64, ok bool) {
	if len(packet) < overhead || packet[0] != kindFrame {
		return id, 0, false
	}
	copy(id[:], packet[1:])
	return id, binary.BigEndian.Uint64(packet[1+idSize:]), true
}

package tunnel

import (
	"bytes"
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/nats-io/nkeys"
)

// The handshake is a hello, a welcome, and the first frame.
//
// A box (nkeys Seal) between two keys opens for both of them, so an end could be
// given its own hello as the other's: what is sealed says who speaks. It says
// also which session it is for, and the welcome which hello it answers.
//
//	hello:   magic (17), key (32), name
//	welcome: magic (17), hash of the hello packet (32), key (32), session (8), code (1), name
//
// The keys of the frames come from the two fresh keys and both packets. Who
// plays an old hello again cannot make the first frame, and before that the
// listener has nothing but a bounded number of half-open sessions.
const (
	magicHello   = "ravi tunnel 1 hi\x00"
	magicWelcome = "ravi tunnel 1 ok\x00"
	magicSize    = len(magicHello)
	keySize      = 32

	codeOpen = 0
	codeBusy = 1

	// maxBox is the largest packet of the handshake that is looked at.
	maxBox = 1 << 10
)

// party is what an end brings to a handshake: its long-lived key, and the other's.
type party struct {
	self nkeys.KeyPair
	peer string
}

// check tells at the beginning what would make every handshake fail.
func (p party) check() error {
	if p.self == nil {
		return errors.New("a tunnel needs a curve key of its own")
	}
	probe, err := p.self.Seal([]byte("."), p.peer)
	if err != nil {
		return fmt.Errorf("the keys of the tunnel are not two curve keys: %w", err)
	}
	_, err = p.self.Open(probe, p.peer)
	return err
}

func (p party) seal(kind byte, parts ...[]byte) ([]byte, error) {
	box, err := p.self.Seal(bytes.Join(parts, nil), p.peer)
	if err != nil {
		return nil, fmt.Errorf("cannot seal a handshake: %w", err)
	}
	return append([]byte{kind}, box...), nil
}

func (p party) open(packet []byte, magic string) ([]byte, error) {
	if len(packet) < 1 || len(packet) > maxBox {
		return nil, errPacket
	}
	plain, err := p.self.Open(packet[1:], p.peer)
	if err != nil || !bytes.HasPrefix(plain, []byte(magic)) {
		return nil, errPacket
	}
	return plain[magicSize:], nil
}

// hello is the dialer's side of a handshake that is under way.
type hello struct {
	party
	name   string
	fresh  *ecdh.PrivateKey
	packet []byte
}

func newHello(p party, name string) (*hello, error) {
	fresh, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	packet, err := p.seal(kindHello, []byte(magicHello), fresh.PublicKey().Bytes(), []byte(name))
	if err != nil {
		return nil, err
	}
	return &hello{p, name, fresh, packet}, nil
}

// agreed is what a handshake came to.
type agreed struct {
	id       sessionID
	out, in  *sealing
	accepted bool // false: the listener is full
}

// finish reads the welcome. It returns errPacket for anything else, which a hostile bus can send at will.
func (h *hello) finish(packet []byte) (*agreed, error) {
	plain, err := h.open(packet, magicWelcome)
	if err != nil {
		return nil, err
	}
	const fixed = sha256.Size + keySize + idSize + 1
	hash := sha256.Sum256(h.packet)
	if len(plain) < fixed || !bytes.Equal(plain[:sha256.Size], hash[:]) || string(plain[fixed:]) != h.name {
		return nil, errPacket
	}
	plain = plain[sha256.Size:]
	a := &agreed{id: sessionID(plain[keySize : keySize+idSize]), accepted: plain[keySize+idSize] == codeOpen}
	if !a.accepted {
		return a, nil
	}
	down, up, err := derive(h.fresh, plain[:keySize], h.packet, packet, a.id)
	a.out, a.in = down, up
	return a, err
}

// welcome answers a hello of the name. The packet's hash tells one hello from another.
func welcome(p party, name string, packet []byte, code byte) (*agreed, []byte, error) {
	plain, err := p.open(packet, magicHello)
	if err != nil {
		return nil, nil, err
	}
	if len(plain) < keySize || string(plain[keySize:]) != name {
		return nil, nil, errPacket
	}
	fresh, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	a := &agreed{accepted: code == codeOpen}
	if _, err := rand.Read(a.id[:]); err != nil {
		return nil, nil, err
	}
	hash := sha256.Sum256(packet)
	answer, err := p.seal(kindWelcome, []byte(magicWelcome), hash[:], fresh.PublicKey().Bytes(), a.id[:], []byte{code}, []byte(name))
	if err != nil || !a.accepted {
		return a, answer, err
	}
	down, up, err := derive(fresh, plain[:keySize], packet, answer, a.id)
	a.out, a.in = up, down
	return a, answer, err
}

// derive makes the keys of both directions.
func derive(fresh *ecdh.PrivateKey, peer, hi, ok []byte, id sessionID) (down, up *sealing, err error) {
	public, err := ecdh.X25519().NewPublicKey(peer)
	if err != nil {
		return nil, nil, errPacket
	}
	shared, err := fresh.ECDH(public)
	if err != nil {
		return nil, nil, errPacket
	}
	first, second := sha256.Sum256(hi), sha256.Sum256(ok)
	keys, err := hkdf.Key(sha256.New, shared, append(first[:], second[:]...), "ravi tunnel 1 keys", 2*keySize)
	if err != nil {
		return nil, nil, err
	}
	if down, err = newSealing(keys[:keySize], id); err != nil {
		return nil, nil, err
	}
	up, err = newSealing(keys[keySize:], id)
	return down, up, err
}

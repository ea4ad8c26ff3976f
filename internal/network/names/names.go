// Package names gives each name that a sandbox asks for an address that stands
// for it and for nothing else.
//
// The addresses are made up, so no query need leave the process, and each
// connection says which name it is for. The package only keeps the table.
package names

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"sync"
)

// Range is where the addresses are: 198.18.0.0/15, set aside for measurements
// of networks (RFC 2544) and routed nowhere.
var Range = netip.MustParsePrefix("198.18.0.0/15")

// size is how many addresses the range has, and most how many names one sandbox
// may have: few enough that the table is never full, many enough for a build.
const (
	size = 1 << 17
	most = 1 << 13
)

// ErrFull says that a sandbox has asked for more names than it may.
var ErrFull = errors.New("too many different names")

// Table is one sandbox's names. An address is never given to another name. The
// same names have the same addresses in a table with the same seed, unless two
// of them collide and are asked for in another order.
type Table struct {
	seed []byte

	mu    sync.Mutex
	addrs map[string]netip.Addr
	names map[netip.Addr]string
	asked []string // in this order
}

// New makes a table. The seed is not secret; it stands for the sandbox.
func New(seed []byte) *Table {
	return &Table{seed: seed, addrs: map[string]netip.Addr{}, names: map[netip.Addr]string{}}
}

// Addr returns the address that stands for name, which is in lower case and
// without a dot at its end.
func (t *Table) Addr(name string) (netip.Addr, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a, ok := t.addrs[name]; ok {
		return a, nil
	}
	if len(t.addrs) >= most {
		return netip.Addr{}, ErrFull
	}
	mac := hmac.New(sha256.New, t.seed)
	mac.Write([]byte(name))
	n := binary.BigEndian.Uint32(mac.Sum(nil)) % size
	for ; ; n = (n + 1) % size {
		// The first and the last few of each /24 look like networks and broadcasts.
		if low := n & 0xff; low == 0 || low == 255 {
			continue
		}
		a := at(n)
		if _, taken := t.names[a]; !taken {
			t.addrs[name], t.names[a] = a, name
			t.asked = append(t.asked, name)
			return a, nil
		}
	}
}

// Names are all names, in the order in which they were first asked for. A table with
// the same seed that is asked for them in this order has the same addresses.
func (t *Table) Names() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.asked)
}

// Name returns the name that an address stands for.
func (t *Table) Name(a netip.Addr) (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	name, ok := t.names[a]
	return name, ok
}

func at(n uint32) netip.Addr {
	base := Range.Addr().As4()
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(base[:])+n)
	return netip.AddrFrom4(b)
}

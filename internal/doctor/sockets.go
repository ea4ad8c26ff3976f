package doctor

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Address is an address of this machine.
type Address struct {
	Interface string     `json:"interface"`
	Addr      netip.Addr `json:"addr"` // with its zone where it means something on its own interface only
}

// The kinds of addresses.
const (
	Loopback  = "loopback"
	LinkLocal = "link_local"
	ULA       = "ula" // fc00::/7, RFC 4193
	IPv4      = "ipv4"
	IPv6      = "ipv6"
)

// Kind says who could be at the other end.
func (a Address) Kind() string {
	switch {
	case a.Addr.IsLoopback():
		return Loopback
	case a.Addr.IsLinkLocalUnicast():
		return LinkLocal
	case a.Addr.Is6() && a.Addr.IsPrivate():
		return ULA
	case a.Addr.Is4():
		return IPv4
	}
	return IPv6
}

func (a Address) String() string {
	if a.Interface == "" || a.Addr.Zone() != "" {
		return a.Addr.String()
	}
	return a.Addr.String() + " (" + a.Interface + ")"
}

// Interfaces are the addresses of all interfaces of this process's network namespace, both loopbacks included.
func Interfaces() ([]Address, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	out := []Address{{"lo", netip.MustParseAddr("127.0.0.1")}, {"lo", netip.MustParseAddr("::1")}}
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			return nil, fmt.Errorf("the addresses of %s: %w", i.Name, err)
		}
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			ip, ok := netip.AddrFromSlice(n.IP)
			if !ok {
				continue
			}
			if ip = ip.Unmap(); ip.Is6() && ip.IsLinkLocalUnicast() {
				ip = ip.WithZone(i.Name)
			}
			if found := (Address{i.Name, ip}); !slices.ContainsFunc(out, func(o Address) bool { return o.Addr == ip }) {
				out = append(out, found)
			}
		}
	}
	return out, nil
}

// socket is a listening TCP socket.
type socket struct {
	at    netip.AddrPort
	inode uint64
}

// wide says whether it listens on every address.
func (s socket) wide() bool { return s.at.Addr().IsUnspecified() }

// serves says whether a connection to an address could come to this socket.
func (s socket) serves(at netip.AddrPort) bool {
	if s.at.Port() != at.Port() {
		return false
	}
	to := at.Addr().WithZone("")
	// One of all IPv6 addresses may be of all IPv4 ones as well: the table does not say.
	return s.at.Addr() == to || s.wide() && (s.at.Addr().Is6() || to.Is4())
}

// listening are the listening TCP sockets of the network namespace that a process is in.
func listening(proc string, pid int) ([]socket, error) {
	var out []socket
	for _, name := range []string{"tcp", "tcp6"} {
		f, err := os.Open(filepath.Join(proc, strconv.Itoa(pid), "net", name))
		if errors.Is(err, fs.ErrNotExist) && name == "tcp6" {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, err
		}
		found, err := parseSockets(f)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name(), err)
		}
		out = append(out, found...)
	}
	return out, nil
}

// parseSockets reads the listening sockets of a table as /proc/net/tcp and tcp6 are (proc_pid_net(5)).
func parseSockets(r io.Reader) ([]socket, error) {
	const listen = "0A"
	var out []socket
	lines := bufio.NewScanner(r)
	for first := true; lines.Scan(); first = false {
		f := strings.Fields(lines.Text())
		if first || len(f) < 10 || f[3] != listen {
			continue
		}
		at, err := parseEnd(f[1])
		if err != nil {
			return nil, err
		}
		inode, err := strconv.ParseUint(f[9], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("the inode %.20q: %w", f[9], err)
		}
		// The kernel may show one twice while others come and go.
		if s := (socket{at, inode}); !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out, lines.Err()
}

// parseEnd reads an address and a port: words of 32 bits in the machine's own order, and a number.
func parseEnd(s string) (at netip.AddrPort, err error) {
	host, port, ok := strings.Cut(s, ":")
	b, err := hex.DecodeString(host)
	if !ok || err != nil || len(b) != 4 && len(b) != 16 {
		return at, fmt.Errorf("%.50q is no address and port", s)
	}
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return at, fmt.Errorf("%.50q is no address and port", s)
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	addr, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)), nil
}

// descriptors are the inodes of the sockets that a process has open.
func descriptors(proc string, pid int) (map[uint64]bool, error) {
	dir := filepath.Join(proc, strconv.Itoa(pid), "fd")
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	out := map[uint64]bool{}
	for _, n := range names {
		to, err := os.Readlink(filepath.Join(dir, n.Name()))
		if err != nil {
			continue // it was closed since
		}
		if rest, ok := strings.CutPrefix(to, "socket:["); ok {
			if inode, err := strconv.ParseUint(strings.TrimSuffix(rest, "]"), 10, 64); err == nil {
				out[inode] = true
			}
		}
	}
	return out, nil
}

// holder is a process that has a socket open, for people; empty if none can be seen.
func holder(proc string, inode uint64) string {
	pids, err := os.ReadDir(proc)
	if err != nil {
		return ""
	}
	for _, e := range pids {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if has, err := descriptors(proc, pid); err == nil && has[inode] {
			name, err := os.ReadFile(filepath.Join(proc, e.Name(), "comm"))
			if err != nil {
				return fmt.Sprintf("process %d", pid)
			}
			return fmt.Sprintf("process %d, %s", pid, strings.TrimSpace(string(name)))
		}
	}
	return ""
}

// sameNetwork says whether a process is in this one's network namespace: only then does dialling tell about it.
func sameNetwork(proc string, pid int) (bool, error) {
	ours, err := os.Stat(filepath.Join(proc, "self", "ns", "net"))
	if err != nil {
		return false, err
	}
	its, err := os.Stat(filepath.Join(proc, strconv.Itoa(pid), "ns", "net"))
	if err != nil {
		return false, err
	}
	return os.SameFile(ours, its), nil
}

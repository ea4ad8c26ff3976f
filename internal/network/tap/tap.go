// Package tap makes the device that a sandbox's cable is plugged into.
//
// It makes a network namespace with one device in it, and hands out both: the
// namespace is the sandbox's, and what is sent there is read from the device's
// file. Nothing else is in that namespace, so there is no way from it to the
// host. The package changes nothing outside it, and must stay small: the
// supervisor stands on it.
package tap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Config is how the device looks to the sandbox.
type Config struct {
	MAC     net.HardwareAddr
	Addr    netip.Addr // IPv4
	Bits    int        // of its network
	Gateway netip.Addr
	// GatewayMAC is the address of the far end.
	GatewayMAC net.HardwareAddr
	MTU        int
}

// Sandbox is the device of every sandbox. Its addresses mean something on the
// cable only, so all have the same. With large packets fewer turns are needed
// for the same bytes. The MAC address is fixed (locally administered), so nobody
// on the cable has to ask for it.
var Sandbox = Config{
	MAC:        net.HardwareAddr{0x02, 0x52, 0x41, 0x56, 0x49, 0x02},
	Addr:       netip.MustParseAddr("192.168.127.2"),
	Bits:       24,
	Gateway:    netip.MustParseAddr("192.168.127.1"),
	GatewayMAC: net.HardwareAddr{0x02, 0x52, 0x41, 0x56, 0x49, 0x01},
	MTU:        65520,
}

// ErrNoDevice says that this host has no TAP devices for the caller.
var ErrNoDevice = errors.New("no network device can be made for the sandbox")

const (
	device = "eth0" // what the sandbox calls it
	clone  = "/dev/net/tun"
)

// Pair is the two ends.
type Pair struct {
	Device    *os.File // Ethernet frames; does not block
	Namespace *os.File
}

// Close closes both. The namespace goes when nobody is in it any more.
func (p Pair) Close() error { return errors.Join(p.Device.Close(), p.Namespace.Close()) }

// New makes a namespace and its device. It needs CAP_NET_ADMIN in the caller's
// user namespace.
func New(c Config) (Pair, error) {
	type result struct {
		pair Pair
		err  error
	}
	done := make(chan result)
	go func() {
		// The thread is never unlocked: it stays in that namespace, and ends
		// with this goroutine.
		runtime.LockOSThread()
		p, err := create(c)
		done <- result{p, err}
	}()
	r := <-done
	return r.pair, r.err
}

func create(c Config) (Pair, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return Pair{}, fmt.Errorf("making a network namespace: %w", err)
	}
	fd, err := unix.Open(clone, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return Pair{}, fmt.Errorf("%w: %s: %w", ErrNoDevice, clone, err)
	}
	file := os.NewFile(uintptr(fd), "tap")
	if err := configure(fd, c); err != nil {
		file.Close()
		return Pair{}, err
	}
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		file.Close()
		return Pair{}, err
	}
	return Pair{file, ns}, nil
}

func configure(tun int, c Config) error {
	req, err := unix.NewIfreq(device)
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(tun, unix.TUNSETIFF, req); err != nil {
		return fmt.Errorf("%w: %w", ErrNoDevice, err)
	}
	if err := filter(tun, c.GatewayMAC, net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}); err != nil {
		return err
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	set := func(what, name string, request uint, fill func(*unix.Ifreq) error) error {
		r, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		if err := fill(r); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(s, request, r); err != nil {
			return fmt.Errorf("giving the sandbox's device its %s: %w", what, err)
		}
		return nil
	}
	up := func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING); return nil }
	mask := net.CIDRMask(c.Bits, 32)
	return errors.Join(
		set("state", "lo", unix.SIOCSIFFLAGS, up),
		setMAC(s, c.MAC),
		set("packet size", device, unix.SIOCSIFMTU, func(r *unix.Ifreq) error { r.SetUint32(uint32(c.MTU)); return nil }),
		set("address", device, unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(c.Addr.AsSlice()) }),
		set("network", device, unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr(mask) }),
		set("state", device, unix.SIOCSIFFLAGS, up),
		addRoute(s, c.Gateway),
	)
}

// filter has the kernel drop what is sent to anybody but these. The stack at the
// far end stops reading at the first frame that is not for it.
func filter(tun int, to ...net.HardwareAddr) error {
	// struct tun_filter of linux/if_tun.h.
	b := binary.NativeEndian.AppendUint16(nil, 0)
	b = binary.NativeEndian.AppendUint16(b, uint16(len(to)))
	for _, mac := range to {
		b = append(b, mac...)
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(tun), unix.TUNSETTXFILTER, uintptr(unsafe.Pointer(&b[0]))); errno != 0 {
		return fmt.Errorf("bounding what is read from the sandbox's device: %w", errno)
	}
	return nil
}

// hardware is the part of struct ifreq (netdevice(7)) that sets a MAC address.
type hardware struct {
	name   [unix.IFNAMSIZ]byte
	family uint16
	data   [14]byte
	_      [8]byte
}

func setMAC(s int, mac net.HardwareAddr) error {
	r := hardware{family: unix.ARPHRD_ETHER}
	copy(r.name[:], device)
	copy(r.data[:], mac)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCSIFHWADDR, uintptr(unsafe.Pointer(&r))); errno != 0 {
		return fmt.Errorf("giving the sandbox's device its MAC address: %w", errno)
	}
	return nil
}

// route is struct rtentry of linux/route.h, for 64 bits.
type route struct {
	_       uintptr
	dst     unix.RawSockaddrInet4
	gateway unix.RawSockaddrInet4
	mask    unix.RawSockaddrInet4
	flags   uint16
	_       int16
	_       uintptr
	_       uintptr
	metric  int16
	dev     *byte
	mtu     uintptr
	window  uintptr
	irtt    uint16
}

// The flags of a route (linux/route.h).
const (
	routeUp      = 0x1
	routeGateway = 0x2
)

func addRoute(s int, gateway netip.Addr) error {
	in := unix.RawSockaddrInet4{Family: unix.AF_INET}
	r := route{dst: in, gateway: in, mask: in, flags: routeUp | routeGateway}
	r.gateway.Addr = gateway.As4()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCADDRT, uintptr(unsafe.Pointer(&r))); errno != 0 {
		return fmt.Errorf("giving the sandbox's device its route: %w", errno)
	}
	return nil
}

package parts

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/network"
	"ravi/internal/network/dial"
	"ravi/internal/network/policy"
)

// asDialer has this program be a dialer, confined as one is.
const asDialer = "RAVI_TEST_PARTS_DIALER"

func TestMain(m *testing.M) {
	if os.Getenv(asDialer) != "" {
		fmt.Fprintln(os.Stderr, Dialer(0))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// dialer is a dialer's process, as a gateway and a keeper see it.
type dialer struct {
	*dial.Client
	policies *os.File
}

func (d *dialer) set(t *testing.T, rules ...string) {
	t.Helper()
	var parsed []policy.Rule
	for _, text := range rules {
		r, err := policy.ParseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, r)
	}
	p, err := policy.FromRules(parsed)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(network.Config{Policy: p, Seed: "sbx"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.CreateTemp(t.TempDir(), "policy")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendmsg(int(d.policies.Fd()), []byte{0}, unix.UnixRights(int(f.Fd())), nil, 0); err != nil {
		t.Fatal(err)
	}
}

func start(t *testing.T, rules ...string) *dialer {
	t.Helper()
	var ours, theirs [2]*os.File
	for i := range ours {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		ours[i], theirs[i] = os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	}
	nothing, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), asDialer+"=1")
	cmd.ExtraFiles = []*os.File{theirs[0], theirs[1], nothing}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range cmd.ExtraFiles {
		f.Close()
	}
	conn, err := net.FileConn(ours[1])
	ours[1].Close()
	if err != nil {
		t.Fatal(err)
	}
	d := &dialer{dial.NewClient(conn.(*net.UnixConn)), ours[0]}
	t.Cleanup(func() {
		d.Close()
		d.policies.Close()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the dialer said: %s", said.String())
		}
	})
	d.set(t, rules...)
	return d
}

// A gateway that was taken over asks the dialer for what it likes, and gets what the policy allows.
func TestDialerKeepsToThePolicy(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	here := netip.MustParseAddr("127.0.0.1")
	tcp := netip.MustParseAddrPort(l.Addr().String()).Port()
	udp := tcp
	for udp >= tcp-2 && udp <= tcp+2 { // the ports of one are none of the other's
		u, err := net.ListenPacket("udp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer u.Close()
		udp = netip.MustParseAddrPort(u.LocalAddr().String()).Port()
	}
	at := func(host string, port uint16) string { return fmt.Sprintf("%s:%d", host, port) }
	// The name is allowed on two ports of each, the address where it leads on one.
	d := start(t, at("localhost", tcp), at("127.0.0.1", tcp), at("localhost", tcp+1),
		at("localhost", udp)+"/udp", at("127.0.0.1", udp)+"/udp", at("localhost", udp+1)+"/udp")

	c, err := d.Dial(t.Context(), "localhost", netip.Addr{}, tcp)
	if err != nil {
		t.Fatalf("what is allowed: %v", err)
	}
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the server ended the connection, and it is %v", err)
	}
	c.Close()
	if c, err = d.DialUDP(t.Context(), "localhost", netip.Addr{}, udp); err != nil {
		t.Fatalf("UDP that is allowed: %v", err)
	}
	c.Close()

	type ask struct {
		what string
		udp  bool
		name string
		addr netip.Addr
		port uint16
	}
	refused := func(asks ...ask) {
		t.Helper()
		for _, a := range asks {
			dialled := d.Dial
			if a.udp {
				dialled = d.DialUDP
			}
			c, err := dialled(t.Context(), a.name, a.addr, a.port)
			var e *dial.Error
			if !errors.As(err, &e) || e.Code != dial.Denied {
				t.Errorf("%s: %v", a.what, err)
			}
			if c != nil {
				c.Close()
			}
		}
	}
	refused(
		ask{"another name", false, "other.test", netip.Addr{}, tcp},
		ask{"another port", false, "localhost", netip.Addr{}, tcp + 2},
		ask{"an address on a port of its name's", false, "", here, tcp + 1},
		ask{"another address", false, "", netip.MustParseAddr("127.0.0.2"), tcp},
		ask{"IPv4 as IPv6", false, "", netip.MustParseAddr("::ffff:127.0.0.2"), tcp},
		ask{"metadata", false, "", netip.MustParseAddr("169.254.169.254"), 80},
		ask{"neither", false, "", netip.Addr{}, tcp},
		ask{"port 0", false, "localhost", netip.Addr{}, 0},
		ask{"a name that leads to this host", false, "localhost", netip.Addr{}, tcp + 1},
		ask{"UDP by a rule about TCP", true, "localhost", netip.Addr{}, tcp},
		ask{"TCP by a rule about UDP", false, "localhost", netip.Addr{}, udp},
		ask{"UDP to another name", true, "other.test", netip.Addr{}, udp},
		ask{"UDP to an address", true, "", here, udp + 1},
		ask{"UDP to a name that leads to this host", true, "localhost", netip.Addr{}, udp + 1},
	)
	// Another policy comes, and holds.
	d.set(t, "other.test")
	for deadline := time.Now().Add(time.Minute); ; {
		c, err := d.Dial(t.Context(), "localhost", netip.Addr{}, tcp)
		if err != nil {
			break
		}
		c.Close()
		if time.Now().After(deadline) {
			t.Fatal("the old policy still holds")
		}
	}
	refused(ask{"what was allowed", false, "localhost", netip.Addr{}, tcp}, ask{"UDP that was allowed", true, "localhost", netip.Addr{}, udp})
}

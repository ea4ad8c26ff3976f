package doctor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

func newReader(b []byte) *bufio.Reader { return bufio.NewReader(bytes.NewReader(b)) }

// The two machines of a test are network namespaces with a cable between them. This test program is started again in each:
// here it is told what to be.
const (
	asHost = "RAVI_DOCTOR_TEST_HOST" // a NATS server bound to this, examined
	asWiFi = "RAVI_DOCTOR_TEST_WIFI" // one who dials these
)

func TestMain(m *testing.M) {
	if host := os.Getenv(asHost); host != "" {
		allTimes(4 * time.Minute) // its server says the first word, and nothing else listens
		os.Exit(beHost(host))
	}
	if addrs := os.Getenv(asWiFi); addrs != "" {
		beWiFi(strings.Split(addrs, ","))
		os.Exit(0)
	}
	bannerTime = 5 * time.Second
	os.Exit(m.Run())
}

const natsPort = 4222

// beHost is a machine with a NATS server, which tells what its own examination gave, until its input ends.
func beHost(host string) int {
	s, err := server.NewServer(&server.Options{Host: host, Port: natsPort, NoSigs: true, NoLog: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go s.Start()
	if !s.ReadyForConnections(4 * time.Minute) {
		fmt.Fprintln(os.Stderr, "the server does not start")
		return 1
	}
	x, err := Expose(context.Background(), Listener{Name: "bus", Port: natsPort, Speaks: NATS, PID: os.Getpid()}, Interfaces)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var r result
	(Endpoint{Name: "bus", Speaks: NATS, Host: "127.0.0.1", HostKey: "bus.host", PortKey: "bus.port"}).findings(&r, x)
	if err := json.NewEncoder(os.Stdout).Encode(hostSaid{x, r.findings}); err != nil {
		return 1
	}
	_, _ = bufio.NewReader(os.Stdin).ReadByte() // its end is what is waited for
	return 0
}

type hostSaid struct {
	Exposure Exposure
	Findings []Finding
}

// beWiFi dials, and tells for each address whether it was answered.
func beWiFi(addrs []string) {
	for _, a := range addrs {
		c, err := net.DialTimeout("tcp", a, time.Minute)
		if err != nil {
			fmt.Println("refused")
			continue
		}
		line, err := bufio.NewReader(c).ReadString('\n')
		c.Close()
		if err != nil || !strings.HasPrefix(line, "INFO ") {
			fmt.Println("refused")
			continue
		}
		fmt.Println("answers")
	}
}

// cable is two namespaces with a cable between them.
type cable struct{ host, wifi string }

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// The addresses of the host, and of who sits in the same café.
var hostAddrs = []string{"192.0.2.10/24", "2001:db8:7::10/64", "fd42:7::10/64"}

func newCable(t *testing.T) cable {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIP-ENV: only root makes network namespaces")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("SKIP-ENV: there is no ip (iproute2)")
	}
	c := cable{fmt.Sprintf("ravi-doc-%d-h", os.Getpid()), fmt.Sprintf("ravi-doc-%d-w", os.Getpid())}
	if out, err := exec.Command("ip", "netns", "add", c.host).CombinedOutput(); err != nil {
		t.Skipf("SKIP-ENV: no network namespace: %v: %s", err, out)
	}
	t.Cleanup(func() { ip(t, "netns", "del", c.host) })
	ip(t, "netns", "add", c.wifi)
	t.Cleanup(func() { ip(t, "netns", "del", c.wifi) })
	ip(t, "-n", c.host, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", c.wifi)
	for _, addr := range hostAddrs {
		c.give(t, c.host, addr)
		c.give(t, c.wifi, strings.Replace(addr, "10/", "20/", 1))
	}
	for _, ns := range []string{c.host, c.wifi} {
		ip(t, "-n", ns, "link", "set", "lo", "up")
		ip(t, "-n", ns, "link", "set", "eth0", "up")
	}
	c.settle(t)
	return c
}

func (c cable) give(t *testing.T, ns, addr string) {
	args := []string{"-n", ns, "addr", "add", addr, "dev", "eth0"}
	if strings.Contains(addr, ":") {
		args = append(args, "nodad") // else it can be used only once nobody claimed it
	}
	ip(t, args...)
}

// settle waits until the address is there that the kernel makes by itself, and none is still being asked for.
func (c cable) settle(t *testing.T) {
	for end := time.Now().Add(4 * time.Minute); time.Now().Before(end); {
		out, err := exec.Command("ip", "-n", c.host, "addr", "show", "tentative").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		own, err := exec.Command("ip", "-n", c.host, "addr", "show", "dev", "eth0", "scope", "link").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, own)
		}
		if len(bytes.TrimSpace(out)) == 0 && bytes.Contains(own, []byte("fe80")) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("an address is still tentative")
}

// in starts this test program in a namespace.
func in(t *testing.T, ns, env string) *exec.Cmd {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("ip", "netns", "exec", ns, program)
	cmd.Env = append(os.Environ(), env)
	cmd.Stderr = os.Stderr
	return cmd
}

// dial is what who is at the other end of the cable gets.
func (c cable) dial(t *testing.T, addrs ...string) []string {
	t.Helper()
	out, err := in(t, c.wifi, asWiFi+"="+strings.Join(addrs, ",")).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

// examine starts a NATS server on the host, which runs until the test's end, and gives what its examination said.
func (c cable) examine(t *testing.T, bind string) (said hostSaid) {
	t.Helper()
	cmd := in(t, c.host, asHost+"="+bind)
	end, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(end.Close(), cmd.Wait()); err != nil {
			t.Error(err)
		}
	})
	if err := json.NewDecoder(out).Decode(&said); err != nil {
		t.Fatal(err)
	}
	return said
}

// The table of the story that this is all for: what a bus without an address of its own answers to, and one bound to
// loopback, for whom it is meant, for who sits in the same café, and for who comes by IPv6. The examination says which.
func TestCafeTable(t *testing.T) {
	const ipv4, ipv6, ula = "192.0.2.10:4222", "[2001:db8:7::10]:4222", "[fd42:7::10]:4222"
	c := newCable(t)
	t.Run("listens everywhere", func(t *testing.T) {
		said := c.examine(t, "0.0.0.0")
		x := said.Exposure
		// The three, and the link-local one that the kernel gives.
		if x.State != Exposed || len(x.Exposed) != 4 || x.String() != "exposed (4 addresses)" || !x.Wide {
			t.Errorf("the check says %s: %v", x, x.Exposed)
		}
		var kinds []string
		for _, a := range x.Exposed {
			kinds = append(kinds, a.Kind())
		}
		slices.Sort(kinds)
		if !slices.Equal(kinds, []string{IPv4, IPv6, LinkLocal, ULA}) {
			t.Errorf("the kinds are %v", kinds)
		}
		if x.Auth != No || x.TLS != No {
			t.Errorf("in front: %s", x.Front())
		}
		if got := c.dial(t, ipv4, ipv6, ula); !slices.Equal(got, []string{"answers", "answers", "answers"}) {
			t.Errorf("from the same Wi-Fi: %v", got)
		}
		if len(said.Findings) != 1 || said.Findings[0].ID != "bus.exposed" || said.Findings[0].Severity != Error {
			t.Fatalf("findings: %+v", said.Findings)
		}
		for _, want := range []string{"192.0.2.10", "2001:db8:7::10", "fd42:7::10", "exposed (4 addresses)", "without any credential"} {
			if !strings.Contains(said.Findings[0].Summary, want) {
				t.Errorf("%q is not in: %s", want, said.Findings[0].Summary)
			}
		}
		if said.Findings[0].Fix != restart { // config.json says loopback, so what runs is older
			t.Errorf("mended by %q", said.Findings[0].Fix)
		}
	})
	t.Run("listens on loopback", func(t *testing.T) {
		said := c.examine(t, "127.0.0.1")
		x := said.Exposure
		if x.State != LoopbackOnly || x.String() != "loopback_only" || len(x.Exposed) != 0 || len(said.Findings) != 0 {
			t.Errorf("the check says %s: %+v", x, said.Findings)
		}
		for _, a := range x.Answers {
			want := Refused
			if a.Addr.Is4() && a.Kind == Loopback {
				want = Answered
			}
			if a.Outcome != want {
				t.Errorf("%s: %s, want %s (%s)", a.Address, a.Outcome, want, a.Problem)
			}
		}
		if got := c.dial(t, ipv4, ipv6, ula); !slices.Equal(got, []string{"refused", "refused", "refused"}) {
			t.Errorf("from the same Wi-Fi: %v", got)
		}
	})
	t.Run("listens on one address", func(t *testing.T) {
		x := c.examine(t, "fd42:7::10").Exposure
		if x.State != Exposed || len(x.Exposed) != 1 || x.Exposed[0].Kind() != ULA || x.Exposed[0].Interface != "eth0" || x.String() != "exposed (1 address)" || x.Wide {
			t.Errorf("the check says %s: %v", x, x.Exposed)
		}
	})
}

// A machine that has no address beyond loopback is told all the same that its bus listens everywhere.
func TestWideWithoutANetwork(t *testing.T) {
	c := newCable(t)
	ip(t, "-n", c.host, "link", "del", "eth0")
	said := c.examine(t, "0.0.0.0")
	if said.Exposure.State != LoopbackOnly || len(said.Findings) != 1 || said.Findings[0].ID != "bus.wide" {
		t.Errorf("the check says %s: %+v", said.Exposure, said.Findings)
	}
}

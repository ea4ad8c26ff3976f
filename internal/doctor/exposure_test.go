package doctor

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// startNATS starts a plain server; options say where and with what.
func startNATS(t *testing.T, o server.Options) *server.Server {
	t.Helper()
	o.NoSigs, o.NoLog = true, true
	if o.Port == 0 {
		o.Port = server.RANDOM_PORT
	}
	s, err := server.NewServer(&o)
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(4 * time.Minute) {
		t.Fatal("the server does not start")
	}
	return s
}

func portOf(t *testing.T, a net.Addr) uint16 {
	t.Helper()
	at, ok := a.(*net.TCPAddr)
	if !ok {
		t.Fatalf("%v is no address of TCP", a)
	}
	return uint16(at.Port)
}

// newCert makes a certificate for 127.0.0.1 that ends at a time.
func newCert(t *testing.T, until time.Time) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "ravi test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func withTLS(t *testing.T) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{newCert(t, time.Now().Add(time.Hour))}, MinVersion: tls.VersionTLS12}
}

// allTimes makes all times of probes the same.
func allTimes(d time.Duration) { dialTime, bannerTime, natsTime, firstTime, otherTime = d, d, d, d, d }

// What stands in front of a listener is found by speaking with it, whether or not it was said what it speaks.
func TestProbe(t *testing.T) {
	nats := func(change func(*server.Options)) func(*testing.T) uint16 {
		return func(t *testing.T) uint16 {
			o := server.Options{Host: "127.0.0.1"}
			change(&o)
			return portOf(t, startNATS(t, o).Addr())
		}
	}
	web := func(secure bool, status int) func(*testing.T) uint16 {
		return func(t *testing.T) uint16 {
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if len(r.Header["Authorization"]) > 0 {
					t.Error("it showed a credential")
				}
				w.WriteHeader(status)
			}))
			if secure {
				s.TLS = withTLS(t)
				s.StartTLS()
			} else {
				s.Start()
			}
			t.Cleanup(s.Close)
			return portOf(t, s.Listener.Addr())
		}
	}
	mute := func(t *testing.T) uint16 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return portOf(t, l.Addr())
	}
	before := []time.Duration{dialTime, bannerTime, natsTime, firstTime, otherTime}
	t.Cleanup(func() {
		dialTime, bannerTime, natsTime, firstTime, otherTime = before[0], before[1], before[2], before[3], before[4]
	})
	password := func(o *server.Options) { o.Username, o.Password = "u", "p" }
	for name, c := range map[string]struct {
		start     func(*testing.T) uint16
		speaks    Protocol
		protocol  Protocol
		tls, auth Known
	}{
		"NATS, open":          {nats(func(*server.Options) {}), NATS, NATS, No, No},
		"NATS, password":      {nats(password), NATS, NATS, No, Yes},
		"NATS, not announced": {nats(password), Other, NATS, No, Yes},
		"NATS, a user for those without": {nats(func(o *server.Options) {
			o.Users = []*server.User{{Username: "guest", Password: "p"}}
			o.NoAuthUser = "guest"
		}), NATS, NATS, No, No},
		"NATS, TLS and password": {nats(func(o *server.Options) { password(o); o.TLSConfig = withTLS(t); o.TLSTimeout = 240 }), NATS, NATS, Yes, Yes},
		"NATS, TLS, open":        {nats(func(o *server.Options) { o.TLSConfig = withTLS(t); o.TLSTimeout = 240 }), NATS, NATS, Yes, No},
		"NATS, TLS first": {nats(func(o *server.Options) {
			password(o)
			o.TLSConfig = withTLS(t)
			o.TLSHandshakeFirst = true
			o.TLSTimeout = 240
		}), NATS, NATS, Yes, Yes},
		"NATS, certificates of clients":  {nats(func(o *server.Options) { o.TLSConfig = mutual(t); o.TLSVerify = true; o.TLSTimeout = 240 }), NATS, NATS, Yes, Yes},
		"HTTP, 401":                      {web(false, 401), HTTP, HTTP, No, Yes},
		"HTTP, not announced":            {web(false, 401), Other, HTTP, No, Yes},
		"HTTP, 200":                      {web(false, 200), HTTP, HTTP, No, No},
		"HTTP, 404":                      {web(false, 404), HTTP, HTTP, No, Unknown},
		"HTTPS, 401":                     {web(true, 401), HTTP, HTTP, Yes, Yes},
		"HTTPS, 200, not announced":      {web(true, 200), Other, HTTP, Yes, No},
		"nothing is said, nothing taken": {mute, Other, Other, Unknown, Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			port := c.start(t)
			// Who says nothing is waited for in vain, and has that time for its answer: it is short, or long enough. All others
			// say the first word, or nobody waits for that.
			waits := []time.Duration{4 * time.Minute}
			if name == "NATS, TLS first" || c.speaks == Other && c.protocol != NATS {
				waits = []time.Duration{300 * time.Millisecond, 5 * time.Second, 40 * time.Second}
			}
			for _, expected := range []bool{false, true} {
				var s seen
				right := false
				for _, wait := range waits {
					allTimes(wait)
					s = probe(t.Context(), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port), c.speaks, expected)
					if right = s.outcome == Answered && s.protocol == c.protocol && s.auth == c.auth && (s.tls == c.tls || c.protocol == Other); right {
						break
					}
				}
				if !right {
					t.Errorf("TLS expected %v: it is %+v", expected, s)
				}
				if c.protocol == Other {
					break
				}
			}
		})
	}
	allTimes(4 * time.Minute)
	t.Run("NATS in a WebSocket", func(t *testing.T) {
		s := startNATS(t, server.Options{Host: "127.0.0.1", Username: "u", Password: "p", Websocket: server.WebsocketOpts{Host: "127.0.0.1", Port: -1, NoTLS: true}})
		port := portOf(t, addrOf(t, s.WebsocketURL()))
		if seen := probe(t.Context(), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port), WebSocket, false); seen.protocol != WebSocket || seen.auth != Yes || seen.tls != No {
			t.Errorf("it is %+v", seen)
		}
	})
	t.Run("refused", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := portOf(t, l.Addr())
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if s := probe(t.Context(), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port), NATS, false); s.outcome != Refused {
			t.Errorf("it is %+v", s)
		}
	})
}

func mutual(t *testing.T) *tls.Config {
	c := withTLS(t)
	c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	return c
}

func addrOf(t *testing.T, url string) net.Addr {
	t.Helper()
	_, at, _ := strings.Cut(url, "://")
	a, err := net.ResolveTCPAddr("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestKinds(t *testing.T) {
	for addr, kind := range map[string]string{
		"127.0.0.1": Loopback, "127.9.9.9": Loopback, "::1": Loopback, "192.168.0.7": IPv4, "203.0.113.9": IPv4, "169.254.1.1": LinkLocal,
		"fe80::1%eth0": LinkLocal, "fd12:3456::1": ULA, "2001:db8::1": IPv6,
	} {
		if got := (Address{"eth0", netip.MustParseAddr(addr)}).Kind(); got != kind {
			t.Errorf("%s is %s, not %s", addr, got, kind)
		}
	}
}

// Who answers beside ours at the same port is told apart, since its clients would talk to another.
func TestStranger(t *testing.T) {
	at := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
	for name, c := range map[string]struct {
		ours, others []socket
		dialled      string
		strange      bool
	}{
		"ours, of one address":           {[]socket{{at("127.0.0.1:9"), 1}}, nil, "127.0.0.1:9", false},
		"ours, of all":                   {[]socket{{at("0.0.0.0:9"), 1}}, nil, "192.0.2.1:9", false},
		"ours, of all of both kinds":     {[]socket{{at("[::]:9"), 1}}, nil, "192.0.2.1:9", false},
		"another's beside":               {[]socket{{at("127.0.0.1:9"), 1}}, []socket{{at("192.0.2.1:9"), 2}}, "192.0.2.1:9", true},
		"another's of one, ours of all":  {[]socket{{at("0.0.0.0:9"), 1}}, []socket{{at("192.0.2.1:9"), 2}}, "192.0.2.1:9", true},
		"ours of one, another's of all":  {[]socket{{at("127.0.0.1:9"), 1}}, []socket{{at("0.0.0.0:9"), 2}}, "127.0.0.1:9", false},
		"no socket of this network":      {[]socket{{at("127.0.0.1:9"), 1}}, nil, "192.0.2.1:9", true},
		"another port":                   {[]socket{{at("127.0.0.1:8"), 1}}, nil, "127.0.0.1:9", true},
		"IPv6 of all is not IPv4 of one": {[]socket{{at("0.0.0.0:9"), 1}}, nil, "[2001:db8::1]:9", true},
		"a zone is none of the socket's": {[]socket{{at("[fe80::1]:9"), 1}}, nil, "[fe80::1%eth0]:9", false},
	} {
		if got := stranger("/nowhere", at(c.dialled), c.ours, c.others); (got != "") != c.strange {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// The table of the kernel is read as it is written, on this machine at least.
func TestListening(t *testing.T) {
	for _, host := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0", "0.0.0.0:0"} {
		network := "tcp4"
		if strings.HasPrefix(host, "[") {
			network = "tcp6"
		}
		l, err := net.Listen(network, host)
		if err != nil {
			t.Logf("not here: %v", err)
			continue
		}
		defer l.Close()
		want := netip.MustParseAddrPort(l.Addr().String())
		ours, _, err := socketsOf(procRoot, os.Getpid(), want.Port())
		if err != nil || len(ours) != 1 || ours[0].at != want || ours[0].wide() != want.Addr().IsUnspecified() {
			t.Errorf("%s: %v, %v", l.Addr(), ours, err)
		}
		if ports, err := OpenPorts(os.Getpid()); err != nil || len(ports) == 0 {
			t.Errorf("ports %v, %v", ports, err)
		}
	}
}

func FuzzParseSockets(f *testing.F) {
	f.Add("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
		"   0: 0100007F:1E61 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 0000000000000000 100 0 0 10 0\n" +
		"   1: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 7 1\n")
	f.Add("head\n 0: :0 x 0A a b c d e f\n")
	f.Fuzz(func(t *testing.T, text string) {
		found, err := parseSockets(strings.NewReader(text))
		for _, s := range found {
			if err == nil && !s.at.Addr().IsValid() {
				t.Errorf("%v", s)
			}
		}
	})
}

// What was said by a WebSocket is read within bounds.
func FuzzFrame(f *testing.F) {
	f.Add([]byte("\x82\x05INFO "))
	f.Add([]byte("\x82\x7e\x00\x03abc"))
	f.Add([]byte("\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if text, err := frame(newReader(b)); err == nil && len(text) > mostSaid {
			t.Errorf("%d bytes", len(text))
		}
	})
}

// Dialling ends when it is told to.
func TestExposeIsCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Expose(ctx, Listener{Name: "bus", Port: 1}, Interfaces); err == nil {
		t.Error("it went on")
	}
}

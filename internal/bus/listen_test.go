package bus

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

func TestExposureNeedsTLS(t *testing.T) {
	for _, c := range []struct {
		change func(*Options)
		cause  error
		says   string
	}{
		{func(o *Options) { o.Host = "0.0.0.0" }, ErrExposed, "bus.host"},
		{func(o *Options) { o.Host = "::" }, ErrExposed, "bus.host"},
		{func(o *Options) { o.Host = "192.0.2.7" }, ErrExposed, "ravi bus tls"},
		{func(o *Options) { o.Host = "fe80::1" }, ErrExposed, "bus.host"},
		{func(o *Options) { o.Host = "::ffff:192.0.2.7" }, ErrExposed, "bus.host"},
		{func(o *Options) { o.WebSocket = &WebSocket{Host: "0.0.0.0"} }, ErrExposed, "bus.websocket.host"},
		{func(o *Options) {
			o.Host, o.AllowFrom = "0.0.0.0", []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		}, ErrExposed, "allow_from is no lock"},
		{func(o *Options) { o.AllowFrom = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} }, ErrOptions, "allow_from"},
		{func(o *Options) { o.Host = "bus.example.com" }, ErrOptions, "address"},
		{func(o *Options) { o.Port = 70000 }, ErrOptions, "70000"},
		{func(o *Options) { o.TLS = &TLS{Cert: "/nowhere/a.pem", Key: "/nowhere/b.pem"} }, ErrTLS, "/nowhere/a.pem"},
		{func(o *Options) { o.Dir = "bus" }, ErrOptions, "absolute"},
		{func(o *Options) { o.Dir = filepath.Join(filepath.Dir(o.Home), "other") }, ErrOptions, "not in Ravi's home"},
	} {
		o := options(t)
		c.change(&o)
		s, err := Start(t.Context(), o)
		if err == nil {
			s.Close()
		}
		var told *Error
		if !errors.Is(err, c.cause) || !errors.As(err, &told) || !strings.Contains(told.Message+told.Hint, c.says) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func makeTLS(t *testing.T, o Options, hosts []string) (TLS, error) {
	t.Helper()
	return MakeTLS(t.Context(), o.Home, o.Dir, hosts)
}

func TestTLS(t *testing.T) {
	o := options(t)
	made, err := makeTLS(t, o, []string{"bus.example.com", "192.0.2.7"})
	if err != nil {
		t.Fatal(err)
	}
	o.Host, o.TLS = "0.0.0.0", &TLS{Cert: made.Cert, Key: made.Key} // its authority is known
	s := start(t, o)
	c := issue(t, s, guest("acme", run1))
	seen := everything(t, warden(t, s, "acme"))
	nc := dial(t, s, c)
	if state, err := nc.TLSConnectionState(); err != nil || state.Version != tls.VersionTLS13 {
		t.Fatal(state, err)
	}
	if err := nc.Publish("run."+run1+".up.x", nil); err != nil {
		t.Fatal(err)
	}
	next(t, seen)
	host := strings.TrimPrefix(s.URL(), "tls://")
	for name, f := range map[string]func() error{
		"authorities of the system": func() error {
			_, err := tryDial(t, s.URL(), c)
			return err
		},
		"another name": func() error {
			_, err := tryDial(t, s.URL(), c, WithTrust(Trust{CA: made.CA, ServerName: "other.example.com"}))
			return err
		},
	} {
		if err := f(); !errors.Is(err, ErrTLS) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Nothing is resumed: who is allowed is asked at the certificate, which a resumed session has none of.
	trust, err := s.Trust().config()
	if err != nil {
		t.Fatal(err)
	}
	trust.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	for range 2 {
		conn, err := net.Dial("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		for b := []byte{0}; b[0] != '\n'; {
			if _, err := conn.Read(b); err != nil {
				t.Fatal(err)
			}
		}
		secured := tls.Client(conn, trust)
		if err := secured.Handshake(); err != nil {
			t.Fatal(err)
		}
		_ = secured.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		_, _ = secured.Read(make([]byte, 1)) // tickets come with the first bytes
		if secured.ConnectionState().DidResume {
			t.Error("a session was resumed")
		}
		secured.Close()
	}
	// Without TLS nobody gets as far as to say who they are.
	if _, err := nats.Connect("nats://"+host, nats.UserJWTAndSeed(c.JWT, c.Seed.Reveal()), nats.TLSHandshakeFirst(), nats.NoReconnect()); err == nil {
		t.Error("a client that checks nothing is taken")
	}
	raw, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	fmt.Fprintf(raw, "CONNECT {\"jwt\":%q}\r\nPING\r\n", c.JWT)
	if answer, err := io.ReadAll(raw); bytes.Contains(answer, []byte("PONG")) {
		t.Errorf("it speaks in the clear: %s %v", answer, err)
	}
}

// A certificate that is made anew is used without a restart.
func TestTLSIsReadAgain(t *testing.T) {
	o := options(t)
	made, err := makeTLS(t, o, []string{"one.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	o.TLS = &made
	s := start(t, o)
	c := issue(t, s, guest("acme", run1))
	as := func(name string) error {
		nc, err := tryDial(t, s.URL(), c, WithTrust(Trust{CA: made.CA, ServerName: name}))
		if err == nil {
			nc.Close()
		}
		return err
	}
	if err := as("one.example.com"); err != nil {
		t.Fatal(err)
	}
	again, err := makeTLS(t, o, []string{"two.example.com"})
	if err != nil || again != made {
		t.Fatal(again, err)
	}
	until(t, func() error { return as("two.example.com") })
}

func TestMakeTLSRefuses(t *testing.T) {
	o := options(t)
	dir := o.Dir
	for _, hosts := range [][]string{nil, {""}, {"a b"}, {"*"}, {"-x"}, {"https://x"}, {"x:4222"}, {"a..b"}} {
		if _, err := MakeTLS(t.Context(), o.Home, dir, hosts); !errors.Is(err, ErrTLS) {
			t.Errorf("%q: %v", hosts, err)
		}
	}
	made, err := makeTLS(t, o, []string{"a.example.com", "*.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, filepath.Dir(made.CA), made.CA, made.Key, made.Cert} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Error(path, info.Mode(), err)
		}
	}
	// An authority whose key is gone is not replaced by another behind the back of those who trust it.
	before, err := os.ReadFile(made.CA)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(filepath.Dir(made.CA), caKeyFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := MakeTLS(t.Context(), o.Home, dir, []string{"a.example.com"}); !errors.Is(err, ErrTLS) {
		t.Error(err)
	}
	if after, err := os.ReadFile(made.CA); err != nil || !bytes.Equal(before, after) {
		t.Error("the authority is another one", err)
	}
}

func TestAllowFrom(t *testing.T) {
	list := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")}
	at := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }
	for _, c := range []struct {
		remote, local string
		want          bool
	}{
		{"192.0.2.9", "198.51.100.1", true}, {"::ffff:192.0.2.9", "198.51.100.1", true}, {"2001:db8::9", "2001:db9::1", true},
		{"192.0.3.9", "198.51.100.1", false}, {"2001:db9::9", "2001:db9::1", false}, {"198.51.100.2", "198.51.100.1", false},
		{"127.0.0.1", "127.0.0.1", true}, {"::1", "::1", true}, {"198.51.100.1", "198.51.100.1", true}, {"fe80::2", "fe80::1", false},
	} {
		if got := allowed(list, at(c.remote), at(c.local)); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if !allowed(nil, at("192.0.3.9"), at("198.51.100.1")) {
		t.Error("no list lets nobody in")
	}
	if allowed(list, &net.UnixAddr{Name: "x"}, at("127.0.0.1")) {
		t.Error("what is no address is let in")
	}
	// It stands before the certificate, so no handshake is done with who is not on it, a resumed one included.
	made, err := makeTLS(t, options(t), []string{"a.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	c := &certificate{files: made, allow: list}
	if err := c.load(); err != nil {
		t.Fatal(err)
	}
	for remote, want := range map[string]bool{"192.0.2.9": true, "192.0.3.9": false} {
		if _, err := c.get(&tls.ClientHelloInfo{Conn: addressed{remote: at(remote), local: at("198.51.100.1")}}); (err == nil) != want {
			t.Error(remote, err)
		}
	}
}

type addressed struct {
	net.Conn
	remote, local net.Addr
}

func (a addressed) RemoteAddr() net.Addr { return a.remote }
func (a addressed) LocalAddr() net.Addr  { return a.local }

func wsURL(s *Server) string {
	scheme := "ws"
	if s.opts.TLS != nil {
		scheme = "wss"
	}
	return scheme + "://" + s.Addrs()[1].String()
}

func TestWebSocket(t *testing.T) {
	o := options(t)
	made, err := makeTLS(t, o, []string{"bus.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	o.TLS = &made
	o.WebSocket = &WebSocket{Origins: []string{"https://console.example.com"}}
	s := start(t, o)
	seen := everything(t, warden(t, s, "acme"))
	r := guest("acme", run1)
	without := issue(t, s, r)
	r.WebSocket = true
	with := issue(t, s, r)
	r.From = []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32")}
	bound := issue(t, s, r)
	for _, c := range []struct {
		name   string
		c      Credential
		header http.Header
		want   bool
	}{
		{"it may", with, nil, true},
		{"a page that may", with, http.Header{"Origin": {"https://console.example.com"}}, true},
		{"another page", with, http.Header{"Origin": {"https://evil.example.com"}}, false},
		{"a page of a name that begins like it", with, http.Header{"Origin": {"https://console.example.com.evil.example"}}, false},
		{"a page without TLS", with, http.Header{"Origin": {"http://console.example.com"}}, false},
		{"a page of nowhere", with, http.Header{"Origin": {"null"}}, false},
		{"a credential that is not for it", without, nil, false},
		{"an address that is only claimed", bound, http.Header{"X-Forwarded-For": {"192.0.2.7"}}, false},
	} {
		opts := []DialOption{WithLog(quiet()), WithTrust(s.Trust()), WithNATS(nats.WebSocketConnectionHeaders(c.header))}
		if c.want {
			opts = append(opts, Persist())
		}
		nc, err := Dial(t.Context(), wsURL(s), c.c, opts...)
		if (err == nil) != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
		if err != nil {
			continue
		}
		if err := nc.Publish("run."+run1+".up.x", nil); err != nil {
			t.Fatal(err)
		}
		next(t, seen)
		nc.Close()
	}
	// Without a list only pages of the same address may.
	o = options(t)
	o.WebSocket = &WebSocket{}
	s = start(t, o)
	with = issue(t, s, Request{Kind: KindGuest, Account: "acme", Name: "g", RunID: run1, WebSocket: true})
	for origin, want := range map[string]bool{"http://" + s.Addrs()[1].String(): true, "http://evil.example.com": false, "": true} {
		header := http.Header{}
		if origin != "" {
			header.Set("Origin", origin)
		}
		opts := []DialOption{WithLog(quiet()), WithNATS(nats.WebSocketConnectionHeaders(header))}
		if want {
			opts = append(opts, Persist())
		}
		nc, err := Dial(t.Context(), wsURL(s), with, opts...)
		if (err == nil) != want {
			t.Errorf("%q: %v", origin, err)
		}
		if err == nil {
			nc.Close()
		}
	}
}

// said collects what a server says.
type said struct {
	mu    sync.Mutex
	lines []string
}

func (s *said) add(format string, v []any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprintf(format, v...))
}
func (s *said) Noticef(f string, v ...any) { s.add(f, v) }
func (s *said) Warnf(f string, v ...any)   { s.add(f, v) }
func (s *said) Errorf(f string, v ...any)  { s.add(f, v) }
func (s *said) Fatalf(f string, v ...any)  { s.add(f, v) }
func (s *said) Debugf(f string, v ...any)  { s.add(f, v) }
func (s *said) Tracef(string, ...any)      {}
func (s *said) has(text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lines {
		if strings.Contains(l, text) {
			return nil
		}
	}
	return fmt.Errorf("%q was not said: %q", text, s.lines)
}

// A server that joins as a leaf node would see all of an account; no credential of ours is good for it, and no port.
func TestLeafNodeAndMQTTAreRefused(t *testing.T) {
	o := options(t)
	o.WebSocket = &WebSocket{}
	s := start(t, o)
	r := guest("acme", run1)
	r.WebSocket = true
	c := issue(t, s, r)
	creds := filepath.Join(t.TempDir(), "g.creds")
	if err := c.WriteFile(creds); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"nats-leaf://" + s.Addrs()[0].String(), "ws://" + s.Addrs()[1].String()} {
		u, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		log := &said{}
		leaf, err := server.NewServer(&server.Options{
			Host: "127.0.0.1", Port: -1, NoSigs: true,
			LeafNode: server.LeafNodeOpts{ReconnectInterval: 10 * time.Millisecond, Remotes: []*server.RemoteLeafOpts{{URLs: []*url.URL{u}, Credentials: creds}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		leaf.SetLoggerV2(log, true, false, false)
		leaf.Start()
		until(t, func() error {
			return errors.Join(log.has("Leafnode connection created"), log.has("Leafnode connection closed"))
		})
		if n := s.ns.NumLeafNodes() + leaf.NumLeafNodes(); n != 0 {
			t.Errorf("%s: %d leaf nodes", at, n)
		}
		leaf.Shutdown()
		leaf.WaitForShutdown()
	}
	mqtt := append([]byte{0x10, 16, 0, 4, 'M', 'Q', 'T', 'T', 4, 2, 0, 60, 0, 4}, "evil"...)
	raw, err := net.Dial("tcp", s.Addrs()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if _, err := raw.Write(mqtt); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(raw)
	if err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") || bytes.Contains(answer, []byte{0x20, 2}) {
		t.Errorf("%q %v", answer, err)
	}
	up, err := http.NewRequest("GET", "http://"+s.Addrs()[1].String()+"/mqtt", nil)
	if err != nil {
		t.Fatal(err)
	}
	up.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
		"Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}, "Sec-Websocket-Protocol": {"mqtt"}}
	res, err := http.DefaultTransport.RoundTrip(up)
	if err == nil {
		res.Body.Close()
		if res.StatusCode == http.StatusSwitchingProtocols {
			t.Error("MQTT is spoken by WebSocket")
		}
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

func TestPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	for _, change := range []func(*Options){
		func(o *Options) { o.Host, o.Port = "127.0.0.1", port },
		func(o *Options) { o.WebSocket = &WebSocket{Port: port} },
	} {
		o := options(t)
		change(&o)
		_, err := Start(t.Context(), o)
		var told *Error
		if !errors.Is(err, ErrPort) || !errors.As(err, &told) || !strings.Contains(told.Message, fmt.Sprint(port)) || told.Hint == "" {
			t.Error(err)
		}
		start(t, options(t)) // nothing is left over that would be in the way
	}
	o := options(t)
	made, err := makeTLS(t, o, []string{"192.0.2.7"})
	if err != nil {
		t.Fatal(err)
	}
	o.Host, o.TLS = "192.0.2.7", &made
	if _, err := Start(t.Context(), o); !errors.Is(err, ErrPort) {
		t.Error(err)
	}
}

func TestOneServerForOneFolder(t *testing.T) {
	o := options(t)
	s := start(t, o)
	if _, err := Start(t.Context(), o); !errors.Is(err, ErrRunning) {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error("closed twice:", err)
	}
	if _, err := s.Control(t.Context()); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := s.Issue(t.Context(), Request{Kind: KindRunner, Name: "r", TTL: time.Hour}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := s.Revoke(t.Context(), "", nil); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	start(t, o)
}

// Nobody else of this machine can look into the folder, and a folder that others could have looked into is refused.
func TestFolderIsOurs(t *testing.T) {
	o := options(t)
	s := start(t, o)
	issue(t, s, guest("acme", run1))
	if info, err := os.Stat(o.Dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Fatal(info.Mode(), err)
	}
	for _, name := range []string{keysFile, "lock"} {
		if info, err := os.Stat(filepath.Join(o.Dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Error(name, info.Mode(), err)
		}
	}
	raw, err := os.ReadFile(filepath.Join(o.Dir, keysFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, seed := range []string{s.keys.doc.Operator, s.keys.doc.Control.Seed, s.keys.doc.Clients["acme"].Seed, s.keys.doc.Curve} {
		if bytes.Contains(raw, []byte(seed)) {
			t.Error("a seed stands in the file")
		}
	}
	if os.Geteuid() == 0 {
		ls := exec.Command("/bin/ls", o.Dir)
		ls.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := ls.CombinedOutput(); err == nil || !strings.Contains(string(out), "ermission denied") {
			t.Errorf("another user looks into it: %s %v", out, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(o.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), o); !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), "0755") {
		t.Error(err)
	}
}

// What the bus logs, and what its errors say, holds nothing that lets anybody in.
func TestNothingSecretIsLogged(t *testing.T) {
	var log lockedBuffer
	o := options(t)
	o.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s := start(t, o)
	c := issue(t, s, guest("acme", run1))
	texts := []string{s.keys.doc.Operator, s.keys.doc.System, s.keys.doc.Control.Seed, s.keys.doc.Clients["acme"].Seed, s.keys.doc.Curve, c.Seed.Reveal(), c.JWT}
	nc := dial(t, s, c, WithLog(o.Log))
	if _, err := nc.SubscribeSync(">"); err != nil {
		t.Fatal(err)
	}
	flush(t, nc)
	bad := c
	bad.JWT = tampered(t, c.JWT, run1, run2)
	_, err := Dial(t.Context(), s.URL(), bad, WithLog(o.Log))
	if err := s.Revoke(t.Context(), "acme", map[string]time.Time{c.User: time.Now()}); err != nil {
		t.Fatal(err)
	}
	_, again := Dial(t.Context(), s.URL(), c, WithLog(o.Log))
	_, inURL := Dial(t.Context(), "nats://control:"+c.Seed.Reveal()+"@127.0.0.1:1", c)
	said := log.String() + fmt.Sprintf("%v %v %v %+v %#v %v %+v", err, again, inURL, c, c, s.keys.doc, s.keys.doc.Control)
	for _, secret := range texts[:len(texts)-1] {
		if strings.Contains(said, secret) {
			t.Errorf("%s… was shown", secret[:4])
		}
	}
	if err == nil || again == nil || inURL == nil || log.String() == "" {
		t.Error(err, again, inURL)
	}
	if strings.Contains(log.String(), c.JWT) {
		t.Error("the credential was logged")
	}
}

// Whoever knocks without end fills no disk with lines about it.
func TestLogHasABound(t *testing.T) {
	var log lockedBuffer
	l := &logger{to: slog.New(slog.NewTextHandler(&log, nil))}
	began := time.Now()
	for i := range 100_000 {
		l.Errorf("authentication error %d", i)
	}
	seconds := int(time.Since(began)/time.Second) + 2
	if n := strings.Count(log.String(), "\n"); n < linesPerSecond || n > seconds*linesPerSecond || !strings.Contains(log.String(), "left out") {
		t.Errorf("%d lines", n)
	}
	if l.broken.Load() {
		t.Error("a stream is said to be broken")
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// The server's own pages about itself, and profiles, are not served.
func TestNothingElseListens(t *testing.T) {
	s := start(t, options(t))
	if s.ns.MonitorAddr() != nil || s.ns.ProfilerAddr() != nil || s.ns.ClusterAddr() != nil {
		t.Error("another port is open")
	}
	if got := s.Addrs(); len(got) != 1 || !got[0].Addr().IsLoopback() || got[0].Port() == 0 {
		t.Error(got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Control(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"ravi/internal/leaktest"
)

func TestMain(m *testing.M) {
	leaktest.Main(m)
}

const run1, run2 = "run_01AAA", "run_01BBB"

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// options are those of a bus in a home of the test's own.
func options(t *testing.T) Options {
	t.Helper()
	o := optionsIn(t.TempDir())
	o.Host = ownHost()
	return o
}

// optionsIn are those of a bus in a home. Who connects may be slow to say who that is.
func optionsIn(home string) Options {
	return Options{Home: home, Dir: filepath.Join(home, "bus"), Log: quiet(), loginWithin: 2 * time.Minute}
}

// ownHost is an address of this process: at that, no other test takes the port of a server that is started anew.
func ownHost() string { return fmt.Sprintf("127.%d.%d.1", 1+os.Getpid()>>8&0x7f, os.Getpid()&0xff) }

func start(t *testing.T, o Options) *Server {
	t.Helper()
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func issue(t *testing.T, b Bus, r Request) Credential {
	t.Helper()
	if r.TTL == 0 {
		r.TTL = time.Hour
	}
	c, err := b.Issue(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func guest(client, run string) Request {
	return Request{Kind: KindGuest, Account: client, Name: "guest-" + run, RunID: run}
}

func dial(t *testing.T, s *Server, c Credential, opts ...DialOption) *nats.Conn {
	t.Helper()
	nc, err := tryDial(t, s.URL(), c, append([]DialOption{WithTrust(s.Trust())}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// tryDial dials a server that is there: it may be slow to answer.
func tryDial(t *testing.T, url string, c Credential, opts ...DialOption) (*nats.Conn, error) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	return Dial(ctx, url, c, append([]DialOption{WithLog(quiet()), Persist()}, opts...)...)
}

// whileGood dials with a credential that is good for a short time: for a longer one when the machine needs longer to dial.
func whileGood(t *testing.T, ttl time.Duration, try func(ttl time.Duration) (*nats.Conn, error)) *nats.Conn {
	t.Helper()
	for ; ; ttl *= 2 {
		nc, err := try(ttl)
		if err == nil {
			t.Cleanup(nc.Close)
			return nc
		}
		if ttl > time.Minute || !errors.Is(err, ErrExpired) && !errors.Is(err, ErrRefused) && !errors.Is(err, nats.ErrAuthExpired) && !errors.Is(err, nats.ErrAuthorization) {
			t.Fatal(err)
		}
	}
}

// newJetStream is one that waits for as long as a loaded machine takes.
func newJetStream(t *testing.T, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func control(t *testing.T, s *Server) *nats.Conn {
	t.Helper()
	nc, err := s.Control(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func warden(t *testing.T, s *Server, client string) *nats.Conn {
	t.Helper()
	nc, err := s.Client(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func subscribe(t *testing.T, nc *nats.Conn, subject string) *nats.Subscription {
	t.Helper()
	sub, err := nc.SubscribeSync(subject)
	if err != nil {
		t.Fatal(err)
	}
	flush(t, nc)
	return sub
}

func flush(t *testing.T, nc *nats.Conn) {
	t.Helper()
	if err := nc.FlushTimeout(2 * time.Minute); err != nil {
		t.Fatal(err)
	}
}

func next(t *testing.T, sub *nats.Subscription) *nats.Msg {
	t.Helper()
	m, err := sub.NextMsg(2 * time.Minute)
	if err != nil {
		t.Fatal(sub.Subject, err)
	}
	return m
}

// nothing says that a subscription got nothing: whoever could have sent has been flushed, and then a mark was sent.
func nothing(t *testing.T, sub *nats.Subscription) {
	t.Helper()
	if m, err := sub.NextMsg(20 * time.Millisecond); !errors.Is(err, nats.ErrTimeout) {
		t.Fatalf("%s: %v, %v", sub.Subject, m, err)
	}
}

func TestFromGuestToDaemonAndBack(t *testing.T) {
	s := start(t, options(t))
	own := warden(t, s, "acme")
	up := subscribe(t, own, "run.*.up.>")
	c := issue(t, s, guest("acme", run1))
	nc := dial(t, s, c)
	down := subscribe(t, nc, "run."+run1+".down.>")
	if err := nc.Publish("run."+run1+".up.hello", []byte("1")); err != nil {
		t.Fatal(err)
	}
	if m := next(t, up); string(m.Data) != "1" || m.Subject != "run."+run1+".up.hello" {
		t.Fatal(m)
	}
	if err := own.Publish("run."+run1+".down.x", []byte("2")); err != nil {
		t.Fatal(err)
	}
	if m := next(t, down); string(m.Data) != "2" {
		t.Fatal(m)
	}
}

func TestWorkIsStoredAndSurvivesARestart(t *testing.T) {
	o := options(t)
	s := start(t, o)
	work := func(s *Server) jetstream.JetStream {
		return newJetStream(t, control(t, s))
	}
	js := work(s)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "WORK", Subjects: []string{"work.>"}, Retention: jetstream.WorkQueuePolicy}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "work.acme.w1", []byte("do it")); err != nil {
		t.Fatal(err)
	}
	old := issue(t, s, guest("acme", run1))
	gone := issue(t, s, guest("acme", run2))
	if err := s.Revoke(t.Context(), "acme", map[string]time.Time{gone.User: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = start(t, o)
	stream, err := work(s).Stream(t.Context(), "WORK")
	if err != nil {
		t.Fatal(err)
	}
	c, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "acme", FilterSubject: "work.acme.>", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.Next(jetstream.FetchMaxWait(time.Minute))
	if err != nil || string(m.Data()) != "do it" {
		t.Fatal(m, err)
	}
	if err := m.DoubleAck(t.Context()); err != nil {
		t.Fatal(err)
	}
	dial(t, s, old)
	if _, err := tryDial(t, s.URL(), gone); !errors.Is(err, ErrRefused) {
		t.Fatal(err)
	}
}

// slowly is a server to which the first connection is made so slowly that it has hung up by then.
type slowly struct {
	*server.Server
	tries int
}

func (s *slowly) InProcessConn() (net.Conn, error) {
	c, err := s.Server.InProcessConn()
	if s.tries++; err != nil || s.tries > 1 {
		return c, err
	}
	said, err := io.ReadAll(c)
	return heardBefore{c, bytes.NewReader(said)}, err
}

// heardBefore is a connection of which all was read.
type heardBefore struct {
	net.Conn
	said io.Reader
}

func (h heardBefore) Read(b []byte) (int, error) { return h.said.Read(b) }

// The daemon's own connection comes about on a machine that stands still for longer than a login may take.
func TestOwnConnectionIsSlow(t *testing.T) {
	o := options(t)
	o.loginWithin = time.Second
	s := start(t, o)
	from := &slowly{Server: s.ns}
	nc, err := s.Control(t.Context(), nats.InProcessServer(from))
	if err != nil || from.tries < 2 {
		t.Fatal(from.tries, err)
	}
	nc.Close()
}

func TestRevokingCutsAtOnce(t *testing.T) {
	s := start(t, options(t))
	for _, r := range []Request{guest("acme", run1), {Kind: KindOwner, Name: "o", RunID: run1}, {Kind: KindRunner, Name: "r"}} {
		c := issue(t, s, r)
		end := make(chan error, 1)
		nc := dial(t, s, c, WithEnd(func(err error) { end <- err }))
		other := dial(t, s, issue(t, s, r))
		if err := s.Revoke(t.Context(), r.Account, map[string]time.Time{c.User: time.Now()}); err != nil {
			t.Fatal(err)
		}
		// The connection is cut by now; the client hears of it, and ends.
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		select {
		case err := <-end:
			if !errors.Is(err, ErrRefused) {
				t.Error(r.Kind, err)
			}
		case <-ctx.Done():
			t.Fatal(r.Kind, "was not cut", nc.Status())
		}
		flush(t, other)
		// The whole set each time: who is not in it any more is taken again.
		if err := s.Revoke(t.Context(), r.Account, nil); err != nil {
			t.Fatal(err)
		}
		dial(t, s, c)
	}
}

func TestFileOfACredential(t *testing.T) {
	s := start(t, options(t))
	c := issue(t, s, Request{Kind: KindRunner, Name: "far"})
	path := filepath.Join(t.TempDir(), "far.creds")
	if err := c.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	got, err := ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.User != c.User || got.Name != "far" || got.JWT != c.JWT || got.Seed.Reveal() != c.Seed.Reveal() || got.XSeed.Reveal() != c.XSeed.Reveal() ||
		got.XPublic != c.XPublic || got.Peer != c.Peer || !got.Expires.Equal(c.Expires) {
		t.Fatal(got, c)
	}
	daemon, err := s.Curve()
	if err != nil {
		t.Fatal(err)
	}
	if public, err := daemon.PublicKey(); err != nil || public != c.Peer || c.Peer == c.XPublic {
		t.Fatal(public, c.Peer, err)
	}
	// The tools of NATS read it as theirs.
	nc, err := nats.Connect(s.URL(), nats.UserCredentials(path), nats.CustomInboxPrefix(c.Inbox()), nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
}

// Requests work with the credential's own inbox, and with no other.
func TestRequestsWithAnInboxOfItsOwn(t *testing.T) {
	s := start(t, options(t))
	js := newJetStream(t, control(t, s))
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "RUNS", Subjects: []string{"run.>"}}); err != nil {
		t.Fatal(err)
	}
	c := issue(t, s, Request{Kind: KindOwner, Name: "o", RunID: run1})
	own := newJetStream(t, dial(t, s, c))
	if ack, err := own.Publish(t.Context(), "run."+run1+".event", []byte("1")); err != nil || ack.Stream != "RUNS" {
		t.Fatal(ack, err)
	}
	// A library that ignores the prefix gets no answer.
	nc, errs := hostile(t, s, c)
	if m, err := nc.Request("run."+run1+".event", []byte("2"), 100*time.Millisecond); err == nil {
		t.Error("the common inbox is open", m)
	}
	wantViolation(t, errs, "the common inbox")
}

func BenchmarkStart(b *testing.B) {
	home := b.TempDir()
	o := Options{Home: home, Dir: filepath.Join(home, "bus"), Log: quiet()}
	for b.Loop() {
		s, err := Start(b.Context(), o)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// The bus may take 25 MB more of a daemon that does nothing. Beside this it needs the pages of its code: in all, the
// resident set of a process grew by 9 MB.
func TestIdleMemory(t *testing.T) {
	used := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	before := used()
	s := start(t, options(t))
	for i := range 10 {
		warden(t, s, fmt.Sprintf("client-%d", i))
	}
	workStream(t, s)
	if after := used(); after > before+16<<20 {
		t.Errorf("it takes %d MB", (after-before)>>20)
	} else {
		t.Logf("it takes %d KB", (int64(after)-int64(before))>>10)
	}
}

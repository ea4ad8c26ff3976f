package tunnel

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestHandshakeAgrees(t *testing.T) {
	dp, lp := parties(t)
	d, l := shake(t, dp, lp)
	secret := append((&frame{}).head(nil), "secret"...)
	for _, way := range [][2]*sealing{{d.out, l.in}, {l.out, d.in}} {
		packet := way[0].seal(append(way[0].begin(nil, 0), secret...), 0)
		if bytes.Contains(packet, []byte("secret")) {
			t.Fatal("a packet is not sealed")
		}
		if plain, err := way[1].open(packet); err != nil || !bytes.Equal(plain, secret) {
			t.Fatalf("%q, %v", plain, err)
		}
	}
	// The directions have keys of their own, so that a packet that is sent back is nobody's.
	packet := d.out.seal(append(d.out.begin(nil, 5), secret...), 5)
	if _, err := d.in.open(packet); err == nil {
		t.Fatal("an end opens what it sealed itself")
	}
	again, _ := shake(t, dp, lp)
	if again.id == d.id {
		t.Fatal("two sessions have one number")
	}
	again.in.id = l.out.id
	packet = l.out.seal(append(l.out.begin(nil, 5), secret...), 5)
	if _, err := again.in.open(packet); err == nil {
		t.Fatal("a packet opens in another session of the same keys")
	}
}

// The keys of the frames come from both packets of the handshake, whatever the fresh keys are.
func TestKeysComeFromTheWholeHandshake(t *testing.T) {
	fresh, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	opens := func(hi, ok string) bool {
		from, _, err := derive(fresh, fresh.PublicKey().Bytes(), []byte("hi"), []byte("ok"), sessionID{})
		if err != nil {
			t.Fatal(err)
		}
		to, _, err := derive(fresh, fresh.PublicKey().Bytes(), []byte(hi), []byte(ok), sessionID{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = to.open(from.seal((&frame{}).head(from.begin(nil, 0)), 0))
		return err == nil
	}
	if !opens("hi", "ok") || opens("ho", "ok") || opens("hi", "oh") || opens("h", "iok") {
		t.Fatal("the keys do not depend on the packets")
	}
}

// A packet opens once, whole, as it is, and not behind a later one.
func TestPacketOpensOnce(t *testing.T) {
	dp, lp := parties(t)
	d, l := shake(t, dp, lp)
	make := func(counter uint64) []byte {
		f := frame{}
		return d.out.seal(f.head(d.out.begin(nil, counter)), counter)
	}
	five := make(5)
	for i := range five {
		for bit := range 8 {
			p := bytes.Clone(five)
			p[i] ^= 1 << bit
			if _, err := l.in.open(p); err == nil {
				t.Fatalf("it opens with bit %d of byte %d turned", bit, i)
			}
		}
		if _, err := l.in.open(bytes.Clone(five[:i])); err == nil {
			t.Fatalf("%d bytes of it open", i)
		}
	}
	if _, err := l.in.open(append(bytes.Clone(five), 0)); err == nil {
		t.Fatal("it opens with a byte behind it")
	}
	if _, err := l.in.open(bytes.Clone(five)); err != nil {
		t.Fatal(err)
	}
	for _, p := range [][]byte{five, make(4), make(0)} {
		if _, err := l.in.open(p); err == nil {
			t.Fatal("a packet opens twice, or behind a later one")
		}
	}
	if _, err := l.in.open(make(6)); err != nil {
		t.Fatal(err)
	}
}

// Whoever does not hold a pinned key, or means another session, makes no handshake.
func TestHandshakeRefuses(t *testing.T) {
	dp, lp := parties(t)
	_, stranger := parties(t)
	down, up := testName.Subjects()
	h, err := newHello(dp, down)
	if err != nil {
		t.Fatal(err)
	}
	hello := func(p party, name string) []byte {
		h, err := newHello(p, name)
		if err != nil {
			t.Fatal(err)
		}
		return h.packet
	}
	other := strings.Replace(down, ".1.", ".2.", 1)
	for name, packet := range map[string][]byte{
		"of a stranger":            hello(party{stranger.self, dp.peer}, down),
		"for a stranger":           hello(party{dp.self, stranger.peer}, down),
		"for another session":      hello(dp, other),
		"for the other direction":  hello(dp, up),
		"of the listener's own":    hello(lp, up),
		"of another version":       worded(t, dp, "ravi tunnel 2 hi\x00", h.fresh.PublicKey().Bytes(), []byte(down)),
		"in a welcome's words":     worded(t, dp, magicWelcome, h.fresh.PublicKey().Bytes(), []byte(down)),
		"empty":                    {kindHello},
		"too large":                append(hello(dp, down), make([]byte, maxBox)...),
		"cut off":                  h.packet[:len(h.packet)-1],
		"a welcome instead":        answerTo(t, lp, down, h.packet),
		"a welcome called a hello": append([]byte{kindHello}, answerTo(t, lp, down, h.packet)[1:]...),
	} {
		if _, _, err := welcome(lp, down, packet, codeOpen); err == nil {
			t.Errorf("a hello is taken that is %s", name)
		}
	}
	second, err := newHello(dp, down)
	if err != nil {
		t.Fatal(err)
	}
	third, err := newHello(dp, other)
	if err != nil {
		t.Fatal(err)
	}
	good := answerTo(t, lp, down, h.packet)
	for name, packet := range map[string][]byte{
		"of a stranger":            strangersAnswer(t, party{stranger.self, dp.peer}, down, h.packet),
		"to another hello":         answerTo(t, lp, down, second.packet),
		"for another session":      answerTo(t, lp, other, third.packet),
		"named for another":        namedAnswer(t, lp, h, other),
		"the hello sent back":      h.packet,
		"a hello called a welcome": append([]byte{kindWelcome}, h.packet[1:]...),
		"cut off":                  good[:len(good)-1],
		"changed":                  append(slices.Clone(good[:len(good)-1]), good[len(good)-1]^1),
	} {
		if _, err := h.finish(packet); !errors.Is(err, errPacket) {
			t.Errorf("a welcome is taken that is %s: %v", name, err)
		}
	}
	if _, err := h.finish(good); err != nil {
		t.Fatal(err)
	}
}

func answerTo(t *testing.T, p party, name string, hello []byte) []byte {
	t.Helper()
	_, answer, err := welcome(p, name, hello, codeOpen)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// worded is a hello with the words.
func worded(t *testing.T, p party, words string, rest ...[]byte) []byte {
	t.Helper()
	packet, err := p.seal(kindHello, append([][]byte{[]byte(words)}, rest...)...)
	if err != nil {
		t.Fatal(err)
	}
	return packet
}

// namedAnswer is a welcome to the hello that names another session.
func namedAnswer(t *testing.T, p party, h *hello, name string) []byte {
	t.Helper()
	hash := sha256.Sum256(h.packet)
	packet, err := p.seal(kindWelcome, []byte(magicWelcome), hash[:], h.fresh.PublicKey().Bytes(), make([]byte, idSize+1), []byte(name))
	if err != nil {
		t.Fatal(err)
	}
	return packet
}

// strangersAnswer is a welcome by who knows the hello but not the key.
func strangersAnswer(t *testing.T, p party, name string, hello []byte) []byte {
	t.Helper()
	packet, err := p.seal(kindWelcome, []byte(magicWelcome), make([]byte, 32+keySize+idSize+1), []byte(name))
	if err != nil {
		t.Fatal(err)
	}
	return packet
}

// Everything that a session sent is sent again, and makes no session, in its time and after it.
func TestReplayMakesNothing(t *testing.T) {
	b := newMemBus()
	b.keep = true
	dp, lp := parties(t)
	accepted := make(chan *Session, 100)
	l, err := listen(b, Wildcard(testName.Runner), lp, func(ctx context.Context, _ Name, s *Session) {
		accepted <- s
		<-ctx.Done()
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	down, up := testName.Subjects()
	config := Config{Send: down, Receive: up, Self: dp.self, Peer: dp.peer}
	s, err := dial(context.Background(), b, config)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	far := <-accepted
	c, a := open(t, s, far)
	if _, err := c.Write([]byte("once")); err != nil {
		t.Fatal(err)
	}
	if n, err := a.Read(make([]byte, 10)); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	replay := func() {
		packets := b.packets()
		for _, m := range packets {
			b.inject(m.subject, m.packet)
			b.inject(down, m.packet)
			b.inject(up, m.packet)
			b.inject(strings.Replace(down, ".1.", ".2.", 1), m.packet)
		}
	}
	replay()
	if _, err := c.Write([]byte("more")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 10)
	if n, err := a.Read(got); string(got[:n]) != "more" || err != nil {
		t.Fatalf("%q, %v", got[:n], err)
	}
	l.mu.Lock()
	half := len(l.half)
	l.mu.Unlock()
	if half != 0 {
		t.Fatal("the hello of a session that is there begins another")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	<-far.gone
	replay()
	// A new session is taken behind all that, so all of it was looked at.
	next, err := dial(context.Background(), b, config)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	<-accepted
	if n := l.Sessions(); n != 1 || len(accepted) != 0 {
		t.Fatalf("%d sessions, %d of them new", n, len(accepted))
	}
}

// The first frame makes the session that its hello was for. Forged ones, and those on the subject of another run, make
// nothing and stop nothing.
func TestFirstFrameIsOfItsHello(t *testing.T) {
	b := newMemBus()
	dp, lp := parties(t)
	names := make(chan Name, 10)
	l, err := listen(b, Wildcard("r1"), lp, func(ctx context.Context, n Name, _ *Session) {
		names <- n
		<-ctx.Done()
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	down, up := testName.Subjects()
	other := strings.Replace(down, ".1.", ".2.", 1)
	b.hook = func(subject string, p []byte) [][]byte {
		if subject != down || p[0] != kindFrame {
			return [][]byte{p}
		}
		b.deliver(other, p)
		forged := bytes.Clone(p)
		forged[len(forged)-1] ^= 1
		return [][]byte{forged, p}
	}
	s, err := dial(context.Background(), b, Config{Send: down, Receive: up, Self: dp.self, Peer: dp.peer})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if n := <-names; n != testName || l.Sessions() != 1 || len(names) != 0 {
		t.Fatalf("%v, and %d more of %d", n, len(names), l.Sessions())
	}
}

// Hellos without the first frame behind them are held in a bounded number, for a bounded time.
func TestHalfOpenIsBounded(t *testing.T) {
	b := newMemBus()
	dp, lp := parties(t)
	l, err := listen(b, Wildcard("r1"), lp, func(context.Context, Name, *Session) { t.Error("a hello alone made a session") })
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for i := range 3 * l.options.halfOpen {
		down, _ := Name{"r1", fmt.Sprint("run", i), 1}.Subjects()
		h, err := newHello(dp, down)
		if err != nil {
			t.Fatal(err)
		}
		first := l.answer(down, h.packet, now)
		if first == nil || !bytes.Equal(first, l.answer(down, h.packet, now)) {
			t.Fatal("the same hello has other answers")
		}
	}
	if n := len(l.half); n != l.options.halfOpen {
		t.Fatalf("%d are half open", n)
	}
	down, _ := testName.Subjects()
	h, err := newHello(dp, down)
	if err != nil {
		t.Fatal(err)
	}
	l.answer(down, h.packet, now.Add(l.options.halfOpenLife))
	if n := len(l.half); n != 1 {
		t.Fatalf("%d are half open after their time", n)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// A run that begins its session anew ends the one before; another try is another session.
func TestSessionIsBegunAnew(t *testing.T) {
	b := newMemBus()
	dp, lp := parties(t)
	accepted := make(chan *Session, 10)
	l, err := listen(b, Wildcard("r1"), lp, func(ctx context.Context, _ Name, s *Session) {
		accepted <- s
		<-ctx.Done()
	}, WithSessions(2))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	begin := func(try int) (*Session, error) {
		down, up := Name{"r1", "run", try}.Subjects()
		return dial(context.Background(), b, Config{Send: down, Receive: up, Self: dp.self, Peer: dp.peer})
	}
	first, err := begin(1)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	old := <-accepted
	second, err := begin(2)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	<-accepted
	if _, err := begin(3); !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
	anew, err := begin(1)
	if err != nil {
		t.Fatal(err)
	}
	defer anew.Close()
	for _, s := range []*Session{first, old} {
		<-s.Done()
		if err := s.Err(); !errors.Is(err, ErrReplaced) {
			t.Fatal(err)
		}
	}
	c, a := open(t, anew, <-accepted)
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	l.Drain()
	if _, err := begin(4); !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
	if err := second.Err(); err != nil {
		t.Fatal(err)
	}
}

func TestListenerEndsItsSessions(t *testing.T) {
	b := newMemBus()
	dp, lp := parties(t)
	returned := make(chan error, 1)
	l, err := listen(b, Wildcard("r1"), lp, func(ctx context.Context, _ Name, s *Session) {
		_, err := s.Accept()
		<-ctx.Done()
		returned <- err
	})
	if err != nil {
		t.Fatal(err)
	}
	down, up := testName.Subjects()
	s, err := dial(context.Background(), b, Config{Send: down, Receive: up, Self: dp.self, Peer: dp.peer})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-returned; !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	<-s.Done()
	if err := s.Err(); !errors.Is(err, ErrPeerClosed) {
		t.Fatal(err)
	}
}

// Hellos and welcomes that are lost are sent again, and a dialer whose first frame is lost too.
func TestHandshakeOutlivesLosses(t *testing.T) {
	for lost := range 8 {
		b := newMemBus()
		n := 0
		b.hook = func(_ string, p []byte) [][]byte {
			if n++; n-1 == lost {
				return nil
			}
			return [][]byte{p}
		}
		near, far := pair(t, b, b, options{})
		c, a := open(t, near, far)
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNames(t *testing.T) {
	n := Name{"r1", "01RUN", 3}
	down, up := n.Subjects()
	if down != "tunnel.r1.01RUN.3.down" || up != "tunnel.r1.01RUN.3.up" || Wildcard("r1") != "tunnel.r1.*.*.down" {
		t.Fatal(down, up)
	}
	if got, err := parseName(down); got != n || err != nil {
		t.Fatal(got, err)
	}
	for _, s := range []string{up, "", "tunnel.r1.run.down", "tunnel.r1.run.x.down", "tunnel.r1.run.-1.down", "tunnel.r1.run.01.down",
		"tunnel.r1.*.1.down", "tunnel.r1.>.1.down", "tunnel.r1.a b.1.down", "x.r1.run.1.down", "tunnel.r1.run.1.down.down",
		"tunnel..run.1.down", "tunnel.r1..1.down", "tunnel.r1." + strings.Repeat("x", maxBox) + ".1.down"} {
		if _, err := parseName(s); err == nil {
			t.Errorf("%.40q is taken for a subject of a tunnel", s)
		}
	}
}

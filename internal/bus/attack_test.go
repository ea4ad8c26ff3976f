package bus

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"ravi/internal/secret"
)

// hostile connects as a client of anybody's would: with the credential and none of our manners.
func hostile(t *testing.T, s *Server, c Credential, opts ...nats.Option) (*nats.Conn, chan error) {
	t.Helper()
	errs := make(chan error, 64)
	nc, err := nats.Connect(s.URL(), append([]nats.Option{
		nats.UserJWTAndSeed(c.JWT, c.Seed.Reveal()), nats.NoReconnect(), nats.Timeout(time.Minute),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { errs <- err }),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc, errs
}

// refusedPublish publishes, and says that the server refused it.
func refusedPublish(t *testing.T, nc *nats.Conn, errs chan error, m *nats.Msg) {
	t.Helper()
	if err := nc.PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	wantViolation(t, errs, m.Subject)
}

func wantViolation(t *testing.T, errs chan error, what string) {
	t.Helper()
	select {
	case err := <-errs:
		if !errors.Is(err, nats.ErrPermissionViolation) {
			t.Errorf("%s: %v", what, err)
		}
	case <-time.After(2 * time.Minute):
		t.Errorf("%s was not refused", what)
	}
}

// everything is what the daemon itself sees in an account.
func everything(t *testing.T, nc *nats.Conn) *nats.Subscription {
	t.Helper()
	return subscribe(t, nc, ">")
}

func TestGuestPublishesElsewhere(t *testing.T) {
	s := start(t, options(t))
	own := warden(t, s, "acme")
	seen := everything(t, own)
	other, _ := hostile(t, s, issue(t, s, guest("acme", run2)))
	down := subscribe(t, other, "run."+run2+".down.>")
	up := "run." + run1 + ".up.x"
	nc, errs := hostile(t, s, issue(t, s, guest("acme", run1)))
	for _, subject := range []string{
		"run." + run2 + ".up.x", "run." + run2 + ".down.x", "run." + run1 + ".down.x", "run." + run1 + ".up", "run." + run1,
		"$JS.API.INFO", "$JS.API.STREAM.CREATE.WORK", "$JS.API.STREAM.PURGE.WORK", "$JS.ACK.WORK.a.1.1.1.1.0", "$JS.FC.WORK.x", "$SYS.REQ.SERVER.PING",
		"$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.USER.INFO", "_INBOX_" + run2 + ".x", "_INBOX.x", "work.acme.w1", "tunnel.r." + run1 + ".1.up", "runner.r.status", "$KV.x", "$MQTT.x",
	} {
		refusedPublish(t, nc, errs, &nats.Msg{Subject: subject, Reply: "run." + run1 + ".down.x"})
	}
	// Nor does the server send what it tells of a message's way.
	for _, dest := range []string{"run." + run2 + ".down.x", "run." + run2 + ".up.x", "$SYS.x"} {
		m := &nats.Msg{Subject: up, Header: nats.Header{"Nats-Trace-Dest": {dest}}}
		refusedPublish(t, nc, errs, m)
	}
	flush(t, nc)
	nothing(t, seen)

	// A reply subject is the sender's to choose. Nobody answers it but who does so knowingly, and no answer of the server's
	// own goes there either.
	for _, reply := range []string{"run." + run2 + ".down.x", "run." + run2 + ".up.x", "_INBOX_x.y"} {
		if err := nc.PublishMsg(&nats.Msg{Subject: up, Reply: reply, Data: []byte("1")}); err != nil {
			t.Fatal(err)
		}
		if m := next(t, seen); m.Subject != up || m.Reply != reply {
			t.Fatal(m)
		}
	}
	// One that is of the streams is dropped.
	if err := nc.PublishMsg(&nats.Msg{Subject: up, Reply: "$JS.API.STREAM.PURGE.WORK"}); err != nil {
		t.Fatal(err)
	}
	flush(t, nc)
	nothing(t, seen)
	if err := seen.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	flush(t, own)
	// Now that nobody listens the server tells the sender so, and not whom the reply would go to.
	if err := nc.PublishMsg(&nats.Msg{Subject: up, Reply: "run." + run2 + ".down.x"}); err != nil {
		t.Fatal(err)
	}
	flush(t, nc)
	flush(t, other)
	nothing(t, down)
}

func TestGuestsHeadersMoveNoStream(t *testing.T) {
	s := start(t, options(t))
	js := newJetStream(t, control(t, s))
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "RUNS", Subjects: []string{"run.>"}, AllowRollup: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "run."+run1+".event", []byte("kept"), jetstream.WithMsgID("1")); err != nil {
		t.Fatal(err)
	}
	seen := everything(t, warden(t, s, "acme"))
	nc, _ := hostile(t, s, issue(t, s, guest("acme", run1)))
	for _, h := range []nats.Header{{"Nats-Msg-Id": {"2"}}, {"Nats-Rollup": {"all"}}, {"Nats-Rollup": {"sub"}}, {"Nats-Expected-Last-Sequence": {"9"}}, {"Nats-TTL": {"1s"}}} {
		if err := nc.PublishMsg(&nats.Msg{Subject: "run." + run1 + ".up.event", Header: h, Data: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		next(t, seen)
	}
	if _, err := js.Publish(t.Context(), "run."+run1+".event", []byte("kept"), jetstream.WithMsgID("2")); err != nil {
		t.Fatal(err)
	}
	if info, err := stream.Info(t.Context()); err != nil || info.State.Msgs != 2 || info.State.LastSeq != 2 {
		t.Fatal(info.State, err)
	}
}

func TestGuestListensElsewhere(t *testing.T) {
	s := start(t, options(t))
	own := warden(t, s, "acme")
	mine, theirs := issue(t, s, guest("acme", run1)), issue(t, s, guest("acme", run2))
	nc, errs := hostile(t, s, mine)
	for _, subject := range []string{
		">", "*", "*.>", "run.>", "run.*.down.>", "run." + run2 + ".down.>", "run." + run1 + ".up.>", "run." + run1 + ".>", "run.*.down.x",
		"_INBOX.>", "_INBOX.*", theirs.Inbox() + ".>", theirs.Inbox() + ".x", "_INBOX_*.>", "$JS.>", "$SYS.>", "_R_.>", "_GR_.>", "work.>",
	} {
		if _, err := nc.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
		wantViolation(t, errs, subject)
		if _, err := nc.QueueSubscribeSync(subject, "q"); err != nil {
			t.Fatal(err)
		}
		wantViolation(t, errs, subject+" in a queue")
	}
	sub := subscribe(t, nc, mine.Inbox()+".>")
	for _, subject := range []string{theirs.Inbox() + ".x", "run." + run2 + ".down.x", "run." + run2 + ".up.x", "other"} {
		if err := own.Publish(subject, nil); err != nil {
			t.Fatal(err)
		}
	}
	flush(t, own)
	flush(t, nc)
	nothing(t, sub)
}

func TestGuestsLimits(t *testing.T) {
	s := start(t, options(t))
	seen := everything(t, warden(t, s, "acme"))
	c := issue(t, s, guest("acme", run1))
	nc, errs := hostile(t, s, c)
	for i := range GuestSubscriptions + 1 {
		if _, err := nc.SubscribeSync("run." + run1 + ".down." + strings.Repeat("x", i+1)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-errs:
		if !errors.Is(err, nats.ErrMaxSubscriptionsExceeded) && !strings.Contains(err.Error(), "maximum subscriptions") {
			t.Error(err)
		}
	case <-time.After(2 * time.Minute):
		t.Error("it subscribes as much as it likes")
	}
	nc, _ = hostile(t, s, c)
	if err := nc.Publish("run."+run1+".up.x", make([]byte, GuestPayload)); err != nil {
		t.Fatal(err)
	}
	if m := next(t, seen); len(m.Data) != GuestPayload {
		t.Fatal(len(m.Data))
	}
	over := make(chan struct{})
	nc.SetClosedHandler(func(*nats.Conn) { close(over) })
	if err := nc.Publish("run."+run1+".up.x", make([]byte, GuestPayload+1)); err == nil {
		select {
		case <-over:
		case <-time.After(2 * time.Minute):
			t.Error("too large a message was taken")
		}
	}
	nothing(t, seen)
}

// 100 MB of a guest: the server lives, and what others send arrives meanwhile.
func TestGuestFloods(t *testing.T) {
	s := start(t, options(t))
	flooded := warden(t, s, "acme")
	var got atomic.Int64
	if _, err := flooded.Subscribe("run.*.up.>", func(m *nats.Msg) { got.Add(int64(len(m.Data))) }); err != nil {
		t.Fatal(err)
	}
	flush(t, flooded)
	seen := subscribe(t, warden(t, s, "other"), "run.*.up.>")
	beside, _ := hostile(t, s, issue(t, s, guest("other", run2)))
	nc, _ := hostile(t, s, issue(t, s, guest("acme", run1)))
	done := make(chan struct{})
	go func() {
		defer close(done)
		block := bytes.Repeat([]byte("x"), 50_000)
		for range 2000 {
			if nc.Publish("run."+run1+".up.x", block) != nil {
				return
			}
		}
	}()
	for range 50 {
		if err := beside.Publish("run."+run2+".up.x", []byte("here")); err != nil {
			t.Fatal(err)
		}
		if m := next(t, seen); string(m.Data) != "here" {
			t.Fatal(m)
		}
	}
	<-done
	control(t, s)
	// A reader that stood still all the while was cut, and comes back: then what is said from now on arrives.
	until(t, func() error {
		if got.Load() == 0 {
			return errors.Join(errors.New("nothing arrived"), nc.Publish("run."+run1+".up.x", []byte("x")))
		}
		return nil
	})
}

// A guest that connects again and again is in the way of nobody but its own client.
func TestGuestTakesAllConnections(t *testing.T) {
	s := start(t, options(t))
	c := issue(t, s, guest("acme", run1))
	var refused error
	for range clientConns + 1 {
		nc, err := nats.Connect(s.URL(), nats.UserJWTAndSeed(c.JWT, c.Seed.Reveal()), nats.NoReconnect(), nats.Timeout(time.Minute))
		if err == nil {
			t.Cleanup(nc.Close)
			err = nc.FlushTimeout(time.Minute)
		}
		refused = errors.Join(refused, err)
	}
	if refused == nil {
		t.Error("it has as many connections as it likes")
	}
	hostile(t, s, issue(t, s, guest("other", run2)))
	hostile(t, s, issue(t, s, Request{Kind: KindRunner, Name: "far"}))
}

func TestClientsAreApart(t *testing.T) {
	s := start(t, options(t))
	one, two := issue(t, s, guest("one", run1)), issue(t, s, guest("two", run1)) // the same run, if that could be
	wardenOne, wardenTwo := warden(t, s, "one"), warden(t, s, "two")
	seenTwo, seenControl := everything(t, wardenTwo), everything(t, control(t, s))
	down := subscribe(t, dial(t, s, two), "run."+run1+".down.>")
	nc := dial(t, s, one)
	seenOne := subscribe(t, wardenOne, "run.>")
	if err := nc.Publish("run."+run1+".up.x", nil); err != nil {
		t.Fatal(err)
	}
	next(t, seenOne)
	if err := wardenOne.Publish("run."+run1+".down.x", nil); err != nil {
		t.Fatal(err)
	}
	flush(t, wardenOne)
	nothing(t, seenTwo)
	nothing(t, seenControl)
	nothing(t, down)
}

func TestOwnerAndRunnerKeepToThemselves(t *testing.T) {
	s := start(t, options(t))
	owner, ownerErrs := hostile(t, s, issue(t, s, Request{Kind: KindOwner, Name: "o", RunID: run1}))
	runner, runnerErrs := hostile(t, s, issue(t, s, Request{Kind: KindRunner, Name: "far"}))
	down, up := "tunnel.far."+run1+".1.down", "tunnel.far."+run1+".1.up"
	atRunner, atOwner := subscribe(t, runner, "tunnel.far.*.*.down"), subscribe(t, owner, "tunnel.*."+run1+".*.up")
	if err := errors.Join(owner.Publish(down, nil), runner.Publish(up, nil), runner.Publish("runner.far.status", nil), owner.Publish("run."+run1+".event", nil)); err != nil {
		t.Fatal(err)
	}
	next(t, atRunner)
	next(t, atOwner)
	for _, subject := range []string{"tunnel.far." + run2 + ".1.down", up, "run." + run2 + ".event", "work.acme.w", "runner.far.status", "$JS.API.STREAM.PURGE.WORK", "dead.acme.w"} {
		refusedPublish(t, owner, ownerErrs, &nats.Msg{Subject: subject})
	}
	for _, subject := range []string{"tunnel.near." + run1 + ".1.up", down, "run." + run1 + ".event", "work.acme.w", "runner.near.status", "$JS.API.CONSUMER.MSG.NEXT.WORK.acme", "run." + run1 + ".up.x"} {
		refusedPublish(t, runner, runnerErrs, &nats.Msg{Subject: subject})
	}
	for _, subject := range []string{"tunnel.*.*.*.up", "tunnel.far." + run2 + ".1.up", "tunnel.far." + run1 + ".1.down", "work.>", "run.>", "runner.*.status", "_INBOX.>"} {
		if _, err := owner.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
		wantViolation(t, ownerErrs, subject)
	}
	for _, subject := range []string{"tunnel.*.*.*.down", "tunnel.near." + run1 + ".1.down", up, "work.>", "run.>", "runner.*.status", "_INBOX.>"} {
		if _, err := runner.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
		wantViolation(t, runnerErrs, subject)
	}
}

// tampered is a JWT with another text in its claims and the old signature.
func tampered(t *testing.T, token, old, fresh string) string {
	t.Helper()
	parts := strings.Split(token, ".")
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(claims, []byte(old)) {
		t.Fatalf("%s has no %s", claims, old)
	}
	parts[1] = base64.RawURLEncoding.EncodeToString(bytes.ReplaceAll(claims, []byte(old), []byte(fresh)))
	return strings.Join(parts, ".")
}

func seedOf(t *testing.T, kind nkeys.PrefixByte) (seed, public string) {
	t.Helper()
	seed, err := newSeed(kind)
	if err != nil {
		t.Fatal(err)
	}
	if public, err = publicOf(seed, kind); err != nil {
		t.Fatal(err)
	}
	return seed, public
}

// signedBy is a user that may do everything, signed with a seed, for the account that is named.
func signedBy(t *testing.T, seed, account string) Credential {
	t.Helper()
	pair, err := nkeys.FromSeed([]byte(seed))
	if err != nil {
		t.Fatal(err)
	}
	userSeed, user := seedOf(t, nkeys.PrefixByteUser)
	claims := jwt.NewUserClaims(user)
	claims.IssuerAccount = account
	token, err := claims.Encode(pair)
	if err != nil {
		t.Fatal(err)
	}
	return Credential{User: user, JWT: token, Seed: secret.NewValue(userSeed)}
}

func TestRefusedCredentials(t *testing.T) {
	s := start(t, options(t))
	good := issue(t, s, guest("acme", run1))
	account, err := publicOf(s.keys.doc.Clients["acme"].Seed, nkeys.PrefixByteAccount)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := start(t, options(t))
	strange, _ := seedOf(t, nkeys.PrefixByteAccount)
	stolen := good
	stolen.Seed = issue(t, s, guest("acme", run2)).Seed
	wide, long := good, good
	wide.JWT = tampered(t, good.JWT, run1, run2)
	long.JWT = tampered(t, good.JWT, "guest-"+run1, "guest-"+run2)
	past, err := s.signer(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	past.now = func() time.Time { return time.Now().Add(-2 * time.Hour) }
	over, err := past.issue(Request{Kind: KindGuest, Account: "acme", Name: "g", RunID: run1, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	within, err := s.ownCredential(t.Context(), "", "control")
	if err != nil {
		t.Fatal(err)
	}
	ours, err := s.signer(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	noKey := jwt.NewUserClaims(good.User)
	noKey.BearerToken = true
	bearer, err := ours.sign(good, noKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]Credential{
		"of another bus":                issue(t, elsewhere, guest("acme", run1)),
		"signed by a stranger":          signedBy(t, strange, ""),
		"a stranger's, for our account": signedBy(t, strange, account),
		"with the key of another":       stolen,
		"with another run written in":   wide,
		"with another name written in":  long,
		"over":                          over,
		"of the daemon's own kind":      within,
		"that needs no key":             bearer,
	} {
		nc, err := nats.Connect(s.URL(), nats.UserJWTAndSeed(c.JWT, c.Seed.Reveal()), nats.NoReconnect(), nats.Timeout(time.Minute))
		if !errors.Is(err, nats.ErrAuthorization) && !errors.Is(err, nats.ErrAuthExpired) {
			t.Errorf("a credential %s: %v", name, err)
		}
		if nc != nil {
			nc.Close()
		}
		if _, err := tryDial(t, s.URL(), c); !errors.Is(err, ErrRefused) && !errors.Is(err, ErrExpired) {
			t.Errorf("a credential %s: %v", name, err)
		}
	}
	for name, opts := range map[string][]nats.Option{
		"nothing": nil,
		"a name":  {nats.UserInfo("control", "control")},
		"a token": {nats.Token("x")},
		"no key":  {nats.UserJWT(func() (string, error) { return good.JWT, nil }, func([]byte) ([]byte, error) { return nil, nil })},
	} {
		nc, err := nats.Connect(s.URL(), append(opts, nats.NoReconnect(), nats.Timeout(time.Minute))...)
		if err == nil {
			nc.Close()
			t.Errorf("%s is enough", name)
		}
	}
	// Being in the same process is no credential.
	pipe, err := s.ns.InProcessConn()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	answers := bufio.NewReader(pipe)
	if info, err := answers.ReadString('\n'); err != nil || !strings.Contains(info, `"auth_required":true`) {
		t.Fatal(info, err)
	}
	if _, err := pipe.Write([]byte("CONNECT {\"verbose\":true}\r\n")); err != nil {
		t.Fatal(err)
	}
	if answer, err := answers.ReadString('\n'); err != nil || !strings.Contains(answer, "Authorization Violation") {
		t.Fatal(answer, err)
	}
	hostile(t, s, good) // and this one is taken
}

func TestCredentialFromElsewhere(t *testing.T) {
	s := start(t, options(t))
	r := guest("acme", run1)
	r.From = []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}
	c := issue(t, s, r)
	from := func(ip string) error {
		nc, err := tryDial(t, s.URL(), c, WithDialer(&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}))
		if err == nil {
			nc.Close()
		}
		return err
	}
	if err := from("127.0.0.2"); err != nil {
		t.Error(err)
	}
	if err := from("127.0.0.3"); !errors.Is(err, ErrRefused) {
		t.Error(err)
	}
}

func TestExpiryCuts(t *testing.T) {
	s := start(t, options(t))
	r := guest("acme", run1)
	var c Credential
	over := make(chan struct{})
	nc := whileGood(t, time.Second, func(ttl time.Duration) (*nats.Conn, error) {
		r.TTL = ttl
		c = issue(t, s, r)
		return nats.Connect(s.URL(), nats.UserJWTAndSeed(c.JWT, c.Seed.Reveal()), nats.NoReconnect(), nats.Timeout(time.Minute),
			nats.ClosedHandler(func(*nats.Conn) { close(over) }))
	})
	select {
	case <-over:
	case <-time.After(2 * time.Minute):
		t.Fatal("it is still connected", nc.Status())
	}
	if _, err := tryDial(t, s.URL(), c); !errors.Is(err, ErrExpired) {
		t.Error(err)
	}
}

// Claims that an account had before, signed by its operator as they are, do not bring back what was revoked: nobody but
// the daemon says what an account is.
func TestOldAccountClaims(t *testing.T) {
	s := start(t, options(t))
	c := issue(t, s, guest("acme", run1))
	_, old, err := s.keys.claimsOf("acme", s.keys.account("acme"), shape{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Revoke(t.Context(), "acme", map[string]time.Time{c.User: time.Now()}); err != nil {
		t.Fatal(err)
	}
	account, err := publicOf(s.keys.doc.Clients["acme"].Seed, nkeys.PrefixByteAccount)
	if err != nil {
		t.Fatal(err)
	}
	update := "$SYS.REQ.ACCOUNT." + account + ".CLAIMS.UPDATE"
	for _, nc := range []*nats.Conn{control(t, s), warden(t, s, "acme")} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		for _, subject := range []string{update, "$SYS.REQ.CLAIMS.UPDATE"} {
			if m, err := nc.RequestWithContext(ctx, subject, []byte(old)); err == nil {
				t.Errorf("%s was answered: %s", subject, m.Data)
			}
		}
		cancel()
	}
	if _, err := tryDial(t, s.URL(), c); !errors.Is(err, ErrRefused) {
		t.Error(err)
	}
}

package bus

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
)

// hub is a server of somebody else's, with one account for us.
type hub struct {
	url, leaf   string
	key         string // a signing key of the account
	creds       string // a file
	accountSeed string
	run         func() // starts it
	stop        func()
}

func startHub(t *testing.T) hub {
	t.Helper()
	h := hub{}
	operatorSeed, operator := seedOf(t, nkeys.PrefixByteOperator)
	systemSeed, system := seedOf(t, nkeys.PrefixByteAccount)
	accountSeed, account := seedOf(t, nkeys.PrefixByteAccount)
	key, signing := seedOf(t, nkeys.PrefixByteAccount)
	h.key, h.accountSeed = key, accountSeed
	pair, err := nkeys.FromSeed([]byte(operatorSeed))
	if err != nil {
		t.Fatal(err)
	}
	accounts := &server.MemAccResolver{}
	for _, a := range []struct{ public, seed string }{{system, systemSeed}, {account, accountSeed}} {
		claims := jwt.NewAccountClaims(a.public)
		if a.public == account {
			claims.SigningKeys.Add(signing)
			claims.Limits.JetStreamLimits = jwt.JetStreamLimits{DiskStorage: -1, Streams: -1, Consumer: -1}
		}
		text, err := claims.Encode(pair)
		if err != nil {
			t.Fatal(err)
		}
		if err := accounts.Store(a.public, text); err != nil {
			t.Fatal(err)
		}
	}
	claims := jwt.NewOperatorClaims(operator)
	claims.SystemAccount = system
	text, err := claims.Encode(pair)
	if err != nil {
		t.Fatal(err)
	}
	if claims, err = jwt.DecodeOperatorClaims(text); err != nil {
		t.Fatal(err)
	}
	const loginWithin = 120 // seconds: who connects may be slow to say who that is
	base := server.Options{
		ServerName: "hub", Host: ownHost(), Port: -1, NoSigs: true, NoLog: true, DisableShortFirstPing: true, AuthTimeout: loginWithin, TrustedOperators: []*jwt.OperatorClaims{claims}, SystemAccount: system, AccountResolver: accounts,
		JetStream: true, JetStreamMaxStore: 1 << 30, JetStreamMaxMemory: 1 << 20, JetStreamDomain: "hub", StoreDir: t.TempDir(), LeafNode: server.LeafNodeOpts{Host: ownHost(), Port: -1, AuthTimeout: loginWithin},
	}
	var ns *server.Server
	h.run = func() {
		o := base
		var err error
		if ns, err = server.NewServer(&o); err != nil {
			t.Fatal(err)
		}
		ns.Start()
		if !ns.ReadyForConnections(time.Minute) {
			t.Fatal("the hub did not start")
		}
		base.Port, base.LeafNode.Port = o.Port, o.LeafNode.Port // the same ones the next time
	}
	h.stop = func() {
		ns.Shutdown()
		ns.WaitForShutdown()
	}
	h.run()
	t.Cleanup(h.stop)
	h.url, h.leaf = ns.ClientURL(), fmt.Sprintf("nats://%s:%d", ownHost(), base.LeafNode.Port)
	h.creds = filepath.Join(t.TempDir(), "hub.creds")
	if err := signedBy(t, accountSeed, "").WriteFile(h.creds); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h hub) connect(t *testing.T) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(h.url, nats.UserCredentials(h.creds), nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func (h hub) external(t *testing.T) External {
	o := options(t)
	return External{URL: h.url, CredsFile: h.creds, Home: o.Home, Dir: o.Dir, Log: quiet()}
}

func keyFile(t *testing.T, seed string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "account.nk")
	if err := os.WriteFile(path, []byte(seed+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestExistingServer(t *testing.T) {
	h := startHub(t)
	for name, key := range map[string]string{"a signing key": h.key, "the account's own key": h.accountSeed} {
		e := h.external(t)
		e.AccountKeyFile = keyFile(t, key)
		x, err := Connect(t.Context(), e)
		if err != nil {
			t.Fatal(name, err)
		}
		own, err := x.Control(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(own.Close)
		seen := subscribe(t, own, "runner.*.status")
		c, err := x.Issue(t.Context(), Request{Kind: KindRunner, Name: "far", TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		nc, err := tryDial(t, x.URL(), c)
		if err != nil {
			t.Fatal(name, err)
		}
		t.Cleanup(nc.Close)
		if err := nc.Publish("runner.far.status", nil); err != nil {
			t.Fatal(err)
		}
		next(t, seen)
		if err := nc.Publish("runner.near.status", nil); err != nil {
			t.Fatal(err)
		}
		flush(t, nc)
		nothing(t, seen)
		js := newJetStream(t, own)
		if _, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "WORK", Subjects: []string{"work.>"}}); err != nil {
			t.Fatal(err)
		}
		daemon, err := x.Curve()
		if err != nil {
			t.Fatal(err)
		}
		if public, err := daemon.PublicKey(); err != nil || public != c.Peer {
			t.Fatal(public, err)
		}
	}
}

func TestWhatAnExistingServerCannot(t *testing.T) {
	h := startHub(t)
	e := h.external(t)
	x, err := Connect(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	_, user := seedOf(t, nkeys.PrefixByteUser)
	_, client := x.Client(t.Context(), "acme")
	_, noKey := x.Issue(t.Context(), Request{Kind: KindRunner, Name: "far", TTL: time.Hour})
	e.AccountKeyFile = keyFile(t, h.key)
	withKey, err := Connect(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	_, guests := withKey.Issue(t.Context(), Request{Kind: KindGuest, Account: "acme", Name: "g", RunID: run1, TTL: time.Hour})
	for name, err := range map[string]error{
		"an account for a client": client, "a credential without a key": noKey, "guests": guests,
		"revoking": x.Revoke(t.Context(), "", map[string]time.Time{user: time.Now()}),
	} {
		var told *Error
		if !errors.Is(err, ErrExternal) || !errors.As(err, &told) || told.Hint == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := x.Revoke(t.Context(), "", nil); err != nil {
		t.Error("nobody is revoked:", err)
	}
	for name, change := range map[string]func(*External){
		"no key of an account": func(e *External) { e.AccountKeyFile = keyFile(t, "hello") },
		"a user's key": func(e *External) {
			seed, _ := seedOf(t, nkeys.PrefixByteUser)
			e.AccountKeyFile = keyFile(t, seed)
		},
		"no credential": func(e *External) { e.CredsFile = filepath.Join(t.TempDir(), "none") },
		"a credential that others may read": func(e *External) {
			if err := os.Chmod(e.CredsFile, 0o640); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.Chmod(h.creds, 0o600) })
		},
	} {
		e := h.external(t)
		change(&e)
		if _, err := Connect(t.Context(), e); !errors.Is(err, ErrCredential) {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.Chmod(h.creds, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A bus that joins another: runners that are there are reached, and nothing else of ours is seen or spoken to from there.
func TestLeaf(t *testing.T) {
	h := startHub(t)
	o := options(t)
	o.Leaf = &Leaf{URL: h.leaf, CredsFile: h.creds}
	s := start(t, o)
	js := workStream(t, s)
	answered(t, func() error {
		_, err := js.Publish(t.Context(), "work.acme.1", []byte("kept"), jetstream.WithMsgID("1"))
		return err
	})
	own, there := control(t, s), h.connect(t)
	status, work := subscribe(t, own, "runner.*.status"), subscribe(t, own, "work.>")
	down, all := subscribe(t, there, "tunnel.far.*.*.down"), subscribe(t, there, ">")
	until(t, func() error {
		if err := there.Publish("runner.far.status", nil); err != nil {
			return err
		}
		_, err := status.NextMsg(50 * time.Millisecond)
		return err
	})
	until(t, func() error {
		if err := own.Publish("tunnel.far."+run1+".1.down", nil); err != nil {
			return err
		}
		_, err := down.NextMsg(50 * time.Millisecond)
		return err
	})
	inbox := subscribe(t, own, "_INBOX_x.>")
	said := map[string]bool{"runner.far.status": true}
	for _, subject := range []string{"work.acme.evil", "dead.acme.evil", "run." + run1 + ".evil", "_INBOX_x.evil", "tunnel.far." + run1 + ".1.evil"} {
		said[subject] = true
		if err := errors.Join(there.Publish(subject, nil), own.Publish(strings.Replace(subject, "evil", "ours", 1), nil)); err != nil {
			t.Fatal(err)
		}
	}
	for _, api := range []string{"$JS.API", "$JS." + s.domain + ".API"} {
		said[api+".STREAM.PURGE.WORK"] = true
		if m, err := there.Request(api+".STREAM.PURGE.WORK", nil, 100*time.Millisecond); err == nil && !strings.Contains(string(m.Data), "stream not found") {
			t.Errorf("%s: %s", api, m.Data)
		}
	}
	flush(t, own)
	flush(t, there)
	if m := next(t, work); m.Subject != "work.acme.ours" {
		t.Error(m.Subject)
	}
	nothing(t, work)
	if m := next(t, inbox); m.Subject != "_INBOX_x.ours" {
		t.Error(m.Subject)
	}
	nothing(t, inbox)
	if err := there.Publish("end", nil); err != nil {
		t.Fatal(err)
	}
	for m := next(t, all); m.Subject != "end"; m = next(t, all) {
		// Beside what it said itself, and its own answers, it has seen one subject only.
		if m.Subject != "tunnel.far."+run1+".1.down" && !said[m.Subject] && !strings.HasPrefix(m.Subject, "_INBOX.") && !strings.HasPrefix(m.Subject, "$JS.EVENT.") {
			t.Error("the hub sees", m.Subject)
		}
	}
	if v, err := s.View(); err != nil || v.Hub != h.leaf || !v.HubJoined {
		t.Errorf("%+v %v", v, err)
	}
	// What was published without an answer is stored once something behind it is.
	answered(t, func() error {
		_, err := js.Publish(t.Context(), "work.acme.2", []byte("kept"), jetstream.WithMsgID("2"))
		return err
	})
	answered(t, func() error {
		stream, err := js.Stream(t.Context(), "WORK")
		if err == nil && stream.CachedInfo().State.Msgs != 3 {
			t.Error(stream.CachedInfo().State)
		}
		return err
	})
	// The account of a client is on no hub.
	acme := everything(t, warden(t, s, "acme"))
	if err := there.Publish("run."+run1+".up.x", nil); err != nil {
		t.Fatal(err)
	}
	flush(t, there)
	nothing(t, acme)
}

// Each end may be started anew: the runners that are there are heard of again.
func TestLeafAfterRestarts(t *testing.T) {
	h := startHub(t)
	o := options(t)
	o.Leaf = &Leaf{URL: h.leaf, CredsFile: h.creds}
	s := start(t, o)
	kept := workStream(t, s)
	answered(t, func() error {
		_, err := kept.Publish(t.Context(), "work.acme.1", []byte("kept"), jetstream.WithMsgID("1"))
		return err
	})
	heard := func() {
		t.Helper()
		status := subscribe(t, control(t, s), "runner.*.status")
		there := h.connect(t)
		until(t, func() error {
			if err := there.Publish("runner.far.status", nil); err != nil {
				return err
			}
			_, err := status.NextMsg(50 * time.Millisecond)
			return err
		})
	}
	heard()
	h.stop()
	until(t, func() error {
		if v, err := s.View(); err != nil || v.HubJoined {
			return fmt.Errorf("%+v %w", v, err)
		}
		return nil
	})
	h.run()
	heard()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = start(t, o)
	heard()
	// The bus starts while there is no hub, and has its work.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	h.stop()
	s = start(t, o)
	js := newJetStream(t, control(t, s))
	answered(t, func() error {
		m, err := js.Stream(t.Context(), "WORK")
		if err == nil && m.CachedInfo().State.Msgs != 1 {
			t.Fatal(m)
		}
		return err
	})
	h.run()
	heard()
}

// Why a hub is not joined is shown: it is not there, or does not take the credential.
func TestLeafIsToldWhy(t *testing.T) {
	h := startHub(t)
	h.stop()
	_, stranger := seedOf(t, nkeys.PrefixByteAccount)
	strangers, _ := seedOf(t, nkeys.PrefixByteAccount)
	other := filepath.Join(t.TempDir(), "other.creds")
	if err := signedBy(t, strangers, stranger).WriteFile(other); err != nil {
		t.Fatal(err)
	}
	o := options(t)
	o.Leaf = &Leaf{URL: h.leaf, CredsFile: other}
	s := start(t, o)
	says := func(what string) {
		t.Helper()
		until(t, func() error {
			v, err := s.View()
			if err == nil && (v.HubJoined || !strings.Contains(strings.ToLower(v.HubSays), what)) {
				err = fmt.Errorf("joined %t, and it says %q", v.HubJoined, v.HubSays)
			}
			return err
		})
	}
	says("connection refused")
	h.run()
	says("authorization violation")
}

func TestLeafNeedsACredential(t *testing.T) {
	o := options(t)
	o.Leaf = &Leaf{URL: "nats://127.0.0.1:1", CredsFile: filepath.Join(o.Home, "none.creds")}
	if _, err := Start(t.Context(), o); !errors.Is(err, ErrCredential) {
		t.Error(err)
	}
	o = options(t)
	o.Leaf = &Leaf{URL: "nats://me:secret@127.0.0.1:1"}
	if _, err := Start(t.Context(), o); !errors.Is(err, ErrOptions) || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
}

func TestRequests(t *testing.T) {
	s := start(t, options(t))
	_, user := seedOf(t, nkeys.PrefixByteUser)
	good := []Request{
		{Kind: KindOperator, Name: "ann", Publish: []string{"run.>"}},
		{Kind: KindOperator, Name: "ann", Account: "acme", Subscribe: []string{"run.*.up.>"}},
		{Kind: KindRunner, Name: "far", User: user},
		{Kind: KindGuest, Account: "a-1", Name: "g", RunID: run1, From: []netip.Prefix{netip.MustParsePrefix("2001:db8::1/128"), netip.MustParsePrefix("::ffff:192.0.2.0/120")}},
	}
	for _, r := range good {
		if c := issue(t, s, r); r.User != "" && (c.User != r.User || !c.Seed.IsZero() || !c.XSeed.IsZero()) || r.User == "" && c.Seed.IsZero() {
			t.Errorf("%+v: %v", r, c)
		}
	}
	bad := []Request{
		{}, {Kind: "god", Name: "x"}, {Kind: KindRunner}, {Kind: KindRunner, Name: "a.b"}, {Kind: KindRunner, Name: "*"}, {Kind: KindRunner, Name: ">"}, {Kind: KindRunner, Name: "a b"},
		{Kind: KindRunner, Name: strings.Repeat("x", 65)}, {Kind: KindRunner, Name: "far", Account: "acme"}, {Kind: KindRunner, Name: "far", RunID: run1},
		{Kind: KindRunner, Name: "far", Publish: []string{"x"}}, {Kind: KindRunner, Name: "far", User: "UNONE"}, {Kind: KindRunner, Name: "far", From: []netip.Prefix{{}}},
		{Kind: KindRunner, Name: "far", TTL: time.Millisecond}, {Kind: KindRunner, Name: "far", TTL: MaxTTL + 1}, {Kind: KindRunner, Name: "far", TTL: -time.Hour},
		{Kind: KindOwner, Name: "o"}, {Kind: KindOwner, Name: "o", RunID: "*"}, {Kind: KindOwner, Name: "o", RunID: "a.b"}, {Kind: KindOwner, Name: "o", RunID: run1, Account: "acme"},
		{Kind: KindGuest, Name: "g", RunID: run1}, {Kind: KindGuest, Name: "g", Account: "acme"}, {Kind: KindGuest, Name: "g", Account: "Acme", RunID: run1}, {Kind: KindGuest, Name: "g", Account: "a.b", RunID: run1},
		{Kind: KindOperator, Name: "ann"}, {Kind: KindOperator, Name: "ann", Publish: []string{">"}}, {Kind: KindOperator, Name: "ann", Publish: []string{"*.x"}}, {Kind: KindOperator, Name: "ann", Subscribe: []string{"_INBOX.>"}},
		{Kind: KindOperator, Name: "ann", Publish: []string{"$JS.API.>"}}, {Kind: KindOperator, Name: "ann", Publish: []string{"a..b"}}, {Kind: KindOperator, Name: "ann", Publish: []string{"a b"}}, {Kind: KindOperator, Name: "ann", Publish: []string{"a.>.b"}},
		{Kind: KindOperator, Name: "ann", Publish: []string{"a*"}}, {Kind: KindOperator, Name: "ann", Publish: []string{""}}, {Kind: KindOperator, Name: "ann", Publish: make([]string, maxSubjects+1)},
	}
	for _, r := range bad {
		if r.TTL == 0 {
			r.TTL = time.Hour
		}
		if c, err := s.Issue(t.Context(), r); !errors.Is(err, ErrRequest) {
			t.Errorf("%+v: %v, %v", r, c, err)
		}
	}
	if err := s.Revoke(t.Context(), "", map[string]time.Time{"*": time.Now()}); !errors.Is(err, ErrRequest) {
		t.Error("everybody can be revoked at once:", err)
	}
	for _, client := range []string{"", "CONTROL", "SYS", "a.b", "../x"} {
		if _, err := s.Client(t.Context(), client); !errors.Is(err, ErrRequest) {
			t.Errorf("%q: %v", client, err)
		}
	}
	// Who may only listen may publish nothing, as an empty list would be all.
	listener := issue(t, s, Request{Kind: KindOperator, Name: "ann", Account: "acme", Subscribe: []string{"run.*.up.>"}})
	nc, errs := hostile(t, s, listener)
	refusedPublish(t, nc, errs, &nats.Msg{Subject: "run." + run1 + ".up.x"})
	refusedPublish(t, nc, errs, &nats.Msg{Subject: "x"})
}

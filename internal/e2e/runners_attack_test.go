package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"ravi/internal/bus"
	"ravi/internal/memtest"
	"ravi/internal/store"
)

// A runner whose credential is revoked at work is cut off, and says why; its work, and what comes next, is done elsewhere
// as if nothing of that were its fault. The credential lets nobody in again.
func TestARunnerIsRevokedAtWork(t *testing.T) {
	t.Parallel()
	l, r := newLAN(t, nil), plain(t)
	l.withWorker("anna", r, "--", "sh", "-c", "echo begun; sleep 1000")
	one := l.runner("one")
	l.send("main", "work")
	w := l.says("begun")
	boxes := one.boxes()
	l.worked(r, "echo elsewhere")
	l.ravi("bus", "creds", "revoke", "one").want(0)
	l.send("other", "more")
	if code := one.wait(); code == 0 || !strings.Contains(read(t, one.said), "takes the credential one no more: it is revoked") {
		t.Errorf("it ended with %d:\n%s", code, read(t, one.said))
	}
	one.empty(boxes...)
	l.runner("two")
	all := l.over()
	for i, tries := range []int{1, 0} {
		if got := all[i]; got.Status != store.WorkDone || got.Runner != "two" || got.Tries != tries || got.RunID == w.RunID {
			t.Errorf("%+v", got)
		}
	}
	one.start(l.ca)
	if code := one.wait(); code == 0 || !strings.Contains(read(t, one.said), "refused the credential one: it is revoked") {
		t.Errorf("the second time it ended with %d:\n%s", code, read(t, one.said))
	}
	// Its name is free for another credential.
	l.ravi("bus", "creds", "issue", "--runner", "one", "--out", filepath.Join(l.user, "again.creds")).want(0)
}

// A runner's credential that was stolen is of no use where --from does not allow it. Where it is, the thief is that runner
// to the bus, and nothing more: what is another's he neither hears nor says, and what he hears is sealed.
func TestAStolenRunnerCredential(t *testing.T) {
	t.Parallel()
	l, r := newLAN(t, nil), plain(t)
	l.withWorker("anna", r, "--", "sh", "-c", "cat TASK.md; "+counts(10))
	real := l.host()
	bound := l.credential("bound", "--from", real.addr+"/32")
	l.runnerAt(real, "bound", bound, "--capacity", "1")
	thief := l.host()
	if _, err := l.dial(thief, bound); !errors.Is(err, bus.ErrRefused) {
		t.Errorf("from elsewhere: %v", err)
	}
	l.send("main", "brillig")
	w := l.says("brillig")
	if w.Runner != "bound" {
		t.Fatalf("%+v", w)
	}

	able := l.runner("able", "--capacity", "1") // of two with as much room, the first by name
	var mu sync.Mutex
	var refused []string
	nc, err := l.dial(thief, able.creds, nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		mu.Lock()
		defer mu.Unlock()
		refused = append(refused, err.Error())
	}))
	must(t, err)
	own, others := &heard{}, &heard{}
	_, err = nc.Subscribe("tunnel.able.*.*.down", own.take)
	must(t, err)
	subjects := []string{">", "*.>", "tunnel.>", "tunnel.bound.*.*.down", "tunnel.able.*.*.up", "work.>", "dead.>", "run.>", "runner.>", "_INBOX.>", "$SYS.>", "$JS.>"}
	for _, s := range subjects {
		_, err := nc.Subscribe(s, others.take)
		must(t, err)
	}
	says := []string{
		"tunnel.bound." + w.RunID + ".0.up", "tunnel.bound." + w.RunID + ".0.down", "runner.bound.status", "work.default." + w.ID, "dead.default." + w.ID,
		"run." + w.RunID + ".event", "$JS.API.STREAM.PURGE.WORK", "$JS.API.STREAM.DELETE.WORK", "$JS.API.STREAM.NAMES", "$SYS.REQ.SERVER.PING",
	}
	for _, s := range says {
		must(t, nc.PublishRequest(s, "run."+w.RunID+".event", []byte(`{"leaving":true}`)))
	}
	must(t, nc.FlushTimeout(time.Minute))
	l.send("other", "slithy toves")
	eventually(t, "a run that the thief hears of", func() bool { return len(own.all()) > 20 })
	all := l.over()
	for i, name := range []string{"bound", "able"} {
		if got := all[i]; got.Status != store.WorkDone || got.Runner != name || got.Tries != 0 || !strings.HasSuffix(l.out(got.RunID), counted(10)) {
			t.Errorf("%+v\n%s", got, l.out(got.RunID))
		}
	}
	if got := others.all(); len(got) > 0 {
		t.Errorf("he heard %d messages, one to %s", len(got), got[0].Subject)
	}
	for _, m := range own.all() {
		if bytes.Contains(m.Data, []byte("slithy")) || bytes.Contains(m.Data, []byte("TASK.md")) {
			t.Errorf("he read %q", m.Data)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for _, s := range append(subjects, says...) {
		if !strings.Contains(strings.Join(refused, "\n"), `"`+s+`"`) {
			t.Errorf("%s was not refused, but only\n%s", s, strings.Join(refused, "\n"))
		}
	}
}

// listen is a listener on the host.
func (h *host) listen(t *testing.T, addr string) (l net.Listener) {
	t.Helper()
	var err error
	h.do(t, func() { l, err = net.Listen("tcp", addr) })
	must(t, err)
	return l
}

// whole is a run on a runner that uses all that is secret: a key for Ravi, a lease of a model, and a secret.
type whole struct {
	*lan
	one   *lender
	model *echo
	run   store.Work
	site  struct {
		sync.Mutex
		got []string // what stood in the header, and from where it came
	}
}

// hold is the model whose answer the run waits for.
const hold = "hold-it"

// newWhole begins it; before is done when all is set up.
func newWhole(t *testing.T, before func(*lan)) *whole {
	t.Helper()
	w := &whole{lan: newLAN(t, nil), model: &echo{hold: map[string]chan struct{}{}}}
	r := plain(t)
	model := httptest.NewUnstartedServer(w.model)
	must(t, model.Listener.Close())
	model.Listener = w.at.listen(t, "127.0.0.1:0")
	model.Start()
	t.Cleanup(func() { model.CloseClientConnections(); model.Close() })
	_, modelPort, err := net.SplitHostPort(model.Listener.Addr().String())
	must(t, err)

	s := &site{dir: t.TempDir()}
	s.ca, s.hosts = s.dir+"/ca.pem", s.dir+"/hosts"
	s.certificates(t)
	must(t, os.WriteFile(s.hosts, []byte("127.0.0.1 localhost example.test\n"), 0o644))
	cert, err := tls.LoadX509KeyPair(s.dir+"/site.pem", s.dir+"/site.key")
	must(t, err)
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		w.site.Lock()
		defer w.site.Unlock()
		w.site.got = append(w.site.got, r.RemoteAddr+" "+r.Header.Get("Authorization"))
		_, _ = io.WriteString(out, "the site says hello\n")
	}))
	must(t, web.Listener.Close())
	web.Listener = w.at.listen(t, "127.0.0.1:0")
	web.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	web.StartTLS()
	t.Cleanup(web.Close)
	_, port, err := net.SplitHostPort(web.Listener.Addr().String())
	must(t, err)

	// The machine at home knows the site by a name, and trusts its authority.
	w.at.own(t, `mount --bind "$0" /etc/hosts`, s.hosts)
	w.env = append(w.env, "SSL_CERT_FILE="+s.ca)
	w.secret("TOKEN", "example.test:"+port, siteToken)
	w.secret("ANTHROPIC_API_KEY", "localhost:"+modelPort, canary)
	w.ravi("config", "set", "models.providers", `{"anthropic": {"base_url": "http://localhost:`+modelPort+`"}}`).want(0)
	w.ravi("clients", "create", "acme").want(0)
	w.ravi("agents", "create", "anna", "--program", "command").want(0)
	w.ravi("agents", "work", "anna", "--client", "acme", "--repo", r.dir, "--connect", "read", "--secret", "TOKEN",
		"--allow-net", "example.test:"+port+",127.0.0.1:"+port, "--", "sh", "-c", askers+`
		ravi sessions transcript main
		curl -sS -m 120 -H "Authorization: Bearer $TOKEN" https://example.test:`+port+`/
		curl -s -m 600 -o /tmp/a/held -w "== `+hold+` %{http_code}\n" -X POST -H "$json" -H "x-api-key: $LEASE" -d "$(msg `+hold+`)" "$B/anthropic/v1/messages"
		printf %s "$LEASE" | cut -c1-7; printf %s "$RAVI_CONTEXT_KEY" | cut -c1-5; echo more >>new`).want(0)
	w.one = w.runner("one")
	before(w.lan)
	w.send("main", "callooh")
	inTime(t, "the call of the model", func() bool {
		if k := w.last(); k.Status.Final() {
			t.Fatalf("it is over: %+v\n%s\n%s", k, w.out(k.RunID), read(t, filepath.Join(w.home, "runs", k.RunID, "logs", "stderr.log")))
		}
		return len(w.model.calls()) > 0
	})
	w.run = w.last()
	return w
}

// end lets it end, and says what came of it.
func (w *whole) end() *result {
	w.t.Helper()
	close(w.model.gate(hold))
	w.run = w.over()[0]
	run := &result{t: w.t, dir: filepath.Join(w.home, "runs", w.run.RunID)}
	out := w.out(w.run.RunID)
	for _, want := range []string{"callooh", "the site says hello", "== hold-it 200", "rlease_", "rctx_"} {
		if !strings.Contains(out, want) {
			w.t.Errorf("it does not say %q:\n%s\n%s", want, out, run.file("logs/stderr.log"))
		}
	}
	run.task().is(w.t, "succeeded", "")
	if w.run.Status != store.WorkDone || w.run.Runner != "one" || w.run.Tries != 0 {
		w.t.Errorf("%+v", w.run)
	}
	return run
}

// secretForms are what nobody on the bus may see: keys of runs and leases, and the seeds of users and of curve keys.
var secretForms = regexp.MustCompile(`rctx_[A-Za-z0-9_-]{24}|rlease_[A-Za-z0-9_-]{24}|S[UXAO][A-Z2-7]{56}|eyJ0eXAiOiJKV1Qi`)

// Whoever may hear all that is on the bus hears nothing secret of a run that uses everything, and nothing secret lies in the
// bus's files.
func TestNothingSecretIsOnTheBus(t *testing.T) {
	t.Parallel()
	var control, client *heard
	w := newWhole(t, func(l *lan) {
		file := l.program("board", "", "work.>", "dead.>", "run.>", "runner.>", "tunnel.>")
		control = &heard{}
		nc, err := l.dial(l.at, file)
		must(t, err)
		for _, s := range []string{"work.>", "dead.>", "run.>", "runner.>", "tunnel.>"} {
			_, err := nc.Subscribe(s, control.take)
			must(t, err)
		}
		must(t, nc.FlushTimeout(time.Minute))
		client = l.hears(l.program("inside", "acme", "run.>"), "run.>")
	})
	run := w.end()
	run.silent(siteToken)
	run.silent(canary)
	kinds := map[string]int{}
	for _, m := range append(control.all(), client.all()...) {
		first, _, _ := strings.Cut(m.Subject, ".")
		kinds[first]++
		whole := m.Subject + " " + fmt.Sprint(m.Header) + " " + m.Reply + " " + string(m.Data)
		if found := secretForms.FindString(whole); found != "" {
			t.Errorf("a message to %s has %s", m.Subject, found)
		}
		for _, secret := range []string{siteToken, canary} {
			if strings.Contains(whole, secret) {
				t.Errorf("a message to %s has a secret", m.Subject)
			}
		}
	}
	for _, kind := range []string{"work", "run", "runner", "tunnel"} {
		if kinds[kind] == 0 {
			t.Errorf("nothing was heard of %s, but %v", kind, kinds)
		}
	}
	for name, b := range files(t, filepath.Join(w.home, "bus", "jetstream")) {
		if found := secretForms.Find(b); found != nil || bytes.Contains(b, []byte(siteToken)) || bytes.Contains(b, []byte(canary)) {
			t.Errorf("the bus's file %s has a secret: %s", name, found)
		}
	}
	for name, b := range files(t, w.one.user) {
		if bytes.Contains(b, []byte(siteToken)) || bytes.Contains(b, []byte(canary)) {
			t.Errorf("the runner's file %s has a secret", name)
		}
	}
}

// A secret, and the key of a model's provider, are used from home: the machine of the runner has them in no memory,
// environment, command line or file while they are in use.
func TestSecretsNeverReachARunner(t *testing.T) {
	t.Parallel()
	w := newWhole(t, func(*lan) {})
	secrets := []string{siteToken, canary, reversed(siteToken), "callooh"}
	owner := w.owner()
	if found, err := memtest.Holds(owner, secrets...); err != nil || !found[siteToken] || !found[canary] {
		t.Errorf("process %d: the owner of the run has both, and they are not seen: %v %v", owner, found, err)
	}
	parts, err := memtest.Family(w.one.cmd.Process.Pid)
	must(t, err)
	for _, id := range w.one.boxes() {
		for _, pid := range processesOf(id, "") {
			parts[pid] += ""
		}
	}
	marked := 0
	for pid, name := range parts {
		found, err := memtest.Holds(pid, secrets...)
		if err != nil {
			t.Error(err)
		}
		if found[siteToken] || found[canary] {
			t.Errorf("process %d of the runner, %q, has a secret: %v", pid, name, found)
		}
		if found["callooh"] {
			marked++
		}
		for _, file := range []string{"environ", "cmdline"} {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file)) // it may have ended
			if bytes.Contains(b, []byte(siteToken)) || bytes.Contains(b, []byte(canary)) || secretForms.Match(b) {
				t.Errorf("%s of process %d of the runner has a secret", file, pid)
			}
		}
	}
	seen := fmt.Sprint(parts)
	for _, name := range []string{"ravi\x00runner", "ravi-keeper supervise", "ravi-relay ", "ravi-gateway", "runsc-sandbox ", "runsc-gofer "} {
		if !strings.Contains(seen, strings.ReplaceAll(name, "\x00", " ")) {
			t.Errorf("%s was not looked at, but %s", name, seen)
		}
	}
	if marked == 0 {
		t.Errorf("the task is in no memory there, of which was looked at %s", seen)
	}
	for name, b := range files(t, w.one.user) {
		if bytes.Contains(b, []byte(siteToken)) || bytes.Contains(b, []byte(canary)) {
			t.Errorf("the runner's file %s has a secret", name)
		}
	}
	w.end()
	w.site.Lock()
	defer w.site.Unlock()
	if len(w.site.got) != 1 || !strings.HasPrefix(w.site.got[0], "127.0.0.1:") || !strings.HasSuffix(w.site.got[0], " Bearer "+siteToken) {
		t.Errorf("the site got %q", w.site.got)
	}
	if calls := w.model.calls(); len(calls) != 1 || calls[0].Key != canary {
		t.Errorf("the provider got %+v", calls)
	}
}

// owner is the process of the run that goes on.
func (w *whole) owner() int {
	w.t.Helper()
	r, err := w.st.Run(context.Background(), w.run.RunID)
	must(w.t, err)
	return r.Owner.PID
}

package run

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"ravi/internal/adapter"
	"ravi/internal/broker"
	"ravi/internal/procid"
	"ravi/internal/store"
)

// providerKey is what no run gets near to.
const providerKey = "sk-ant-of-the-provider-0123456789"

// upstreamSays is what the model answers, with the key that it was asked with behind it.
const upstreamSays = "so be it, 4711"

// upstream is a provider whose answers each have used 100 tokens in and 7 out. Calls for the model "broken" fail, and
// those for "endless" begin an answer that does not end.
type upstream struct {
	url *url.URL
	mu  sync.Mutex
	got []string // bodies
	// during is done in each call; may be nil.
	during func(body string)
}

func newUpstream(t *testing.T, during func(body string)) *upstream {
	t.Helper()
	u := &upstream{during: during}
	s := httptest.NewServer(u)
	t.Cleanup(s.Close)
	var err error
	u.url, err = url.Parse(s.URL)
	must(t, err)
	return u
}

func (u *upstream) bodies() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.got)
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	u.mu.Lock()
	u.got = append(u.got, string(b))
	u.mu.Unlock()
	if u.during != nil {
		u.during(string(b))
	}
	switch {
	case r.Header.Get("X-Api-Key") != providerKey:
		w.WriteHeader(http.StatusUnauthorized)
	case strings.Contains(string(b), `"broken"`):
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<html>")
	case strings.Contains(string(b), `"endless"`):
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"endless\",\"content\":[],\"usage\":{\"input_tokens\":100,\"output_tokens\":7}}}\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	default:
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"id":"m","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"`+upstreamSays+" "+r.Header.Get("X-Api-Key")+`"}],"stop_reason":"end_turn","usage":{"input_tokens":100,"output_tokens":7}}`)
	}
}

// say is a call of a model in a shell, which prints its status.
const say = `say() { curl -s -m 600 -o answer -w '%{http_code}\n' -H 'Content-Type: application/json' -H "x-api-key: $ANTHROPIC_API_KEY" -d '{"model":"'$1'","max_tokens":5,"messages":[{"role":"user","content":"'"${2-hi}"'"}]'${3-}'}' $ANTHROPIC_BASE_URL/v1/messages; rm -f answer; }
`

// modeledRun are the options of a run on the host that calls models.
func modeledRun(t *testing.T, u *upstream, script string) (o Options, out *bytes.Buffer) {
	t.Helper()
	o = onHost(t, say+script)
	p, ok := adapter.Lookup("command")
	if !ok {
		t.Fatal("there is no program for commands")
	}
	o.Agent = &Agent{Program: p}
	o.Models = &Models{Providers: []broker.Provider{{
		Name: "anthropic", Dialect: broker.Anthropic, BaseURL: u.url, Models: []string{"m", "broken", "endless"},
		Keys: []broker.Key{{Name: "KEY", Value: func(context.Context) (string, error) { return providerKey, nil }}},
	}}, Limits: broker.Limits{Requests: 10}}
	o.CreatedBy, out = "operator", &bytes.Buffer{}
	o.Stdout, o.Stderr = out, io.Discard
	return o, out
}

// A run's lease is recorded before its sandbox and ended after it, and its token is in no file.
func TestModelLease(t *testing.T) {
	var o Options
	var live []store.ModelLease
	u := newUpstream(t, func(string) {
		var err error
		live, err = o.Store.LiveModelLeases(t.Context())
		if err != nil {
			t.Error(err)
		}
	})
	o, out := modeledRun(t, u, `say m "lease $ANTHROPIC_API_KEY"; echo "it is $ANTHROPIC_API_KEY"; echo "$ANTHROPIC_API_KEY" >&2`)
	task, err := Run(t.Context(), o)
	if err != nil || task.Status != store.RunSucceeded || !strings.HasPrefix(out.String(), "200\n") {
		t.Fatalf("%v, %+v, %s", err, task, out)
	}
	found := regexp.MustCompile(`lease (rlease_[A-Za-z0-9_-]+)`).FindStringSubmatch(u.bodies()[0])
	if found == nil {
		t.Fatalf("the provider got %s", u.bodies())
	}
	token := found[1]
	self, err := procid.Self()
	must(t, err)
	if len(live) != 1 {
		t.Fatalf("while it was used there are %+v", live)
	}
	l := live[0]
	if l.Hash != broker.TokenHash(token) || l.RunID != task.ID || l.Owner != self || l.CreatedBy != "operator" || !slices.Equal(l.Providers, []string{"anthropic"}) ||
		!slices.Equal(l.Models, []string{"anthropic/m", "anthropic/broken", "anthropic/endless"}) || l.Limits.Requests != 10 || !l.ExpiresAt.After(store.Now()) {
		t.Errorf("the lease is recorded as %+v", l)
	}
	ended, err := o.Store.ModelLease(t.Context(), l.ID)
	if err != nil || ended.EndedAt == nil || ended.Reason != "the run ended" {
		t.Errorf("after the run it is %+v, %v", ended, err)
	}
	events, err := o.Store.Events(t.Context(), 0, 100)
	must(t, err)
	var order []string
	for _, e := range events {
		if strings.HasPrefix(e.Kind, "sandbox.") || strings.HasPrefix(e.Kind, "model_lease.") {
			order = append(order, e.Kind)
		}
	}
	if len(order) < 4 || order[0] != store.EventModelLeaseBegun || order[len(order)-1] != store.EventModelLeaseEnded {
		t.Errorf("in the order %q", order)
	}
	for what, text := range map[string]string{"the lease": token, "the provider's key": providerKey} {
		if list := holders(t, o.Home, text); len(list) > 0 || strings.Contains(out.String(), text) {
			t.Errorf("%s is in %q, or in what is shown:\n%s", what, list, out)
		}
	}
	if !strings.Contains(out.String(), "it is [the run's model lease]") {
		t.Errorf("shown: %s", out)
	}
}

// What a call used is added up in the record of the lease and in task.json, and each call is in the audit before it is sent.
func TestModelCallsAreCounted(t *testing.T) {
	var o Options
	var rows []int // allowed calls in the audit, as each call comes to the provider
	calls := func() (list []store.AuditRecord) {
		list, err := o.Store.Audit(t.Context(), store.AuditFilter{Action: "model.call"})
		if err != nil {
			t.Error(err)
		}
		return list
	}
	u := newUpstream(t, func(string) { rows = append(rows, len(calls())) })
	o, out := modeledRun(t, u, `say m; say m; say broken; say other; say m hi ',"callback":1'; ANTHROPIC_API_KEY=x say m`)
	task, err := Run(t.Context(), o)
	if err != nil || out.String() != "200\n200\n502\n403\n403\n401\n" {
		t.Fatalf("%v, %+v, %s", err, task, out)
	}
	if !slices.Equal(rows, []int{1, 2, 3}) {
		t.Errorf("when they were sent there were %v rows", rows)
	}
	if m := task.Models; m == nil || m.Requests != 3 || m.Input < 200 || m.Output < 14 || m.Priced {
		t.Errorf("the run says %+v", task.Models)
	}
	var kept Task
	b, err := os.ReadFile(filepath.Join(task.Dir, TaskFile))
	must(t, err)
	must(t, json.Unmarshal(b, &kept))
	if kept.Models == nil || *kept.Models != *task.Models || kept.Agent != "command" {
		t.Errorf("task.json says %+v of %s", kept.Models, kept.Agent)
	}
	sums, err := o.Store.ModelUsage(t.Context(), store.UsageFilter{RunID: task.ID})
	must(t, err)
	var all store.ModelUse
	for _, s := range sums {
		all.Requests += s.Requests
		all.Failed += s.Failed
		all.Input += s.Input
		all.Output += s.Output
	}
	if all.Requests != 3 || all.Failed != 1 || all.Input != task.Models.Input || all.Output != task.Models.Output {
		t.Errorf("the store has %+v", all)
	}
	denied := 0
	for _, r := range calls() {
		if r.RunID != task.ID || r.SandboxID != task.Sandbox || r.Decision == store.Denied && r.Reason == "" || strings.Contains(string(r.Detail), "content") {
			t.Errorf("a row says %+v", r)
		}
		if r.Decision == store.Denied {
			denied++
		}
	}
	if n := len(calls()); n != 6 || denied != 3 {
		t.Errorf("the audit has %d calls, %d of them denied", n, denied)
	}
	for _, action := range []string{"lease.issue", "lease.revoke"} {
		if list, err := o.Store.Audit(t.Context(), store.AuditFilter{Action: action, RunID: task.ID}); err != nil || len(list) != 1 {
			t.Errorf("%s: %d rows, %v", action, len(list), err)
		}
	}
}

// A call that cannot be written down is not sent.
func TestUnwrittenCallIsNotSent(t *testing.T) {
	var o Options
	u := newUpstream(t, func(string) {
		if err := os.Remove(o.AuditHead); err != nil {
			t.Error(err)
		}
		if err := os.MkdirAll(filepath.Join(o.AuditHead, "in-the-way"), 0o700); err != nil {
			t.Error(err)
		}
	})
	o, out := modeledRun(t, u, `say m; say m`)
	o.AuditHead = filepath.Join(t.TempDir(), "head")
	task, err := Run(t.Context(), o)
	if err == nil || task.Status != store.RunError || out.String() != "200\n503\n" || len(u.bodies()) != 1 {
		t.Errorf("%v, %s, %q, %d calls came", err, task.Status, out, len(u.bodies()))
	}
	if live, err := o.Store.LiveModelLeases(t.Context()); err != nil || len(live) > 0 {
		t.Errorf("the lease goes on: %+v, %v", live, err)
	}
}

// On the host the broker is a port of loopback, with nothing but the lease as a door, and it ends with the run. A call
// that is under way then is cut, and counted.
func TestModelsOnTheHost(t *testing.T) {
	// The call that goes on is made by who has the lease and is not ended with the sandbox.
	rest := make(chan string, 1)
	u := newUpstream(t, func(body string) {
		found := regexp.MustCompile(`(rlease_\S+) (http://[^"]+)`).FindStringSubmatch(body)
		if found == nil {
			return
		}
		r, err := http.NewRequest("POST", found[2]+"/v1/messages", strings.NewReader(`{"model":"endless","stream":true,"max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`))
		if err != nil {
			t.Error(err)
			return
		}
		r.Header.Set("X-Api-Key", found[1])
		r.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := io.ReadFull(res.Body, make([]byte, 20)); err != nil {
			t.Error(err)
		}
		go func() {
			defer res.Body.Close()
			b, _ := io.ReadAll(res.Body) // it is cut
			rest <- string(b)
		}()
	})
	o, out := modeledRun(t, u, `
		echo "at $ANTHROPIC_BASE_URL"
		curl -s -o no -w '%{http_code}\n' -H 'Content-Type: application/json' -d '{}' $ANTHROPIC_BASE_URL/v1/messages
		curl -s -o no -w '%{http_code}\n' -H 'Host: evil.example' $ANTHROPIC_BASE_URL/
		rm no
		say m "$ANTHROPIC_API_KEY $ANTHROPIC_BASE_URL"`)
	task, err := Run(t.Context(), o)
	if err != nil || task.Status != store.RunSucceeded {
		t.Fatalf("%v, %+v", err, task)
	}
	if said := <-rest; !strings.Contains(said, "the lease is over: the run ended") {
		t.Errorf("the call under way was told %q", said)
	}
	base, statuses, _ := strings.Cut(out.String(), "\n")
	at, err := url.Parse(strings.TrimPrefix(base, "at "))
	must(t, err)
	if ip := net.ParseIP(at.Hostname()); ip == nil || !ip.IsLoopback() || at.Path != "/anthropic" || statuses != "401\n403\n200\n" {
		t.Errorf("the broker is at %s, and says %q", at, statuses)
	}
	if c, err := net.Dial("tcp", at.Host); err == nil {
		c.Close()
		t.Error("it is there after the run")
	}
	if m := task.Models; m == nil || m.Requests != 2 || m.Input != 200 {
		t.Errorf("what was under way counts as %+v", m)
	}
	sums, err := o.Store.ModelUsage(t.Context(), store.UsageFilter{RunID: task.ID})
	if err != nil || len(sums) != 1 || sums[0].Requests != 2 || sums[0].Input != 200 {
		t.Errorf("the store has %+v, %v", sums, err)
	}
}

// A run without models has no lease, and nothing of models in its environment.
func TestRunWithoutModels(t *testing.T) {
	o := onHost(t, `env | grep -i 'lease\|ANTHROPIC\|OPENAI\|GEMINI' >found; true`)
	task, err := Run(t.Context(), o)
	if err != nil || task.Models != nil || task.Agent != "" || task.Patch.Insertions != 0 {
		t.Errorf("%v, %+v", err, task)
	}
	if rows, err := o.Store.Audit(t.Context(), store.AuditFilter{Action: "lease."}); err != nil || len(rows) > 0 {
		t.Errorf("the audit has %+v, %v", rows, err)
	}
}

// The lease of a run whose process was killed is ended by the sweep; that of one which goes on is not.
func TestSweepEndsModelLeases(t *testing.T) {
	home := t.TempDir()
	st := newStore(t, home)
	self, err := procid.Self()
	must(t, err)
	dead := self
	dead.Start++
	leases := map[bool]string{}
	for alive, owner := range map[bool]procid.ID{true: self, false: dead} {
		r, err := st.InsertRun(t.Context(), store.Run{Owner: owner, CreatedBy: "operator", Status: store.RunRunning})
		must(t, err)
		_, hash := broker.NewToken()
		l, err := st.InsertModelLease(t.Context(), store.ModelLease{Hash: hash, RunID: r.ID, Owner: owner, Providers: []string{"anthropic"}, ExpiresAt: store.Now().AddDate(1, 0, 0)})
		must(t, err)
		leases[alive] = l.ID
	}
	report, err := (Sweeper{Home: home, Store: st}).Prune(t.Context())
	if err != nil || len(report.Problems) > 0 {
		t.Fatalf("%+v, %v", report, err)
	}
	for alive, id := range leases {
		l, err := st.ModelLease(t.Context(), id)
		if err != nil || (l.EndedAt == nil) != alive {
			t.Errorf("its process is there: %v; the lease is %+v, %v", alive, l, err)
		}
	}
}

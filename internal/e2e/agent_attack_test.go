package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// echo is a provider that tells everything it was told, its own key most of all. Models named hold-… wait until they are
// let go, and hungry ones have used a million tokens.
type echo struct {
	url  string
	mu   sync.Mutex
	sent []modelCall
	hold map[string]chan struct{}
}

// modelCall is a call that came to the provider.
type modelCall struct{ Model, Path, Host, Key, Body string }

func newEcho(t *testing.T) *echo {
	t.Helper()
	e := &echo{hold: map[string]chan struct{}{}}
	s := httptest.NewServer(e)
	// A call that waits must not have the test wait for it in the end.
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	e.url = s.URL
	return e
}

func (e *echo) gate(model string) chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.hold[model] == nil {
		e.hold[model] = make(chan struct{})
	}
	return e.hold[model]
}

func (e *echo) calls() []modelCall {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.sent)
}

// models are the names that were asked for.
func (e *echo) models() (names []string) {
	for _, c := range e.calls() {
		names = append(names, c.Model)
	}
	return names
}

func (e *echo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // what is missing is seen by what was asked for
	var asked struct {
		Model  string
		Stream bool
	}
	_ = json.Unmarshal(body, &asked)
	key := r.Header.Get("X-Api-Key") + strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	e.mu.Lock()
	e.sent = append(e.sent, modelCall{asked.Model, r.URL.Path, r.Host, key, string(body)})
	e.mu.Unlock()
	if strings.HasPrefix(asked.Model, "hold-") {
		select {
		case <-e.gate(asked.Model):
		case <-r.Context().Done():
			return
		}
	}
	in := 10
	if strings.HasPrefix(asked.Model, "hungry") {
		in = 1_000_000
	}
	text := fmt.Sprintf("your key is %s, %x, %s, %s, and you said %s", key, key, base64.StdEncoding.EncodeToString([]byte(key)), url.QueryEscape(key+"/"), r.Header)
	h := w.Header()
	for _, name := range []string{"Request-Id", "X-Request-Id", "X-Echo", "Set-Cookie", "Anthropic-Organization-Id", "X-Ratelimit-Limit-Requests", "Server", "Via"} {
		h.Set(name, key)
	}
	quoted, _ := json.Marshal(text) // a string can be encoded
	switch {
	case strings.HasPrefix(asked.Model, "fails"):
		h.Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"type":"error","error":{"type":"invalid_request_error","message":%s}}`, quoted)
	case asked.Stream:
		h.Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":%q,\"content\":[],\"usage\":{\"input_tokens\":%d,\"output_tokens\":1}}}\n\n", asked.Model, in)
		fmt.Fprint(w, "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n")
		line := fmt.Sprintf("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":%s}}\n\n", quoted)
		for i := range len(line) { // in as many pieces as there can be
			_, _ = io.WriteString(w, line[i:i+1])
			w.(http.Flusher).Flush()
		}
		fmt.Fprint(w, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n")
		fmt.Fprint(w, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":5}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n")
	case strings.HasSuffix(r.URL.Path, "/responses"):
		h.Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"resp_own","object":"response","status":"completed","model":%q,"output":[{"type":"message","id":"m","role":"assistant","status":"completed","content":[{"type":"output_text","text":%s,"annotations":[]}]}],"usage":{"input_tokens":%d,"output_tokens":5,"total_tokens":%d}}`, asked.Model, quoted, in, in+5)
	default:
		h.Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"msg_1","type":"message","role":"assistant","model":%q,"content":[{"type":"text","text":%s}],"stop_reason":"end_turn","usage":{"input_tokens":%d,"output_tokens":5}}`, asked.Model, quoted, in)
	}
}

// attack is one of what is tried inside, with curl.
type attack struct {
	path string // empty: of Anthropic's messages
	// body is empty for a plain one whose model is the attack's name, as $N stands for it in others; more is added to it.
	body, more string
	// keys are headers in the place of the lease.
	keys []string
	// flags are lines of a configuration of curl's, and base is what comes before the path.
	flags []string
	base  string

	want string // status
	says string // what the answer has in it, and if it is audited the record of it
	// sent says that the provider is to be asked, audited that the audit tells of a refusal.
	sent, audited bool
}

const (
	toMessages  = "/anthropic/v1/messages"
	toResponses = "/openai/v1/responses"
	someLease   = "x-api-key: rlease_AAAAAAAAAAAAAAAAAAAAAAAA"
)

// attacks are what an agent tries of its broker.
var attacks = map[string]attack{
	"ok":     {want: "200", says: "your key is", sent: true},
	"bearer": {keys: []string{"Authorization: Bearer $LEASE"}, want: "200", sent: true},
	"stream": {more: `,"stream":true`, want: "200", says: "message_start", sent: true},
	"fails":  {want: "400", says: "your key is", sent: true},
	"oai-ok": {path: toResponses, body: `{"model":"$N","store":false,"input":"hi"}`, want: "200", says: "your key is", sent: true},

	"no-lease":        {keys: []string{"X-A: b"}, want: "401", says: "there is no lease", audited: true},
	"empty-lease":     {keys: []string{"x-api-key;"}, want: "401", says: "has no lease", audited: true},
	"wrong-lease":     {keys: []string{someLease}, want: "401", says: "not this run's", audited: true},
	"cut-lease":       {keys: []string{"x-api-key: ${LEASE%????}"}, want: "401", says: "has no lease", audited: true},
	"longer-lease":    {keys: []string{"x-api-key: ${LEASE}A"}, want: "401", says: "has no lease", audited: true},
	"two-leases":      {keys: []string{"x-api-key: $LEASE", someLease}, want: "401", says: "more than one", audited: true},
	"twice-the-lease": {keys: []string{"x-api-key: $LEASE", "x-api-key: $LEASE"}, want: "401", says: "more than one", audited: true},
	"two-minds":       {keys: []string{"x-api-key: $LEASE", "Authorization: Bearer rlease_AAAAAAAAAAAAAAAAAAAAAAAA"}, want: "401", says: "Authorization has a lease", audited: true},
	"basic":           {keys: []string{"X-A: b"}, flags: []string{`user = "$LEASE:"`}, want: "401", says: "not of the kind Bearer", audited: true},
	"context-key":     {keys: []string{"x-api-key: $RAVI_CONTEXT_KEY"}, want: "401", says: "has no lease", audited: true},
	"in-the-query":    {keys: []string{"X-A: b"}, path: toMessages + "?key=$LEASE", want: "401", says: "there is no lease", audited: true},
	"other-live":      {keys: []string{"x-api-key: rlease_$OTHER"}, want: "401", says: "not this run's", audited: true},

	"web-search":  {more: `,"tools":[{"type":"web_search_20250305","name":"web_search"}]`, want: "403", says: "web_search_20250305", audited: true},
	"web-fetch":   {more: `,"tools":[{"type":"web_fetch_20250910","name":"web_fetch"}]`, want: "403", says: "web_fetch_20250910", audited: true},
	"code":        {more: `,"tools":[{"type":"code_execution_20250825","name":"code_execution"}]`, want: "403", says: "code_execution", audited: true},
	"mcp":         {more: `,"mcp_servers":[{"type":"url","url":"https://evil.example/sse","name":"x"}]`, want: "403", says: "mcp_servers", audited: true},
	"unknown":     {more: `,"callback":"https://evil.example"`, want: "403", says: "field:callback", audited: true},
	"url":         {body: `{"model":"$N","max_tokens":5,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"https://evil.example/?q=x"}}]}]}`, want: "403", says: "urls", audited: true},
	"file":        {body: `{"model":"$N","max_tokens":5,"messages":[{"role":"user","content":[{"type":"document","source":{"type":"file","file_id":"file_1"}}]}]}`, want: "403", says: "files", audited: true},
	"duplicate":   {more: `,"tools":[],"tools":[{"type":"web_search_20250305","name":"web_search"}]`, want: "400", says: "given twice", audited: true},
	"two-models":  {more: `,"model":"other"`, want: "400", says: "given twice", audited: true},
	"no-json":     {more: `}`, want: "400", says: "not valid JSON", audited: true},
	"oai-search":  {path: toResponses, body: `{"model":"$N","store":false,"input":"hi","tools":[{"type":"web_search"}]}`, want: "403", says: "the provider would search", audited: true},
	"oai-mcp":     {path: toResponses, body: `{"model":"$N","store":false,"input":"hi","tools":[{"type":"mcp","server_label":"x","server_url":"https://evil.example"}]}`, want: "403", says: "connect to other servers", audited: true},
	"oai-url":     {path: toResponses, body: `{"model":"$N","store":false,"input":[{"role":"user","content":[{"type":"input_image","image_url":"https://evil.example/x.png"}]}]}`, want: "403", says: "image_url", audited: true},
	"oai-foreign": {path: toResponses, body: `{"model":"$N","store":false,"input":"hi","previous_response_id":"resp_foreign"}`, want: "403", says: "resp_foreign", audited: true},
	"oai-later":   {path: toResponses, body: `{"model":"$N","store":false,"background":true,"input":"hi"}`, want: "403", says: "background", audited: true},
	"oai-store":   {path: toResponses, body: `{"model":"$N","store":true,"input":"hi"}`, want: "403", says: "would keep the conversation", audited: true},

	"up":          {path: "/anthropic/../anthropic/v1/messages", want: "404", says: "/../anthropic", audited: true},
	"up-behind":   {path: toMessages + "/../files", want: "404", says: "/../files", audited: true},
	"up-escaped":  {path: "/anthropic/%2e%2e/openai/v1/responses", want: "404", says: "/%2e%2e/", audited: true},
	"up-to-more":  {path: toMessages + "/%2e%2e%2ffiles", want: "404", says: "%2e%2e%2ffiles", audited: true},
	"escaped":     {path: "/anthropic/v1%2fmessages", want: "404", says: "v1%2fmessages", audited: true},
	"two-slashes": {path: "/anthropic//v1/messages", want: "404", says: "//v1/messages", audited: true},
	"slash-first": {path: "//anthropic/v1/messages", want: "404", says: "no model provider", audited: true},
	"slash-last":  {path: toMessages + "/", want: "404", says: "/v1/messages/", audited: true},
	"files":       {path: "/anthropic/v1/files", want: "404", says: "/v1/files", audited: true},
	"batches":     {path: toMessages + "/batches", want: "404", says: "/batches", audited: true},
	"oai-files":   {path: "/openai/v1/files", want: "404", says: "only POST /v1/responses", audited: true},
	"no-provider": {path: "/gemini/v1beta/models/x:generateContent", body: `{}`, want: "404", says: "there is: anthropic, openai", audited: true},
	"query":       {path: toMessages + "?beta=true&x=y", want: "400", says: "behind a ?", audited: true},
	"compressed":  {flags: []string{`header = "Content-Encoding: gzip"`}, want: "415", says: "compressed", audited: true},

	// These come no further than the listener.
	"host":    {flags: []string{`header = "Host: api.anthropic.com"`}, want: "403", says: "not called"},
	"gateway": {flags: []string{`header = "Host: gateway.ravi.internal"`}, want: "403", says: "not called"},
	"page":    {flags: []string{`header = "Origin: https://evil.example"`}, want: "403", says: "web page"},
	"proxy":   {base: "http://example.com", flags: []string{`proxy = "$B"`}, want: "403", says: "this is no proxy"},
	"tunnel":  {base: "https://example.com", flags: []string{`proxy = "$B"`}, want: "000"},
	"delete":  {flags: []string{`request = "DELETE"`}, want: "405"},
}

// curls is a configuration of curl's that has it do all attacks, for a shell to fill in.
func curls() string {
	var b strings.Builder
	order := func(name string) int {
		if attacks[name].want == "403" {
			return 0
		}
		return 1
	}
	// What would need a grant is first, since the audit tells a bounded number of refusals apart.
	names := slices.SortedFunc(maps.Keys(attacks), func(a, b string) int {
		return cmp.Or(cmp.Compare(order(a), order(b)), strings.Compare(a, b))
	})
	for _, name := range names {
		a := attacks[name]
		path, base, body, keys := cmp.Or(a.path, toMessages), cmp.Or(a.base, "$B"), a.body, a.keys
		if body == "" {
			body = `{"model":"$N","max_tokens":5,"messages":[{"role":"user","content":"hi"}]` + a.more + "}"
		}
		if keys == nil {
			keys = []string{"x-api-key: $LEASE"}
		}
		fmt.Fprintf(&b, "next\nsilent\nmax-time = 600\npath-as-is\nurl = %q\ndata = %q\nheader = \"Content-Type: application/json\"\n", base+path, strings.ReplaceAll(body, "$N", name))
		fmt.Fprintf(&b, "output = /tmp/a/%s\ndump-header = /tmp/a/%[1]s.head\nwrite-out = \"== %[1]s %%{http_code}\\n\"\n", name)
		for _, key := range keys {
			fmt.Fprintf(&b, "header = %q\n", key)
		}
		b.WriteString(strings.Join(append(a.flags, ""), "\n"))
	}
	return strings.TrimPrefix(b.String(), "next\n")
}

// askers are what the rest is tried with. say NAME [flags of curl] asks for a message of the model NAME, put NAME for
// what the flags say. raw NAME TEXT sends it, with \r and \n, over one connection in one write.
const askers = `
set -u
LEASE=$ANTHROPIC_API_KEY
B=http://broker.ravi.internal
json='Content-Type: application/json'
mkdir /tmp/a
put() { n=$1; shift; curl -s -m 600 -D "/tmp/a/$n.head" -o "/tmp/a/$n" -w "== $n %{http_code}\n" -X POST -H "$json" "$@"; }
msg() { echo '{"model":"'$1'","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}'; }
ask() { n=$1; shift; put "$n" "$@" -d "$(msg "$n")" "$B/anthropic/v1/messages"; }
say() { ask "$1" -H "x-api-key: $LEASE"; }
raw() { printf %b "$2" >/tmp/raw; timeout 120 bash -c 'exec 3<>/dev/tcp/broker.ravi.internal/80 && cat /tmp/raw >&3 && cat <&3' >"/tmp/a/$1" 2>&1; }
`

// TestModelAttacks has a run try everything that it must not get from its broker, and another run beside it the lease of
// the first. The provider echoes its key wherever it can.
func TestModelAttacks(t *testing.T) {
	w := newWorld(t)
	r := plain(t)
	e := newEcho(t)
	w.ravi("agents", "create", "anna").want(0)
	w.ravi("sessions", "create", "--agent", "anna", "--name", "web").want(0)
	address := w.withDaemon() // it knows of no key of a provider
	w.env = []string{"ANTHROPIC_API_KEY=" + canary, "ANTHROPIC_BASE_URL=" + e.url, "OPENAI_API_KEY=" + canary, "OPENAI_BASE_URL=" + e.url}

	// The first run gives its lease away, in a form that is not taken out, and is there until it is let go.
	first := w.command("sandbox", "run", "--repo", r.dir, "--agent", "command", "--", "sh", "-c", askers+`
		echo "lease $(echo $LEASE | cut -c8- | rev)"
		say hold-first
		printf %s "$LEASE" | wc -c >count.txt`)
	out := newWatched(regexp.MustCompile(`(?m)^lease (\S{24})$`))
	var errs bytes.Buffer
	first.Stdout, first.Stderr = out, &errs
	must(t, first.Start())
	firstOver := make(chan error, 1)
	go func() { firstOver <- first.Wait() }()
	var stolen string
	select {
	case found := <-out.found:
		stolen = reversed(found)
	case err := <-firstOver:
		t.Fatalf("the first run ended: %v\n%s\n%s", err, out, errs.String())
	case <-time.After(4 * time.Minute):
		t.Fatal("the first run does not begin")
	}
	eventually(t, "the first run's call", func() bool { return slices.Contains(e.models(), "hold-first") })

	// At the daemon a lease is nothing, nor does it make anybody of the operator's socket someone.
	for _, path := range []string{"api/v1/runs/ls", "api/v1/secrets/ls", "anthropic/v1/messages"} {
		if status, answer := call(t, address, "rlease_"+stolen, "../../"+path, `{}`); status < 400 {
			t.Errorf("%s over TCP, with a lease: %d %s", path, status, answer)
		}
		if status, answer := overSocket(t, filepath.Join(w.home, "cli-gateway.sock"), "rlease_"+stolen, path); status < 400 {
			t.Errorf("%s over the socket, with a lease: %d %s", path, status, answer)
		}
	}

	var script strings.Builder
	script.WriteString(askers)
	script.WriteString("OTHER=" + stolen + "\n")
	script.WriteString("curl -K - <<END\n" + curls() + "END\n")
	fmt.Fprintf(&script, `
		b=$(msg smuggled)
		h="POST /anthropic/v1/messages HTTP/1.1\r\nHost: broker.ravi.internal\r\nContent-Type: application/json\r\n"
		raw behind "${h}x-api-key: $LEASE\r\nContent-Length: 2\r\n\r\n{}${h}Connection: close\r\nContent-Length: ${#b}\r\n\r\n$b"
		raw short "${h}x-api-key: $LEASE\r\nContent-Length: 5\r\n\r\n$b"
		raw long "${h}x-api-key: $LEASE\r\nConnection: close\r\nContent-Length: $((${#b}+2))\r\n\r\n{}$b"
		raw both "${h}x-api-key: $LEASE\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n${h}x-api-key: $LEASE\r\nContent-Length: ${#b}\r\n\r\n$b"
		raw lengths "${h}x-api-key: $LEASE\r\nContent-Length: 2\r\nContent-Length: ${#b}\r\n\r\n$b"
		truncate -s 100M /tmp/big
		put large -H "x-api-key: $LEASE" -T /tmp/big $B/anthropic/v1/messages
		put chunked -H "x-api-key: $LEASE" -H 'Transfer-Encoding: chunked' -T /tmp/big $B/anthropic/v1/messages
		put our-gateway -H "Authorization: Bearer $LEASE" -d {} $RAVI_GATEWAY_URL/api/v1/runs/ls
		for u in http://%[1]s/api/v1/runs/ls http://127.0.0.1:7777/ %[2]s/v1/messages http://example.com/ https://1.1.1.1/ https://api.anthropic.com/v1/messages; do
			curl -s -m 120 -o /dev/null $u; echo "net $u exit $?"
		done
		say after-all
		say hold-second
		ask other-over -H "x-api-key: rlease_$OTHER"
		say hungry
		say starved
		a=sk-ant-api03; b=-canary-0123; h=%[3]s; p=%[4]s
		echo "canaries $(cat /tmp/a/* | grep -aice "$a$b" -e "$h" -e "$p") of $(cat /tmp/a/* | grep -ac 'secret ANTHROPIC_API_KEY')"
		head -c 1500 /tmp/a/*
	`, address, e.url, halves(fmt.Sprintf("%x", canary)), halves(base64.StdEncoding.EncodeToString([]byte(canary))))
	second := w.command("sandbox", "run", "--repo", r.dir, "--agent", "command", "--session", "web", "--connect", "read", "--max-tokens", "900000", "--", "sh", "-c", script.String())
	tried := newWatched(regexp.MustCompile(`(?m)^== (after-all) `))
	second.Stdout = tried
	done := make(chan *result, 1)
	go func() { done <- w.finish(second) }()
	// Once the second run has tried all with the first one there, the first one ends, and its lease is tried once more.
	select {
	case <-tried.found:
	case r := <-done:
		t.Fatalf("the second run ended: %s\n%s", short(tried.String()), short(r.stderr))
	case <-time.After(8 * time.Minute):
		t.Fatalf("the second run goes on and on: %s", short(tried.String()))
	}
	close(e.gate("hold-first"))
	if err := <-firstOver; err != nil {
		t.Errorf("the first run: %v\n%s\n%s", err, out, errs.String())
	}
	close(e.gate("hold-second"))
	got := (<-done).want(0)
	got.stdout = tried.String()
	checkAttacks(t, w, e, got)
	if !strings.Contains(out.String(), "== hold-first 200") {
		t.Errorf("the first run: %s", short(out.String()))
	}

	// A run without an agent program has no broker.
	none := w.run(r, "--", "sh", "-c", `curl -s -m 120 http://broker.ravi.internal/anthropic/v1/messages; echo "exit $?"; env | grep -c 'rlease_\|ANTHROPIC\|OPENAI'; true`).want(0)
	if !strings.Contains(none.stdout, "exit 6\n0\n") {
		t.Errorf("without an agent there is: %s", none.stdout)
	}
}

// halves is a text that does not stand in a command line, for the shell to put together.
func halves(s string) string { return s[8:20] + `""` + s[20:40] }

func checkAttacks(t *testing.T, w *world, e *echo, run *result) {
	t.Helper()
	answers := map[string]string{}
	lines, kept, _ := strings.Cut(run.stdout, "\n==> ")
	for line := range strings.Lines(lines) {
		if rest, ok := strings.CutPrefix(line, "== "); ok {
			name, status, _ := strings.Cut(strings.TrimSpace(rest), " ")
			answers[name] = status + " "
		}
	}
	for part := range strings.SplitSeq(kept, "\n==> ") {
		name, text, _ := strings.Cut(part, " <==\n")
		name = strings.TrimPrefix(name, "/tmp/a/")
		if _, plain := answers[name]; !plain && !strings.HasSuffix(name, ".head") { // it was sent raw
			for _, m := range regexp.MustCompile(`HTTP/1\.1 (\d+)`).FindAllStringSubmatch(text, -1) {
				answers[name] += m[1] + ","
			}
			answers[name] += " "
		}
		answers[name] += text
	}
	// What stands behind a body that is said to be shorter is no request, which the server finds once no more of it comes.
	answers["short"] = strings.Replace(answers["short"], "400,400, ", "400, ", 1)
	denied := 0
	for name, a := range attacks {
		if got := answers[name]; !strings.HasPrefix(got, a.want+" ") || !strings.Contains(got, a.says) {
			t.Errorf("%s: %s", name, got)
		}
		if asked := slices.Contains(e.models(), name); asked != a.sent {
			t.Errorf("%s: the provider was asked: %v", name, asked)
		}
		if a.audited {
			denied++
		}
	}
	for name, want := range map[string]string{
		"behind": "400,401, ", "short": "400, ", "long": "400, ", "both": "400, ", "lengths": "400, ", "large": "413 ", "chunked": "413 ", "our-gateway": "401 ",
		"after-all": "200 ", "hold-second": "200 ", "other-over": "401 ", "hungry": "200 ", "starved": "400 ",
	} {
		if got := answers[name]; !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, and not %s", name, got, want)
		}
	}
	if got := answers["starved"]; !strings.Contains(got, "limit of 900000 tokens") || !strings.Contains(got, "no more calls") {
		t.Errorf("the end of the tokens is told as %s", got)
	}
	for _, m := range e.models() {
		if slices.Contains([]string{"smuggled", "other-over", "starved", ""}, m) {
			t.Errorf("the provider was asked for %q", m)
		}
	}
	for _, c := range e.calls() {
		if c.Key != canary || strings.Contains(c.Body, "rlease_") {
			t.Errorf("the provider got the key %q with %s", c.Key, short(c.Body))
		}
	}
	if found := regexp.MustCompile(`canaries (\d+) of (\d+)\n`).FindStringSubmatch(run.stdout); found == nil || found[1] != "0" || len(found[2]) < 2 {
		t.Errorf("the provider's key was answered: %q", found)
	}
	for line := range strings.Lines(run.stdout) {
		if strings.HasPrefix(line, "net ") && strings.HasSuffix(line, " exit 0\n") {
			t.Errorf("it reached %s", line)
		}
	}
	if n := strings.Count(run.stdout, "\nnet "); n != 6 {
		t.Errorf("%d addresses were tried", n)
	}
	run.silent(canary)

	var list struct {
		Items []struct {
			Action, Decision, Reason string
			Count                    int
		}
	}
	must(t, json.Unmarshal([]byte(w.ravi("audit", "search", "--run", filepath.Base(run.dir), "--limit", "500", "--json").want(0).stdout), &list))
	var told []string
	for _, row := range list.Items {
		if row.Decision == "denied" && row.Action == "model.call" {
			told = append(told, row.Reason)
			denied -= row.Count
		}
	}
	// Beside the attacks of the table there are behind (two), short, long, both, chunked, other-over and starved.
	if denied += 8; denied != 0 {
		t.Errorf("the audit lacks %d refusals:\n%s", denied, strings.Join(told, "\n"))
	}
	for name, a := range attacks {
		if a.audited && a.want == "403" && !slices.ContainsFunc(told, func(s string) bool { return strings.Contains(s, a.says) }) {
			t.Errorf("%s: the audit does not tell %q", name, a.says)
		}
	}
	w.ravi("audit", "verify").want(0)
	eachFile(t, w.home, func(name string, b []byte) {
		if bytes.Contains(b, []byte(canary)) {
			t.Errorf("%s holds the key", name)
		}
	})
}

// watched is an output in which something is waited for.
type watched struct {
	mu    sync.Mutex
	b     bytes.Buffer
	want  *regexp.Regexp
	found chan string
}

func newWatched(want *regexp.Regexp) *watched {
	return &watched{want: want, found: make(chan string, 1)}
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b.Write(p)
	if m := w.want.FindSubmatch(w.b.Bytes()); m != nil {
		select {
		case w.found <- string(m[1]):
		default:
		}
	}
	return len(p), nil
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// overSocket asks the daemon over its socket, with a key of whatever kind.
func overSocket(t *testing.T, socket, key, path string) (int, string) {
	t.Helper()
	var d net.Dialer
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return d.DialContext(ctx, "unix", socket)
	}}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/"+path, strings.NewReader("{}"))
	must(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+key)
	res, err := client.Do(req)
	must(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	must(t, err)
	return res.StatusCode, string(b)
}

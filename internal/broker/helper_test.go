package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"ravi/internal/broker/check"
	"ravi/internal/guard"
	"ravi/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const realKey = "sk-real-0123456789-abcdef"

// world is a broker on a guarded port, in front of an upstream that does what a test says.
type world struct {
	t       testing.TB
	broker  *Broker
	addr    string // of the broker
	token   string
	options Options
	client  *http.Client

	mu     sync.Mutex
	began  []Call
	ended  []Call
	change chan struct{}
	seen   []seen // by the upstream
}

// seen is a request that came upstream.
type seen struct {
	method, uri string
	header      http.Header
	body        string
}

// newWorld makes one; change may alter what the broker is made of.
func newWorld(t testing.TB, upstream http.HandlerFunc, change func(*Options)) *world {
	t.Helper()
	w := &world{t: t, change: make(chan struct{})}
	up := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.mu.Lock()
		w.seen = append(w.seen, seen{r.Method, r.RequestURI, r.Header.Clone(), string(b)})
		w.mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(b))
		upstream(out, r)
	}))
	t.Cleanup(up.Close)
	base, err := url.Parse(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	var hash string
	w.token, hash = NewToken()
	w.options = Options{
		Lease: Lease{Hash: hash}, Grants: check.Grants{}, FirstByte: 2 * time.Minute, Idle: 2 * time.Minute,
		Begin: func(_ context.Context, c Call) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.began = append(w.began, c)
			return nil
		},
		End: func(c Call) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ended = append(w.ended, c)
			close(w.change)
			w.change = make(chan struct{})
		},
	}
	for name, d := range map[string]Dialect{"anthropic": Anthropic, "openai": OpenAI, "gemini": Gemini} {
		w.options.Providers = append(w.options.Providers, Provider{Name: name, Dialect: d, BaseURL: base, Keys: []Key{fixedKey("REAL_KEY", realKey)}})
	}
	if change != nil {
		change(&w.options)
	}
	if w.broker, err = New(w.options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.broker.End("the test is over") })
	l, err := guard.ListenTCP("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	w.addr = l.Addr().String()
	o := ServerOptions()
	o.StallTimeout = 10 * time.Minute // an agent that does not read stays for as long as a test needs it
	o.Log = slog.New(slog.DiscardHandler)
	g := guard.New(w.broker, o)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	tr := &http.Transport{MaxIdleConnsPerHost: 256}
	w.client = &http.Client{Transport: tr}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		w.broker.End("the test is over")
		if err := g.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return w
}

func fixedKey(name, value string) Key {
	return Key{Name: name, Value: func(context.Context) (string, error) { return value, nil }}
}

// provider finds a provider of the options.
func (o *Options) provider(name string) *Provider {
	for i := range o.Providers {
		if o.Providers[i].Name == name {
			return &o.Providers[i]
		}
	}
	panic("no provider " + name)
}

// reply is an answer to the agent.
type reply struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
}

const anthropicBody = `{"model":"claude-x","max_tokens":100,"messages":[{"role":"user","content":"hi"}]}`

func streamed(body string) string { return strings.Replace(body, "{", `{"stream":true,`, 1) }

// paths of the dialects, with a body that passes.
var calls = map[string]struct{ path, body string }{
	"anthropic": {"/anthropic/v1/messages?beta=true", anthropicBody},
	"responses": {"/openai/v1/responses", `{"model":"gpt-x","store":false,"input":"hi"}`},
	"chat":      {"/openai/v1/chat/completions", `{"model":"gpt-x","messages":[{"role":"user","content":"hi"}]}`},
	"gemini":    {"/gemini/v1beta/models/gemini-x:generateContent", `{"contents":[{"role":"user","parts":[{"text":"hi"}]}]}`},
}

// request makes a call with the lease in a header of the Anthropic kind.
func (w *world) request(method, path, body string, header ...string) *http.Request {
	w.t.Helper()
	r, err := http.NewRequest(method, "http://"+w.addr+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set("X-Api-Key", w.token)
	for i := 0; i+1 < len(header); i += 2 {
		if header[i+1] == "" {
			r.Header.Del(header[i])
			continue
		}
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

func (w *world) do(r *http.Request) reply {
	w.t.Helper()
	res, err := w.client.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(b), err}
}

func (w *world) post(path, body string, header ...string) reply {
	w.t.Helper()
	return w.do(w.request(http.MethodPost, path, body, header...))
}

// finished waits for so many calls to have ended, and returns them.
func (w *world) finished(n int) []Call {
	w.t.Helper()
	late := time.After(time.Minute)
	for {
		w.mu.Lock()
		ended, change := append([]Call(nil), w.ended...), w.change
		w.mu.Unlock()
		if len(ended) > n {
			w.t.Fatalf("%d calls ended, more than %d: %+v", len(ended), n, ended)
		}
		if len(ended) == n {
			return ended
		}
		select {
		case <-change:
		case <-late:
			w.t.Fatalf("only %d calls ended, want %d", len(ended), n)
		}
	}
}

func (w *world) begun() []Call {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]Call(nil), w.began...)
}

// came are the requests that the upstream got.
func (w *world) came() []seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]seen(nil), w.seen...)
}

// mustRefuse checks a refusal: its shape, its words, that it was written down, and that nothing was sent.
func (w *world) mustRefuse(got reply, d Dialect, status int, says string) {
	w.t.Helper()
	if message := errorOf(w.t, got, d); got.status != status || !strings.Contains(message, says) {
		w.t.Errorf("got %d %q, want %d and %q", got.status, message, status, says)
	}
	if sent := w.came(); len(sent) != 0 {
		w.t.Errorf("it was sent: %+v", sent)
	}
	began := w.begun()
	if len(began) != 1 || began[0].Refused == "" || strings.Contains(began[0].Refused, Prefix+"A") {
		w.t.Errorf("what was written down: %+v", began)
	}
	w.finished(0)
}

// errorOf reads an error in a dialect's shape.
func errorOf(t testing.TB, got reply, d Dialect) string {
	t.Helper()
	message, err := readError([]byte(got.body), d, got.status)
	if err != nil {
		t.Errorf("%d is no error of %s: %v: %s", got.status, d, err, got.body)
	}
	if kind := got.header.Get("Content-Type"); kind != "application/json" {
		t.Errorf("an error of type %q", kind)
	}
	return message
}

func readError(body []byte, d Dialect, status int) (string, error) {
	var doc struct {
		Type  string
		Error struct {
			Type, Message, Status string
			Code                  any
		}
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return "", err
	}
	e, bad := doc.Error, false
	switch d {
	case Anthropic:
		bad = doc.Type != "error" || e.Type == ""
	case OpenAI:
		code, ok := e.Code.(string)
		bad = e.Type == "" || !ok || code == ""
	case Gemini:
		bad = e.Status == "" || e.Code != float64(status)
	}
	if bad || e.Message == "" {
		return "", errors.New("it lacks something")
	}
	return e.Message, nil
}

// sse writes events and sends each at once.
func sse(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	for _, e := range events {
		fmt.Fprint(w, e)
		w.(http.Flusher).Flush()
	}
}

// anthropicStream is a whole stream of Anthropic's that says so much.
func anthropicStream(texts ...string) []string {
	out := []string{
		event("message_start", `{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","usage":{"input_tokens":25,"cache_creation_input_tokens":7,"cache_read_input_tokens":100,"output_tokens":1}}}`),
		event("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`),
	}
	for _, text := range texts {
		b, _ := json.Marshal(text)
		out = append(out, event("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":`+string(b)+`}}`))
	}
	return append(out,
		event("content_block_stop", `{"type":"content_block_stop","index":0}`),
		event("message_delta", `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":15}}`),
		event("message_stop", `{"type":"message_stop"}`))
}

func event(name, data string) string { return "event: " + name + "\ndata: " + data + "\n\n" }

func writeJSON(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprint(w, body)
}

const anthropicAnswer = `{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"text","text":"hello"}],"usage":{"input_tokens":25,"cache_creation_input_tokens":7,"cache_read_input_tokens":100,"output_tokens":15}}`

package broker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"ravi/internal/redact"
)

// dialectOf is the dialect of one of the calls.
func dialectOf(name string) Dialect {
	switch name {
	case "anthropic":
		return Anthropic
	case "gemini":
		return Gemini
	}
	return OpenAI
}

func TestLeaseIsNeeded(t *testing.T) {
	other, _ := NewToken()
	for name, headers := range map[string][]string{
		"there is no lease":          {},
		"has no lease":               {"X-Api-Key", "sk-ant-123"},
		"that is not this run's":     {"X-Api-Key", other},
		"not of the kind Bearer":     {"Authorization", "Basic TOKEN"},
		"more than one header X-Api": {"X-Api-Key", "TOKEN", "X-Api-Key", "TOKEN"},
		"more than one header Autho": {"Authorization", "Bearer TOKEN", "Authorization", "Bearer " + other},
		"header Authorization has a": {"X-Api-Key", "TOKEN", "Authorization", "Bearer " + other},
		"header X-Goog-Api-Key has ": {"X-Goog-Api-Key", "", "X-Goog-Api-Key", "TOKENx"},
		"Authorization has no lease": {"Authorization", "Bearer"},
		"X-Api-Key has no lease":     {"X-Api-Key", "TOKEN, TOKEN"},
	} {
		for call, to := range calls {
			t.Run(name+"/"+call, func(t *testing.T) {
				w := newWorld(t, nil, nil)
				h := []string{"X-Api-Key", ""}
				for _, v := range headers {
					h = append(h, strings.ReplaceAll(v, "TOKEN", w.token))
				}
				w.mustRefuse(w.post(to.path, to.body, h...), dialectOf(call), 401, name)
			})
		}
	}
}

func TestLeaseIsTaken(t *testing.T) {
	w := newWorld(t, func(out http.ResponseWriter, r *http.Request) { writeJSON(out, 200, anthropicAnswer) }, nil)
	for _, headers := range [][]string{{"X-Api-Key"}, {"X-Goog-Api-Key"}, {"Authorization"}, {"X-Api-Key", "Authorization"}} {
		h := []string{"X-Api-Key", ""}
		for _, name := range headers {
			value := w.token
			if name == "Authorization" {
				value = "bearer " + value
			}
			h = append(h, name, value)
		}
		if got := w.post("/anthropic/v1/messages", anthropicBody, h...); got.status != 200 {
			t.Errorf("%v: %d %s", headers, got.status, got.body)
		}
	}
	for i, s := range w.came() {
		for name := range s.header {
			for _, v := range s.header[name] {
				if strings.Contains(v, w.token) {
					t.Errorf("call %d has the lease upstream, in %s", i, name)
				}
			}
		}
	}
}

func TestPathsThatAreNotThere(t *testing.T) {
	type one struct {
		method, path string
		d            Dialect
		status       int
	}
	tests := []one{
		{"POST", "/anthropic/v1/messages/batches", Anthropic, 404},
		{"GET", "/anthropic/v1/files", Anthropic, 404},
		{"GET", "/anthropic/v1/models", Anthropic, 404},
		{"GET", "/anthropic/v1/messages", Anthropic, 405},
		{"POST", "/anthropic/v1/messages/", Anthropic, 404},
		{"POST", "/anthropic//v1/messages", Anthropic, 404},
		{"POST", "/anthropic/v1/%6dessages", Anthropic, 404},
		{"POST", "/anthropic/v1%2fmessages", Anthropic, 404},
		{"POST", "/anthropic%2fv1/messages", OpenAI, 404},
		{"POST", "/anthropi%63/v1/messages", OpenAI, 404},
		{"POST", "/anthropic/v1/../v1/messages", Anthropic, 404},
		{"POST", "/anthropic/v1/./messages", Anthropic, 404},
		{"POST", "/anthropic/v1/messages%00", Anthropic, 404},
		{"POST", "/anthropic/v1/messages;a=b", Anthropic, 404},
		{"POST", "/anthropic/v1/messages?beta=true&beta=false", Anthropic, 400},
		{"POST", "/anthropic/v1/messages?key=" + Prefix, Anthropic, 400},
		{"POST", "/openai/v1/responses?beta=true", OpenAI, 400},
		{"POST", "/anthropic/", Anthropic, 404},
		{"GET", "/openai/", OpenAI, 404},
		{"POST", "/openai/v1/files", OpenAI, 404},
		{"GET", "/openai/v1/responses/resp_1", OpenAI, 404},
		{"POST", "/openai/v1/models", OpenAI, 405},
		{"POST", "/openai/v1/messages", OpenAI, 404},
		{"POST", "/openai/v1/batches", OpenAI, 404},
		{"POST", "/gemini/v1beta/models/gemini-x:batchGenerateContent", Gemini, 404},
		{"POST", "/gemini/v1beta/models/gemini-x:streamGenerateContent", Gemini, 400},
		{"POST", "/gemini/v1beta/models/gemini-x:generateContent?alt=sse", Gemini, 400},
		{"POST", "/gemini/v1beta/models/gemini-x:generateContent?key=" + Prefix, Gemini, 400},
		{"POST", "/gemini/v1beta/models/..%2ffiles:generateContent", Gemini, 404},
		{"POST", "/gemini/v1beta/models/a..b:generateContent", Gemini, 404},
		{"POST", "/gemini/v1beta/models/a/b:generateContent", Gemini, 404},
		{"POST", "/gemini/v1beta/models/a:countTokens:generateContent", Gemini, 404},
		{"POST", "/gemini/v1beta/tunedModels/a:generateContent", Gemini, 404},
		{"POST", "/gemini/v1beta/cachedContents", Gemini, 404},
		{"POST", "/gemini/upload/v1beta/files", Gemini, 404},
		{"POST", "/", OpenAI, 404},
		{"POST", "/v1/messages", OpenAI, 404},
		{"POST", "/ANTHROPIC/v1/messages", OpenAI, 404},
		{"POST", "/anthropic./v1/messages", OpenAI, 404},
		{"POST", "/" + strings.Repeat("a", 5000) + "/v1/messages", OpenAI, 404},
	}
	for _, tt := range tests {
		t.Run(tt.method+" "+tt.path[:min(80, len(tt.path))], func(t *testing.T) {
			w := newWorld(t, nil, nil)
			body := anthropicBody
			if tt.method == "GET" {
				body = ""
			}
			r := w.request(tt.method, "/", body)
			// As it is, not as a client library would have it.
			path, query, _ := strings.Cut(tt.path, "?")
			r.URL = &url.URL{Scheme: "http", Host: w.addr, Opaque: path, RawQuery: query}
			w.mustRefuse(w.do(r), tt.d, tt.status, "")
			if refused := w.begun()[0].Refused; len(refused) > 500 {
				t.Errorf("the refusal has %d bytes", len(refused))
			}
		})
	}
}

func TestBodiesThatAreRefused(t *testing.T) {
	w := newWorld(t, nil, nil)
	w.mustRefuse(w.post("/anthropic/v1/messages", `{"model":`), Anthropic, 400, "")
	w = newWorld(t, nil, nil)
	w.mustRefuse(w.post("/anthropic/v1/messages", anthropicBody, "Content-Encoding", "gzip"), Anthropic, 415, "compressed")
	w = newWorld(t, nil, nil)
	w.mustRefuse(w.post("/anthropic/v1/messages", strings.Replace(anthropicBody, "{", `{"tools":[{"type":"web_search_20250305","name":"web_search"}],`, 1)),
		Anthropic, 403, "web_search")
}

func TestModels(t *testing.T) {
	for _, tt := range []struct {
		models []string
		ok     bool
	}{
		{nil, true}, {[]string{"claude-x"}, true}, {[]string{"gpt-*", "c*-x"}, true}, {[]string{"claude"}, false}, {[]string{"*-y"}, false},
	} {
		w := newWorld(t, func(out http.ResponseWriter, r *http.Request) { writeJSON(out, 200, anthropicAnswer) }, func(o *Options) {
			o.provider("anthropic").Models = tt.models
		})
		got := w.post("/anthropic/v1/messages", anthropicBody)
		if !tt.ok {
			w.mustRefuse(got, Anthropic, 403, `the model "claude-x" is not one`)
		} else if got.status != 200 {
			t.Errorf("%+v: %d %s", tt, got.status, got.body)
		}
	}
}

func TestListOfModels(t *testing.T) {
	w := newWorld(t, nil, func(o *Options) {
		o.provider("openai").Models = []string{"o9", "gpt-2*", "gpt-1", "o9"}
	})
	got := w.do(w.request("GET", "/openai/v1/models", ""))
	want := `{"object":"list","data":[{"id":"o9","object":"model","created":0,"owned_by":"openai"},{"id":"gpt-1","object":"model","created":0,"owned_by":"openai"}]}`
	if got.status != 200 || got.body != want {
		t.Errorf("got %d %s", got.status, got.body)
	}
	w.mustRefuse(w.do(w.request("GET", "/openai/v1/models", "", "X-Api-Key", "")), OpenAI, 401, "no lease")
}

func TestLimits(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		limits Limits
		passes int // calls of 147 tokens, 357 millionths of a dollar
		status int
		says   string
		after  string
	}{
		"requests":   {Limits{Requests: 2}, 2, 400, "limit of 2 requests is reached", ""},
		"tokens":     {Limits{Tokens: 148}, 2, 400, "limit of 148 tokens (it used 294)", ""},
		"tokens one": {Limits{Tokens: 147}, 1, 400, "limit of 147 tokens (it used 147)", ""},
		"usd":        {Limits{USD: 0.0008}, 3, 400, "limit of 0.0008 US dollars (it used 0.001071)", ""},
		"per minute": {Limits{PerMinute: 2}, 2, 429, "limit of 2 requests a minute", "60"},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			clock := now
			w := newWorld(t, func(out http.ResponseWriter, r *http.Request) { writeJSON(out, 200, anthropicAnswer) }, func(o *Options) {
				o.Lease.Limits = tt.limits
				o.provider("anthropic").Prices = map[string]Price{"claude-*": {Input: 3, Output: 15, CacheRead: 0.3, CacheWrite: 3.75}, "*": {Input: 1000}}
				o.Now = func() time.Time {
					mu.Lock()
					defer mu.Unlock()
					return clock
				}
			})
			for range tt.passes {
				if got := w.post("/anthropic/v1/messages", anthropicBody); got.status != 200 {
					t.Fatalf("%d %s", got.status, got.body)
				}
			}
			got := w.post("/anthropic/v1/messages", anthropicBody)
			if message := errorOf(t, got, Anthropic); got.status != tt.status || !strings.Contains(message, tt.says) || got.header.Get("Retry-After") != tt.after {
				t.Errorf("got %d %q %v", got.status, message, got.header)
			}
			if final := got.header.Get("X-Should-Retry") == "false"; final != (tt.status == 400) {
				t.Errorf("whether it is final: %v", final)
			}
			if began := w.begun(); len(began) != tt.passes+1 || began[tt.passes].Refused == "" || len(w.came()) != tt.passes {
				t.Errorf("written down: %+v", began)
			}
			w.finished(tt.passes)
			mu.Lock()
			clock = clock.Add(time.Minute)
			mu.Unlock()
			if got := w.post("/anthropic/v1/messages", anthropicBody); (got.status == 200) != (tt.status == 429) {
				t.Errorf("a minute later: %d %s", got.status, got.body)
			}
		})
	}
}

// While money is bounded a model without a price is not asked; counting its tokens costs nothing.
func TestNoPriceNoCall(t *testing.T) {
	for name, tt := range calls {
		w := newWorld(t, func(out http.ResponseWriter, r *http.Request) { writeJSON(out, 200, `{"input_tokens":3}`) }, func(o *Options) {
			o.Lease.Limits.USD = 100
			for i := range o.Providers {
				o.Providers[i].Prices = map[string]Price{"other-*": {Input: 1}}
			}
		})
		d := dialectOf(name)
		w.mustRefuse(w.post(tt.path, tt.body), d, 400, `has no price, so it is not asked; the operator of Ravi can set one in models.providers.`+string(d)+`.prices in config.json`)
		if got := w.post("/anthropic/v1/messages/count_tokens", anthropicBody); got.status != 200 {
			t.Errorf("counting: %d %s", got.status, got.body)
		}
	}
	w := newWorld(t, func(out http.ResponseWriter, r *http.Request) { writeJSON(out, 200, anthropicAnswer) }, func(o *Options) {
		o.Lease.Limits.USD = 100
		o.provider("anthropic").Prices = map[string]Price{"claude-*": {}}
	})
	if got := w.post("/anthropic/v1/messages", anthropicBody); got.status != 200 {
		t.Errorf("a price of 0: %d %s", got.status, got.body)
	}
}

// A lease asks so many models and no others, which go on to be asked.
func TestNamesOfModelsAreBounded(t *testing.T) {
	w := newWorld(t, func(out http.ResponseWriter, r *http.Request) { writeJSON(out, 200, anthropicAnswer) }, nil)
	ask := func(n int) reply {
		return w.post("/anthropic/v1/messages", strings.Replace(anthropicBody, "claude-x", fmt.Sprint("made-up-", n), 1))
	}
	for n := range mostModels {
		if got := ask(n); got.status != 200 {
			t.Fatalf("model %d: %d %s", n, got.status, got.body)
		}
	}
	for range 2 {
		got := ask(mostModels)
		if message := errorOf(t, got, Anthropic); got.status != 403 || !strings.Contains(message, `this run has asked 32 models already, and "made-up-32" would be one more`) {
			t.Errorf("one more: %d %s", got.status, message)
		}
	}
	// The same name of another provider is another model.
	if got := w.post("/gemini/v1beta/models/made-up-0:generateContent", calls["gemini"].body); got.status != 403 {
		t.Errorf("of another provider: %d %s", got.status, got.body)
	}
	if got := ask(0); got.status != 200 {
		t.Errorf("one that was asked before: %d %s", got.status, got.body)
	}
	if n := len(w.came()); n != mostModels+1 {
		t.Errorf("%d calls were sent", n)
	}
}

// What is under way counts with an estimate.
func TestLimitsOfWhatIsUnderWay(t *testing.T) {
	for name, limits := range map[string]Limits{"tokens": {Tokens: 20}, "usd": {USD: 0.00002}} {
		t.Run(name, func(t *testing.T) {
			arrived, answer := make(chan struct{}), make(chan struct{})
			w := newWorld(t, func(out http.ResponseWriter, r *http.Request) {
				arrived <- struct{}{}
				<-answer
				writeJSON(out, 200, `{"type":"message","usage":{"input_tokens":1,"output_tokens":1}}`)
			}, func(o *Options) {
				o.Lease.Limits = limits
				o.provider("anthropic").Prices = map[string]Price{"*": {Input: 1, Output: 1}}
			})
			first := make(chan reply)
			go func() { first <- w.post("/anthropic/v1/messages", anthropicBody) }()
			<-arrived
			got := w.post("/anthropic/v1/messages", anthropicBody)
			if message := errorOf(t, got, Anthropic); got.status != 429 || !strings.Contains(message, "under way") || got.header.Get("Retry-After") != "5" {
				t.Errorf("%d %s", got.status, message)
			}
			answer <- struct{}{}
			if got := <-first; got.status != 200 {
				t.Errorf("%d %s", got.status, got.body)
			}
			go func() { <-arrived; answer <- struct{}{} }()
			if got := w.post("/anthropic/v1/messages", anthropicBody); got.status != 200 {
				t.Errorf("afterwards: %d %s", got.status, got.body)
			}
		})
	}
}

func TestNoRecordNoCall(t *testing.T) {
	full := true
	w := newWorld(t, func(out http.ResponseWriter, r *http.Request) { writeJSON(out, 200, anthropicAnswer) }, func(o *Options) {
		o.Lease.Limits = Limits{Requests: 1, PerMinute: 1}
		o.Begin = func(context.Context, Call) error {
			if full {
				return errors.New("the disk is full")
			}
			return nil
		}
	})
	for _, header := range []string{"X-Other", "X-Api-Key"} { // a call that passes, and one that is refused
		got := w.post("/anthropic/v1/messages", anthropicBody, header, "")
		if message := errorOf(t, got, Anthropic); got.status != 503 || strings.Contains(message, "disk") || len(w.came()) != 0 {
			t.Errorf("%d %s", got.status, message)
		}
	}
	w.finished(0)
	full = false // what was not sent did not count
	if got := w.post("/anthropic/v1/messages", anthropicBody); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if w.finished(1); w.broker.ledger.underWay != (Usage{}) {
		t.Errorf("under way: %+v", w.broker.ledger.underWay)
	}
}

func TestResponsesOfThisLease(t *testing.T) {
	n := 0
	w := newWorld(t, func(out http.ResponseWriter, r *http.Request) {
		n++
		if n == 1 {
			sse(out, event("response.created", `{"type":"response.created","response":{"id":"resp_s","usage":null}}`),
				event("response.completed", `{"type":"response.completed","response":{"id":"resp_s","usage":{"input_tokens":5,"output_tokens":2}}}`))
			return
		}
		writeJSON(out, 200, `{"id":"resp_w","object":"response","status":"completed","usage":{"input_tokens":5,"output_tokens":2}}`)
	}, nil)
	to := calls["responses"]
	with := func(id string) string {
		return strings.Replace(to.body, "{", `{"previous_response_id":"`+id+`",`, 1)
	}
	w.mustRefuse(w.post(to.path, with("resp_s")), OpenAI, 403, `the response "resp_s" is not one`)
	for i, body := range []string{streamed(to.body), with("resp_s"), with("resp_w")} {
		if got := w.post(to.path, body); got.status != 200 {
			t.Errorf("%d: %d %s", i, got.status, got.body)
		}
	}
	if got := w.post(to.path, with("resp_other")); got.status != 403 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	var m memory
	for i := range 3 * maxNames {
		m.add(fmt.Sprint(i))
		m.add(fmt.Sprint(i))
	}
	m.add(strings.Repeat("x", maxName+1))
	if len(m.names) != maxNames || len(m.order) != maxNames || m.has(fmt.Sprint(2*maxNames-1)) || !m.has(fmt.Sprint(2*maxNames)) {
		t.Errorf("it knows %d names in %d places", len(m.names), len(m.order))
	}
}

func TestOptions(t *testing.T) {
	_, hash := NewToken()
	good := func() Options {
		return Options{Lease: Lease{Hash: hash}, Begin: func(context.Context, Call) error { return nil }, Redact: &redact.Redactor{},
			Providers: []Provider{{Name: "a", Dialect: Anthropic, BaseURL: &url.URL{Scheme: "https", Host: "h"}}}}
	}
	if _, err := New(good()); err != nil {
		t.Fatal(err)
	}
	at := func(s string) *url.URL {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	for name, change := range map[string]func(*Options){
		"no hash": func(o *Options) { o.Lease.Hash = "" }, "no begin": func(o *Options) { o.Begin = nil },
		"twice":    func(o *Options) { o.Providers = append(o.Providers, o.Providers[0]) },
		"a slash":  func(o *Options) { o.Providers[0].Name = "a/b" },
		"dots":     func(o *Options) { o.Providers[0].Name = ".." },
		"no name":  func(o *Options) { o.Providers[0].Name = "" },
		"capitals": func(o *Options) { o.Providers[0].Name = "A" },
		"dialect":  func(o *Options) { o.Providers[0].Dialect = "x" },
		"no url":   func(o *Options) { o.Providers[0].BaseURL = nil },
		"file":     func(o *Options) { o.Providers[0].BaseURL = at("file:///etc") },
		"no host":  func(o *Options) { o.Providers[0].BaseURL = at("https://:80/") },
		"user":     func(o *Options) { o.Providers[0].BaseURL = at("https://u:p@h/") },
		"query":    func(o *Options) { o.Providers[0].BaseURL = at("https://h/?k=v") },
		"header":   func(o *Options) { o.Providers[0].Headers = map[string]string{"a": "b\r\nc: d"} },
		"own":      func(o *Options) { o.Providers[0].Headers = map[string]string{"content-length": "3"} },
	} {
		o := good()
		change(&o)
		if _, err := New(o); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestTargets(t *testing.T) {
	for _, tt := range []struct{ base, path, query, want string }{
		{"https://api.anthropic.com", "/v1/messages", "beta=true", "https://api.anthropic.com/v1/messages?beta=true"},
		{"https://api.openai.com/v1", "/v1/responses", "", "https://api.openai.com/v1/responses"},
		{"https://api.openai.com/v1/", "/v1/responses", "", "https://api.openai.com/v1/responses"},
		{"https://h/x/", "/v1/responses", "", "https://h/x/v1/responses"},
		{"https://h/v1beta/openai/", "/v1/chat/completions", "", "https://h/v1beta/openai/chat/completions"},
		{"https://h/vip", "/v1beta/models/m:generateContent", "", "https://h/vip/v1beta/models/m:generateContent"},
		{"https://h/v1beta", "/v1beta/models/m:generateContent", "alt=sse", "https://h/v1beta/models/m:generateContent?alt=sse"},
	} {
		base, err := url.Parse(tt.base)
		if err != nil {
			t.Fatal(err)
		}
		if got := target(base, route{path: tt.path, query: tt.query}).String(); got != tt.want {
			t.Errorf("%s %s: %s", tt.base, tt.path, got)
		}
	}
}

func TestMatches(t *testing.T) {
	for _, tt := range []struct {
		pattern, name string
		want          bool
	}{
		{"a", "a", true}, {"a", "ab", false}, {"a*", "ab", true}, {"*", "", true}, {"a*c", "abc", true}, {"a*c", "ac", true}, {"a*c", "abcd", false},
		{"*b*", "abc", true}, {"a*b*c", "axxbyyc", true}, {"a*b*c", "axxyyc", false}, {"a*a", "a", false}, {"*ab*ab", "ab", false}, {"", "", true}, {"", "a", false},
		{"**", "x", true}, {"a**b", "ab", true},
	} {
		if got := matches(tt.pattern, tt.name); got != tt.want {
			t.Errorf("%q %q: %v", tt.pattern, tt.name, got)
		}
	}
}

package broker

import (
	"net/http"
	"strings"
	"testing"
)

func TestAnthropicStream(t *testing.T) {
	events := anthropicStream("hel", "lo")
	w := newWorld(t, func(out http.ResponseWriter, r *http.Request) { sse(out, events...) }, func(o *Options) {
		o.provider("anthropic").Prices = map[string]Price{"claude-*": {Input: 3, Output: 15, CacheRead: 0.3, CacheWrite: 3.75}}
	})
	got := w.post("/anthropic/v1/messages?beta=true", streamed(anthropicBody))
	if got.status != 200 || got.body != strings.Join(events, "") || got.header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("got %d %v %s", got.status, got.header, got.body)
	}
	c := w.finished(1)[0]
	want := Usage{Input: 25, Output: 15, CacheRead: 100, CacheWrite: 7, MicroUSD: 357, Priced: true} // 75 + 225 + 30 + 26.25
	if c.Usage != want || c.Estimated || c.Status != 200 || c.Failed != "" || c.Key != "REAL_KEY" || c.Model != "claude-x" || !c.Stream ||
		c.Provider != "anthropic" || c.Endpoint != "messages" || c.Took <= 0 || c.FirstByte <= 0 || c.FirstByte > c.Took {
		t.Errorf("got %+v", c)
	}
	if total := w.broker.Usage(); total != want {
		t.Errorf("the sum is %+v", total)
	}
	if began := w.begun(); len(began) != 1 || began[0].Refused != "" || began[0].Model != "claude-x" || !began[0].Stream {
		t.Errorf("written down: %+v", began)
	}
}

func TestAnthropicWhole(t *testing.T) {
	w := newWorld(t, func(out http.ResponseWriter, r *http.Request) { writeJSON(out, 200, anthropicAnswer) }, nil)
	for i, path := range []string{"/anthropic/v1/messages", "/anthropic/v1/messages?beta=true", "/anthropic/v1/messages/count_tokens"} {
		body := anthropicBody
		if strings.HasSuffix(path, "tokens") {
			body = strings.Replace(body, `"max_tokens":100,`, "", 1)
		}
		got := w.post(path, body)
		if got.status != 200 || got.body != anthropicAnswer {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
		c := w.finished(i + 1)[i]
		want := Usage{Input: 25, Output: 15, CacheRead: 100, CacheWrite: 7}
		if strings.HasSuffix(path, "tokens") {
			want = Usage{}
		}
		if c.Usage != want || c.Estimated {
			t.Errorf("%s: %+v", path, c)
		}
		if sent := w.came()[i]; "/anthropic"+sent.uri != path || sent.body != body {
			t.Errorf("sent %s %s", sent.uri, sent.body)
		}
	}
}

func TestHello(t *testing.T) {
	w := newWorld(t, nil, nil)
	for _, path := range []string{"/anthropic", "/anthropic/"} {
		for _, method := range []string{"GET", "HEAD"} {
			got := w.do(w.request(method, path, "", "X-Api-Key", ""))
			if got.status != 200 || got.body != "" {
				t.Errorf("%s %s: %d %q", method, path, got.status, got.body)
			}
		}
	}
	if n := len(w.begun()); n != 0 {
		t.Errorf("%d calls were written down", n)
	}
}

// What goes upstream is made anew.
func TestWhatIsSent(t *testing.T) {
	w := newWorld(t, func(out http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"Set-Cookie", "Server", "Anthropic-Organization-Id", "Location", "Access-Control-Allow-Origin", "X-Foo"} {
			out.Header().Set(name, "v")
		}
		out.Header().Set("Request-Id", "req_1")
		out.Header().Set("Anthropic-Ratelimit-Requests-Remaining", "9")
		out.Header().Set("X-Ratelimit-Limit", "8 "+realKey)
		writeJSON(out, 200, anthropicAnswer)
	}, func(o *Options) { o.provider("anthropic").Headers = map[string]string{"X-Operator": "yes"} })
	got := w.post("/anthropic/v1/messages", anthropicBody, "User-Agent", "claude-cli/1", "Cookie", "a=b", "X-Stainless-Lang", "js",
		"X-Claude-Code-Session-Id", "s", "X-Forwarded-For", "1.2.3.4", "Forwarded", "for=x", "Accept-Encoding", "gzip, br", "Referer", "http://a/",
		"Anthropic-Version", "2023-01-01", "Anthropic-Beta", "claude-code-20250219,files-api-2025-04-14, interleaved-thinking-2025-05-14",
		"Anthropic-Beta", "mcp-client-2025-04-04,Code-Execution-2025-05-22,web-fetch-2025-09-10,skills-2025-10-02,a b", "X-Operator", "no")
	if got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	h := w.came()[0].header
	h.Del("Content-Length")
	want := http.Header{
		"Content-Type": {"application/json"}, "Accept": {"application/json"}, "Accept-Encoding": {"identity"}, "User-Agent": {"ravi"},
		"X-Api-Key": {realKey}, "Anthropic-Version": {"2023-01-01"}, "Anthropic-Beta": {"claude-code-20250219,interleaved-thinking-2025-05-14"},
		"X-Operator": {"yes"},
	}
	for name := range want {
		if len(h[name]) != 1 || h[name][0] != want[name][0] {
			t.Errorf("%s: %q, want %q", name, h[name], want[name])
		}
	}
	for name := range h {
		if want[name] == nil {
			t.Errorf("%s: %q was sent", name, h[name])
		}
	}
	for name := range got.header {
		switch name {
		case "Content-Type", "Content-Length", "Date", "Request-Id", "Anthropic-Ratelimit-Requests-Remaining", "X-Content-Type-Options", "Cache-Control":
		case "X-Ratelimit-Limit":
			if v := got.header.Get(name); v != "8 [key REAL_KEY]" {
				t.Errorf("%s: %s", name, v)
			}
		default:
			t.Errorf("the agent got %s: %q", name, got.header[name])
		}
	}
}

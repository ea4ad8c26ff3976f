package broker

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ravi/internal/porttest"
)

// streams are the calls that are streamed, and what a stream of theirs begins and ends with.
var streams = map[string]struct {
	path, body  string
	first, last string
	used        Usage // of the whole
	part        Usage // as estimated of the first event alone; without an Input it is that of the body sent
}{
	"anthropic": {"/anthropic/v1/messages", streamed(anthropicBody),
		event("message_start", `{"type":"message_start","message":{"usage":{"input_tokens":30,"output_tokens":1}}}`) +
			event("content_block_delta", `{"type":"content_block_delta","delta":{"type":"text_delta","text":"0123456789"}}`),
		event("message_delta", `{"type":"message_delta","delta":{},"usage":{"output_tokens":9}}`) + event("message_stop", `{"type":"message_stop"}`),
		Usage{Input: 30, Output: 9}, Usage{Input: 30, Output: 11}},
	"responses": {"/openai/v1/responses", streamed(calls["responses"].body),
		event("response.created", `{"type":"response.created","response":{"id":"r"}}`) + event("response.output_text.delta", `{"type":"response.output_text.delta","delta":"0123456789ab"}`),
		event("response.completed", `{"type":"response.completed","response":{"id":"r","usage":{"input_tokens":50,"input_tokens_details":{"cached_tokens":20},"output_tokens":6}}}`),
		Usage{Input: 30, CacheRead: 20, Output: 6}, Usage{Output: 3}},
	"chat": {"/openai/v1/chat/completions", streamed(calls["chat"].body),
		`data: {"choices":[{"delta":{"content":"0123456789"}}]}` + "\n\n",
		`data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":null}` + "\n\n" +
			`data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":50,"prompt_tokens_details":{"cached_tokens":20},"completion_tokens":6}}` + "\n\ndata: [DONE]\n\n",
		Usage{Input: 30, CacheRead: 20, Output: 6}, Usage{Output: 6}},
	"gemini": {"/gemini/v1beta/models/gemini-x:streamGenerateContent?alt=sse", calls["gemini"].body,
		`data: {"candidates":[{"content":{}}],"usageMetadata":{"promptTokenCount":50}}` + "\r\n\r\n",
		`data: {"candidates":[{"content":{},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":50,"cachedContentTokenCount":20,"candidatesTokenCount":4,"thoughtsTokenCount":2}}` + "\r\n\r\n",
		Usage{Input: 30, CacheRead: 20, Output: 6}, Usage{Input: 50}},
}

// part fills in what the body that was sent is thought to be.
func (w *world) part(u Usage) Usage {
	if u.Input == 0 {
		u.Input = int64(len(w.came()[0].body)+3) / 4
	}
	return u
}

// abort ends an answer with a reset.
func abort() { panic(http.ErrAbortHandler) }

func TestStreams(t *testing.T) {
	for name, s := range streams {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(out http.ResponseWriter, r *http.Request) { sse(out, s.first, s.last) }, nil)
			got := w.post(s.path, s.body)
			want := s.first + s.last
			if name == "chat" {
				want = got.body // the broker may have asked for usage itself, see TestHiddenUsage
			}
			if got.status != 200 || got.body != want || got.err != nil {
				t.Errorf("%d %s", got.status, got.body)
			}
			if c := w.finished(1)[0]; c.Usage != s.used || c.Estimated || c.Failed != "" || c.Status != 200 {
				t.Errorf("%+v", c)
			}
			if accept := w.came()[0].header.Get("Accept"); accept != "text/event-stream" {
				t.Error(accept)
			}
		})
	}
}

// Before the first byte a fault is a status.
func TestFaultsBeforeTheFirstByte(t *testing.T) {
	typed := func(kind, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			io.WriteString(w, body)
		}
	}
	for name, tt := range map[string]struct {
		upstream http.HandlerFunc
		status   int
		says     string
	}{
		"reset":      {func(http.ResponseWriter, *http.Request) { abort() }, 502, "the connection to the model provider"},
		"html":       {typed("text/html", "<html>"), 502, `of the type "text/html"`},
		"no type":    {typed("", ""), 502, "does not say of what type"},
		"other type": {nil, 502, "of the type"}, // of the two that there are, the one that was not asked for
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusTemporaryRedirect)
		}, 502, "answered 307"},
		"no content": {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) }, 502, "answered 204"},
		"html 404":   {func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) }, 404, "answered 404, without"},
		"html 503":   {func(w http.ResponseWriter, r *http.Request) { http.Error(w, "<p>", http.StatusServiceUnavailable) }, 503, "answered 503, without"},
		"brotli": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			typed("application/json", "x")(w, r)
		}, 502, "compressed"},
		"no gzip": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			typed("application/json", `{"a":"no gzip"}`)(w, r)
		}, 502, ""},
		"nothing":      {func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Content-Type", "text/event-stream") }, 502, ""},
		"empty events": {typed("text/event-stream", "\n\n\n\n"), 502, ""},
	} {
		for call, s := range streams {
			for _, stream := range []bool{true, false} {
				path, body := s.path, s.body
				if !stream {
					path, body = calls[call].path, calls[call].body
				}
				t.Run(fmt.Sprintf("%s/%s/%v", name, call, stream), func(t *testing.T) {
					upstream := tt.upstream
					if upstream == nil {
						upstream = typed(map[bool]string{true: "application/json", false: "text/event-stream"}[stream], "{}")
					}
					w := newWorld(t, upstream, nil)
					got := w.post(path, body)
					if name == "empty events" && stream { // the blank lines are out already
						if !strings.HasSuffix(got.body, "\n\n") || !strings.Contains(got.body, `"error"`) {
							t.Errorf("%d %s", got.status, got.body)
						}
					} else if message := errorOf(t, got, dialectOf(call)); got.status != tt.status || !strings.Contains(message, tt.says) {
						t.Errorf("%d %s", got.status, message)
					}
					if c := w.finished(1)[0]; c.Failed == "" || c.Status != got.status {
						t.Errorf("%+v", c)
					}
				})
			}
		}
	}
}

func TestUnreachable(t *testing.T) {
	addr := fmt.Sprint("127.0.0.1:", porttest.Free(t))
	w := newWorld(t, nil, func(o *Options) {
		u := *o.Providers[0].BaseURL
		u.Host = addr
		for i := range o.Providers {
			o.Providers[i].BaseURL = &u
		}
	})
	got := w.post("/anthropic/v1/messages", anthropicBody)
	if message := errorOf(t, got, Anthropic); got.status != 502 || strings.Contains(message, addr) {
		t.Errorf("%d %s", got.status, message)
	}
	if c := w.finished(1)[0]; !strings.Contains(c.Failed, "refused") || c.Usage != (Usage{}) || c.Estimated {
		t.Errorf("%+v", c)
	}
}

// After the first byte a fault is an event of the dialect.
func TestFaultsInTheMiddle(t *testing.T) {
	for name, tt := range map[string]struct {
		rest func(w http.ResponseWriter)
		says string
	}{
		"reset":     {func(http.ResponseWriter) { abort() }, "the connection to the model provider"},
		"half":      {func(http.ResponseWriter) {}, "ended its answer in the middle"},
		"cut event": {func(w http.ResponseWriter) { io.WriteString(w, "data: {\"typ") }, "ended its answer in the middle"},
		"no json":   {func(w http.ResponseWriter) { sse(w, "data: {\"a\":}\n\n") }, "no valid JSON"},
		"too large": {func(w http.ResponseWriter) {
			for piece := []byte(strings.Repeat("x", 1<<20)); ; {
				if _, err := w.Write(piece); err != nil {
					return
				}
			}
		}, "64 MiB"},
		"too much": {func(w http.ResponseWriter) {
			for piece := []byte(": " + strings.Repeat("x", 1<<16) + "\n\n"); ; {
				if _, err := w.Write(piece); err != nil {
					return
				}
			}
		}, "64 MiB"},
	} {
		for call, s := range streams {
			t.Run(name+"/"+call, func(t *testing.T) {
				w := newWorld(t, func(out http.ResponseWriter, r *http.Request) { sse(out, s.first); tt.rest(out) }, nil)
				got := w.post(s.path, s.body)
				if got.status != 200 || !strings.HasPrefix(got.body, s.first) || got.err != nil {
					t.Fatalf("%d %.200s %v", got.status, got.body, got.err)
				}
				tail := got.body[strings.LastIndex(got.body, "data: ")+len("data: "):]
				if call == "responses" {
					if !strings.Contains(tail, `"type":"response.failed"`) || !strings.Contains(tail, tt.says) {
						t.Errorf("it ends with %s", tail)
					}
				} else if message, err := readError([]byte(tail), dialectOf(call), codeIn(got.body)); err != nil || !strings.Contains(message, tt.says) || !strings.HasSuffix(tail, "\n\n") {
					t.Errorf("it ends with %s: %v", tail, err)
				}
				c := w.finished(1)[0]
				if c.Failed == "" || c.Status != 200 || c.Usage != w.part(s.part) || c.Estimated == (call == "gemini") {
					t.Errorf("%+v, want %+v", c, w.part(s.part))
				}
			})
		}
	}
}

func codeIn(body string) int {
	if strings.Contains(body, `"code":504`) {
		return 504
	}
	return 502
}

func TestSilence(t *testing.T) {
	for _, first := range []bool{true, false} {
		for call, s := range streams {
			t.Run(fmt.Sprint(first, call), func(t *testing.T) {
				ask := func(firstByte time.Duration) (w *world, got reply, reached bool) {
					var came atomic.Bool
					w = newWorld(t, func(out http.ResponseWriter, r *http.Request) {
						came.Store(true)
						if !first {
							sse(out, s.first)
						}
						<-r.Context().Done() // the broker goes
					}, func(o *Options) {
						o.FirstByte, o.Idle = time.Minute, 500*time.Millisecond // within which what is there is passed on
						if first {
							o.FirstByte, o.Idle = firstByte, time.Minute
						}
					})
					got = w.post(s.path, s.body)
					return w, got, came.Load()
				}
				w, got, reached := ask(20 * time.Millisecond)
				// What did not get as far as the provider is not counted: then the time was too short for what is looked at here.
				for longer := 200 * time.Millisecond; !reached && longer < time.Minute; longer *= 4 {
					w, got, reached = ask(longer)
				}
				if first {
					if message := errorOf(t, got, dialectOf(call)); got.status != 504 || !strings.Contains(message, "too long to begin") {
						t.Errorf("%d %s", got.status, message)
					}
				} else if got.status != 200 || !strings.Contains(got.body, "stopped in the middle") || !strings.HasPrefix(got.body, s.first) {
					t.Errorf("%d %s", got.status, got.body)
				}
				if c := w.finished(1)[0]; c.Failed == "" || !first && c.Usage != w.part(s.part) || first && (c.Usage.Input == 0 || !c.Estimated) {
					t.Errorf("%+v", c)
				}
			})
		}
	}
}

// Who has said all and does not hang up keeps nobody waiting.
func TestEndWithoutAnEnd(t *testing.T) {
	for call, s := range streams {
		t.Run(call, func(t *testing.T) {
			w := newWorld(t, func(out http.ResponseWriter, r *http.Request) {
				sse(out, s.first, s.last)
				<-r.Context().Done()
			}, func(o *Options) { o.Idle = time.Hour })
			w.client.Timeout = 2 * time.Minute
			if got := w.post(s.path, s.body); got.status != 200 || !strings.HasPrefix(got.body, s.first) || strings.Contains(got.body, "error") {
				t.Errorf("%d %s", got.status, got.body)
			}
			if c := w.finished(1)[0]; c.Failed != "" || c.Usage != s.used {
				t.Errorf("%+v", c)
			}
		})
	}
}

// The last event may lack its empty line.
func TestLastEventWithoutItsEnd(t *testing.T) {
	for call, s := range streams {
		w := newWorld(t, func(out http.ResponseWriter, r *http.Request) { sse(out, s.first, strings.TrimRight(s.last, "\r\n")) }, nil)
		if got := w.post(s.path, s.body); got.status != 200 || !strings.HasSuffix(got.body, "\n\n") || strings.Contains(got.body, "error") {
			t.Errorf("%s: %d %s", call, got.status, got.body)
		}
		if c := w.finished(1)[0]; c.Failed != "" || c.Usage != s.used {
			t.Errorf("%s: %+v", call, c)
		}
	}
}

func TestGzipIsUndone(t *testing.T) {
	var z bytes.Buffer
	g := gzip.NewWriter(&z)
	io.WriteString(g, anthropicAnswer)
	g.Close()
	w := newWorld(t, func(out http.ResponseWriter, r *http.Request) {
		out.Header().Set("Content-Encoding", "gzip")
		writeJSON(out, 200, z.String())
	}, nil)
	got := w.post("/anthropic/v1/messages", anthropicBody)
	if got.status != 200 || got.body != anthropicAnswer || got.header.Get("Content-Encoding") != "" {
		t.Errorf("%d %v %s", got.status, got.header, got.body)
	}
	if c := w.finished(1)[0]; c.Usage.Input != 25 {
		t.Errorf("%+v", c)
	}
}

// A small answer that is unpacked to a huge one, and a huge one that is unpacked to nothing, are both cut.
func TestGzipBombs(t *testing.T) {
	bomb := func(w io.Writer) {
		g := gzip.NewWriter(w)
		for piece := make([]byte, 1<<20); ; {
			if _, err := g.Write(piece); err != nil {
				return
			}
		}
	}
	nothing := func(w io.Writer) {
		var one bytes.Buffer
		g := gzip.NewWriter(&one)
		g.Close()
		piece := bytes.Repeat(one.Bytes(), 4096)
		for {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	}
	for _, f := range []func(io.Writer){bomb, nothing} {
		w := newWorld(t, func(out http.ResponseWriter, r *http.Request) {
			out.Header().Set("Content-Encoding", "gzip")
			out.Header().Set("Content-Type", "application/json")
			f(out)
		}, nil)
		got := w.post("/anthropic/v1/messages", anthropicBody)
		if message := errorOf(t, got, Anthropic); got.status != 502 || !strings.Contains(message, "64 MiB") {
			t.Errorf("%d %s", got.status, message)
		}
	}
}

// The provider's own error goes to the agent, in a stream too.
func TestProvidersErrors(t *testing.T) {
	for _, status := range []int{400, 404, 413, 422, 429, 500, 529} {
		w := newWorld(t, func(out http.ResponseWriter, r *http.Request) {
			out.Header().Set("Retry-After", "3")
			writeJSON(out, status, `{"type":"error","error":{"type":"x","message":"said"}}`)
		}, nil)
		got := w.post("/anthropic/v1/messages", streamed(anthropicBody))
		if errorOf(t, got, Anthropic) != "said" || got.status != status || got.header.Get("Retry-After") != "3" {
			t.Errorf("%d: %d %s %v", status, got.status, got.body, got.header)
		}
		if c := w.finished(1)[0]; c.Failed != fmt.Sprintf("the provider answered %d", status) || c.Status != status || c.Usage != (Usage{}) {
			t.Errorf("%+v", c)
		}
	}
	for call, tt := range map[string]struct{ event, failed string }{
		"anthropic": {event("error", `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`), "overloaded_error"},
		"responses": {event("response.failed", `{"type":"response.failed","response":{"id":"r","error":{"code":"server_error","message":"m"}}}`), "server_error"},
		"chat":      {"data: {\"error\":{\"message\":\"m\",\"type\":\"t_error\"}}\n\n", "t_error"},
		"gemini":    {"data: {\"error\":{\"code\":503,\"message\":\"m\",\"status\":\"UNAVAILABLE\"}}\n\n", "UNAVAILABLE"},
	} {
		s := streams[call]
		w := newWorld(t, func(out http.ResponseWriter, r *http.Request) { sse(out, s.first, tt.event) }, nil)
		if got := w.post(s.path, s.body); got.status != 200 || got.body != s.first+tt.event {
			t.Errorf("%s: %d %s", call, got.status, got.body)
		}
		if c := w.finished(1)[0]; c.Failed != "the provider's answer is an error: "+tt.failed {
			t.Errorf("%s: %+v", call, c)
		}
	}
}

package modeltest

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// failed is an error in whatever dialect.
type failed struct {
	Type  string
	Error struct {
		Type, Message, Status string
		Code                  any
		Details               []struct{ Reason string }
	}
	RequestID string `json:"request_id"`
}

func TestErrors(t *testing.T) {
	for _, w := range ways {
		for _, stream := range []bool{true, false} {
			_, url := start(t, Script{Turns: []Turn{{Error(429, "rate_limit_error", "too much").RetryAfter(1500 * time.Millisecond), Text("never")}}})
			for range 2 { // each time
				a := ask(t, "POST", url+w.path(stream), w.body("u", stream, w.offers()))
				var f failed
				decode(t, a.body, &f)
				if a.status != 429 || a.header.Get("Retry-After") != "2" || a.header.Get("Content-Type") != "application/json" || f.Error.Message != "too much" {
					t.Errorf("%s: %d %v %s", w.name(), a.status, a.header, a.body)
				}
				switch w.dialect {
				case Anthropic:
					if f.Type != "error" || f.Error.Type != "rate_limit_error" || f.RequestID != a.header.Get("Request-Id") || f.RequestID == "" {
						t.Errorf("%s", a.body)
					}
				case OpenAI:
					if f.Error.Type != "rate_limit_error" || f.Error.Code != "rate_limit_exceeded" || a.header.Get("X-Request-Id") == "" {
						t.Errorf("%s", a.body)
					}
				case Gemini:
					if f.Error.Status != "rate_limit_error" || f.Error.Code != 429.0 {
						t.Errorf("%s", a.body)
					}
				}
			}
		}
	}
}

func TestOverloadedOnceATurn(t *testing.T) {
	for _, w := range ways {
		_, url := start(t, Script{Turns: []Turn{{Overloaded(), Text("one")}, {Error(500, "api_error", "twice").Times(2), Overloaded(), Text("two")}}})
		wanted, word := 503, "overloaded"
		if w.dialect == Anthropic {
			wanted, word = 529, "overloaded_error"
		}
		get := func(speakers string) answer {
			return ask(t, "POST", url+w.path(true), w.body(speakers, true, w.offers()))
		}
		for n, c := range []struct {
			speakers string
			status   int
		}{{"u", wanted}, {"umr", 500}, {"umr", 500}, {"umr", wanted}} {
			a := get(c.speakers)
			if a.status != c.status || c.status != 500 && !strings.Contains(a.body, word) {
				t.Errorf("%s, request %d: %d %s", w.name(), n, a.status, a.body)
			}
		}
		for speakers, wanted := range map[string]string{"u": "one", "umr": "two"} {
			if got := w.says(t, url, speakers, w.offers()); got.Text != wanted {
				t.Errorf("%s: said %q afterwards", w.name(), got.Text)
			}
		}
	}
}

// TestErrorInMidStream: what was said before is there, and the dialect's own event is the last.
func TestErrorInMidStream(t *testing.T) {
	last := []struct{ name, word string }{
		{"error", `{"type":"error",`}, {"response.failed", `"status":"failed"`}, {"", `{"error":{`}, {"", `{"error":{`},
	}
	for n, w := range ways {
		_, url := start(t, Script{Turns: []Turn{{Text("begun"), Error(500, "server_error", "broke down"), Text("never")}}})
		a := ask(t, "POST", url+w.path(true), w.body("u", true, w.offers()))
		all := events(t, a)
		end := all[len(all)-1]
		// Keys are in the order of the alphabet, so the type of Anthropic's is not the first.
		word := strings.ReplaceAll(last[n].word, `{"type":"error",`, `"type":"error"`)
		if end.name != last[n].name || !strings.Contains(end.data, word) || !strings.Contains(end.data, "broke down") || !strings.Contains(a.body, "begun") || strings.Contains(a.body, "never") {
			t.Errorf("%s: %s", w.name(), a.body)
		}
		if a := ask(t, "POST", url+w.path(false), w.body("u", false, w.offers())); a.status != 500 || strings.Contains(a.body, "begun") {
			t.Errorf("%s, in one piece: %d %s", w.name(), a.status, a.body)
		}
	}
}

func TestCut(t *testing.T) {
	for _, w := range ways {
		for _, stream := range []bool{true, false} {
			get := func(turn Turn) answer {
				_, url := start(t, Script{Turns: []Turn{turn}})
				return ask(t, "POST", url+w.path(stream), w.body("u", stream, w.offers()))
			}
			if a := get(Turn{Cut(), Text("never")}); a.err == nil || a.status != 0 {
				t.Errorf("%s: before the first byte: %+v", w.name(), a)
			}
			a := get(Turn{Text("begun"), Cut(), Text("never")})
			if a.err == nil || a.status != http.StatusOK || a.body == "" || strings.Contains(a.body, "never") {
				t.Errorf("%s: in mid-stream: %+v", w.name(), a)
			}
			if stream && !strings.Contains(a.body, "begun") {
				t.Errorf("%s: what was said before is not there: %s", w.name(), a.body)
			}
			for _, end := range []string{"message_stop", "response.completed", "[DONE]", "STOP"} {
				if stream && strings.Contains(a.body, end) {
					t.Errorf("%s: it ends with %s", w.name(), end)
				}
			}
		}
	}
}

func TestCutOnce(t *testing.T) {
	w := ways[0]
	_, url := start(t, Script{Turns: []Turn{{Cut().Times(1), Text("said")}}})
	if a := ask(t, "POST", url+w.path(true), w.body("u", true, w.offers())); a.err == nil {
		t.Errorf("%+v", a)
	}
	if got := w.says(t, url, "u", w.offers()); got.Text != "said" {
		t.Errorf("%+v", got)
	}
}

// begin asks, and gives what comes without waiting for the end.
func begin(t *testing.T, w way, url string, stream bool) (*bufio.Reader, chan *http.Response, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, "POST", url+w.path(stream), strings.NewReader(string(encodeJSON(w.body("u", stream, w.offers())))))
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan *http.Response, 1)
	pr, pw := io.Pipe()
	go func() {
		defer close(answered)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			pw.CloseWithError(err)
			return
		}
		answered <- resp
		defer resp.Body.Close()
		_, err = io.Copy(pw, resp.Body)
		pw.CloseWithError(err)
	}()
	return bufio.NewReader(pr), answered, cancel
}

// until reads as far as a word; what comes later may never come.
func until(t *testing.T, in *bufio.Reader, word string) {
	t.Helper()
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatalf("%q does not come: %v", word, err)
		}
		if strings.Contains(line, word) {
			return
		}
	}
}

func arrived(s *Server) bool { return len(s.Requests()) > 0 }

// TestWaiting: each piece is sent before the next one is waited for, and whoever goes away, or closes, ends the wait.
func TestWaiting(t *testing.T) {
	for name, turn := range map[string]Turn{
		"slow":   {Text("begun"), Slow(time.Hour), Text("never")},
		"pause":  {Text("begun"), Pause(time.Hour), Text("never")},
		"silent": {Text("begun"), Silent(), Text("never")},
	} {
		for _, w := range ways {
			for _, closing := range []bool{false, true} {
				t.Run(name+"/"+w.name(), func(t *testing.T) {
					s, url := start(t, Script{Turns: []Turn{turn}})
					in, _, cancel := begin(t, w, url, true)
					until(t, in, "begun")
					if closing {
						if err := s.Close(); err != nil {
							t.Error(err)
						}
					} else {
						cancel()
					}
					if rest, err := io.ReadAll(in); err == nil || strings.Contains(string(rest), "never") {
						t.Errorf("it ended with %v: %s", err, rest)
					}
				})
			}
		}
	}
}

// TestWaitingBefore: nothing at all is answered, not even a status.
func TestWaitingBefore(t *testing.T) {
	for name, turn := range map[string]Turn{"pause": {Pause(time.Hour), Text("never")}, "silent": {Slow(time.Millisecond), Silent()}, "error": {Pause(time.Hour), Error(500, "x", "y")}} {
		for _, stream := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				s, url := start(t, Script{Turns: []Turn{turn}})
				in, answered, _ := begin(t, ways[0], url, stream)
				for !arrived(s) {
					select {
					case r := <-answered:
						t.Fatalf("answered before it was noted: %v", r)
					default:
					}
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				if r, ok := <-answered; ok {
					t.Errorf("answered %v", r)
				}
				if _, err := in.ReadByte(); err == nil {
					t.Error("a byte came")
				}
			})
		}
	}
}

// TestShortWaits: a turn with pauses is the same turn.
func TestShortWaits(t *testing.T) {
	_, url := start(t, Script{Turns: []Turn{{Pause(time.Millisecond), Slow(time.Microsecond), Text("a text in some pieces"), Pause(time.Millisecond), Shell("ls")}}})
	for _, w := range ways {
		if got := w.says(t, url, "u", w.offers()); got.Text != "a text in some pieces" || len(got.Calls) != 1 {
			t.Errorf("%s: %+v", w.name(), got)
		}
	}
}

// TestWaitsAreWhereTheScriptHasThem: a pause happens once, and Slow from its place on.
func TestWaitsAreWhereTheScriptHasThem(t *testing.T) {
	turn := Turn{Pause(time.Hour), Text("a"), Pause(time.Minute), Slow(time.Second), Text("bc")}
	for name, d := range map[string]dialect{"messages": messages{}, "responses": responses{}, "chat": chat{}, "gemini": gemini{}} {
		r, err := newReply(asked{sse: true}, 1, turn)
		if err != nil {
			t.Fatal(err)
		}
		var waits []time.Duration
		for _, s := range d.stream(r) {
			if s.wait > 0 {
				waits = append(waits, s.wait)
			}
		}
		if r.before != time.Hour || len(waits) < 2 || waits[0] != time.Minute+time.Second || slices.ContainsFunc(waits[1:], func(d time.Duration) bool { return d != time.Second }) {
			t.Errorf("%s: %v, then %v", name, r.before, waits)
		}
	}
}

func TestClosed(t *testing.T) {
	s, url := start(t, Script{})
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if a := ask(t, "HEAD", url, nil); a.err == nil {
		t.Errorf("%+v", a)
	}
	// As a handler it aborts.
	other := httptest.NewServer(s)
	defer other.Close()
	if a := ask(t, "HEAD", other.URL, nil); a.err == nil {
		t.Errorf("%+v", a)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(l); err != nil {
		t.Errorf("served again: %v", err)
	}
	if _, err := l.Accept(); err == nil {
		t.Error("the listener is left open")
	}
}

func TestKeys(t *testing.T) {
	script := Script{Turns: []Turn{{Text("said")}}}
	for _, c := range []struct {
		way            int
		header         string
		prefix         string
		missing, wrong int
		word           string
	}{
		{0, "x-api-key", "", 401, 401, "authentication_error"},
		{1, "authorization", "Bearer ", 401, 401, "invalid_api_key"},
		{2, "authorization", "Bearer ", 401, 401, "invalid_api_key"},
		{3, "x-goog-api-key", "", 403, 400, "API_KEY_INVALID"},
	} {
		w := ways[c.way]
		s, url := start(t, script, WithKey(c.header, c.prefix+"one", c.prefix+"two"))
		get := func(headers ...string) answer {
			return ask(t, "POST", url+w.path(false), w.body("u", false, w.offers()), headers...)
		}
		if a := get(); a.status != c.missing || !strings.Contains(a.body, `"error"`) || s.Requests()[0].Turn != -1 || s.Requests()[0].Problem == "" {
			t.Errorf("%s, without: %d %s", w.name(), a.status, a.body)
		}
		for _, wrong := range []string{c.prefix + "three", "one" + c.prefix, c.prefix + "on", c.prefix + "onetwo"} {
			if wrong == c.prefix+"one" || wrong == "one" {
				continue
			}
			if a := get(c.header, wrong); a.status != c.wrong || !strings.Contains(a.body, c.word) || strings.Contains(a.body, "said") {
				t.Errorf("%s, %q: %d %s", w.name(), wrong, a.status, a.body)
			}
		}
		for _, right := range []string{"one", "two"} {
			if got := w.whole(t, get(c.header, c.prefix+right).body); got.Text != "said" {
				t.Errorf("%s: %+v", w.name(), got)
			}
		}
	}
}

func TestBadRequests(t *testing.T) {
	for n, w := range ways {
		_, url := start(t, Script{Turns: []Turn{{Text("never")}}}, PlayAlways())
		bodies := []any{"", "{", "[]", "{}", `{"model":"m"}`, `{"model":"m","messages":[],"input":null,"contents":[]}`, `{"model":"m","input":5,"messages":5,"contents":5}`}
		if n == 0 {
			bodies = append(bodies, strings.Repeat(" ", mostBody+1))
		}
		if n != 1 && n != 3 {
			bodies = append(bodies, `{"messages":[{"role":"user","content":"x"}],"max_tokens":1}`)
		}
		for _, body := range bodies {
			a := ask(t, "POST", url+w.path(true), body)
			var f failed
			decode(t, a.body, &f)
			if wanted := 400; a.status != wanted && (a.status != 413 || len(body.(string)) <= mostBody) || f.Error.Message == "" {
				t.Errorf("%s, %.40q: %d %s", w.name(), body, a.status, a.body)
			}
		}
	}
}

package broker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// keyed is a broker with keys whose upstream answers by key, and whose clock stands still.
type keyed struct {
	*world
	mu     sync.Mutex
	now    time.Time
	answer map[string]func(http.ResponseWriter) // by key; none: a good answer
	values map[string]string                    // by name
	fails  map[string]bool
}

func newKeyed(t *testing.T, names ...string) *keyed {
	k := &keyed{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), answer: map[string]func(http.ResponseWriter){}, values: map[string]string{}, fails: map[string]bool{}}
	k.world = newWorld(t, func(out http.ResponseWriter, r *http.Request) {
		k.mu.Lock()
		f := k.answer[r.Header.Get("X-Api-Key")]
		k.mu.Unlock()
		if f == nil {
			writeJSON(out, 200, anthropicAnswer)
			return
		}
		f(out)
	}, func(o *Options) {
		p := o.provider("anthropic")
		p.Keys = nil
		for _, name := range names {
			k.values[name] = "value-of-" + name
			p.Keys = append(p.Keys, Key{Name: name, Value: func(context.Context) (string, error) {
				k.mu.Lock()
				defer k.mu.Unlock()
				if k.fails[name] {
					return "", errors.New("the helper failed")
				}
				return k.values[name], nil
			}})
		}
		o.Now = func() time.Time {
			k.mu.Lock()
			defer k.mu.Unlock()
			return k.now
		}
	})
	return k
}

func (k *keyed) set(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
}

// ask makes a call, and returns the keys that came upstream for it.
func (k *keyed) ask(model string) (reply, []string) {
	k.t.Helper()
	before := len(k.came())
	got := k.post("/anthropic/v1/messages", strings.Replace(anthropicBody, "claude-x", model, 1))
	var keys []string
	for _, s := range k.came()[before:] {
		keys = append(keys, strings.TrimPrefix(s.header.Get("X-Api-Key"), "value-of-"))
	}
	// The same twice is a kept connection that was found closed.
	return got, slices.Compact(keys)
}

func (k *keyed) mustAsk(model string, status int, keys ...string) reply {
	k.t.Helper()
	got, asked := k.ask(model)
	if got.status != status || !slices.Equal(asked, keys) {
		k.t.Errorf("got %d by %v, want %d by %v: %s", got.status, asked, status, keys, got.body)
	}
	return got
}

func says(status int, header ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		writeJSON(w, status, fmt.Sprintf(`{"type":"error","error":{"type":"some_error","message":"this says %d"}}`, status))
	}
}

func TestRefusedKeyRests(t *testing.T) {
	k := newKeyed(t, "A", "B")
	k.answer["value-of-A"] = says(401)
	k.mustAsk("claude-x", 200, "A", "B")
	k.mustAsk("claude-x", 200, "B")
	k.mustAsk("claude-y", 200, "B")
	k.set(func() { k.answer["value-of-B"] = says(403) })
	got := k.mustAsk("claude-x", 403, "B")
	message := errorOf(t, got, Anthropic)
	for _, want := range []string{"did not take the key B", "answered 403", "nothing is wrong with this run's lease", "ravi secrets set B", "this says 403"} {
		if !strings.Contains(message, want) {
			t.Errorf("%q does not say %q", message, want)
		}
	}
	// Nobody is asked any more, and both are named.
	if message := errorOf(t, k.mustAsk("claude-x", 403), Anthropic); !strings.Contains(message, "the key A, B") || strings.Contains(message, "value-of") {
		t.Error(message)
	}
	// Whom the one is refused, the other may be given.
	k.set(func() { k.answer["value-of-B"] = nil })
	k.mustAsk("claude-y", 200, "B")
	// Another value ends the rest, and so does time.
	k.set(func() { k.values["A"] = "value-of-A2" })
	k.mustAsk("claude-x", 200, "A2")
	k.set(func() { k.now = k.now.Add(restRefused + 1); k.answer["value-of-A2"] = says(401) })
	k.mustAsk("claude-x", 200, "A2", "B")
	c := k.finished(8)
	if last := c[7]; last.Key != "B" || last.Failed != "" {
		t.Errorf("%+v", last)
	}
	if third := c[3]; third.Failed == "" || third.Usage != (Usage{}) {
		t.Errorf("%+v", third)
	}
}

// An upstream's refusal of the key must not look as if the lease was wrong.
func TestAllKeysRefused(t *testing.T) {
	for call, to := range calls {
		w := newWorld(t, func(out http.ResponseWriter, r *http.Request) {
			writeJSON(out, 401, `{"error":{"message":"Incorrect API key provided: `+realKey+`"}}`)
		}, nil)
		got := w.post(to.path, to.body)
		message := errorOf(t, got, dialectOf(call))
		if got.status != 403 || !strings.Contains(message, "REAL_KEY (it answered 401)") || strings.Contains(message, "Incorrect") || strings.Contains(got.body, realKey) {
			t.Errorf("%s: %d %s", call, got.status, got.body)
		}
		if got.header.Get("X-Should-Retry") != "false" {
			t.Errorf("%s: it may be tried again", call)
		}
	}
}

func TestUsedUpKeyRests(t *testing.T) {
	k := newKeyed(t, "A", "B")
	k.answer["value-of-A"] = says(429, "Retry-After", "50")
	k.mustAsk("claude-x", 200, "A", "B")
	k.mustAsk("claude-x", 200, "B")
	k.set(func() { k.answer["value-of-B"] = says(529) })
	if got := k.mustAsk("claude-x", 529, "B"); !strings.Contains(got.body, "this says 529") {
		t.Error(got.body)
	}
	// Nobody said how long B is to rest, so it is the one to try.
	k.mustAsk("claude-x", 529, "B")
	k.set(func() { k.answer["value-of-B"] = says(429, "Retry-After", "20") })
	if got := k.mustAsk("claude-x", 429, "B"); got.header.Get("Retry-After") != "20" {
		t.Errorf("%v", got.header)
	}
	k.set(func() { k.now = k.now.Add(5 * time.Second) })
	got := k.mustAsk("claude-x", 429)
	if message := errorOf(t, got, Anthropic); got.header.Get("Retry-After") != "15" || !strings.Contains(message, "has no room for this now (it answered 429)") {
		t.Errorf("%s %v", message, got.header)
	}
	k.set(func() { k.now = k.now.Add(15 * time.Second); k.answer["value-of-B"] = nil })
	k.mustAsk("claude-x", 200, "B")
	k.set(func() { k.now = k.now.Add(30 * time.Second); k.answer["value-of-A"] = nil })
	k.mustAsk("claude-x", 200, "A")
}

func TestRetryAfterIsBounded(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"7": 7 * time.Second, "0": 0, "1.5": 1500 * time.Millisecond, "99999999999999999999": restMost, "Thu, 01 Jan 2026 00:00:09 GMT": 9 * time.Second,
		"Thu, 01 Jan 2099 00:00:09 GMT": restMost, "Thu, 01 Jan 2009 00:00:09 GMT": 0,
		"": -1, "-3": -1, "NaN": -1, "soon": -1,
	} {
		if got, said := retryAfter(http.Header{"Retry-After": {text}}, now); said != (want >= 0) || said && got != want {
			t.Errorf("%q: %v %v", text, got, said)
		}
	}
}

func TestFailingUpstreamIsTriedOnceMore(t *testing.T) {
	k := newKeyed(t, "A", "B", "C")
	k.answer["value-of-A"] = says(500)
	k.mustAsk("claude-x", 200, "A", "B")
	k.mustAsk("claude-x", 200, "A", "B") // it does not rest
	k.set(func() { k.answer["value-of-B"] = says(503) })
	if got := k.mustAsk("claude-x", 503, "A", "B"); !strings.Contains(got.body, "this says 503") {
		t.Error(got.body)
	}
	cut := func(w http.ResponseWriter) { panic(http.ErrAbortHandler) }
	k.set(func() { k.answer["value-of-A"], k.answer["value-of-B"] = cut, nil })
	k.mustAsk("claude-x", 200, "A", "B")
	k.set(func() { k.answer["value-of-B"] = cut })
	got := k.mustAsk("claude-x", 502, "A", "B")
	errorOf(t, got, Anthropic)
}

func TestKeyThatCannotBeHad(t *testing.T) {
	k := newKeyed(t, "A", "B")
	k.fails["A"] = true
	k.mustAsk("claude-x", 200, "B")
	k.set(func() { k.values["B"] = " \n" })
	got := k.mustAsk("claude-x", 503)
	if message := errorOf(t, got, Anthropic); !strings.Contains(message, "cannot be had") || strings.Contains(message, "helper failed") {
		t.Error(message)
	}
	if c := k.finished(2)[1]; c.Failed != "it is empty" || c.Status != 503 {
		t.Errorf("%+v", c)
	}
	k.set(func() { k.values["B"] = "val\r\nX-Evil: 1" })
	k.mustAsk("claude-x", 503)
	k.set(func() { k.values["B"] = "value-of-B\n" })
	k.mustAsk("claude-x", 200, "B")
}

// A made-up model costs the broker nothing that stays.
func TestRestsAreBounded(t *testing.T) {
	r := ring{states: make([]keyState, 1)}
	now := time.Now()
	for i := range 1000 {
		r.lay(0, fmt.Sprint(i), rest{until: now.Add(time.Hour), status: 429})
	}
	if n := len(r.states[0].models); n > maxRests {
		t.Errorf("%d rests", n)
	}
	if _, rests := r.rests(0, "999", now); !rests {
		t.Error("the last is not known")
	}
}

func TestWhereKeysGo(t *testing.T) {
	for call, tt := range map[string]struct {
		bearer bool
		header string
		value  string
	}{
		"anthropic": {false, "X-Api-Key", realKey}, "responses": {false, "Authorization", "Bearer " + realKey}, "gemini": {false, "X-Goog-Api-Key", realKey},
	} {
		for _, bearer := range []bool{false, true} {
			w := newWorld(t, func(out http.ResponseWriter, r *http.Request) { writeJSON(out, 200, `{}`) }, func(o *Options) {
				for i := range o.Providers {
					o.Providers[i].Bearer = bearer
					o.Providers[i].Headers = map[string]string{"x-api-key": "operator"} // the key wins
				}
			})
			if got := w.post(calls[call].path, calls[call].body); got.status != 200 {
				t.Fatalf("%s: %d %s", call, got.status, got.body)
			}
			header, value := tt.header, tt.value
			if bearer {
				header, value = "Authorization", "Bearer "+realKey
			}
			h := w.came()[0].header
			for _, name := range keyHeaders {
				if want := map[bool]string{true: value}[name == header]; h.Get(name) != want {
					t.Errorf("%s (bearer: %v): %s is %q, want %q", call, bearer, name, h.Get(name), want)
				}
			}
		}
	}
}

func TestProviderWithoutKeys(t *testing.T) {
	status := 200
	w := newWorld(t, func(out http.ResponseWriter, r *http.Request) { writeJSON(out, status, anthropicAnswer) }, func(o *Options) { o.provider("anthropic").Keys = nil })
	if got := w.post("/anthropic/v1/messages", anthropicBody); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	for _, name := range keyHeaders {
		if v := w.came()[0].header.Get(name); v != "" {
			t.Errorf("%s: %s was sent", name, v)
		}
	}
	status = 401
	got := w.post("/anthropic/v1/messages", anthropicBody)
	if message := errorOf(t, got, Anthropic); got.status != 403 || !strings.Contains(message, "has given none") {
		t.Errorf("%d %s", got.status, message)
	}
}

package broker

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// shelf keeps what it is given.
type shelf struct {
	mu   sync.Mutex
	sent []string
	got  []*bytes.Buffer
}

func (s *shelf) keep(c Call, body []byte) (io.Writer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, c.Model+" "+string(body))
	s.got = append(s.got, &bytes.Buffer{})
	return s.got[len(s.got)-1], nil
}

// What is forwarded and what the agent gets are kept, before the call is written down: whole, in a stream, and errors;
// the keys are in none of it.
func TestContentIsKept(t *testing.T) {
	answers := map[string]func(http.ResponseWriter){
		"whole": func(out http.ResponseWriter) {
			writeJSON(out, 200, strings.Replace(anthropicAnswer, "hello", realKey, 1))
		},
		"stream": func(out http.ResponseWriter) { sse(out, anthropicStream("one", realKey)...) },
		"error": func(out http.ResponseWriter) {
			writeJSON(out, 400, `{"type":"error","error":{"type":"x","message":"no"}}`)
		},
		"broken": func(out http.ResponseWriter) { writeJSON(out, 200, `<html>`) },
		"cut":    func(out http.ResponseWriter) { sse(out, anthropicStream("one")[:3]...) },
	}
	for name, answer := range answers {
		var s shelf
		w := newWorld(t, func(out http.ResponseWriter, r *http.Request) { answer(out) }, func(o *Options) { o.Keep = s.keep })
		body := anthropicBody
		if name == "stream" || name == "cut" {
			body = streamed(body)
		}
		got := w.post("/anthropic/v1/messages", body)
		ended := w.finished(1)
		if len(s.sent) != 1 || s.sent[0] != "claude-x "+w.came()[0].body || s.got[0].String() != got.body || got.body == "" || strings.Contains(got.body, realKey) {
			t.Errorf("%s: the agent got %s\nkept are %q and %s", name, got.body, s.sent, s.got)
		}
		if began := w.begun(); began[0].Content != s.got[0] || ended[0].Content != s.got[0] {
			t.Errorf("%s: the record knows nothing of what is kept", name)
		}
		// What is refused is not kept.
		if got := w.post("/anthropic/v1/messages", `{}`); got.status != 400 || len(s.sent) != 1 {
			t.Errorf("%s: %d, kept are %q", name, got.status, s.sent)
		}
	}
}

// What cannot be kept is not sent, and counts for nothing.
func TestWhatCannotBeKeptIsNotSent(t *testing.T) {
	var room atomic.Bool
	w := newWorld(t, func(out http.ResponseWriter, r *http.Request) { writeJSON(out, 200, anthropicAnswer) }, func(o *Options) {
		o.Lease.Limits.Requests = 1
		o.Keep = func(Call, []byte) (io.Writer, error) {
			if !room.Load() {
				return nil, errors.New("the disk is full")
			}
			return io.Discard, nil
		}
	})
	w.mustRefuse(w.post("/anthropic/v1/messages", anthropicBody), Anthropic, 503, "could not keep the content of this call")
	if began := w.begun(); !strings.Contains(began[0].Refused, "the disk is full") || began[0].Content != nil {
		t.Errorf("written down: %+v", began)
	}
	room.Store(true)
	if got := w.post("/anthropic/v1/messages", anthropicBody); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

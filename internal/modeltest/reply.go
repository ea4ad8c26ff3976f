package modeltest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// asked is what a request says.
type asked struct {
	dialect, endpoint string
	model             string
	stream            bool
	sse               bool // whether a stream is one of events; Gemini's can be an array
	usage             bool // whether a stream of Chat Completions ends with the usage
	encrypted         bool // whether Responses are to have the reasoning in its opaque form
	tools             []tool
	wants             *schema // of the answer, if it is to be JSON
	speakers          []rune
	size              int // of the body
	echo              map[string]any
}

// part is an item of a turn for one request: calls know their tool.
type part struct {
	Item
	id   string
	call called
}

// reply is an answer before it is put into a dialect.
type reply struct {
	asked
	id       string
	seq      int64
	at       time.Time
	before   time.Duration // how long to wait before the answer begins
	parts    []part
	used     Usage
	thoughts int64 // tokens of Output
}

// first is the first part that can be seen.
func (r *reply) first() part {
	for _, p := range r.parts {
		if p.kind != slow {
			return p
		}
	}
	return part{}
}

// calls says whether the model calls a tool.
func (r *reply) calls() bool {
	for _, p := range r.parts {
		if p.kind == call {
			return true
		}
	}
	return false
}

// ident is an id that no other answer has.
func (r *reply) ident(prefix string, n int) string {
	return fmt.Sprintf("%s%016x%08x", prefix, r.seq, n)
}

// newReply puts a turn together for a request. What the script wants and the request does not offer is said as a text.
func newReply(a asked, seq int64, items []Item) (*reply, error) {
	r := &reply{asked: a, seq: seq, at: time.Now()}
	var problem error
	written, thought, given := 0, 0, false
	for n, item := range items {
		p := part{Item: item}
		switch item.kind {
		case pause:
			if r.first().kind == none {
				r.before += item.wait
				continue
			}
		case shell, call:
			c := toolCall(a.tools, item.tool, item.input)
			if item.kind == shell {
				var err error
				if c, err = shellCall(a.tools, item.text); err != nil {
					problem = err
					p.Item = Text("modeltest: " + err.Error())
					written += len(p.text)
					break
				}
			}
			p.kind, p.call = call, c
			written += len(c.Input) + len(c.Name)
		case text:
			written += len(item.text)
		case thinking:
			thought += len(item.text)
		case uses:
			r.used, given = item.usage, true
			continue
		}
		p.id = r.ident("", n)
		r.parts = append(r.parts, p)
	}
	r.thoughts = int64(thought+3) / 4
	if !given {
		r.used = Usage{Input: int64(a.size)/4 + 1, Output: int64(written)/4 + 1 + r.thoughts}
	}
	r.thoughts = min(r.thoughts, r.used.Output)
	return r, problem
}

// step is a piece of an answer as it goes over the wire, or what happens to it.
type step struct {
	wait time.Duration
	data []byte
	end  kind // cut or silent
}

// stream gathers the steps of a streamed answer.
type stream struct {
	steps []step
	slow  time.Duration
	wait  time.Duration // once
}

// event adds one; without a name it is data alone.
func (s *stream) event(name string, data any) {
	b, ok := data.([]byte)
	if !ok {
		b = encodeJSON(data)
	}
	var out bytes.Buffer
	if name != "" {
		fmt.Fprintf(&out, "event: %s\n", name)
	}
	fmt.Fprintf(&out, "data: %s\n\n", b)
	s.raw(out.Bytes())
}

func (s *stream) raw(b []byte) {
	s.steps = append(s.steps, step{wait: s.wait + s.slow, data: b})
	s.wait = 0
}

// happens deals with what is not content, and says whether the stream is over.
func (s *stream) happens(i Item) (over bool) {
	switch i.kind {
	case pause:
		s.wait += i.wait
	case slow:
		s.slow = i.wait
	case cut, silent:
		s.steps = append(s.steps, step{wait: s.wait, end: i.kind})
		return true
	}
	return false
}

// encodeJSON writes as models and providers do: < and > as they are. What cannot be JSON is a mistake of the script's.
func encodeJSON(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(fmt.Sprintf("modeltest: %T cannot be JSON: %v", v, err))
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

type object = map[string]any

// dialect is a way of speaking.
type dialect interface {
	// read makes sense of a body; an error is the request's.
	read(a *asked, body []byte) error
	stream(r *reply) []step
	whole(r *reply) any
	// failure is the body of an error.
	failure(i Item, requestID string) any
	// headers are those that the provider sends with each answer.
	headers(h http.Header, requestID string)
	// keyless is the error for a wrong key, or none.
	keyless(given bool) Item
}

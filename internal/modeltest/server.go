package modeltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// mostBody is more than any provider takes.
const mostBody = 64 << 20

// Request is one that came.
type Request struct {
	Method   string
	Path     string
	Query    url.Values
	Header   http.Header
	Body     []byte
	Dialect  string // empty: no provider has such a path
	Endpoint string
	Model    string
	Stream   bool
	Tools    []string // the names of those offered
	// Turn is which turn of the script was played, after Prompt texts of the user's before this one. -1: none.
	Turn, Prompt int
	// Problem says what the script could not do with the request, or what the provider would have refused.
	Problem string
}

// Has says whether a string is anywhere in the request: path, query, headers or body.
func (r Request) Has(s string) bool {
	if strings.Contains(r.Path, s) || bytes.Contains(r.Body, []byte(s)) {
		return true
	}
	for _, lists := range []map[string][]string{r.Query, r.Header} {
		for name, values := range lists {
			if strings.Contains(name, s) || slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, s) }) {
				return true
			}
		}
	}
	return false
}

// Option changes a Server.
type Option func(*Server)

// WithKey has requests refused, as the provider would, whose header has none of the values.
func WithKey(header string, values ...string) Option {
	return func(s *Server) { s.keyHeader, s.keys = header, append(s.keys, values...) }
}

// WithModels says what the list of models has.
func WithModels(names ...string) Option { return func(s *Server) { s.models = names } }

// PlayAlways plays the script for requests without tools too.
func PlayAlways() Option { return func(s *Server) { s.always = true } }

// Server is the provider.
type Server struct {
	script    Script
	keyHeader string
	keys      []string
	models    []string
	always    bool

	done     context.Context // when it is closed
	close    context.CancelFunc
	handlers sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	seq      int64
	requests []Request
	happened map[spot]int
	servers  []*http.Server
}

// spot is an item of the script.
type spot struct {
	script string // of Others; empty: the first
	place
	item int
}

// New makes a provider that plays the script.
func New(script Script, options ...Option) *Server {
	s := &Server{script: script, models: []string{"scripted-1"}, happened: map[spot]int{}}
	s.done, s.close = context.WithCancel(context.Background())
	for _, o := range options {
		o(s)
	}
	return s
}

// Serve answers on a listener until Close, and returns nil then.
func (s *Server) Serve(l net.Listener) error {
	h := &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return l.Close()
	}
	s.servers = append(s.servers, h)
	s.mu.Unlock()
	if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the scripted model: %w", err)
	}
	return nil
}

// Close ends all answers and listeners, and waits for the answers.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	servers := s.servers
	s.servers = nil
	s.mu.Unlock()
	s.close()
	var err error
	for _, h := range servers {
		err = errors.Join(err, h.Close())
	}
	s.handlers.Wait()
	return err
}

// Requests are all that came, in the order in which they had been read.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

var geminiPath = regexp.MustCompile(`/models/([^/:]+):(generateContent|streamGenerateContent|countTokens)$`)

// route says who is asked for what.
func route(r *http.Request) (dialect, asked) {
	path := r.URL.Path
	if m := geminiPath.FindStringSubmatch(path); m != nil && r.Method == http.MethodPost {
		a := asked{dialect: Gemini, endpoint: Generate, model: m[1], stream: m[2] == "streamGenerateContent", sse: r.URL.Query().Get("alt") == "sse"}
		if m[2] == "countTokens" {
			a.endpoint = CountTokens
		}
		return gemini{}, a
	}
	for _, e := range []struct {
		method, suffix, dialect, endpoint string
		way                               dialect
	}{
		{http.MethodPost, "/messages", Anthropic, Messages, messages{}},
		{http.MethodPost, "/messages/count_tokens", Anthropic, CountTokens, messages{}},
		{http.MethodPost, "/responses", OpenAI, Responses, responses{}},
		{http.MethodPost, "/chat/completions", OpenAI, Chat, chat{}},
		{http.MethodGet, "/models", OpenAI, Models, chat{}},
	} {
		if r.Method == e.method && strings.HasSuffix(path, e.suffix) {
			return e.way, asked{dialect: e.dialect, endpoint: e.endpoint}
		}
	}
	if r.Method == http.MethodHead {
		return messages{}, asked{dialect: Anthropic, endpoint: Probe}
	}
	return nil, asked{}
}

// ServeHTTP answers as the provider whose path it is. What is before the provider's own path does not matter.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		panic(http.ErrAbortHandler)
	}
	s.handlers.Add(1)
	s.mu.Unlock()
	defer s.handlers.Done()

	body, err := io.ReadAll(io.LimitReader(r.Body, mostBody+1))
	if err != nil {
		panic(http.ErrAbortHandler) // whoever asked is gone
	}
	way, a := route(r)
	a.size = len(body)
	got := Request{
		Method: r.Method, Path: r.URL.Path, Query: r.URL.Query(), Header: r.Header.Clone(), Body: body, Turn: -1,
		Dialect: a.dialect, Endpoint: a.endpoint,
	}
	// Host is a header too, for whoever looks for a string.
	got.Header.Set("Host", r.Host)

	s.mu.Lock()
	s.seq++
	seq := s.seq
	s.mu.Unlock()

	items, err := s.decide(way, &a, r, &got)
	if way == nil {
		way = chat{}
	}
	id := fmt.Sprintf("req_%024x", seq)
	reply, problem := newReply(a, seq, items)
	reply.id = id
	if problem != nil {
		got.Problem = problem.Error()
	}
	if err != nil {
		got.Problem = err.Error()
	}
	got.Model, got.Stream = a.model, a.stream
	for _, t := range a.tools {
		got.Tools = append(got.Tools, t.Name)
	}
	s.mu.Lock()
	s.requests = append(s.requests, got)
	s.mu.Unlock()

	way.headers(w.Header(), id)
	s.answer(w, r, way, reply)
}

// decide says what the answer is. An error is the request's, and among the items already.
func (s *Server) decide(way dialect, a *asked, r *http.Request, got *Request) ([]Item, error) {
	refuse := func(i Item) ([]Item, error) { return []Item{i}, errors.New(i.text) }
	if way == nil {
		return refuse(Error(http.StatusNotFound, "invalid_request_error", fmt.Sprintf("Unknown request URL: %s %s.", r.Method, r.URL.Path)))
	}
	if a.endpoint == Probe {
		return nil, nil
	}
	if given := r.Header.Get(s.keyHeader); s.keyHeader != "" && !slices.Contains(s.keys, given) {
		return refuse(way.keyless(given != ""))
	}
	if a.endpoint == Models {
		return nil, nil
	}
	bad := Error(http.StatusBadRequest, "invalid_request_error", "")
	if a.dialect == Gemini {
		bad.errType = "INVALID_ARGUMENT"
	}
	if a.size > mostBody {
		bad.status, bad.text = http.StatusRequestEntityTooLarge, "Request exceeds the maximum size"
		return refuse(bad)
	}
	if err := way.read(a, got.Body); err != nil {
		bad.text = err.Error()
		return refuse(bad)
	}
	switch {
	case a.endpoint == CountTokens:
		return nil, nil
	case len(a.tools) == 0 && !s.always:
		return []Item{Text(s.side(a))}, nil
	}
	name, whose := s.script.whose(got)
	at := whose.placeOf(a.speakers)
	got.Turn, got.Prompt = at.round, at.prompt
	script := whose.of(at.prompt)
	if at.round >= len(script.Turns) {
		return []Item{Text("That was all of the script.")}, nil
	}
	return s.happening(name, at, a.dialect, script.Turns[at.round]), nil
}

// side is what is said to requests that offer no tools.
func (s *Server) side(a *asked) string {
	switch {
	case s.script.Side != "":
		return s.script.Side
	case a.wants != nil:
		return string(encodeJSON(a.wants.example()))
	}
	return "A short text"
}

// happening leaves out what has happened often enough, and what comes after an end.
func (s *Server) happening(name string, at place, dialect string, turn Turn) []Item {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Item
	for n, i := range turn {
		if i.times > 0 {
			if s.happened[spot{name, at, n}] >= i.times {
				continue
			}
			s.happened[spot{name, at, n}]++
		}
		if i.kind == fail {
			i = i.overloaded(dialect)
		}
		out = append(out, i)
		if i.ends() {
			break
		}
	}
	return out
}

// answer plays the reply. It never returns in the middle: a broken connection is what ErrAbortHandler makes.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, way dialect, p *reply) {
	s.sleep(r, p.before)
	first := p.first()
	switch first.kind {
	case cut:
		panic(http.ErrAbortHandler)
	case silent:
		s.sleep(r, forever)
	case fail:
		s.fail(w, way, first.Item, p.id)
		return
	}
	switch {
	case p.endpoint == Probe:
		w.WriteHeader(http.StatusOK)
	case p.endpoint == Models:
		writeJSON(w, http.StatusOK, s.list(p))
	case p.stream:
		s.play(w, r, way.stream(p), p.sse)
	default:
		s.wholly(w, r, way, p)
	}
}

// wholly answers in one piece. What happens in mid-stream happens here before it, but for Cut, which leaves half of it.
func (s *Server) wholly(w http.ResponseWriter, r *http.Request, way dialect, p *reply) {
	body := encodeJSON(way.whole(p))
	for _, i := range p.parts {
		switch i.kind {
		case fail:
			s.fail(w, way, i.Item, p.id)
			return
		case silent:
			s.sleep(r, forever)
		case cut:
			w.Header().Set("Content-Type", "application/json")
			s.write(w, body[:len(body)/2])
			panic(http.ErrAbortHandler)
		case pause:
			s.sleep(r, i.wait)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	s.write(w, body)
}

// play sends a stream, each piece at once.
func (s *Server) play(w http.ResponseWriter, r *http.Request, steps []step, sse bool) {
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	if sse {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	}
	w.Header().Set("Cache-Control", "no-cache")
	for _, one := range steps {
		s.sleep(r, one.wait)
		switch one.end {
		case cut:
			panic(http.ErrAbortHandler)
		case silent:
			s.sleep(r, forever)
		}
		s.write(w, one.data)
	}
}

func (s *Server) fail(w http.ResponseWriter, way dialect, i Item, id string) {
	if i.wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((i.wait+time.Second-1)/time.Second)))
	}
	writeJSON(w, i.status, way.failure(i, id))
}

func (s *Server) list(p *reply) any {
	data := []object{}
	for _, m := range s.models {
		data = append(data, object{"id": m, "object": "model", "created": p.at.Unix(), "owned_by": "modeltest"})
	}
	return object{"object": "list", "data": data}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(encodeJSON(v)) // whoever does not read it is gone
}

func (s *Server) write(w http.ResponseWriter, b []byte) {
	if _, err := w.Write(b); err != nil {
		panic(http.ErrAbortHandler)
	}
	if err := http.NewResponseController(w).Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		panic(http.ErrAbortHandler)
	}
}

const forever = time.Duration(1<<63 - 1)

// sleep waits, and breaks the answer off when the asker is gone or the provider is closed.
func (s *Server) sleep(r *http.Request, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.Context().Done():
		panic(http.ErrAbortHandler)
	case <-s.done.Done():
		panic(http.ErrAbortHandler)
	}
}

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ravi/internal/leaktest"
	"ravi/sandbox"
	"ravi/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	if err := sandboxtest.UseProgram(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	leaktest.Main(m)
}

// patience is how long is waited for what must come.
const patience = time.Minute

// step is one answer of a scripted model.
type step func(ctx context.Context, r Request, say func(string)) (Answer, error)

// scripted is a model that plays steps, and looks whether what it is asked is a conversation that a provider takes.
type scripted struct {
	t     testing.TB
	steps []step

	mu    sync.Mutex
	asked []Request
}

func script(t testing.TB, steps ...step) *scripted { return &scripted{t: t, steps: steps} }

func (m *scripted) Next(ctx context.Context, r Request, say func(string)) (Answer, error) {
	r.Messages = slices.Clone(r.Messages)
	m.mu.Lock()
	n := len(m.asked)
	m.asked = append(m.asked, r)
	m.mu.Unlock()
	if err := valid(r.Messages); err != nil {
		m.t.Errorf("question %d is no conversation: %v", n+1, err)
	}
	if n >= len(m.steps) {
		return Answer{Message: Message{Text: "that was all"}, Usage: Usage{1, 1}}, nil
	}
	return m.steps[n](ctx, r, say)
}

// request is what the model was asked, from 0 on.
func (m *scripted) request(n int) Request {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if n >= len(m.asked) {
		m.t.Fatalf("it was asked %d times", len(m.asked))
	}
	return m.asked[n]
}

// told is what the model was told last with a question.
func (m *scripted) told(n int) Message {
	m.t.Helper()
	all := m.request(n).Messages
	return all[len(all)-1]
}

func (m *scripted) times() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.asked)
}

// valid says what is wrong with a conversation.
func valid(all []Message) error {
	ids := map[string]bool{}
	for i, m := range all {
		var before []Call
		if i > 0 {
			before = all[i-1].Calls
		}
		switch {
		case i == 0 && m.Role != User:
			return errors.New("it begins with an answer")
		case i == len(all)-1 && m.Role != User:
			return errors.New("it ends with an answer")
		case m.Role == Assistant && all[i-1].Role == Assistant:
			return fmt.Errorf("message %d answers an answer", i)
		case m.Role != Assistant && m.Role != User:
			return fmt.Errorf("message %d is of a %q", i, m.Role)
		case len(m.Results) != len(before):
			return fmt.Errorf("message %d has %d results of %d calls", i, len(m.Results), len(before))
		}
		for j, r := range m.Results {
			if r.CallID != before[j].ID {
				return fmt.Errorf("result %d of message %d is of %q, not of %q", j, i, r.CallID, before[j].ID)
			}
		}
		for _, c := range m.Calls {
			if len(c.ID) > 256 || strings.ContainsAny(c.ID, " \n") || c.ID == "" || ids[c.ID] {
				return fmt.Errorf("the id %q is there twice, or none", c.ID[:min(len(c.ID), 300)])
			}
			ids[c.ID] = true
			if !json.Valid(c.Args) || c.Args[0] != '{' {
				return fmt.Errorf("the arguments %.100s are no object", c.Args)
			}
			if !toolName.MatchString(c.Name) {
				return fmt.Errorf("the name %.100q is none", c.Name)
			}
		}
	}
	return nil
}

// says is an answer without calls.
func says(text string) step {
	return func(_ context.Context, _ Request, say func(string)) (Answer, error) {
		say(text)
		return Answer{Message: Message{Text: text}, Usage: Usage{10, 1}}, nil
	}
}

// asks is an answer with calls.
func asks(calls ...Call) step {
	return func(context.Context, Request, func(string)) (Answer, error) {
		return Answer{Message: Message{Calls: slices.Clone(calls)}, Usage: Usage{10, 1}}, nil
	}
}

// hangs is no answer until the question is taken back; it tells when it was asked.
func hangs(asked chan<- struct{}) step {
	return func(ctx context.Context, _ Request, _ func(string)) (Answer, error) {
		close(asked)
		<-ctx.Done()
		return Answer{}, ctx.Err()
	}
}

type object map[string]any

var ids struct {
	sync.Mutex
	n int
}

// call is one with an id that no other has.
func call(name string, args object) Call {
	if args == nil {
		args = object{}
	}
	b, err := json.Marshal(args)
	if err != nil {
		panic(err)
	}
	ids.Lock()
	defer ids.Unlock()
	ids.n++
	return NewCall(fmt.Sprintf("toolu_%d", ids.n), name, string(b))
}

func finish(summary string) Call { return call("finish", object{"summary": summary}) }

// hand is a tool of a test's.
type hand struct {
	name   string
	schema string
	do     func(ctx context.Context, args json.RawMessage) (Result, error)
}

func (h hand) Spec() Spec {
	schema := h.schema
	if schema == "" {
		schema = `{"type":"object"}`
	}
	return Spec{Name: h.name, Description: "a tool", Schema: json.RawMessage(schema)}
}

func (h hand) Do(ctx context.Context, args json.RawMessage) (Result, error) { return h.do(ctx, args) }

// answers is a tool that answers with a text.
func answers(name, text string) hand {
	return hand{name: name, do: func(context.Context, json.RawMessage) (Result, error) { return Result{Text: text}, nil }}
}

// loopOf makes a loop.
func loopOf(t testing.TB, c Config) *Loop {
	t.Helper()
	l, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// turn has a loop do a turn that ends for a reason.
func turnOf(t testing.TB, l *Loop, want Reason) Outcome {
	t.Helper()
	out, err := l.Turn(t.Context(), "do it")
	if err != nil {
		t.Fatal(err)
	}
	if out.Reason != want {
		t.Fatalf("it ended with %+v, not %q", out, want)
	}
	return out
}

// played runs one turn of a script with tools, that has to finish.
func played(t testing.TB, m *scripted, tools ...Tool) Outcome {
	t.Helper()
	return turnOf(t, loopOf(t, Config{Model: m, Tools: tools}), Finished)
}

// onHost opens a sandbox of the host backend, which needs no isolation of the machine.
func onHost(t testing.TB, workspace string) *sandbox.Sandbox {
	t.Helper()
	cfg := sandbox.Default()
	cfg.Backend = sandbox.BackendHost
	sb, err := sandbox.Open(context.WithoutCancel(t.Context()), cfg, workspace, sandbox.WithHome(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Errorf("closing the sandbox: %v", err)
		}
	})
	return sb
}

func put(t testing.TB, dir, name, text string) {
	t.Helper()
	at := filepath.Join(dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// heard keeps events.
type heard struct {
	mu  sync.Mutex
	all []Event
}

func (h *heard) hear(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, e)
}

func (h *heard) of(kind string) []Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(h.all), func(e Event) bool { return e.Kind != kind })
}

// within fails if f does not return.
func within(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	await(t, what, done)
}

func await[T any](t testing.TB, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("%s does not come", what)
	}
	return v
}

// eventually waits for what nobody tells.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s does not come", what)
		}
	}
}

func mentions(t testing.TB, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %.2000q", want, text)
		}
	}
}

// inFence is what stands within a fence, and its mark.
func inFence(t testing.TB, text string) (inside, mark string) {
	t.Helper()
	rest, ok := strings.CutPrefix(text, "<untrusted ")
	mark, rest, ok2 := strings.Cut(rest, ">\n")
	inside, ok3 := strings.CutSuffix(rest, "\n</untrusted "+mark+">")
	if !ok || !ok2 || !ok3 || len(mark) < 20 {
		t.Fatalf("it is not fenced: %.500q", text)
	}
	return inside, mark
}

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ravi/internal/strictjson"
)

// Calls of one message are done at the same time, and told in the order in which they were asked for.
func TestCallsAtOnce(t *testing.T) {
	const n = 3
	var here sync.WaitGroup
	here.Add(n)
	last := make([]chan struct{}, n+1)
	for i := range last {
		last[i] = make(chan struct{})
	}
	close(last[n])
	meet := hand{name: "meet", do: func(_ context.Context, args json.RawMessage) (Result, error) {
		var a struct{ N int }
		if err := json.Unmarshal(args, &a); err != nil {
			return Result{}, err
		}
		here.Done()
		here.Wait()   // none goes on before all are here
		<-last[a.N+1] // and they end in the other order
		close(last[a.N])
		return Result{Text: fmt.Sprint("I am ", a.N)}, nil
	}}
	m := script(t, asks(call("meet", object{"n": 0}), call("meet", object{"n": 1}), call("meet", object{"n": 2})))
	within(t, "the turn's end", func() { played(t, m, meet) })
	for i, r := range m.told(1).Results {
		if text, _ := inFence(t, r.Text); text != fmt.Sprint("I am ", i) {
			t.Errorf("result %d is %q", i, text)
		}
	}
}

// Of a thousand calls in a message as many are done as may be, some at a time; the others are refused.
func TestThousandCalls(t *testing.T) {
	var now, most, done atomic.Int32
	all, tooMany := make(chan struct{}), make(chan struct{})
	var first atomic.Int32
	count := hand{name: "count", do: func(context.Context, json.RawMessage) (Result, error) {
		n := now.Add(1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		at := first.Add(1)
		if at == callsAtOnce {
			close(all)
		}
		switch {
		case at <= callsAtOnce: // the first stay, so that others would be seen beside them
			<-all
			select {
			case <-tooMany:
			case <-time.After(300 * time.Millisecond):
			}
		case at == callsAtOnce+1:
			close(tooMany)
		}
		now.Add(-1)
		done.Add(1)
		return Result{}, nil
	}}
	calls := make([]Call, 1000)
	for i := range calls {
		calls[i] = call("count", nil)
	}
	m := script(t, asks(calls...))
	within(t, "the turn's end", func() { played(t, m, count) })
	if done.Load() != mostCalls || most.Load() != callsAtOnce {
		t.Errorf("%d were done, %d at once", done.Load(), most.Load())
	}
	results := m.told(1).Results
	if len(results) != 1000 || results[mostCalls-1].Failed || !results[mostCalls].Failed {
		t.Errorf("%d results, and not the first %d are done", len(results), mostCalls)
	}
	mentions(t, results[999].Text, "64 calls")
}

// What a model writes for arguments that are none is told to it, and does not stay in the conversation, which each
// provider and the broker's reader have to take from then on.
func TestArguments(t *testing.T) {
	got := ""
	tool := hand{name: "take", schema: `{"type":"object","required":["a"]}`, do: func(_ context.Context, args json.RawMessage) (Result, error) {
		got = string(args)
		var a struct{ A any }
		return Result{Text: "taken"}, strictjson.Decode(args, &a)
	}}
	nested := func(n int) string {
		return `{"a":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}`
	}
	for name, c := range map[string]struct {
		args, says string
		called     bool
	}{
		"fine":          {`{"a":1}`, "", true},
		"with spaces":   {" {\"a\":1}\n", "", true},
		"nothing":       {"", "lack a", false},
		"empty":         {"{}", "lack a", false},
		"half":          {`{"a":`, "no JSON", false},
		"two":           {`{"a":1}{"a":2}`, "no JSON", false},
		"text":          {`"a"`, "no JSON object", false},
		"array":         {`[1]`, "no JSON object", false},
		"null":          {`null`, "no JSON object", false},
		"twice":         {`{"a":1,"a":2}`, "given twice", false},
		"twice, inside": {`{"a":{"b":1,"b":2}}`, "given twice", false},
		"no UTF-8":      {"{\"a\":\"\xff\"}", "the arguments", false},
		"10 MB":         {`{"a":"` + strings.Repeat("x", 10<<20) + `"}`, "at most 1048576", false},
		"deep":          {nested(60), "", true},
		"too deep":      {nested(100), "inside each other", false},
		"deeper":        {nested(5000), "inside each other", false},
		"many":          {`{"a":[` + strings.Repeat("0,", 20_000) + `0]}`, "10000 values", false},
		"unknown keys":  {`{"a":1,"b":2}`, "unknown", true},
	} {
		t.Run(name, func(t *testing.T) {
			got = ""
			m := script(t, asks(Call{ID: "x", Name: "take", Args: json.RawMessage(c.args)}))
			played(t, m, tool)
			if (got != "") != c.called {
				t.Errorf("it was called with %.100q", got)
			}
			r := m.told(1).Results[0]
			mentions(t, r.Text, c.says)
			if r.Failed != (c.says != "") || len(r.Text) > 1000 {
				t.Errorf("it says %.200q of %d bytes, %v", r.Text, len(r.Text), r.Failed)
			}
			body, err := json.Marshal(m.request(1).Messages)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := strictjson.Read(body); err != nil {
				t.Errorf("the conversation is read by nobody any more: %v", err)
			}
		})
	}
}

// Calls of what is not there, and ids and names that no provider takes, are answered one by one.
func TestStrangeCalls(t *testing.T) {
	long := strings.Repeat("x", 10<<20)
	calls := []Call{
		NewCall("a", "nobody", "{}"), NewCall("a", "look", "{}"), NewCall("", "look", "{}"), NewCall("", "look", "{}"), NewCall("call_1", "look", "{}"),
		NewCall("a b\n", "look", "{}"), NewCall(long, "look", "{}"), NewCall("b", "look at this!", `{"a":1}`), NewCall("c", long, "{}"), NewCall("d", "", "{}"),
		NewCall("functions.look:0", "look", "{}"),
	}
	var n atomic.Int32
	look := hand{name: "look", do: func(context.Context, json.RawMessage) (Result, error) {
		n.Add(1)
		return Result{Text: "seen"}, nil
	}}
	m := script(t, asks(calls...), asks(calls...))
	played(t, m, look) // the model looks at ids and names
	if n.Load() != 14 {
		t.Errorf("the tool was called %d times", n.Load())
	}
	results := m.told(1).Results
	for _, i := range []int{0, 7, 8, 9} {
		mentions(t, results[i].Text, "there is no tool")
		if !results[i].Failed || len(results[i].Text) > 300 {
			t.Errorf("result %d is %.200q", i, results[i].Text)
		}
	}
	mentions(t, results[0].Text, `"nobody"`, "finish, look")
	if results[10].CallID != "functions.look:0" {
		t.Errorf("an id that is fine became %q", results[10].CallID)
	}
}

// A tool that panics has failed, and the others go on.
func TestToolPanics(t *testing.T) {
	m := script(t, asks(call("bad", nil), call("good", nil)))
	played(t, m, answers("good", "seen"), hand{name: "bad", do: func(context.Context, json.RawMessage) (Result, error) {
		var number any = 1
		return Result{Text: number.(string)}, nil
	}})
	r := m.told(1).Results
	bad, _ := inFence(t, r[0].Text)
	good, _ := inFence(t, r[1].Text)
	mentions(t, bad, "interface conversion")
	if !r[0].Failed || r[1].Failed || good != "seen" {
		t.Errorf("the results are %+v", r)
	}
}

// A tool that hangs is ended, and that is no more than a failed call.
func TestToolHangs(t *testing.T) {
	m := script(t, asks(call("hang", nil), call("good", nil)))
	l := loopOf(t, Config{Model: m, Tools: []Tool{answers("good", "seen"), hand{name: "hang", do: func(ctx context.Context, _ json.RawMessage) (Result, error) {
		<-ctx.Done()
		return Result{}, ctx.Err()
	}}}})
	if l.registry.time != toolTime {
		t.Fatalf("a call may take %v", l.registry.time)
	}
	l.registry.time = time.Millisecond
	within(t, "the turn's end", func() { turnOf(t, l, Finished) })
	r := m.told(1).Results
	mentions(t, r[0].Text, "longer than 1ms")
	if !r[0].Failed || r[1].Failed {
		t.Errorf("the results are %+v", r)
	}
}

// A tool that cannot go on ends the turn, with its reason; what else was under way is ended with it.
func TestToolError(t *testing.T) {
	here := make(chan struct{})
	m := script(t, asks(call("wait", nil), call("bad", nil)))
	l := loopOf(t, Config{Model: m, Tools: []Tool{
		hand{name: "bad", do: func(context.Context, json.RawMessage) (Result, error) { <-here; return Result{}, errBroken }},
		hand{name: "wait", do: func(ctx context.Context, _ json.RawMessage) (Result, error) {
			close(here)
			<-ctx.Done()
			return Result{}, ctx.Err()
		}}}})
	within(t, "the turn's end", func() {
		if out := turnOf(t, l, Failed); out.Why != errBroken.Error() {
			t.Errorf("it says %q", out.Why)
		}
	})
	turnOf(t, l, Finished)
	for _, r := range m.request(1).Messages[2].Results {
		if !r.Failed {
			t.Errorf("of a call that did not end it is said %+v", r)
		}
		mentions(t, r.Text, "the turn ended before this was done")
	}
}

// Not more than one turn goes on at a time.
func TestOneTurnAtATime(t *testing.T) {
	var now, most atomic.Int32
	count := hand{name: "count", do: func(context.Context, json.RawMessage) (Result, error) {
		most.Store(max(most.Load(), now.Add(1)))
		now.Add(-1)
		return Result{}, nil
	}}
	var steps []step
	for range 10 {
		steps = append(steps, asks(call("count", nil)), says("done"))
	}
	l := loopOf(t, Config{Model: script(t, steps...), Tools: []Tool{count}})
	var turns sync.WaitGroup
	for range 10 {
		turns.Go(func() {
			if out, err := l.Turn(t.Context(), "do it"); err != nil || out.Reason != Finished {
				t.Error(out, err)
			}
		})
	}
	turns.Wait()
	if most.Load() != 1 {
		t.Errorf("%d at once", most.Load())
	}
}

// A result that ends the turn may be of anybody's tool.
func TestFinalOfOthers(t *testing.T) {
	m := script(t, asks(call("end", nil)))
	out := played(t, m, hand{name: "end", do: func(context.Context, json.RawMessage) (Result, error) {
		return Result{Text: "over", Final: true, Trusted: true}, nil
	}})
	if out.Text != "over" || m.times() != 1 {
		t.Errorf("it ended with %+v after %d", out, m.times())
	}
}

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

func journalAt(t testing.TB, at string) *Journal {
	t.Helper()
	j, err := OpenJournal(at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

// world is what calls do, each by its number.
type world struct {
	mu   sync.Mutex
	done map[int]int
}

func (w *world) tool() Tool {
	return hand{name: "do", do: func(_ context.Context, args json.RawMessage) (Result, error) {
		var a struct{ N int }
		err := json.Unmarshal(args, &a)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.done[a.N]++
		return Result{Text: fmt.Sprintf("did %d", a.N)}, err
	}}
}

// plan is a model that answers by how often it has answered in the conversation, so that it goes on where it was.
type plan struct {
	t       *rapid.T
	answers []Answer
	last    []Message
}

func (p *plan) Next(_ context.Context, r Request, say func(string)) (Answer, error) {
	if err := valid(r.Messages); err != nil {
		p.t.Fatalf("it is asked with no conversation: %v\n%+v", err, r.Messages)
	}
	n := 0
	for _, m := range r.Messages {
		if m.Role == Assistant {
			n++
		}
	}
	p.last = append([]Message(nil), r.Messages...)
	if n >= len(p.answers) {
		p.t.Fatalf("it is asked again, after all was said:\n%+v", r.Messages)
	}
	say("...")
	return p.answers[n], nil
}

// Wherever a crash cuts the journal off, the turn goes on: what was begun is not done again, all else is done once, and the
// model is asked as often, and uses as much, as without the crash.
func TestResumeAfterCrash(t *testing.T) {
	dir := t.TempDir()
	runs := 0
	rapid.Check(t, func(t *rapid.T) {
		var answers []Answer
		number := 0
		for range rapid.IntRange(0, 4).Draw(t, "answers") {
			a := Answer{Usage: Usage{10, 1}}
			if n := rapid.IntRange(0, 3).Draw(t, "calls"); n == 0 {
				a.Cut, a.Message.Text = true, "half"
			} else {
				for range n {
					a.Message.Calls = append(a.Message.Calls, call("do", object{"n": number}))
					number++
				}
			}
			answers = append(answers, a)
		}
		end := Answer{Message: Message{Text: "all is said"}, Usage: Usage{10, 1}}
		if rapid.Bool().Draw(t, "finish") {
			end.Message = Message{Calls: []Call{finish("all is said")}}
		}
		answers = append(answers, end)

		runs++
		at := filepath.Join(dir, fmt.Sprint(runs))
		do := func(w *world, goOn bool) (Outcome, []Message) {
			j, err := OpenJournal(at)
			if err != nil {
				t.Fatal(err)
			}
			defer j.Close()
			p := &plan{t: t, answers: answers}
			l, err := New(Config{Model: p, Tools: []Tool{w.tool()}, Journal: j})
			if err != nil {
				t.Fatal(err)
			}
			if l.Unfinished() != goOn {
				t.Fatalf("whether there is a turn to go on with: %v", l.Unfinished())
			}
			turn := func() (Outcome, error) { return l.Turn(context.Background(), "do it") }
			if goOn {
				turn = func() (Outcome, error) { return l.Resume(context.Background(), "") }
			}
			out, err := turn()
			if err != nil {
				t.Fatal(err)
			}
			return out, p.last
		}
		first := &world{done: map[int]int{}}
		whole, _ := do(first, false)
		data, err := os.ReadFile(at)
		if err != nil {
			t.Fatal(err)
		}
		cut := rapid.IntRange(0, len(data)-1).Draw(t, "cut")
		if err := os.WriteFile(at, data[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		// What stands there by whole lines is what was on the disk.
		var begun, ended []string
		for line := range strings.Lines(string(data[:cut])) {
			var e entry
			if !strings.HasSuffix(line, "\n") || json.Unmarshal([]byte(line), &e) != nil {
				continue
			}
			if e.Begun != "" {
				begun = append(begun, e.Begun)
			}
			if e.Result != nil {
				ended = append(ended, e.Result.CallID)
			}
		}
		second := &world{done: map[int]int{}}
		out, last := do(second, strings.Count(string(data[:cut]), "\n") > 0)
		if out != whole {
			t.Fatalf("it ended with %+v, not %+v", out, whole)
		}
		texts := map[string]string{}
		for _, m := range last {
			for _, r := range m.Results {
				texts[r.CallID] = r.Text
			}
		}
		for _, a := range answers[:len(answers)-1] {
			for _, c := range a.Message.Calls {
				var arg struct{ N int }
				if err := json.Unmarshal(c.Args, &arg); err != nil {
					t.Fatal(err)
				}
				want, what := 1, fmt.Sprintf("did %d", arg.N)
				if has(begun, c.ID) {
					want = 0
					if !has(ended, c.ID) {
						what = "nobody knows whether it was done"
					}
				}
				if second.done[arg.N] != want {
					t.Fatalf("call %d was done %d times after the crash; begun %v", arg.N, second.done[arg.N], begun)
				}
				if text, ok := texts[c.ID]; ok && !strings.Contains(text, what) {
					t.Fatalf("of call %d the model is told %q", arg.N, text)
				}
			}
		}
		// There is nothing to go on with any more, and the journal can be read.
		j, err := OpenJournal(at)
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		if p, err := recall(j.past); err != nil || p.unfinished || len(p.open) != 0 {
			t.Fatalf("the journal has %+v, %v", p, err)
		}
	})
}

func has(all []string, s string) bool {
	return strings.Contains(" "+strings.Join(all, " ")+" ", " "+s+" ")
}

// What is told with a resumption is told, also where the turn had nearly ended; then there is more to do.
func TestResumeWithText(t *testing.T) {
	user, usage := Message{Role: User, Text: "do it"}, &Usage{10, 1}
	look, end := call("look", nil), finish("done")
	both := Message{Role: Assistant, Calls: []Call{look, end}}
	ended := Result{CallID: end.ID, Tool: "finish", Text: "done", Final: true, Trusted: true}
	seen := Result{CallID: look.ID, Tool: "look", Text: "seen before"}
	spoken := Message{Role: Assistant, Text: "it is done"}
	for name, entries := range map[string][]entry{
		"at the beginning":   {{Message: &user}},
		"finish without end": {{Message: &user}, {Message: &both, Usage: usage}, {Begun: look.ID}, {Result: &seen}, {Begun: end.ID}, {Result: &ended}},
		"results told":       {{Message: &user}, {Message: &both, Usage: usage}, {Begun: look.ID}, {Result: &seen}, {Begun: end.ID}, {Result: &ended}, {Message: &Message{Role: User, Results: []Result{seen, ended}}}},
		"the last word":      {{Message: &user}, {Message: &spoken, Usage: usage}},
	} {
		t.Run(name, func(t *testing.T) {
			at := filepath.Join(t.TempDir(), "journal")
			j := journalAt(t, at)
			if err := j.append(entries...); err != nil {
				t.Fatal(err)
			}
			j.Close()
			m := script(t, says("now it is"))
			l := loopOf(t, Config{Model: m, Tools: []Tool{answers("look", "seen again")}, Journal: journalAt(t, at)})
			if _, err := l.Turn(t.Context(), "something else"); err == nil || !strings.Contains(err.Error(), "Resume") {
				t.Errorf("a turn in between: %v", err)
			}
			out, err := l.Resume(t.Context(), "You are in another sandbox now.")
			if err != nil || out.Reason != Finished || out.Text != "now it is" || m.times() != 1 {
				t.Fatalf("%+v, %v, after %d questions", out, err, m.times())
			}
			mentions(t, m.told(0).Text, "another sandbox")
			if _, err := l.Resume(t.Context(), ""); err == nil {
				t.Error("it is gone on with twice")
			}
			turnOf(t, l, Finished)
		})
	}
}

// Sub-agents that a crash took are told as lost, once; those that had reported are told of what they said; none gets the
// name of one before.
func TestResumeWithSubagents(t *testing.T) {
	user, usage := Message{Role: User, Text: "do it"}, &Usage{10, 1}
	spawns := []Call{call("spawn", object{"task": "a"}), call("spawn", object{"task": "b"}), call("spawn", object{"task": "c"})}
	begun := Message{Role: User}
	for _, c := range spawns {
		begun.Results = append(begun.Results, Result{CallID: c.ID, Text: "it has begun", Trusted: true})
	}
	at := filepath.Join(t.TempDir(), "journal")
	j := journalAt(t, at)
	if err := j.append(entry{Message: &user}, entry{Message: &Message{Role: Assistant, Calls: spawns}, Usage: usage},
		entry{Spawn: "sub-1"}, entry{Spawn: "sub-2"}, entry{Spawn: "sub-3"}, entry{Sub: &Report{ID: "sub-1", Label: "a", Status: SubDone, Text: "told long ago"}},
		entry{Message: &begun}, entry{Sub: &Report{ID: "sub-2", Label: "b", Status: SubDone, Text: "b was seen"}}); err != nil {
		t.Fatal(err)
	}
	j.Close()
	subs := NewSubagents(func(_ context.Context, s Spawn) (Child, error) {
		return Child{Loop: loopOf(t, Config{Model: script(t, says("I am "+s.ID))})}, nil
	}, SubLimits{})
	j = journalAt(t, at)
	m := script(t, asks(call("spawn", object{"task": "d"})), says("I wait"))
	l := loopOf(t, Config{Model: m, Subagents: subs, Journal: j})
	if out, err := l.Resume(t.Context(), ""); err != nil || out.Reason != Finished {
		t.Fatal(out, err)
	}
	first := m.told(0).Text
	mentions(t, first, "b was seen", "lost: sub-3")
	if strings.Contains(first, "told long ago") || strings.Contains(first, "sub-1") {
		t.Errorf("what was told is told again: %s", first)
	}
	var all []string
	for n := range m.times() {
		all = append(all, m.told(n).Text)
	}
	mentions(t, strings.Join(all, "\n"), "I am sub-4")
	j.Close()
	j = journalAt(t, at)
	p, err := recall(j.past)
	if err != nil || len(p.lost) > 0 || p.unfinished || p.spawned != 4 {
		t.Errorf("%+v, %v", p, err)
	}
	lost := 0
	for _, e := range j.past {
		if e.Sub != nil && e.Sub.ID == "sub-3" && e.Sub.Status == SubCanceled {
			lost++
		}
	}
	if lost != 1 {
		t.Errorf("that one is lost is written down %d times", lost)
	}
}

// A turn that was canceled can be gone on with, by this program or the next.
func TestResumeAfterCancel(t *testing.T) {
	at := filepath.Join(t.TempDir(), "journal")
	j := journalAt(t, at)
	asked := make(chan struct{})
	m := script(t, asks(call("look", nil)), hangs(asked))
	ctx, cancel := context.WithCancel(t.Context())
	l := loopOf(t, Config{Model: m, Tools: []Tool{answers("look", "seen")}, Journal: j})
	go func() { <-asked; cancel() }()
	if out, err := l.Turn(ctx, "do it"); err != nil || out.Reason != Canceled {
		t.Fatal(out, err)
	}
	j.Close()
	m = script(t, says("done"))
	l = loopOf(t, Config{Model: m, Journal: journalAt(t, at)})
	if !l.Unfinished() {
		t.Fatal("there is nothing to go on with")
	}
	if out, err := l.Resume(t.Context(), ""); err != nil || out.Reason != Finished || out.Iterations != 2 || out.Usage != (Usage{20, 2}) {
		t.Errorf("%+v, %v", out, err)
	}
	mentions(t, m.told(0).Results[0].Text, "seen")
}

func TestDamagedJournal(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":        "{\"begun\":\"a\"}\nthis is none\n",
		"an empty line":  "\n",
		"no text at all": "\x00\x00\x00\n",
		"nobody asked":   `{"message":{"role":"assistant","text":"a"}}` + "\n",
	} {
		at := filepath.Join(t.TempDir(), "journal")
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		j, err := OpenJournal(at)
		if err == nil {
			_, err = New(Config{Model: script(t), Journal: j})
			j.Close()
		}
		if !errors.Is(err, ErrJournal) {
			t.Errorf("%s: %v", name, err)
		}
		if left, err := os.ReadFile(at); err != nil || string(left) != text {
			t.Errorf("%s: the file was changed to %q, %v", name, left, err)
		}
	}
}

// One journal is one loop's; a link is not followed; what cannot be written ends the turn, and its sub-agents.
func TestJournalIsOnes(t *testing.T) {
	at := filepath.Join(t.TempDir(), "journal")
	j := journalAt(t, at)
	if _, err := OpenJournal(at); err == nil || !strings.Contains(err.Error(), "another loop") {
		t.Errorf("a second one: %v", err)
	}
	link := at + ".link"
	if err := os.Symlink(at+".other", link); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenJournal(link); err == nil {
		t.Error("a link is followed")
	}
	if info, err := os.Stat(at); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	closed := make(chan struct{})
	hang := make(chan struct{})
	subs := NewSubagents(func(context.Context, Spawn) (Child, error) {
		return Child{Loop: loopOf(t, Config{Model: script(t, hangs(hang))}), Close: func(context.Context) error { close(closed); return nil }}, nil
	}, SubLimits{})
	l := loopOf(t, Config{Model: script(t, asks(call("spawn", object{"task": "a"})), func(ctx context.Context, r Request, say func(string)) (Answer, error) {
		<-hang
		j.Close()
		return asks(call("look", nil))(ctx, r, say)
	}), Tools: []Tool{answers("look", "")}, Subagents: subs, Journal: j})
	out, err := l.Turn(t.Context(), "do it")
	if err == nil || !strings.Contains(err.Error(), "journal") || out.Reason == Finished {
		t.Errorf("%+v, %v", out, err)
	}
	select {
	case <-closed:
	default:
		t.Error("a sub-agent outlives the turn")
	}
}

// Behind what was written half nothing is written: who reads it would take the two for one line.
func TestJournalAfterFailure(t *testing.T) {
	at := filepath.Join(t.TempDir(), "journal")
	j := journalAt(t, at)
	file := j.f
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r.Close()
	j.f = w
	first := j.append(entry{Begun: "a"})
	j.f = file
	second := j.append(entry{Begun: "b"})
	if !errors.Is(first, syscall.EPIPE) || !errors.Is(second, syscall.EPIPE) {
		t.Errorf("%v, then %v", first, second)
	}
	if data, err := os.ReadFile(at); err != nil || len(data) > 0 {
		t.Errorf("it has %q, %v", data, err)
	}
}

// A journal takes no more than can be read again, and what it took before is there.
func TestFullJournal(t *testing.T) {
	at := filepath.Join(t.TempDir(), "journal")
	j := journalAt(t, at)
	j.most = 30
	for range 2 {
		if err := j.append(entry{Begun: "a"}); err != nil { // 14 bytes
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := j.append(entry{Begun: "b"}); !errors.Is(err, ErrJournalFull) {
			t.Errorf("beyond: %v", err)
		}
	}
	j.Close()
	again := journalAt(t, at)
	if len(again.past) != 2 {
		t.Errorf("it has %+v", again.past)
	}
	again.most = 30
	if err := again.append(entry{Begun: "b"}); !errors.Is(err, ErrJournalFull) {
		t.Errorf("opened again, and beyond: %v", err)
	}
	j = journalAt(t, filepath.Join(t.TempDir(), "journal"))
	j.most = 10
	if _, err := loopOf(t, Config{Model: script(t), Journal: j}).Turn(t.Context(), "hello"); !errors.Is(err, ErrJournalFull) {
		t.Errorf("a loop with a full one: %v", err)
	}
}

// What was being written when a program ended is cut off; what a turn has used is counted from its own beginning.
func TestJournalTail(t *testing.T) {
	at := filepath.Join(t.TempDir(), "journal")
	j := journalAt(t, at)
	m := script(t, says("one"))
	turnOf(t, loopOf(t, Config{Model: m, Journal: j}), Finished)
	if err := j.append(entry{Message: &Message{Role: User, Text: "more"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := j.f.WriteString(`{"begun":"half`); err != nil {
		t.Fatal(err)
	}
	j.Close()
	j = journalAt(t, at)
	if data, err := os.ReadFile(at); err != nil || strings.Contains(string(data), "half") {
		t.Errorf("it has %q, %v", data, err)
	}
	out, err := loopOf(t, Config{Model: script(t, says("two")), Journal: j}).Resume(t.Context(), "")
	if err != nil || out.Text != "two" || out.Iterations != 1 || out.Usage != (Usage{10, 1}) {
		t.Errorf("%+v, %v", out, err)
	}
}

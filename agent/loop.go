package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"ravi/sandbox"
)

// Limits bound a turn. What is 0 has its default.
type Limits struct {
	Iterations int           // how often the model is asked; 100
	Wall       time.Duration // 1 hour
	Tokens     int64         // all that the model reads and writes; 0 is no bound
	Output     int           // bytes of a tool's answer that are kept, its head and tail; 10,000
	Answer     int64         // tokens of one answer; 16,384
	Context    int           // bytes of a conversation, beyond which old answers of tools are left out; 400,000
}

func (l Limits) withDefaults() Limits {
	l.Iterations = cmp.Or(l.Iterations, 100)
	l.Wall = cmp.Or(l.Wall, time.Hour)
	l.Output = cmp.Or(l.Output, sandbox.DefaultText)
	l.Answer = cmp.Or(l.Answer, 16_384)
	l.Context = cmp.Or(l.Context, 400_000)
	return l
}

// Config says what a loop is made of.
type Config struct {
	Model Model
	// Hands are where exec and the file tools act; nil: there are none of these.
	Hands *Hands
	// Exec is how commands are run; its Hands are the loop's.
	Exec ExecTool
	// Tools are others.
	Tools []Tool
	// System is told to the model before all else.
	System string
	Limits Limits
	// Approver is asked where the gate says so; nil: what needs an approval is refused.
	Approver Approver
	// DenyPatterns are regular expressions for commands that are refused, besides those that the gate refuses.
	DenyPatterns []string
	// Subagents, if not nil, lets the model spawn others.
	Subagents *Subagents
	// Journal, if not nil, is what the loop writes down, and goes on from.
	Journal *Journal
	// Emit hears of what happens, from one goroutine at a time; may be nil.
	Emit func(Event)
	// Redact takes secrets out of all that tools answer, before anybody sees it; may be nil.
	Redact func(string) string

	emitting *sync.Mutex
}

func (c Config) emit(e Event) {
	if c.Emit == nil {
		return
	}
	c.emitting.Lock()
	defer c.emitting.Unlock()
	c.Emit(e)
}

// Loop is a conversation with a model that has tools.
type Loop struct {
	c        Config
	registry *Registry

	turning  sync.Mutex // one turn at a time
	messages []Message
	resumed  past
}

// New makes a loop. If its journal has a past, that is what it goes on from.
func New(c Config) (*Loop, error) {
	if c.Model == nil {
		return nil, errors.New("an agent loop needs a model")
	}
	c.Limits, c.emitting = c.Limits.withDefaults(), &sync.Mutex{}
	r, err := newRegistry(c)
	if err != nil {
		return nil, err
	}
	l := &Loop{c: c, registry: r}
	tools := append([]Tool{finishTool{}}, c.Tools...)
	if c.Hands != nil {
		c.Exec.Hands = c.Hands
		tools = append(append(tools, &c.Exec), FileTools(c.Hands)...)
	}
	if c.Subagents != nil {
		c.Subagents.attach(l)
		tools = append(tools, spawnTool{c.Subagents})
	}
	if err := r.add(tools...); err != nil {
		return nil, err
	}
	if c.Journal != nil {
		c.Journal.redact = c.Redact
		if l.resumed, err = recall(c.Journal.past); err != nil {
			return nil, err
		}
		l.messages = l.resumed.messages
		if c.Subagents != nil {
			c.Subagents.n = l.resumed.spawned
		}
	}
	return l, nil
}

// Unfinished says that the journal holds a turn that had not ended, which Resume goes on with.
func (l *Loop) Unfinished() bool { return l.resumed.unfinished }

// errStop ends a turn for a reason.
type errStop struct {
	reason Reason
	why    string
}

func (e *errStop) Error() string { return e.why }

// Turn has the model do what text says, until it has finished or a limit is hit. Only what ended it is in the Outcome: the
// error is for what the loop itself could not do, such as writing its journal.
func (l *Loop) Turn(ctx context.Context, text string) (Outcome, error) {
	l.turning.Lock()
	defer l.turning.Unlock()
	if l.resumed.unfinished {
		return Outcome{}, errors.New("the turn before has not ended: it is gone on with by Resume")
	}
	return l.turn(ctx, func() error { return l.say(Message{Role: User, Text: plainText(text)}) }, &turn{})
}

// Resume goes on with the turn in the journal that had not ended; text, which may be empty, is told to the model besides.
// What was done is not done again: a call that was begun and has no result is told to the model as such.
func (l *Loop) Resume(ctx context.Context, text string) (Outcome, error) {
	l.turning.Lock()
	defer l.turning.Unlock()
	p := l.resumed
	if !p.unfinished {
		return Outcome{}, errors.New("there is no turn to go on with")
	}
	l.resumed = past{}
	t := &turn{usage: p.usage, asked: p.asked, told: plainText(text)}
	if p.cut {
		t.told = joined(answerCut, t.told)
	}
	if len(p.lost) > 0 {
		t.told = joined(fmt.Sprintf("Ravi was interrupted. These sub-agents ended with it, and their work is lost: %s.", strings.Join(p.lost, ", ")), t.told)
	}
	for _, r := range p.reports {
		t.told = joined(r.tell(l.c.Limits.Output), t.told)
	}
	return l.turn(ctx, func() error {
		for _, id := range p.lost {
			if err := l.note(entry{Sub: &Report{ID: id, Status: SubCanceled, Label: id, Text: "Ravi was interrupted."}}); err != nil {
				return err
			}
		}
		last := l.messages[len(l.messages)-1] // a turn begins with one
		switch {
		case len(p.open) > 0:
			return l.act(ctx, t, p.open, p.results, p.begun)
		case t.told != "":
			return l.say(Message{Role: User, Text: t.take()})
		case last.Role == Assistant: // it had finished, but for the record of that
			t.final = &Result{Text: last.Text}
		case last.Text == "":
			t.final = finalOf(last.Results)
		}
		return nil
	}, t)
}

// turn is one turn on its way.
type turn struct {
	usage Usage
	asked int
	final *Result
	told  string // what is told with the next message
}

func (l *Loop) turn(ctx context.Context, begin func() error, t *turn) (Outcome, error) {
	bounded, cancel := context.WithTimeout(ctx, l.c.Limits.Wall)
	defer cancel()
	defer l.endOthers() // also if something panics
	l.registry.begin()
	text, err := l.steps(bounded, begin, t)
	out := Outcome{Reason: Finished, Text: text, Iterations: t.asked, Usage: t.usage}
	var stop *errStop
	var fault *errJournal
	switch {
	case err == nil:
	case errors.As(err, &fault):
		out.Reason, out.Why = Failed, err.Error()
		return out, fault.error
	case ctx.Err() != nil:
		out.Reason, out.Why = Canceled, "the turn was canceled"
	case bounded.Err() != nil:
		out.Reason, out.Why = OutOfTime, fmt.Sprintf("the turn took longer than %v", l.c.Limits.Wall)
	case errors.As(err, &stop):
		out.Reason, out.Why = stop.reason, stop.why
	case errors.Is(err, ErrSpent):
		out.Reason, out.Why = OutOfToken, err.Error()
	default:
		out.Reason, out.Why = Failed, err.Error()
	}
	l.endOthers()
	if err := l.close(); err != nil {
		return out, err
	}
	// Whoever resumes has nothing to go on with but after a crash, and a turn that was canceled may be.
	if out.Reason != Canceled {
		if err := l.c.Journal.append(entry{End: &out}); err != nil {
			return out, err
		}
	}
	l.c.emit(Event{Kind: EventEnd, Text: cmp.Or(out.Why, out.Text), Reason: out.Reason, Failed: out.Reason != Finished, Usage: &t.usage})
	return out, nil
}

// endOthers ends the sub-agents, with their turn.
func (l *Loop) endOthers() {
	if l.c.Subagents != nil {
		l.c.Subagents.cancel()
	}
}

// errJournal is an error of the journal, which nobody but the loop's owner can do anything about.
type errJournal struct{ error }

func (l *Loop) note(entries ...entry) error {
	if err := l.c.Journal.append(entries...); err != nil {
		return &errJournal{err}
	}
	return nil
}

func (l *Loop) say(m Message) error {
	l.messages = append(l.messages, m)
	return l.note(entry{Message: &m})
}

func (l *Loop) steps(ctx context.Context, begin func() error, t *turn) (string, error) {
	if l.c.Hands != nil {
		if err := l.c.Hands.Start(ctx); err != nil {
			return "", fmt.Errorf("the agent's hands could not be had: %w", err)
		}
	}
	if err := begin(); err != nil {
		return "", err
	}
	for {
		if t.final != nil {
			l.c.emit(Event{Kind: EventText, Text: t.final.Text})
			return t.final.Text, nil
		}
		if t.asked >= l.c.Limits.Iterations {
			return "", &errStop{Iterations, fmt.Sprintf("the model was asked %d times, which is as often as it may be, and had not finished", t.asked)}
		}
		answer, err := l.ask(ctx, t)
		if err != nil {
			return "", err
		}
		m := answer.Message
		if len(m.Calls) == 0 {
			if answer.Cut {
				t.told = answerCut
				if err := l.say(Message{Role: User, Text: t.take()}); err != nil {
					return "", err
				}
				continue
			}
			if more, err := l.await(ctx); err != nil || !more {
				return m.Text, err
			}
			continue
		}
		if err := l.act(ctx, t, m.Calls, nil, nil); err != nil {
			return "", err
		}
	}
}

const answerCut = "Your answer was cut, since it was longer than it may be. Go on from there, in smaller steps."

func (t *turn) take() string {
	s := t.told
	t.told = ""
	return s
}

// ask asks the model, and writes down what it answers.
func (l *Loop) ask(ctx context.Context, t *turn) (Answer, error) {
	l.shorten()
	specs := l.specs()
	answer, err := l.c.Model.Next(ctx, Request{System: l.c.System + "\n\n" + fencing, Messages: l.messages, Tools: specs, MaxTokens: l.c.Limits.Answer},
		func(delta string) { l.c.emit(Event{Kind: EventText, Text: delta}) })
	if err != nil {
		return answer, fmt.Errorf("the model: %w", err)
	}
	t.asked++
	t.usage.Input += answer.Usage.Input
	t.usage.Output += answer.Usage.Output
	m := &answer.Message
	m.Role, m.Text = Assistant, plainText(m.Text)
	l.named(m.Calls)
	l.messages = append(l.messages, *m)
	if err := l.note(entry{Message: m, Usage: &answer.Usage, Cut: answer.Cut}); err != nil {
		return answer, err
	}
	used := t.usage // a copy: whoever hears it may keep it
	l.c.emit(Event{Kind: EventUsage, Usage: &used})
	if most := l.c.Limits.Tokens; most > 0 && t.usage.Input+t.usage.Output >= most && (len(m.Calls) > 0 || answer.Cut) {
		return answer, &errStop{OutOfToken, fmt.Sprintf("the turn has used %d tokens, of %d that it may", t.usage.Input+t.usage.Output, most)}
	}
	return answer, nil
}

// specs are the tools that there are now.
func (l *Loop) specs() []Spec {
	specs := l.registry.specs
	if l.c.Hands != nil {
		specs = l.registry.with(l.c.Hands)
	}
	return specs
}

// act does calls, and tells the model what came of them. had are results that are there already; of those begun it is not
// known whether they were done.
func (l *Loop) act(ctx context.Context, t *turn, calls []Call, had []Result, begun map[string]bool) error {
	results := make([]Result, len(calls))
	var wait sync.WaitGroup
	var once sync.Once
	var fault error
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for i, c := range calls {
		if j := indexOf(had, c.ID); j >= 0 {
			results[i] = had[j]
			continue
		}
		do := func() {
			out, err := l.do(ctx, c, i, begun[c.ID])
			if err != nil {
				once.Do(func() { fault = err; cancel() })
				return
			}
			results[i] = out
		}
		// Calls of one message are done at once, but for those that change a file: who asks for a change and a command after
		// it means them in that order.
		if !l.registry.changes(c.Name) {
			wait.Go(do)
			continue
		}
		wait.Wait()
		do()
	}
	wait.Wait()
	if fault != nil {
		return errors.Join(fault, l.say(Message{Role: User, Results: settled(calls, results)}))
	}
	m := Message{Role: User, Results: results}
	if t.told == "" { // else there is more to do than was known when it finished
		t.final = finalOf(results)
	}
	if t.final == nil {
		reports, err := l.reports()
		if err != nil {
			return err
		}
		m.Text = joined(t.take(), reports)
	}
	return l.say(m)
}

// finalOf is the first result that ends the turn, or nil.
func finalOf(results []Result) *Result {
	for i := range results {
		if results[i].Final {
			return &results[i]
		}
	}
	return nil
}

func indexOf(results []Result, id string) int {
	for i := range results {
		if results[i].CallID == id {
			return i
		}
	}
	return -1
}

// do does one call: it is written down before, and its result after.
func (l *Loop) do(ctx context.Context, c Call, i int, begun bool) (Result, error) {
	l.c.emit(Event{Kind: EventTool, Tool: c.Name, ID: c.ID, Input: c.Args})
	var out Result
	switch {
	case begun && c.Name != finishName: // which does nothing that could be done twice
		out = refuse("Ravi was interrupted while this was done, so nobody knows whether it was done, or half. It is not done again by itself: look first")
		out.CallID, out.Tool = c.ID, c.Name
	case i >= mostCalls:
		out = refuse("a message may have %d calls, and this one is beyond: ask for it again", mostCalls)
		out.CallID, out.Tool = c.ID, c.Name
	default:
		var err error
		if out, err = l.registry.Call(ctx, c, func() error { return l.note(entry{Begun: c.ID}) }); err != nil {
			return out, err
		}
	}
	l.c.emit(Event{Kind: EventResult, Tool: c.Name, ID: c.ID, Text: out.Text, Failed: out.Failed})
	if !out.Trusted {
		out.Text = fenced(out.Text)
	}
	return out, l.note(entry{Result: &out})
}

// await waits for the next sub-agent's report while there are some under way, and tells the model.
func (l *Loop) await(ctx context.Context) (bool, error) {
	if l.c.Subagents == nil {
		return false, nil
	}
	if err := l.c.Subagents.wait(ctx); err != nil {
		return false, err
	}
	text, err := l.reports()
	if err != nil || text == "" {
		return false, err
	}
	return true, l.say(Message{Role: User, Text: text})
}

// reports are those of sub-agents that have ended and were not told yet.
func (l *Loop) reports() (string, error) {
	if l.c.Subagents == nil {
		return "", nil
	}
	text := ""
	for _, r := range l.c.Subagents.take() {
		if l.c.Redact != nil {
			r.Text = l.c.Redact(r.Text)
		}
		if err := l.note(entry{Sub: &r}); err != nil {
			return "", err
		}
		text = joined(text, r.tell(l.c.Limits.Output))
	}
	return text, nil
}

func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "\n\n" + b
}

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
	if len(p.lost) > 0 {
		t.told = joined(fmt.Sprintf("Ravi was interrupted. These sub-agents ended with it, and their work is lost: %s.", strings.Join(p.lost, ", ")), t.told)
	}
	return l.turn(ctx, func() error {
		switch {
		case len(p.open) > 0:
			return l.act(ctx, t, p.open, p.results, p.begun)
		case t.told != "":
			return l.say(Message{Role: User, Text: t.take()})
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
	l.registry.begin()
	text, err := l.steps(bounded, begin, t)
	out := Outcome{Reason: Finished, Text: text, Iterations: t.asked, Usage: t.usage}
	var stop *errStop
	var fault *errJournal
	switch {
	case err == nil:
	case errors.As(err, &fault):
		return out, fault.error
	case ctx.Err() != nil:
		out.Reason, out.Why = Canceled, "the turn was canceled"
	case bounded.Err() != nil:
		out.Reason, out.Why = OutOfTime, fmt.Sprintf("the turn took longer than %v", l.c.Limits.Wall)
	case errors.As(err, &stop):
		out.Reason, out.Why = stop.reason, stop.why
	default:
		out.Reason, out.Why = Failed, err.Error()
	}
	if l.c.Subagents != nil {
		l.c.Subagents.cancel()
	}
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

// close answers calls that nothing came of, since no provider takes a conversation that has some.
func (l *Loop) close() error {
	n := len(l.messages)
	if n == 0 || len(l.messages[n-1].Calls) == 0 {
		return nil
	}
	calls := l.messages[n-1].Calls
	return l.say(Message{Role: User, Results: settled(calls, make([]Result, len(calls)))})
}

// settled has a result for each call, also for those that did not come to one.
func settled(calls []Call, results []Result) []Result {
	for i, c := range calls {
		if results[i].CallID == "" {
			results[i] = refuse("the turn ended before this was done, or while it was")
			results[i].CallID, results[i].Tool = c.ID, c.Name
		}
	}
	return results
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
				t.told = "Your answer was cut, since it was longer than it may be. Go on from there, in smaller steps."
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
	seen := map[string]bool{}
	for i := range m.Calls { // ids are what results are found by
		if c := &m.Calls[i]; c.ID == "" || seen[c.ID] {
			c.ID = fmt.Sprintf("call_%d_%d", t.asked, i)
		}
		seen[m.Calls[i].ID] = true
	}
	l.messages = append(l.messages, *m)
	if err := l.note(entry{Message: m, Usage: &answer.Usage}); err != nil {
		return answer, err
	}
	l.c.emit(Event{Kind: EventUsage, Usage: &t.usage})
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
		wait.Go(func() {
			out, err := l.do(ctx, c, i, begun[c.ID])
			if err != nil {
				once.Do(func() { fault = err; cancel() })
				return
			}
			results[i] = out
		})
	}
	wait.Wait()
	if fault != nil {
		return errors.Join(fault, l.say(Message{Role: User, Results: settled(calls, results)}))
	}
	m := Message{Role: User, Results: results}
	for i := range results {
		if results[i].Final && t.final == nil {
			t.final = &results[i]
		}
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
	case begun:
		out = refuse("Ravi was interrupted while this was done, so nobody knows whether it was done, or half. It is not done again by itself: look first")
		out.CallID, out.Tool = c.ID, c.Name
	case i >= mostCalls:
		out = refuse("a message may have %d calls, and this one is beyond: ask for it again", mostCalls)
		out.CallID, out.Tool = c.ID, c.Name
	default:
		if err := l.note(entry{Begun: c.ID}); err != nil {
			return out, err
		}
		var err error
		if out, err = l.registry.Call(ctx, c); err != nil {
			return out, err
		}
	}
	if l.c.Redact != nil {
		out.Text = l.c.Redact(out.Text)
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

// leftOut stands for an answer of a tool that is too long ago.
const leftOut = "(left out: it was too long ago. Call the tool again if it matters)"

// shorten leaves out the oldest answers of tools once the conversation is too long, down to half of that: what changes in
// the middle of a conversation makes a provider read all of it anew.
func (l *Loop) shorten() {
	size := 0
	for _, m := range l.messages {
		size += m.size()
	}
	if size <= l.c.Limits.Context {
		return
	}
	for i := range l.messages[:max(len(l.messages)-4, 0)] {
		if size <= l.c.Limits.Context/2 {
			return
		}
		m := &l.messages[i]
		if len(m.Results) == 0 {
			continue
		}
		size -= m.size()
		kept := make([]Result, len(m.Results)) // the journal has the others
		for j, r := range m.Results {
			if len(r.Text) > len(leftOut) {
				r.Text = leftOut
			}
			kept[j] = r
		}
		m.Results = kept
		size += m.size()
	}
}

func (m Message) size() int {
	n := len(m.Text) + len(m.Opaque)
	for _, c := range m.Calls {
		n += len(c.Args) + len(c.Name)
	}
	for _, r := range m.Results {
		n += len(r.Text)
	}
	return n
}

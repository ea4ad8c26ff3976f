package agent

import (
	"encoding/json"
	"fmt"
	"regexp"
)

var callID = regexp.MustCompile(`^[A-Za-z0-9_.:|-]{1,256}$`)

// named has each call of an answer be known by an id that no other one has, and have a name and arguments that a tool can
// have: results are found by ids, and no provider takes a conversation in which one is there twice, or what cannot be.
func (l *Loop) named(calls []Call) {
	seen := map[string]bool{}
	for _, m := range l.messages {
		for _, c := range m.Calls {
			seen[c.ID] = true
		}
	}
	for i := range calls {
		c := &calls[i]
		for n := len(seen); !callID.MatchString(c.ID) || seen[c.ID]; n++ {
			c.ID = fmt.Sprintf("call_%d", n)
		}
		seen[c.ID] = true
		if c.Wrong == "" { // a model of somebody else's may not have looked
			*c = NewCall(c.ID, c.Name, string(c.Args))
		}
		if !toolName.MatchString(c.Name) {
			c.Name, c.Args, c.Wrong = "unknown", json.RawMessage("{}"), fmt.Sprintf("%.64q is no name of a tool", c.Name)
		}
	}
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

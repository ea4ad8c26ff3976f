package run

import (
	"encoding/json"
	"strings"
	"sync"

	"ravi/internal/network/policy"
	"ravi/sandbox"
)

// netLog is what a run remembers of its network: enough to say what would have
// been needed.
type netLog struct {
	mu     sync.Mutex
	seen   []policy.Event
	denied int
}

// mostDenied bounds the refusals that are remembered; there can be any number.
const mostDenied = 2000

// hear takes one decision of the network.
func (s *state) hear(e sandbox.NetEvent) {
	e = scrub(s.Redact, e)
	s.audit.add(e)
	b, err := json.Marshal(e)
	if err == nil {
		var fields map[string]any
		if json.Unmarshal(b, &fields) == nil {
			s.dir.event("network", fields)
		}
	}
	if s.Network != nil {
		s.Network(e)
	}
	if e.Allowed || e.Lost > 0 {
		return
	}
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
	s.net.denied++
	if Suggestible(e) && len(s.net.seen) < mostDenied {
		s.net.seen = append(s.net.seen, policy.Event{Name: e.Name, Addr: e.Addr, Port: e.Port})
	}
}

// How a sandbox's network is, in the event "sandbox" of EventsFile.
const (
	NetworkNone    = "none"    // it has none
	NetworkWatched = "watched" // every decision is an event
	NetworkOpen    = "open"    // it is the host's own, and nothing is seen of it
)

// Suggestible says that a rule of the run could have allowed what was refused.
// None opens UDP; and where a rule is named that decided, it is the operator's,
// or it did allow the connection, and what was said on it was refused.
func Suggestible(e sandbox.NetEvent) bool {
	return !e.Allowed && !e.Alarm && e.Proto != "udp" && e.Rule == ""
}

// Suggest is the smallest list of rules that a run can be given to reach what
// was refused. What the operator's floor would still refuse needs none.
func Suggest(floor policy.Floor, refused []policy.Event) []string {
	var useful []policy.Event
	for _, e := range refused {
		var rules []policy.Rule
		for _, text := range policy.Suggest([]policy.Event{e}) {
			if r, err := policy.ParseRule(text); err == nil {
				rules = append(rules, r)
			}
		}
		p, err := policy.FromRules(rules)
		if err != nil {
			continue // there is no rule for it
		}
		with := floor.Apply(p)
		decision := with.Resolve(e.Name)
		if e.Port != 0 {
			decision = with.Connect(e.Name, e.Addr, e.Port)
		}
		if decision.Allowed {
			useful = append(useful, e)
		}
	}
	return policy.Suggest(useful)
}

// suggest tells what the network refused, and what would have allowed it.
func (s *state) suggest() {
	s.net.mu.Lock()
	denied, rules := s.net.denied, Suggest(s.NetworkFloor, s.net.seen)
	s.net.mu.Unlock()
	if denied == 0 {
		return
	}
	s.task.Suggested = rules
	const most = 8
	more := ""
	if len(rules) > most {
		rules, more = rules[:most], " and others, see task.json"
	}
	if len(rules) == 0 {
		s.note("the network refused %d times what no rule should allow; see %s", denied, EventsFile)
		return
	}
	s.note("the network refused %d times; what was asked for would be allowed by --allow-net %s%s", denied, strings.Join(rules, ","), more)
}

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
	if e.Allowed {
		return
	}
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
	s.net.denied++
	if len(s.net.seen) < mostDenied {
		s.net.seen = append(s.net.seen, policy.Event{Name: e.Name, Addr: e.Addr, Port: e.Port, TLS: e.TLS, Method: e.Method, Path: e.Path})
	}
}

// suggest tells what the network refused, and what would have allowed it.
func (s *state) suggest() {
	s.net.mu.Lock()
	denied, rules := s.net.denied, policy.Suggest(s.net.seen)
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

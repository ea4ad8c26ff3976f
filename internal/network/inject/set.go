package inject

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"ravi/internal/redact"
)

// Set is the secrets of one sandbox. The zero Set has none. Its methods may be
// called from many goroutines at once.
type Set struct{ now atomic.Pointer[secrets] }

// secrets is a state of a Set, which is never changed.
type secrets struct {
	all []*bound
	// old are values that were replaced: a response may still hold one.
	old map[string][]Value
	// longest is the length of the longest placeholder.
	longest int

	// What takes values out, for each group of secrets that go to one host: bit i
	// stands for all[i]. Making one takes time.
	mu        sync.Mutex
	redactors map[uint64]*redact.Redactor
}

// keepOld bounds the values that are remembered of each secret.
const keepOld = 32

// Replace makes these the set's secrets. Values that the set had before are still
// taken out of responses.
func (s *Set) Replace(list []Secret) error {
	if len(list) > maxSecrets {
		return fmt.Errorf("there are %d secrets, more than %d", len(list), maxSecrets)
	}
	next := &secrets{old: map[string][]Value{}, redactors: map[uint64]*redact.Redactor{}}
	names := map[string]bool{}
	for _, one := range list {
		b, err := check(one)
		if err != nil {
			return err
		}
		if names[b.Name] || names[b.Placeholder] {
			return fmt.Errorf("the secret %s is there twice", b.Name)
		}
		names[b.Name], names[b.Placeholder] = true, true
		next.all = append(next.all, b)
		next.longest = max(next.longest, len(b.Placeholder))
	}
	if before := s.now.Load(); before != nil {
		for _, b := range before.all {
			kept := slices.DeleteFunc(append(slices.Clone(before.old[b.Name]), b.Value), func(v Value) bool { return v == "" })
			next.old[b.Name] = kept[max(0, len(kept)-keepOld):]
		}
	}
	s.now.Store(next)
	return nil
}

// Bound says whether any secret may go to a host. Its connections are then looked
// into, whatever the rules say.
func (s *Set) Bound(host string, port uint16) bool {
	now := s.now.Load()
	return now != nil && now.bound(host, port)
}

func (s *secrets) bound(host string, port uint16) bool {
	return slices.ContainsFunc(s.all, func(b *bound) bool { return b.binds(host, port) })
}

// Named says which placeholder is part of a text, such as a name that is asked
// for. Letters may be of either case.
func (s *Set) Named(text string) (secret string, found bool) {
	now := s.now.Load()
	if now == nil {
		return "", false
	}
	if b := now.find(text); b != nil {
		return b.Name, true
	}
	return "", false
}

func (s *secrets) find(text string) *bound {
	if len(text) < len(placeholderPrefix) || !containsFold(text, placeholderPrefix) {
		return nil
	}
	text = strings.ToLower(text)
	for _, b := range s.all {
		if strings.Contains(text, b.Placeholder) {
			return b
		}
	}
	return nil
}

// containsFold is a strings.Contains for a text in lower case, without a copy.
func containsFold(text, lower string) bool {
	for i := 0; i+len(lower) <= len(text); i++ {
		if strings.EqualFold(text[i:i+len(lower)], lower) {
			return true
		}
	}
	return false
}

// Redactor takes the values of the secrets that are bound to a host out of what it
// answers. It is nil if there is none.
func (s *Set) Redactor(host string, port uint16) *redact.Redactor {
	now := s.now.Load()
	if now == nil {
		return nil
	}
	var group uint64
	for i, b := range now.all {
		if b.binds(host, port) {
			group |= 1 << i
		}
	}
	if group == 0 {
		return nil
	}
	now.mu.Lock()
	defer now.mu.Unlock()
	r := now.redactors[group]
	if r == nil {
		r = now.redactor(group)
		now.redactors[group] = r
	}
	return r
}

func (s *secrets) redactor(group uint64) *redact.Redactor {
	var pairs []redact.Pair
	for i, b := range s.all {
		if group&(1<<i) == 0 {
			continue
		}
		for _, v := range append(slices.Clone(s.old[b.Name]), b.Value) {
			if v != "" {
				pairs = append(pairs, redact.Pair{Secret: string(v), Instead: b.Placeholder})
			}
		}
	}
	return redact.New(pairs...)
}

// RedactHeader takes secrets out of a message's head.
func RedactHeader(r *redact.Redactor, h http.Header) {
	if r == nil {
		return
	}
	for name, values := range h {
		for i, v := range values {
			values[i] = r.String(v)
		}
		if clean := r.String(name); clean != name {
			// A secret that became a header's name is of no use to anybody.
			delete(h, name)
		}
	}
}

// errAstray is the cause of an Alarm.
var errAstray = errors.New("a placeholder was sent to where it does not belong")

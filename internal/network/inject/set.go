package inject

import (
	"encoding/base64"
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
type Set struct {
	now       atomic.Pointer[secrets]
	replacing sync.Mutex
	// values takes every value out that the set has, or had: what was sent to one
	// host may come back from another. It is one for all, so that a response that
	// goes on for long loses values that came later, too.
	values redact.Redactor
}

// secrets is a state of a Set, which is never changed.
type secrets struct {
	all []*bound
	// past had values that were replaced, or went away with their secret. A
	// response may still hold one.
	past []*bound
	// longest is the length of the longest placeholder.
	longest int
}

// keepOld bounds the values that are remembered of each secret, keepAll those of
// all secrets.
const (
	keepOld = 32
	keepAll = 256
)

// Replace makes these the set's secrets. Values that the set had before are still
// taken out of responses.
func (s *Set) Replace(list []Secret) error {
	if len(list) > maxSecrets {
		return fmt.Errorf("there are %d secrets, more than %d", len(list), maxSecrets)
	}
	next := &secrets{}
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
	s.replacing.Lock()
	defer s.replacing.Unlock()
	if before := s.now.Load(); before != nil {
		next.past = remembered(append(slices.Clone(before.past), before.all...))
	}
	var pairs []redact.Pair
	for _, b := range append(slices.Clone(next.all), next.past...) {
		pairs = append(pairs, redact.Pair{Secret: string(b.Value), Instead: b.Placeholder})
	}
	s.values.Set(pairs...) // first, so that no value is sent that would not be taken out
	s.now.Store(next)
	return nil
}

// remembered are the newest that had a value, in their order.
func remembered(past []*bound) []*bound {
	had, of := map[string]bool{}, map[string]int{}
	var kept []*bound
	for _, b := range slices.Backward(past) {
		key := b.Name + " " + strings.Join(b.Hosts, " ") + " " + string(b.Value)
		if b.Value == "" || had[key] || of[b.Name] == keepOld || len(kept) == keepAll {
			continue
		}
		had[key] = true
		of[b.Name]++
		kept = append(kept, b)
	}
	slices.Reverse(kept)
	return kept
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
	if len(text) < len(placeholderPrefix) {
		return nil
	}
	// In base64, as in a credential of the scheme Basic, wherever it begins.
	if slices.ContainsFunc(prefixCores, func(core string) bool { return strings.Contains(text, core) }) {
		for _, b := range s.all {
			if slices.ContainsFunc(b.cores, func(core string) bool { return strings.Contains(text, core) }) {
				return b
			}
		}
	}
	if !containsFold(text, placeholderPrefix) {
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

var prefixCores = cores(placeholderPrefix)

// cores are a placeholder's, or its prefix's, in base64; they are the same in both
// alphabets.
func cores(text string) []string { return redact.Base64Cores(base64.RawStdEncoding, text) }

// containsFold is a strings.Contains for a text in lower case, without a copy.
func containsFold(text, lower string) bool {
	for i := 0; i+len(lower) <= len(text); i++ {
		if strings.EqualFold(text[i:i+len(lower)], lower) {
			return true
		}
	}
	return false
}

// Redactor takes values out of what a host answers. It is nil if no secret is or
// was bound to it, on any port: what was sent to one may come back on another.
func (s *Set) Redactor(host string) *redact.Redactor {
	now := s.now.Load()
	if now == nil {
		return nil
	}
	named := func(b *bound) bool { return b.hosts.Resolve(host).Allowed }
	if slices.ContainsFunc(now.all, named) || slices.ContainsFunc(now.past, named) {
		return &s.values
	}
	return nil
}

// RedactHeader takes secrets out of a message's head, or of its trailers.
func RedactHeader(r *redact.Redactor, h http.Header) {
	if r == nil {
		return
	}
	for name, values := range h {
		for i, v := range values {
			values[i] = r.String(v)
		}
		// The name is no longer as it was sent: letters are of one case. A secret
		// that became one is of no use to anybody.
		if lower := strings.ToLower(name); r.String(lower) != lower || r.String(name) != name {
			delete(h, name)
		}
	}
}

// errAstray is the cause of an Alarm.
var errAstray = errors.New("a placeholder was sent to where it does not belong")

package broker

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"ravi/internal/redact"
)

// How long a key rests.
const (
	restRefused = 10 * time.Minute // it was refused
	restUsedUp  = 30 * time.Second // it has used up what it may, and nobody said until when
	restMost    = 10 * time.Minute // however long somebody says
)

// ring are the keys of a provider, the first that does not rest first.
type ring struct {
	mu     sync.Mutex
	states []keyState
}

// keyState is what is known of a key. A key may be refused for one model and taken for another.
type keyState struct {
	refused rest            // whatever the model
	models  map[string]rest // by model
}

type rest struct {
	until  time.Time
	status int
	value  [sha256.Size]byte // of the key that was refused: another may have taken its place
	// said says that the provider gave the time; else the key is used when there is no other.
	said bool
}

const maxRests = 64 // models of a key; an agent can make up any number

// rests says how long a key rests for a model.
func (r *ring) rests(i int, model string, now time.Time) (rest, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.states[i]
	if s.refused.until.After(now) {
		return s.refused, true
	}
	at, ok := s.models[model]
	return at, ok && at.until.After(now)
}

// lay has a key rest.
func (r *ring) lay(i int, model string, at rest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.states[i]
	if at.status == http.StatusUnauthorized {
		s.refused = at
		return
	}
	if s.models == nil || len(s.models) >= maxRests {
		s.models = map[string]rest{}
	}
	s.models[model] = at
}

// wake ends the rests of a key that another value has taken the place of.
func (r *ring) wake(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.states[i] = keyState{}
}

func refusedStatus(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}

// retryAfter is what an answer says of when to come again.
func retryAfter(h http.Header, now time.Time) (time.Duration, bool) {
	text := h.Get("Retry-After")
	if n, err := strconv.ParseFloat(text, 64); err == nil && n >= 0 {
		return time.Duration(min(n, restMost.Seconds()) * float64(time.Second)), true
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(0, at.Sub(now)), restMost), true
	}
	return 0, false
}

// known are the values that were told to the redactor. To tell it one costs much more than to look here.
type known struct {
	mu  sync.Mutex
	all map[[sha256.Size]byte]bool
}

// shortest is the shortest value that is taken out of answers. What stands for a key where none is needed ("none",
// "ollama") is shorter, and would be taken out of what models say.
const shortest = 12

// value is a key's value, of which every trace in answers is taken out from now on.
func (b *Broker) value(ctx context.Context, k Key) (string, error) {
	v, err := k.Value(ctx)
	if err != nil {
		return "", err
	}
	v = strings.TrimSpace(v)
	if v == "" {
		return "", errors.New("it is empty")
	}
	for i := range len(v) {
		if v[i] <= ' ' || v[i] > '~' {
			return "", errors.New("it has characters that no key has")
		}
	}
	b.known.mu.Lock()
	defer b.known.mu.Unlock()
	if sum := sha256.Sum256([]byte(v)); len(v) >= shortest && !b.known.all[sum] {
		if b.known.all == nil {
			b.known.all = map[[sha256.Size]byte]bool{}
		}
		b.known.all[sum] = true
		b.redactor.Add(redact.Pair{Secret: v, Instead: "[key " + k.Name + "]", Name: k.Name})
	}
	return v, nil
}

// put puts a key into a request.
func (p *provider) put(h http.Header, value string) {
	switch {
	case p.Bearer || p.Dialect == OpenAI:
		h.Set("Authorization", "Bearer "+value)
	case p.Dialect == Gemini:
		h.Set("X-Goog-Api-Key", value)
	default:
		h.Set("X-Api-Key", value)
	}
}

// notTaken says for people that no key was taken. The agent's own key is the lease, with which nothing is wrong.
func (p *provider) notTaken(names []string, status int, detail string) *refusal {
	r := &refusal{status: http.StatusForbidden, message: fmt.Sprintf("the model provider %s did not take the key %s (it answered %d); "+
		"nothing is wrong with this run's lease: the operator of Ravi has to set another with: ravi secrets set %s",
		p.Name, strings.Join(names, ", "), status, names[0])}
	if detail != "" && status == http.StatusForbidden {
		r.message += "; the provider says: " + detail
	}
	return r
}

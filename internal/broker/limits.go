package broker

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"
)

// ledger counts what a lease used, and what is under way.
type ledger struct {
	limits Limits
	now    func() time.Time
	// above is the ledger of the lease that this one was carved out of: what is used counts there as well, and its limits
	// hold. nil: there is none.
	above *ledger

	mu       sync.Mutex
	used     Usage
	requests int64
	recent   []time.Time     // of the calls of the last minute, if that is bounded
	underWay Usage           // estimates
	asked    map[string]bool // models that were let through, with their providers
}

// mostModels is how many models a lease may ask for. What was used is kept by their names forever, and where a provider
// lists none the agent makes them up.
const mostModels = 32

// admit lets a call of a provider's model begin that is thought to need so much, or says which limit is in the way. What
// runs at once can thus overrun a limit by what the calls under way turn out to need, and no more.
func (l *ledger) admit(provider, model string, estimate Usage) *refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := provider + "/" + model
	if !l.asked[name] && len(l.asked) >= mostModels {
		return &refusal{status: http.StatusForbidden, message: fmt.Sprintf("this run has asked %d models already, and %s would be one more: "+
			"no others are let through in this run", mostModels, quoted(model))}
	}
	if refused := l.over(); refused != nil {
		return refused
	}
	if most := l.limits.Tokens; most > 0 && l.used.tokens()+l.underWay.tokens() >= most {
		return soon("%d tokens", most)
	}
	if most := l.limits.USD; most > 0 && float64(l.used.MicroUSD+l.underWay.MicroUSD) >= most*1e6 {
		return soon("%g US dollars", most)
	}
	if most := l.limits.PerMinute; most > 0 {
		now := l.now()
		past := 0
		for past < len(l.recent) && now.Sub(l.recent[past]) >= time.Minute {
			past++
		}
		l.recent = l.recent[:copy(l.recent, l.recent[past:])]
		if len(l.recent) >= most {
			return &refusal{status: http.StatusTooManyRequests, after: max(time.Second, time.Minute-now.Sub(l.recent[0])),
				message: fmt.Sprintf("the lease's limit of %d requests a minute is reached; wait a little", most)}
		}
	}
	if l.above != nil {
		if refused := l.above.admit(provider, model, estimate); refused != nil {
			return refused
		}
	}
	if l.limits.PerMinute > 0 {
		l.recent = append(l.recent, l.now())
	}
	l.requests++
	l.underWay.add(estimate)
	if l.asked == nil {
		l.asked = map[string]bool{}
	}
	l.asked[name] = true
	return nil
}

// over is the limit that is used up, if one is. The ledger is locked.
func (l *ledger) over() *refusal {
	if most := l.limits.Requests; most > 0 && l.requests >= most {
		return spent("%d requests", most)
	}
	if most := l.limits.Tokens; most > 0 && l.used.tokens() >= most {
		return spent("%d tokens (it used %d)", most, l.used.tokens())
	}
	if most := l.limits.USD; most > 0 && float64(l.used.MicroUSD) >= most*1e6 {
		return spent("%g US dollars (it used %.6g)", most, float64(l.used.MicroUSD)/1e6)
	}
	return nil
}

// spent says whether a limit is used up, here or above.
func (l *ledger) spent() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over() != nil || l.above != nil && l.above.spent()
}

// unpriced refuses a model without a price where money is bounded: it would cost nothing there.
func unpriced(provider, model string) *refusal {
	return &refusal{status: http.StatusBadRequest, message: fmt.Sprintf("what this run may cost is bounded, and the model %s has no price, so it is not asked; "+
		"the operator of Ravi can set one in models.providers.%s.prices in config.json", quoted(model), provider)}
}

// spent is a limit that no waiting helps against. Its status is one that agents do not try again at, nor ask for a login.
func spent(format string, args ...any) *refusal {
	return &refusal{status: http.StatusBadRequest, message: "the lease's limit of " + fmt.Sprintf(format, args...) +
		" is reached; no more calls are let through in this run"}
}

// soon is a limit that what is under way may reach, or not.
func soon(format string, args ...any) *refusal {
	return &refusal{status: http.StatusTooManyRequests, after: 5 * time.Second, message: "the lease's limit of " +
		fmt.Sprintf(format, args...) + " may be reached by the calls under way; wait for them"}
}

// settle puts what a call did use in the place of what it was thought to need.
func (l *ledger) settle(estimate, used Usage) {
	if l.above != nil {
		l.above.settle(estimate, used)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.underWay.subtract(estimate)
	l.used.add(used)
}

// undo is for a call that was not sent after all.
func (l *ledger) undo(estimate Usage) {
	if l.above != nil {
		l.above.undo(estimate)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.underWay.subtract(estimate)
	l.requests--
	if n := len(l.recent); n > 0 {
		l.recent = l.recent[:n-1]
	}
}

// share is one of n parts of what is left of the limits, of each at least something.
func (l *ledger) share(n int64) Limits {
	l.mu.Lock()
	defer l.mu.Unlock()
	part := func(most, used int64) int64 {
		if most == 0 {
			return 0
		}
		return max(1, (most-used)/n)
	}
	out := Limits{Requests: part(l.limits.Requests, l.requests), Tokens: part(l.limits.Tokens, l.used.tokens()+l.underWay.tokens()), PerMinute: l.limits.PerMinute}
	if l.limits.USD > 0 {
		out.USD = max(0.01, (l.limits.USD-float64(l.used.MicroUSD+l.underWay.MicroUSD)/1e6)/float64(n))
	}
	return out
}

func (l *ledger) total() Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used
}

func (u *Usage) tokens() int64 { return u.Input + u.Output + u.CacheRead + u.CacheWrite }

func (u *Usage) add(more Usage) {
	u.Input += more.Input
	u.Output += more.Output
	u.CacheRead += more.CacheRead
	u.CacheWrite += more.CacheWrite
	u.MicroUSD += more.MicroUSD
	u.Priced = u.Priced || more.Priced
}

func (u *Usage) subtract(less Usage) {
	u.Input -= less.Input
	u.Output -= less.Output
	u.CacheRead -= less.CacheRead
	u.CacheWrite -= less.CacheWrite
	u.MicroUSD -= less.MicroUSD
}

// price puts a price on what was used of a model: dollars a million tokens are millionths of a dollar a token.
func (u *Usage) price(prices map[string]Price, model string) {
	best := -1
	var p Price
	for pattern, price := range prices {
		if len(pattern) > best && matches(pattern, model) {
			best, p = len(pattern), price
		}
	}
	if u.Priced = best >= 0; !u.Priced {
		return
	}
	sum := float64(u.Input)*p.Input + float64(u.Output)*p.Output + float64(u.CacheRead)*p.CacheRead + float64(u.CacheWrite)*p.CacheWrite
	u.MicroUSD = int64(math.Ceil(sum - 1e-6)) // what is a whole number but for rounding stays one
}

// matches says whether a name is what a pattern says; a * stands for any characters, also none.
func matches(pattern, name string) bool {
	first, rest, starred := strings.Cut(pattern, "*")
	name, ok := strings.CutPrefix(name, first)
	if !ok || !starred {
		return ok && name == ""
	}
	parts := strings.Split(rest, "*")
	for _, part := range parts[:len(parts)-1] {
		_, after, found := strings.Cut(name, part)
		if !found {
			return false
		}
		name = after
	}
	return strings.HasSuffix(name, parts[len(parts)-1])
}

// allowed says whether a name is one of what patterns say; none allow all.
func allowed(patterns []string, name string) bool {
	for _, p := range patterns {
		if matches(p, name) {
			return true
		}
	}
	return len(patterns) == 0
}

package broker

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// within makes a broker whose lease is carved out of another one's, and one call of which uses 147 tokens.
func within(t *testing.T, above, below Limits) (outer, inner *world) {
	t.Helper()
	answer := func(out http.ResponseWriter, r *http.Request) { writeJSON(out, 200, anthropicAnswer) }
	outer = newWorld(t, answer, func(o *Options) { o.Lease.Limits = above })
	return outer, newWorld(t, answer, func(o *Options) { o.Lease.Limits, o.Within = below, outer.broker })
}

// What a lease within another one uses counts there, and the limits of both hold.
func TestWithin(t *testing.T) {
	ok := func(w *world) {
		t.Helper()
		if got := w.post("/anthropic/v1/messages", anthropicBody); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	refused := func(w *world, says string) {
		t.Helper()
		got := w.post("/anthropic/v1/messages", anthropicBody)
		if message := errorOf(t, got, Anthropic); got.status != 400 || !strings.Contains(message, says) {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	outer, inner := within(t, Limits{Tokens: 400}, Limits{})
	ok(inner)
	ok(inner)
	ok(outer)
	refused(inner, "limit of 400 tokens (it used 441)")
	refused(outer, "limit of 400 tokens (it used 441)")
	if u, i := outer.broker.Usage(), inner.broker.Usage(); u.tokens() != 441 || i.tokens() != 294 {
		t.Errorf("%d tokens are counted, %d of them within", u.tokens(), i.tokens())
	}
	if !inner.broker.Spent() || !outer.broker.Spent() {
		t.Error("nothing is spent")
	}

	outer, inner = within(t, Limits{Tokens: 10_000}, Limits{Requests: 1})
	ok(inner)
	refused(inner, "limit of 1 requests")
	ok(outer)
	if !inner.broker.Spent() || outer.broker.Spent() {
		t.Error("what is spent within is not so above")
	}
}

// A share is a part of what is left, and never nothing, which would be no bound.
func TestShare(t *testing.T) {
	l := &ledger{limits: Limits{Requests: 10, Tokens: 1000, USD: 1, PerMinute: 7}, now: time.Now}
	l.requests, l.used, l.underWay = 4, Usage{Input: 300, MicroUSD: 400_000}, Usage{Output: 100, MicroUSD: 100_000}
	if got, want := l.share(3), (Limits{Requests: 2, Tokens: 200, USD: 0.5 / 3, PerMinute: 7}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	l.used = Usage{Input: 5000, MicroUSD: 9_000_000}
	if got := l.share(3); got.Tokens < 1 || got.USD <= 0 || got.Requests < 1 {
		t.Errorf("of what is spent: %+v", got)
	}
	if got := (&ledger{}).share(3); got != (Limits{}) {
		t.Errorf("of no bound: %+v", got)
	}
}

// Whatever is admitted, settled and undone: above is counted what all within and it itself use, and nothing that was
// refused.
func TestWithinCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bound := func(name string) int64 { return rapid.Int64Range(0, 60).Draw(t, name) }
		above := &ledger{limits: Limits{Tokens: bound("tokens"), Requests: bound("requests"), PerMinute: rapid.IntRange(0, 9).Draw(t, "minute")}, now: time.Now}
		all := []*ledger{above}
		for range rapid.IntRange(1, 3).Draw(t, "within") {
			all = append(all, &ledger{limits: Limits{Tokens: bound("tokens"), Requests: bound("requests")}, now: time.Now, above: above})
		}
		type under struct {
			l        *ledger
			estimate Usage
		}
		var open []under
		var used, requests [4]int64
		at := func(l *ledger) int {
			for i := range all {
				if all[i] == l {
					return i
				}
			}
			return -1
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if len(open) > 0 && rapid.Bool().Draw(t, "end") {
				c := open[0]
				open = open[1:]
				if rapid.Bool().Draw(t, "undo") {
					c.l.undo(c.estimate)
					requests[at(c.l)]--
					continue
				}
				u := Usage{Output: rapid.Int64Range(0, 9).Draw(t, "used")}
				c.l.settle(c.estimate, u)
				used[at(c.l)] += u.tokens()
				continue
			}
			l := rapid.SampledFrom(all).Draw(t, "whose")
			e := Usage{Input: rapid.Int64Range(0, 9).Draw(t, "estimate")}
			if l.admit("p", "m", e) == nil {
				open = append(open, under{l, e})
				requests[at(l)]++
			}
		}
		var sumUsed, sumRequests, sumUnder int64
		for i, l := range all {
			sumUsed, sumRequests = sumUsed+used[i], sumRequests+requests[i]
			if i > 0 && (l.used.tokens() != used[i] || l.requests != requests[i]) {
				t.Fatalf("within, %d tokens and %d requests are counted, and there were %d and %d", l.used.tokens(), l.requests, used[i], requests[i])
			}
		}
		for _, c := range open {
			sumUnder += c.estimate.tokens()
		}
		if above.used.tokens() != sumUsed || above.requests != sumRequests || above.underWay.tokens() != sumUnder {
			t.Fatalf("above, %d tokens, %d requests and %d under way are counted, and there were %d, %d and %d",
				above.used.tokens(), above.requests, above.underWay.tokens(), sumUsed, sumRequests, sumUnder)
		}
	})
}

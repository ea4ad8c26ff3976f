package guard

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestLimiter(t *testing.T) {
	now := time.Unix(1000, 0)
	l := NewLimiter(2, 3, 10, func() time.Time { return now })
	take := func(key string, want bool, wantAfter time.Duration) {
		t.Helper()
		if ok, after := l.Allow(key); ok != want || after != wantAfter {
			t.Errorf("got %v, %v, want %v, %v", ok, after, want, wantAfter)
		}
	}
	for range 3 {
		take("a", true, 0)
	}
	take("a", false, 500*time.Millisecond)
	take("b", true, 0)
	now = now.Add(250 * time.Millisecond)
	take("a", false, 250*time.Millisecond)
	now = now.Add(250 * time.Millisecond)
	take("a", true, 0)
	now = now.Add(-time.Hour) // a clock that jumps back gives nothing
	take("a", false, 500*time.Millisecond)
	now = now.Add(500 * time.Millisecond)
	take("a", true, 0)
	now = now.Add(1000 * time.Hour) // nor more than the burst when it jumps ahead
	for range 3 {
		take("a", true, 0)
	}
	take("a", false, 500*time.Millisecond)
}

// Whoever makes up keys neither fills the memory nor gets his own measure anew.
func TestLimiterWithManyKeys(t *testing.T) {
	now := time.Unix(1000, 0)
	l := NewLimiter(1, 2, 100, func() time.Time { return now })
	for range 3 {
		l.Allow("victim")
	}
	allowed := 0
	for i := range 10_000 {
		if ok, _ := l.Allow(fmt.Sprint("made up ", i)); ok {
			allowed++
		}
	}
	if len(l.keys) != 100 || l.recent.Len() != 100 {
		t.Errorf("%d keys, %d in order", len(l.keys), l.recent.Len())
	}
	if allowed != 99+2 { // those for whom there was room, and one measure for all others
		t.Errorf("%d allowed", allowed)
	}
	if ok, _ := l.Allow("victim"); ok {
		t.Error("its measure was forgotten")
	}
	now = now.Add(2 * time.Second) // all have been quiet long enough
	for i := range 100 {
		if ok, _ := l.Allow(fmt.Sprint("new ", i)); !ok {
			t.Fatalf("new key %d is not allowed", i)
		}
	}
	if len(l.keys) != 100 || l.recent.Len() != 100 {
		t.Errorf("%d keys, %d in order", len(l.keys), l.recent.Len())
	}
}

// In any time no key gets more than the burst and what the time gives: from its own measure, and once more from that of
// those for whom there was no room.
func TestLimiterNeverGivesMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := time.Unix(1000, 0)
		now := start
		rate := rapid.Float64Range(0.1, 100).Draw(t, "rate")
		burst := rapid.IntRange(1, 20).Draw(t, "burst")
		l := NewLimiter(rate, burst, rapid.IntRange(1, 4).Draw(t, "keys"), func() time.Time { return now })
		got := map[string]float64{}
		for range rapid.IntRange(1, 200).Draw(t, "calls") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "passed")))
			key := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(t, "key")
			ok, after := l.Allow(key)
			if ok {
				got[key]++
			} else if after <= 0 {
				t.Fatalf("not allowed, and no time to wait: %v", after)
			}
			if most := float64(burst) + now.Sub(start).Seconds()*rate + 1e-6; got[key] > 2*most {
				t.Fatalf("%s got %v, at most %v", key, got[key], most)
			}
		}
	})
}

package audit

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Of any denials, those with rows of their own and those that were counted are all, whatever fails between; and what is
// kept is bounded.
func TestNoDenialIsForgotten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFlood()
		var total, own, written int64
		callers := rapid.SampledFrom([]int{1, 3, mostCallers + 50}).Draw(t, "callers")
		reasons := rapid.SampledFrom([]int{1, 3, mostApart + 50}).Draw(t, "reasons")
		for minute := range rapid.IntRange(1, 5).Draw(t, "minutes") {
			for i := range rapid.IntRange(0, 3000).Draw(t, "denials") {
				n := int64(1 + i%3)
				total += n
				if f.take(Record{Time: time.UnixMilli(int64(i)), Caller: fmt.Sprint("c", i%callers), Action: "a", Reason: fmt.Sprint(i % reasons * (minute + 1)), Count: n}) {
					own += n
				}
			}
			// Before those that have rows are forgotten.
			if len(f.kinds) > mostCallers*(mostApart+1)+1 || len(f.apart) > mostCallers {
				t.Fatalf("%d kinds of %d callers are kept", len(f.kinds), len(f.apart))
			}
			for caller, n := range f.apart {
				if n > mostApart {
					t.Fatalf("%d kinds of %s", n, caller)
				}
			}
			due := f.due()
			// More comes while it is written.
			total++
			if f.take(Record{Caller: "c0", Action: "a", Reason: "0", Count: 1}) {
				own++
			}
			if rapid.Bool().Draw(t, "can be written") {
				for _, d := range due {
					written += d.record.Count
				}
				f.written(due)
			}
		}
		last := f.due()
		for _, d := range last {
			written += d.record.Count
		}
		f.written(last)
		if own+written != total {
			t.Fatalf("%d with rows of their own and %d counted are not %d", own, written, total)
		}
		if f.due(); len(f.kinds) != 0 || len(f.apart) != 0 {
			t.Fatalf("%d kinds of %d callers stay", len(f.kinds), len(f.apart))
		}
	})
}

// The next minute begins anew.
func TestFloodBeginsAnew(t *testing.T) {
	f := newFlood()
	for range 3 {
		for i := range mostAlike + 2 {
			if own := f.take(Record{Caller: "c", Action: "a"}); own != (i < mostAlike) {
				t.Errorf("denial %d: %v", i, own)
			}
		}
		due := f.due()
		if len(due) != 1 || due[0].record.Count != 2 {
			t.Errorf("%+v", due)
		}
		f.written(due)
		if f.take(Record{Caller: "d", Action: "a"}); len(f.due()) != 0 {
			t.Error("one that has its row is counted")
		}
	}
}

package audit

import (
	"fmt"
	"maps"
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
		actions := rapid.IntRange(1, 3).Draw(t, "actions")
		reasons := rapid.SampledFrom([]int{1, 3, mostApart + 50}).Draw(t, "reasons")
		for minute := range rapid.IntRange(1, 5).Draw(t, "minutes") {
			for i := range rapid.IntRange(0, 3000).Draw(t, "denials") {
				n := int64(1 + i%3)
				total += n
				if f.take(Record{Time: time.UnixMilli(int64(i)), Caller: fmt.Sprint("c", i%callers), Action: fmt.Sprint("a", i%actions), Reason: fmt.Sprint(i % reasons * (minute + 1)), Count: n}) {
					own += n
				}
			}
			// Before those that have rows are forgotten.
			if len(f.kinds) > mostCallers*(mostApart+actions)+actions || len(f.apart) > mostCallers {
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

// Whoever makes up reasons, or callers, hides no denial of another action: who did it, what it was and how often stays.
func TestFloodHidesNothing(t *testing.T) {
	f := newFlood()
	for i := range mostApart * 3 {
		f.take(Record{Caller: "c", Action: "command.runs.show", Object: fmt.Sprint("run", i), Reason: fmt.Sprint("made up ", i), Count: 1})
	}
	for i := range mostCallers * 2 {
		f.take(Record{Caller: fmt.Sprint("child ", i), Action: "command.runs.show", Reason: "r", Count: 1})
	}
	for range 2 {
		if f.take(Record{Caller: "c", Action: "command.secrets.rm", Object: "TOKEN", Reason: "not yours", Count: 1}) {
			t.Error("it has a row of its own: the flood is none")
		}
	}
	f.take(Record{Caller: "late", Action: "command.secrets.rm", Object: "TOKEN", Reason: "not yours", Count: 1})
	counts := map[string]int64{}
	for _, d := range f.due() {
		r := d.record
		if r.Reason != "more kinds of denials than are told apart" || r.Rule != "" || r.Decision != "denied" {
			t.Errorf("%+v", r)
		}
		counts[r.Caller+" "+r.Action+" "+r.Object] = r.Count
	}
	want := map[string]int64{
		"c command.runs.show run32 and others": mostApart * 2, "c command.secrets.rm TOKEN": 2,
		" command.runs.show ": mostCallers + 1, " command.secrets.rm TOKEN": 1,
	}
	if !maps.Equal(counts, want) {
		t.Errorf("the rows are %v, want %v", counts, want)
	}
}

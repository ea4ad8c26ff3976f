package audit

import (
	"encoding/json"
	"strings"
	"sync"
	"time"

	"ravi/internal/store"
)

const (
	// mostAlike is how many equal denials get rows of their own, in a minute.
	mostAlike = 10
	// mostApart is how many kinds of denials are told apart, for each caller in a minute; the rest share a row for each
	// action. Who is denied chooses what the reasons say, and rows are forever; the actions are Ravi's own words, so that
	// no flood of one hides another.
	mostApart = 32
	// mostCallers is how many callers are told apart; what others do shares a row for each action.
	mostCallers = 256
	// mostText bounds what a caller can have a row say, in bytes.
	mostText = 500
)

// flood counts denials. What it keeps is bounded, whatever callers do.
type flood struct {
	mu    sync.Mutex
	kinds map[kind]*denials
	apart map[string]int // kinds of a caller
}

// kind is what makes denials equal. Their objects do not: callers choose these.
type kind struct {
	caller, action, reason string
	several                bool // with any reason: none gets a row of its own
}

type denials struct {
	seen   int   // since they were last written
	count  int64 // of these, without a row
	first  Record
	mixed  bool // they are about several objects
	newest time.Time
}

func newFlood() *flood { return &flood{kinds: map[kind]*denials{}, apart: map[string]int{}} }

// take says whether a denial gets a row of its own; else it counts it.
func (f *flood) take(r Record) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := kind{caller: cut(r.Caller), action: cut(r.Action), reason: cut(r.Reason)}
	d := f.kinds[k]
	if d == nil {
		if n, known := f.apart[k.caller]; !known && len(f.apart) >= mostCallers {
			k = kind{action: k.action, several: true}
		} else if n >= mostApart {
			k = kind{caller: k.caller, action: k.action, several: true}
		}
		if d = f.kinds[k]; d == nil {
			d = &denials{}
			f.kinds[k] = d
			if !k.several {
				f.apart[k.caller]++
			}
		}
	}
	d.seen++
	if !k.several && d.seen <= mostAlike {
		return true
	}
	n := max(1, r.Count)
	if d.count == 0 {
		// Without the detail, which may be large.
		d.first = Record{Time: r.Time, Caller: k.caller, Action: k.action, Object: cut(r.Object), Decision: store.Denied,
			RunID: cut(r.RunID), SandboxID: cut(r.SandboxID), Rule: cut(r.Rule), Reason: k.reason}
		d.mixed = false
		if k.several {
			d.first.Reason, d.first.Rule = "more kinds of denials than are told apart", ""
		}
	}
	d.mixed = d.mixed || cut(r.Object) != d.first.Object
	d.newest = r.Time
	d.count += n
	return false
}

// counted is what a row is due for.
type counted struct {
	kind   kind
	record Record
}

// due gives the rows of all that was counted, and begins anew with what was not.
func (f *flood) due() []counted {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []counted
	for k, d := range f.kinds {
		if d.count == 0 {
			f.forget(k)
			continue
		}
		r := d.first
		r.Count = d.count
		if d.mixed {
			r.Object = strings.TrimSpace(r.Object + " and others")
		}
		// A time can always be written.
		r.Detail, _ = json.Marshal(map[string]any{"counted": true, "until": d.newest})
		out = append(out, counted{k, r})
	}
	return out
}

// written forgets what has rows now.
func (f *flood) written(rows []counted) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range rows {
		d := f.kinds[c.kind]
		if d == nil {
			continue
		}
		if d.count -= c.record.Count; d.count == 0 {
			f.forget(c.kind)
			continue
		}
		// More came meanwhile.
		d.first.Time = d.newest
	}
}

func (f *flood) forget(k kind) {
	delete(f.kinds, k)
	if k.several {
		return
	}
	if f.apart[k.caller]--; f.apart[k.caller] <= 0 {
		delete(f.apart, k.caller)
	}
}

// cut bounds a text.
func cut(s string) string {
	if len(s) <= mostText {
		return s
	}
	return strings.ToValidUTF8(s[:mostText], "") + "…"
}

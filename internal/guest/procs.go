package guest

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sort"
	"sync"
	"time"

	"ravi/internal/guestapi/process"
)

// procTable holds the started processes. One that has ended stays for a while,
// so that who comes late still learns how it ended and what it wrote.
type procTable struct {
	retain       time.Duration // after somebody was told of the end
	retainUnseen time.Duration // while nobody was

	mu     sync.Mutex
	live   map[int]*proc
	past   []*proc // oldest first
	timers map[*proc]*time.Timer
	closed bool
}

// maxPast bounds what ended processes hold; the oldest goes first.
const maxPast = 256

func (t *procTable) add(p *proc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live == nil {
		t.live = make(map[int]*proc)
	}
	t.live[p.pid] = p
}

func (t *procTable) ended(p *proc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live[p.pid] == p {
		delete(t.live, p.pid)
	}
	if t.closed {
		p.out.discard()
		return
	}
	t.past = append(t.past, p)
	if t.timers == nil {
		t.timers = make(map[*proc]*time.Timer)
	}
	t.timers[p] = time.AfterFunc(t.retain, func() { t.expire(p) })
	if len(t.past) > maxPast {
		t.forget(t.past[0])
	}
}

// expire forgets p, or gives it more time when nobody has heard of its end.
func (t *procTable) expire(p *proc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	timer, ok := t.timers[p]
	if !ok {
		return
	}
	if more := t.retainUnseen - t.retain; more > 0 && !p.out.wasSeen() {
		t.timers[p] = time.AfterFunc(more, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.forget(p)
		})
		return
	}
	timer.Stop()
	t.forget(p)
}

func (t *procTable) forget(p *proc) {
	if timer, ok := t.timers[p]; ok {
		timer.Stop()
		delete(t.timers, p)
	}
	for i, q := range t.past {
		if q == p {
			t.past = append(t.past[:i:i], t.past[i+1:]...)
			break
		}
	}
	p.out.discard()
}

// find returns a process by pid or tag: a running one, or with ended one that
// is remembered. Of several the last counts.
func (t *procTable) find(sel *process.ProcessSelector, ended bool) (*proc, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	pid, tag := int(sel.GetPid()), sel.GetTag()
	var match func(*proc) bool
	var what string
	switch sel.GetSelector().(type) {
	case *process.ProcessSelector_Pid:
		match, what = func(p *proc) bool { return p.pid == pid }, fmt.Sprintf("process with pid %d", pid)
	case *process.ProcessSelector_Tag:
		match, what = func(p *proc) bool { return p.tag != "" && p.tag == tag }, fmt.Sprintf("process with tag '%s'", tag)
	default:
		return nil, fmt.Errorf("%w: no process is selected", errBadArgument)
	}
	var found *proc
	for _, p := range t.live {
		if match(p) && (found == nil || p.pid > found.pid) {
			found = p
		}
	}
	for i := len(t.past) - 1; i >= 0 && found == nil && ended; i-- {
		if match(t.past[i]) {
			found = t.past[i]
		}
	}
	if found == nil {
		return nil, fmt.Errorf("%w: %s not found", errNoProcess, what)
	}
	return found, nil
}

// byMark returns the running process with the given mark, or nil.
func (t *procTable) byMark(id string) *proc {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.live {
		if p.id == id {
			return p
		}
	}
	return nil
}

// running lists the processes that run, by pid.
func (t *procTable) running() []*proc {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*proc, 0, len(t.live))
	for _, p := range t.live {
		select {
		case <-p.exited:
			// Over, but its output is not yet all read.
		default:
			out = append(out, p)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].pid < out[j].pid })
	return out
}

// close forgets all that ended and lets the rest go on without a reader.
func (t *procTable) close() []*proc {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for len(t.past) > 0 {
		t.forget(t.past[0])
	}
	out := make([]*proc, 0, len(t.live))
	for _, p := range t.live {
		out = append(out, p)
		p.out.discard()
	}
	return out
}

func randomID() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return hex.EncodeToString(b[:])
}

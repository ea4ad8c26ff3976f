package run

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"ravi/internal/audit"
	"ravi/internal/network"
	"ravi/internal/store"
	"ravi/sandbox"
)

const (
	// auditEvery is how soon a decision is in the audit.
	auditEvery = 2 * time.Second
	// auditBound is how long the last ones may take at a run's end.
	auditBound = 30 * time.Second
	// mostDistinct bounds, for each action and outcome, the decisions that are
	// told apart; the rest share a row.
	mostDistinct = 1000
	// mostText bounds what a guest can have a row say, in bytes.
	mostText = 512
)

// reasonAudit is a run's reason when its audit could not be written.
const reasonAudit = "audit"

var errUnaudited = errors.New("what the network decided could not be written to the audit")

// netAudit brings the decisions of a run's network into the audit. Equal ones
// are counted, and the more often they come, the rarer they are written: a guest
// can make any number, and rows are forever.
type netAudit struct {
	log  audit.Log
	run  string
	stop chan struct{}
	done chan struct{}

	mu      sync.Mutex
	sandbox string
	entries map[decision]*entry
	kinds   map[decision]int // distinct ones, by action and outcome
}

// decision is what makes decisions equal.
type decision struct {
	action, object string
	outcome        store.Decision
	rule, reason   string
	secrets        string
}

// entry counts equal decisions.
type entry struct {
	count  int64     // since they were last written
	first  time.Time // of these
	detail json.RawMessage
	due    time.Time
	wait   time.Duration
}

func newNetAudit(log audit.Log, run string) *netAudit {
	return &netAudit{
		log: log, run: run, stop: make(chan struct{}), done: make(chan struct{}),
		entries: map[decision]*entry{}, kinds: map[decision]int{},
	}
}

// start writes every so often what is due, until close. fail hears of what could
// not be written; it is tried again.
func (a *netAudit) start(ctx context.Context, fail func(error)) {
	go func() {
		defer close(a.done)
		tick := time.NewTicker(auditEvery)
		defer tick.Stop()
		for {
			select {
			case <-a.stop:
				return
			case now := <-tick.C:
				if err := a.write(ctx, now, false); err != nil {
					fail(err)
				}
			}
		}
	}()
}

// close writes all that is not written yet. Its error means that decisions have
// no record.
func (a *netAudit) close(ctx context.Context) error {
	close(a.stop)
	<-a.done
	ctx, cancel := context.WithTimeout(ctx, auditBound)
	defer cancel()
	err := a.write(ctx, time.Now(), true)
	if err == nil {
		return nil
	}
	return &failure{reasonAudit, WithHint(fmt.Errorf("%w: %w", errUnaudited, err),
		"see that Ravi's home has room and can be written to, and that no other program holds "+store.File+"; what was decided is in "+EventsFile)}
}

// of names the sandbox that the decisions are about.
func (a *netAudit) of(sandbox string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sandbox = sandbox
}

// add takes one decision. It is quick, whatever the database does.
func (a *netAudit) add(e sandbox.NetEvent) {
	d := decisionOf(e)
	n := int64(max(1, e.Lost))
	a.mu.Lock()
	defer a.mu.Unlock()
	at := a.entries[d]
	if kind := (decision{action: d.action, outcome: d.outcome}); at == nil && a.kinds[kind] == mostDistinct {
		d = kind
		d.object = "and others"
		at = a.entries[d]
	} else if at == nil {
		a.kinds[kind]++
	}
	if at == nil {
		at = &entry{wait: auditEvery, detail: detailOf(e)}
		a.entries[d] = at
	}
	if at.count == 0 {
		at.first = e.Time
	}
	at.count += n
}

// write adds what is due to the audit, or everything.
func (a *netAudit) write(ctx context.Context, now time.Time, all bool) error {
	type taken struct {
		*entry
		record audit.Record
	}
	var batch []taken
	a.mu.Lock()
	for d, at := range a.entries {
		if at.count == 0 || !all && now.Before(at.due) {
			continue
		}
		batch = append(batch, taken{at, audit.Record{
			Time: at.first, Action: d.action, Object: d.object, Decision: d.outcome, RunID: a.run, SandboxID: a.sandbox,
			Rule: d.rule, Reason: d.reason, Detail: at.detail, Count: at.count,
		}})
		at.count = 0
	}
	a.mu.Unlock()
	slices.SortFunc(batch, func(x, y taken) int {
		return cmp.Or(x.record.Time.Compare(y.record.Time), cmp.Compare(x.record.Action, y.record.Action), cmp.Compare(x.record.Object, y.record.Object))
	})
	records := make([]audit.Record, len(batch))
	for i, t := range batch {
		records[i] = t.record
	}
	err := a.log.Append(ctx, records...)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range batch {
		if err != nil {
			t.count, t.first = t.count+t.record.Count, t.record.Time
			continue
		}
		t.due = now.Add(t.wait)
		t.wait *= 2
	}
	return err
}

func decisionOf(e sandbox.NetEvent) decision {
	d := decision{object: target(e), outcome: store.Denied, rule: e.Rule, reason: cut(e.Why, mostText), secrets: strings.Join(e.Secrets, ",")}
	if e.Allowed {
		d.outcome = store.Allowed
	}
	switch {
	case e.Kind == network.KindLost:
		d.action, d.outcome = audit.NetworkLost, store.Unknown
	case e.Alarm:
		d.action = audit.SecretAlarm
	case len(e.Secrets) > 0:
		d.action = audit.SecretUse
	case e.Kind == network.KindName:
		d.action = audit.NetworkName
	case e.Method != "":
		d.action = audit.NetworkRequest
	default:
		d.action = audit.NetworkConnect
	}
	return d
}

// target is what was asked for or connected to.
func target(e sandbox.NetEvent) string {
	host := e.Name
	if host == "" && e.Addr.IsValid() {
		host = e.Addr.String()
	}
	if e.Port == 0 {
		return cut(host, mostText)
	}
	return net.JoinHostPort(cut(host, mostText), strconv.Itoa(int(e.Port)))
}

// detailOf is what the first of equal decisions was about besides.
func detailOf(e sandbox.NetEvent) json.RawMessage {
	detail := struct {
		Secrets []string `json:"secrets,omitempty"`
		Proto   string   `json:"proto,omitempty"`
		Method  string   `json:"first_method,omitempty"`
		Path    string   `json:"first_path,omitempty"`
	}{e.Secrets, e.Proto, cut(e.Method, mostText), cut(e.Path, mostText)}
	b, err := json.Marshal(detail)
	if err != nil || string(b) == "{}" {
		return nil // strings can always be written
	}
	return b
}

// cut bounds a text, in bytes.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// recorder tells the audit which sandbox it is about, before the sandbox can
// have decided anything.
type recorder struct {
	Recorder
	audit   *netAudit
	opening *sync.Mutex
	room    func(context.Context) error // nil: there is
}

// Creating implements sandbox.Recorder.
func (r recorder) Creating(ctx context.Context, i sandbox.Info) error {
	r.audit.of(i.ID)
	r.opening.Lock() // so that of some that begin at once there is room for the first ones
	defer r.opening.Unlock()
	if err := r.Recorder.Creating(ctx, i); err != nil || r.room == nil {
		return err
	}
	err := r.room(ctx)
	if err != nil {
		_, uerr := r.Store.UpdateSandboxState(context.WithoutCancel(ctx), i.ID, store.SeenFailed, "refused")
		err = errors.Join(err, uerr)
	}
	return err
}

package run

import (
	"context"
	"database/sql"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	_ "modernc.org/sqlite" // to break the table

	"ravi/internal/audit"
	"ravi/internal/network"
	"ravi/internal/store"
	"ravi/sandbox"
)

func newAudit(t *testing.T) (*netAudit, string) {
	t.Helper()
	home := t.TempDir()
	a := newNetAudit(audit.Log{Store: newStore(t, home)}, "run1")
	a.of("sbx1")
	return a, home
}

func rows(t *testing.T, a *netAudit) []audit.Record {
	t.Helper()
	list, err := a.log.List(t.Context(), audit.Filter{RunID: "run1", Limit: 1 << 20})
	must(t, err)
	_, err = a.log.Verify(t.Context(), nil)
	must(t, err)
	return list
}

var start = time.Date(2031, 1, 2, 3, 4, 5, 0, time.UTC)

func refused(name string) sandbox.NetEvent {
	return sandbox.NetEvent{Time: start, Kind: network.KindName, Name: name, Why: "no rule names it"}
}

func TestNetAuditSaysWhat(t *testing.T) {
	a, _ := newAudit(t)
	flow := sandbox.NetEvent{Time: start, Kind: network.KindFlow, Name: "example.org", Port: 443, Proto: "h2", Method: "GET", Path: "/x", Allowed: true, Rule: "example.org"}
	use, alarm, connect := flow, flow, flow
	use.Secrets = []string{"A", "B"}
	alarm.Alarm, alarm.Allowed, alarm.Rule, alarm.Why = true, false, "", "the placeholder of A"
	connect.Method, connect.Path, connect.Name, connect.Addr, connect.Allowed = "", "", "", netip.MustParseAddr("2001:db8::1"), false
	lost := sandbox.NetEvent{Time: start, Kind: network.KindLost, Lost: 7, Why: "too many"}
	for i, e := range []sandbox.NetEvent{refused("nobody.example"), flow, use, alarm, connect, lost} {
		e.Time = start.Add(time.Duration(i) * time.Second)
		a.add(e)
	}
	must(t, a.write(t.Context(), start, false))
	var got []string
	for _, r := range rows(t, a) {
		if r.RunID != "run1" || r.SandboxID != "sbx1" {
			t.Errorf("whose: %+v", r)
		}
		got = append(got, fmt.Sprintf("%s %s %s %s rule=%s why=%s %s %d", r.Time.Format("05"), r.Action, r.Object, r.Decision, r.Rule, r.Reason, r.Detail, r.Count))
	}
	want := []string{
		`05 network.name nobody.example denied rule= why=no rule names it  1`,
		`06 network.request example.org:443 allowed rule=example.org why= {"proto":"h2","first_method":"GET","first_path":"/x"} 1`,
		`07 secret.use example.org:443 allowed rule=example.org why= {"secrets":["A","B"],"proto":"h2","first_method":"GET","first_path":"/x"} 1`,
		`08 secret.alarm example.org:443 denied rule= why=the placeholder of A {"proto":"h2","first_method":"GET","first_path":"/x"} 1`,
		`09 network.connect [2001:db8::1]:443 denied rule=example.org why= {"proto":"h2"} 1`,
		`10 network.lost  unknown rule= why=too many  7`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Equal decisions are one row with a count, and the longer they go on the rarer the rows are. None is lost or told twice.
func TestNetAuditCounts(t *testing.T) {
	a, _ := newAudit(t)
	now := start
	const seconds = 3600
	for range seconds {
		a.add(refused("again.example"))
		now = now.Add(time.Second)
		must(t, a.write(t.Context(), now, false))
	}
	a.add(refused("again.example"))
	list := rows(t, a)
	if len(list) < 5 || len(list) > 15 || list[0].Count != 1 {
		t.Errorf("%d rows in an hour, the first %+v", len(list), list[0])
	}
	must(t, a.write(t.Context(), now, true))
	must(t, a.write(t.Context(), now, true))
	var sum int64
	for _, r := range rows(t, a) {
		sum += r.Count
	}
	if sum != seconds+1 {
		t.Errorf("%d decisions are recorded, of %d", sum, seconds+1)
	}
	// What differs in anything is another decision.
	a, _ = newAudit(t)
	base := sandbox.NetEvent{Kind: network.KindFlow, Name: "a.example", Port: 1}
	for _, change := range []func(*sandbox.NetEvent){
		func(*sandbox.NetEvent) {}, func(e *sandbox.NetEvent) { e.Port = 2 }, func(e *sandbox.NetEvent) { e.Rule = "r" }, func(e *sandbox.NetEvent) { e.Why = "w" },
		func(e *sandbox.NetEvent) { e.Allowed = true }, func(e *sandbox.NetEvent) { e.Secrets = []string{"A"} }, func(e *sandbox.NetEvent) { e.Secrets = []string{"B"} },
	} {
		e := base
		change(&e)
		a.add(e)
	}
	must(t, a.write(t.Context(), now, true))
	if n := len(rows(t, a)); n != 7 {
		t.Errorf("%d rows for 7 decisions", n)
	}
}

// A guest that asks for a hundred thousand names fills neither the memory nor the table, and hides nothing else.
func TestNetAuditFlood(t *testing.T) {
	a, _ := newAudit(t)
	const flood = 100_000
	for i := range flood {
		a.add(refused(fmt.Sprintf("n%d.example", i)))
		if i == flood/2 {
			must(t, a.write(t.Context(), start, false))
		}
	}
	a.add(sandbox.NetEvent{Time: start, Kind: network.KindFlow, Name: "late.example", Port: 443, Allowed: true})
	must(t, a.write(t.Context(), start, true))
	list := rows(t, a)
	if len(list) > mostDistinct+3 || len(a.entries) > mostDistinct+2 {
		t.Errorf("%d rows, %d entries", len(list), len(a.entries))
	}
	var sum, others int64
	late := false
	for _, r := range list {
		if r.Action == audit.NetworkName {
			sum += r.Count
		}
		if r.Object == "and others" {
			others += r.Count
		}
		late = late || r.Object == "late.example:443"
	}
	if sum != flood || others != flood-mostDistinct || !late {
		t.Errorf("%d decisions are recorded, %d as others; a late one: %v", sum, others, late)
	}
	a.add(refused(strings.Repeat("ü", 10_000)))
	long := decisionOf(sandbox.NetEvent{Name: strings.Repeat("ü", 10_000), Why: strings.Repeat("x", 10_000)})
	if len(long.object) > mostText+3 || len(long.reason) > mostText+3 {
		t.Errorf("a row of %d and %d bytes", len(long.object), len(long.reason))
	}
}

// What cannot be written is written later; what cannot be written in the end is an error of the run.
func TestNetAuditFails(t *testing.T) {
	a, home := newAudit(t)
	db, err := sql.Open("sqlite", filepath.Join(home, store.File))
	must(t, err)
	defer db.Close()
	block := func() {
		t.Helper()
		_, err := db.Exec(`CREATE TRIGGER full BEFORE INSERT ON audit BEGIN SELECT raise(ABORT, 'no room'); END`)
		must(t, err)
	}
	a.add(refused("a.example"))
	block()
	if err := a.write(t.Context(), start, false); err == nil || !strings.Contains(err.Error(), "no room") {
		t.Fatalf("got %v", err)
	}
	a.add(refused("a.example"))
	_, err = db.Exec(`DROP TRIGGER full`)
	must(t, err)
	must(t, a.write(t.Context(), start, false))
	if list := rows(t, a); len(list) != 1 || list[0].Count != 2 || !list[0].Time.Equal(start) {
		t.Errorf("later: %+v", list)
	}
	block()
	a.add(refused("b.example"))
	a.start(t.Context(), func(error) {})
	err = a.close(t.Context())
	for _, ctx := range []context.Context{t.Context(), canceled(t)} {
		s := &state{Options: Options{Store: newStore(t, t.TempDir())}, task: &Task{Status: store.RunSucceeded}}
		s.outcome(ctx, err)
		if s.task.Status != store.RunError || s.task.Reason != "audit" || s.task.Exit != exitRavi || s.task.Hint == "" ||
			!strings.Contains(s.task.Error, "what the network decided could not be written to the audit: ") || !strings.Contains(s.task.Error, "no room") {
			t.Errorf("%v: %+v", ctx.Err(), s.task)
		}
	}
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// A run whose network decided something has it in the audit when it ends, whatever becomes of it.
func TestNetAuditCloses(t *testing.T) {
	a, _ := newAudit(t)
	a.start(canceled(t), func(err error) { t.Error(err) })
	for range 100 {
		a.add(refused("a.example"))
	}
	must(t, a.close(t.Context()))
	if list := rows(t, a); len(list) != 1 || list[0].Count != 100 {
		t.Errorf("got %+v", list)
	}
}

// recorder knows the sandbox before the network can decide anything.
func TestRecorderNamesSandbox(t *testing.T) {
	a, home := newAudit(t)
	r := recorder{Recorder{Store: newStore(t, home), Redact: redactor()}, a, &sync.Mutex{}, nil}
	must(t, r.Creating(t.Context(), sandbox.Info{ID: "sbxnew", Backend: "gvisor", Image: value}))
	a.add(refused("a.example"))
	must(t, a.write(t.Context(), start, true))
	if list := rows(t, a); list[0].SandboxID != "sbxnew" {
		t.Errorf("got %+v", list)
	}
	must(t, r.Ended(t.Context(), "sbxnew", "it said "+value))
	b, err := r.Store.Sandbox(t.Context(), "sbxnew")
	if err != nil || b.Image != "[secret TOKEN]" || b.Reason != "it said [secret TOKEN]" {
		t.Errorf("%+v, %v", b, err)
	}
}

// What a guest sends out in a name or a path is shown to nobody.
func TestHearShowsNoSecret(t *testing.T) {
	home := t.TempDir()
	dir, err := newFolder(home, "run1", redactor())
	must(t, err)
	defer dir.close()
	var heard []sandbox.NetEvent
	s := &state{Options: Options{Redact: redactor(), Network: func(e sandbox.NetEvent) { heard = append(heard, e) }}, dir: dir, task: &Task{}, audit: newNetAudit(audit.Log{Store: newStore(t, home)}, "run1")}
	e := sandbox.NetEvent{Time: start, Kind: network.KindFlow, Name: "another-value-of-mine.example", Port: 443, Method: "GET", Path: "/" + value, Why: "not " + value, Hint: value}
	s.hear(e)
	must(t, s.audit.write(t.Context(), start, true))
	s.suggest()
	if len(heard) != 1 || heard[0].Path != "/[secret TOKEN]" || heard[0].Name != "[secret OTHER].example" || !heard[0].Time.Equal(start) {
		t.Errorf("heard %+v", heard)
	}
	list := rows(t, s.audit)
	if len(list) != 1 || list[0].Object != "[secret OTHER].example:443" || list[0].Reason != "not [secret TOKEN]" || !strings.Contains(string(list[0].Detail), "/[secret TOKEN]") {
		t.Errorf("the audit: %+v", list)
	}
	if b, err := os.ReadFile(dir.path(EventsFile)); err != nil || strings.Contains(string(b), value) || !strings.Contains(string(b), `"path":"/[secret TOKEN]"`) {
		t.Errorf("events: %s, %v", b, err)
	}
	if got := fmt.Sprint(s.task.Notes, s.task.Suggested); strings.Contains(got, "another-value") {
		t.Errorf("suggested: %s", got)
	}
}

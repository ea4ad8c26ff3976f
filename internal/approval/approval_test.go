package approval

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"ravi/internal/audit"
	"ravi/internal/leaktest"
	"ravi/internal/procid"
	"ravi/internal/store"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// world is a run with an asker, and another process's view of the same record.
type world struct {
	t      *testing.T
	asker  *Asker
	other  *store.Store
	log    audit.Log
	told   chan store.Approval
	answer chan result
}

type result struct {
	Answer
	err error
}

func newWorld(t *testing.T) *world {
	t.Helper()
	home := t.TempDir()
	open := func() *store.Store {
		s, err := store.Open(t.Context(), home)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	w := &world{t: t, other: open(), told: make(chan store.Approval, 100), answer: make(chan result, 100)}
	w.log = audit.Log{Store: w.other}
	mine := open()
	self, err := procid.Self()
	if err != nil {
		t.Fatal(err)
	}
	run, err := mine.InsertRun(t.Context(), store.Run{Status: store.RunRunning, Owner: self, CreatedBy: audit.Operator})
	if err != nil {
		t.Fatal(err)
	}
	w.asker = &Asker{Store: mine, Audit: audit.Log{Store: mine}, RunID: run.ID, CreatedBy: run.CreatedBy, Tell: func(a store.Approval) { w.told <- a }}
	return w
}

func request(command string) Request {
	sum := sha256.Sum256([]byte(command))
	return Request{Tool: "exec", Command: command, Digest: hex.EncodeToString(sum[:]), Family: "publish", Reason: "npm publish"}
}

// ask begins to ask, and gives what others see of it.
func (w *world) ask(ctx context.Context, command string) store.Approval {
	w.t.Helper()
	go func() {
		a, err := w.asker.Ask(ctx, request(command))
		w.answer <- result{a, err}
	}()
	select {
	case a := <-w.told:
		return a
	case r := <-w.answer:
		select {
		case a := <-w.told: // before there was an answer, which can be there by now as well
			w.answer <- r
			return a
		default:
			w.t.Fatalf("nobody was asked: %+v", r)
			return store.Approval{}
		}
	}
}

func (w *world) decide(id string, grant bool, note string) (store.Approval, error) {
	return Decide(w.t.Context(), w.other, w.log, id, store.ApprovalDecision{Grant: grant, By: audit.Operator, Note: note, At: store.Now()})
}

// actions are what the audit tells of approvals, the chain of it being whole.
func (w *world) actions() string {
	w.t.Helper()
	if _, err := w.log.Verify(w.t.Context(), nil); err != nil {
		w.t.Error(err)
	}
	rows, err := w.log.List(w.t.Context(), audit.Filter{Action: "approval."})
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, r := range rows {
		if r.RunID != w.asker.RunID || r.Caller != audit.Operator || !strings.HasPrefix(r.Object, "apr") || !strings.Contains(string(r.Detail), `"digest":"`) {
			w.t.Errorf("a row says too little: %+v", r)
		}
		out = append(out, strings.TrimPrefix(r.Action, "approval.")+" "+string(r.Decision))
	}
	return strings.Join(out, ", ")
}

func (w *world) late(id string, why string) {
	w.t.Helper()
	before := w.actions()
	for _, grant := range []bool{true, false} {
		_, err := w.decide(id, grant, "")
		if late := new(LateError); !errors.As(err, &late) || !errors.Is(err, store.ErrFinal) || !strings.Contains(err.Error(), why) ||
			strings.HasPrefix(err.Error(), "nothing was granted: ") != grant {
			w.t.Errorf("decided too late: %v; want %q", err, why)
		}
	}
	if after := w.actions(); after != before {
		w.t.Errorf("what had no effect is told as %s", after)
	}
}

func TestGrant(t *testing.T) {
	w := newWorld(t)
	asked := w.ask(t.Context(), "npm publish")
	if asked.Status != store.ApprovalPending || asked.Command != "npm publish" || asked.Family != "publish" || asked.ExpiresAt.Sub(asked.CreatedAt) != DefaultTTL {
		t.Errorf("asked: %+v", asked)
	}
	if _, err := w.decide(asked.ID, true, "go ahead"); err != nil {
		t.Fatal(err)
	}
	if r := <-w.answer; r.err != nil || !r.Granted || r.ID != asked.ID || r.Status != store.ApprovalUsed || r.Why != "" {
		t.Errorf("the answer is %+v", r)
	}
	w.late(asked.ID, "was granted by operator, and is used up")
	// The same command asks again: an approval is for one call.
	again := w.ask(t.Context(), "npm publish")
	if again.ID == asked.ID {
		t.Error("it is the same approval")
	}
	if _, err := w.decide(again.ID, false, "not on a Friday"); err != nil {
		t.Fatal(err)
	}
	if r := <-w.answer; r.err != nil || r.Granted || r.Status != store.ApprovalDenied || r.Why != "it was denied: not on a Friday" {
		t.Errorf("the answer is %+v", r)
	}
	w.late(again.ID, "was denied by operator")
	if got, want := w.actions(), "ask unknown, grant allowed, use allowed, ask unknown, deny denied"; got != want {
		t.Errorf("the audit: %s\nwant %s", got, want)
	}
}

// What another one has used is not used again.
func TestUsedByAnother(t *testing.T) {
	w := newWorld(t)
	w.asker.Tell = func(a store.Approval) {
		if _, err := w.decide(a.ID, true, ""); err != nil {
			t.Error(err)
		}
		if _, err := w.other.UseApproval(t.Context(), a.ID, a.RunID, a.Digest, store.Now()); err != nil {
			t.Error(err)
		}
	}
	if a, err := w.asker.Ask(t.Context(), request("npm publish")); err != nil || a.Granted || a.Why != "its approval is used up" {
		t.Errorf("got %+v, %v", a, err)
	}
	if _, err := w.decide("aprx", true, strings.Repeat("x", store.MaxLine+1)); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("a note that is too long: %v", err)
	}
}

// What comes after the turn, after the time, or after the run has no effect, and whoever decides hears of it.
func TestTooLate(t *testing.T) {
	t.Run("turn", func(t *testing.T) {
		w := newWorld(t)
		ctx, stop := context.WithCancelCause(t.Context())
		asked := w.ask(ctx, "npm publish")
		interrupted := errors.New("interrupted")
		stop(interrupted)
		if r := <-w.answer; !errors.Is(r.err, interrupted) || r.Granted || r.Status != store.ApprovalWithdrawn {
			t.Errorf("the answer is %+v", r)
		}
		w.late(asked.ID, "is withdrawn: the turn is over")
		if got, want := w.actions(), "ask unknown, withdraw denied"; got != want {
			t.Errorf("the audit: %s", got)
		}
	})
	t.Run("time", func(t *testing.T) {
		w := newWorld(t)
		w.asker.TTL = 5 * time.Millisecond
		asked := w.ask(t.Context(), "npm publish")
		if r := <-w.answer; r.err != nil || r.Granted || r.Status != store.ApprovalExpired || r.Why != "nobody approved it within 5ms" {
			t.Errorf("the answer is %+v", r)
		}
		w.late(asked.ID, "is expired: nobody decided in time")
		if got, want := w.actions(), "ask unknown, expire denied"; got != want {
			t.Errorf("the audit: %s", got)
		}
	})
	t.Run("run", func(t *testing.T) {
		w := newWorld(t)
		asked := w.ask(t.Context(), "npm publish")
		if _, err := w.other.UpdateRun(t.Context(), w.asker.RunID, func(r *store.Run) error { r.Status = store.RunCanceled; return nil }); err != nil {
			t.Fatal(err)
		}
		w.late(asked.ID, "is of the run "+w.asker.RunID+", which is canceled")
		if err := Settle(t.Context(), w.other, w.log); err != nil {
			t.Fatal(err)
		}
		if r := <-w.answer; r.err != nil || r.Granted || r.Status != store.ApprovalWithdrawn || r.Why != "it is withdrawn: the run is over" {
			t.Errorf("the answer is %+v", r)
		}
		w.late(asked.ID, "is withdrawn: the run is over")
		if r, err := w.asker.Ask(t.Context(), request("npm publish")); err != nil || r.Granted || !strings.Contains(r.Why, "is canceled") {
			t.Errorf("it asks on: %+v, %v", r, err)
		}
		if got, want := w.actions(), "ask unknown, withdraw denied, ask unknown, refuse denied"; got != want {
			t.Errorf("the audit: %s", got)
		}
	})
}

// gone is a process that has ended.
func gone(t *testing.T) procid.ID {
	t.Helper()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := procid.Of(cmd.Process.Pid)
	in.Close()
	if waited := cmd.Wait(); err != nil || waited != nil {
		t.Fatal(err, waited)
	}
	return id
}

// For a process that was killed nobody grants anything, also before a sweep has seen it; the sweep ends what it left.
func TestNobodyWaits(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	run, err := w.other.InsertRun(ctx, store.Run{Status: store.RunRunning, Owner: gone(t), CreatedBy: audit.Operator})
	if err != nil {
		t.Fatal(err)
	}
	w.asker.RunID = run.ID
	insert := func(command string, since time.Duration) store.Approval {
		r := request(command)
		at := store.Now().Add(-since)
		a, err := w.other.InsertApproval(ctx, store.Approval{RunID: run.ID, Tool: r.Tool, Command: r.Command, Digest: r.Digest, CreatedAt: at, ExpiresAt: at.Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	waiting, granted, old, oldGranted := insert("a", 0), insert("b", 0), insert("c", 2*time.Hour), insert("d", 2*time.Hour)
	for _, a := range []store.Approval{granted, oldGranted} {
		if _, err := w.other.DecideApproval(ctx, a.ID, store.ApprovalDecision{Grant: true, By: audit.Operator, At: a.CreatedAt}); err != nil {
			t.Fatal(err)
		}
	}
	w.late(waiting.ID, "whose process is gone")
	w.late(granted.ID, "was granted already, by operator")
	w.late(old.ID, "has expired")
	settle := func(want map[string]store.ApprovalStatus) {
		t.Helper()
		if err := Settle(ctx, w.other, w.log); err != nil {
			t.Fatal(err)
		}
		for id, status := range want {
			if a, err := w.other.Approval(ctx, id); err != nil || a.Status != status {
				t.Errorf("%s is %s, want %s; %v", a.Command, a.Status, status, err)
			}
		}
	}
	want := map[string]store.ApprovalStatus{waiting.ID: store.ApprovalPending, granted.ID: store.ApprovalGranted, old.ID: store.ApprovalExpired, oldGranted.ID: store.ApprovalExpired}
	settle(want)
	if _, err := w.other.UpdateRun(ctx, run.ID, func(r *store.Run) error { r.Status = store.RunError; return nil }); err != nil {
		t.Fatal(err)
	}
	want[waiting.ID], want[granted.ID] = store.ApprovalWithdrawn, store.ApprovalWithdrawn
	settle(want)
	settle(want)
	if got, want := w.actions(), "expire denied, expire denied, withdraw denied, withdraw denied"; got != want {
		t.Errorf("the audit: %s", got)
	}
}

// Where nobody can be asked, or what is asked for cannot be shown whole, the answer is no.
func TestRefused(t *testing.T) {
	w := newWorld(t)
	var nobody *Asker
	if r, err := nobody.Ask(t.Context(), request("npm publish")); err != nil || r.Granted || r.Status != "" || !strings.Contains(r.Why, "nobody to ask") {
		t.Errorf("without an asker: %+v, %v", r, err)
	}
	long := request(strings.Repeat("x", store.MaxCommand+1))
	for name, c := range map[string]struct {
		change  func(*Asker, *Request)
		why     string
		rows    string
		isError bool
	}{
		"nobody":      {func(a *Asker, _ *Request) { a.Nobody = true }, "nobody to ask", "refuse denied", false},
		"too long":    {func(_ *Asker, r *Request) { *r = long }, "16385 bytes, more than 16384", "ask unknown, refuse denied", false},
		"zero byte":   {func(_ *Asker, r *Request) { r.Command = "ls\x00" }, "not UTF-8", "ask unknown, refuse denied", false},
		"no command":  {func(_ *Asker, r *Request) { r.Command = "" }, "says not for what", "ask unknown, refuse denied", false},
		"no digest":   {func(_ *Asker, r *Request) { r.Digest = "npm publish" }, "no SHA-256", "ask unknown, refuse denied", false},
		"another run": {func(a *Asker, _ *Request) { a.RunID = "runx" }, "", "", true},
		"negative":    {func(a *Asker, _ *Request) { a.TTL = -time.Second }, "", "", true},
		"for years":   {func(a *Asker, _ *Request) { a.TTL = MaxTTL + 1 }, "", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			asker, r := *w.asker, request("npm publish")
			c.change(&asker, &r)
			a, err := asker.Ask(t.Context(), r)
			if name == "another run" {
				if err != nil || a.Granted || !strings.Contains(a.Why, "is not there any more") {
					t.Errorf("got %+v, %v", a, err)
				}
				return
			}
			if (err != nil) != c.isError || a.Granted || a.ID != "" || !strings.Contains(a.Why, c.why) {
				t.Errorf("got %+v, %v", a, err)
			}
			if got := w.actions(); got != c.rows {
				t.Errorf("the audit: %s", got)
			}
			if all, err := w.other.ListApprovals(t.Context(), store.ApprovalFilter{}); err != nil || len(all) > 0 {
				t.Errorf("somebody is asked: %+v, %v", all, err)
			}
		})
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if a, err := w.asker.Ask(ctx, request("npm publish")); !errors.Is(err, context.Canceled) || a.Granted {
		t.Errorf("after the turn: %+v, %v", a, err)
	}
}

// full is an audit that takes so many rows.
type full struct {
	Log
	mu   sync.Mutex
	room int
}

func (f *full) Append(ctx context.Context, rows ...audit.Record) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.room -= len(rows); f.room < 0 {
		return store.ErrDiskFull
	}
	return f.Log.Append(ctx, rows...)
}

// What cannot be written down does not happen: nobody is asked, nothing is granted, no command begins.
func TestWithoutAnAudit(t *testing.T) {
	w := newWorld(t)
	log := w.asker.Audit
	w.asker.Audit = &full{Log: log}
	if a, err := w.asker.Ask(t.Context(), request("npm publish")); !errors.Is(err, store.ErrDiskFull) || a.Granted {
		t.Errorf("asked: %+v, %v", a, err)
	}
	if all, err := w.other.ListApprovals(t.Context(), store.ApprovalFilter{}); err != nil || len(all) > 0 {
		t.Errorf("somebody is asked: %+v, %v", all, err)
	}
	// The use.
	w.asker.Audit = &full{Log: log, room: 1}
	asked := w.ask(t.Context(), "npm publish")
	if _, err := w.decide(asked.ID, true, ""); err != nil {
		t.Fatal(err)
	}
	if r := <-w.answer; !errors.Is(r.err, store.ErrDiskFull) || r.Granted {
		t.Errorf("used: %+v", r)
	}
	// The grant.
	w.asker.Audit = log
	asked = w.ask(t.Context(), "npm publish")
	for _, grant := range []bool{true, false} {
		if _, err := Decide(t.Context(), w.other, &full{}, asked.ID, store.ApprovalDecision{Grant: grant, By: audit.Operator, At: store.Now()}); !errors.Is(err, store.ErrDiskFull) {
			t.Errorf("decided: %v", err)
		}
	}
	if a, err := w.other.Approval(t.Context(), asked.ID); err != nil || a.Status != store.ApprovalPending {
		t.Errorf("it has become %+v, %v", a, err)
	}
	if _, err := w.decide(asked.ID, false, ""); err != nil {
		t.Fatal(err)
	}
	if r := <-w.answer; r.err != nil || r.Granted {
		t.Errorf("the answer is %+v", r)
	}
}

// Of many askers and deciders at once, each command runs as often as it was granted, and never more.
func TestManyAtOnce(t *testing.T) {
	w := newWorld(t)
	const commands = 12
	var decided sync.WaitGroup
	grants := make(chan bool, 4*commands)
	for range commands {
		go func() {
			a, err := w.asker.Ask(t.Context(), request("npm publish"))
			w.answer <- result{a, err}
		}()
	}
	for range commands {
		a := <-w.told
		for i := range 4 {
			decided.Go(func() {
				_, err := w.decide(a.ID, i%2 == 0, "")
				if err == nil {
					grants <- i%2 == 0
				} else if !errors.Is(err, store.ErrFinal) {
					t.Error(err)
				}
			})
		}
	}
	decided.Wait()
	close(grants)
	granted, ran, n := 0, 0, 0
	for g := range grants {
		if n++; g {
			granted++
		}
	}
	for range commands {
		if r := <-w.answer; r.err != nil {
			t.Error(r.err)
		} else if r.Granted {
			ran++
		}
	}
	if n != commands || granted != ran {
		t.Errorf("%d decisions of %d; %d were granted, %d ran", n, commands, granted, ran)
	}
}

func TestClip(t *testing.T) {
	for _, s := range []string{"", "short", strings.Repeat("é", store.MaxLine), "x" + strings.Repeat("日本", store.MaxLine)} {
		got := clip(s)
		if len(got) > store.MaxLine || !strings.HasPrefix(s, strings.TrimSuffix(got, "…")) || len(s) <= store.MaxLine && got != s {
			t.Errorf("%q", got)
		}
		if strings.ToValidUTF8(got, "?") != got {
			t.Errorf("half a character: %q", got)
		}
	}
}

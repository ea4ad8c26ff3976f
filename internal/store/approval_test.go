package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const usingVariable = "RAVI_STORE_TEST_USING"

func newApproval(run Run, command string) Approval {
	return Approval{RunID: run.ID, Tool: "exec", Digest: newKey("", command).Hash, Command: command, ExpiresAt: Now().Add(10 * time.Minute)}
}

func newRun(t testing.TB, s *Store) Run {
	t.Helper()
	r, err := s.InsertRun(t.Context(), Run{Status: RunRunning})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestApproval(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	run := newRun(t, s)
	want := newApproval(run, "git push\n\t--force")
	want.SessionID, want.AgentID, want.Family, want.Reason = "ses1", "agt1", "destructive version control", "git push --force"
	got, err := s.InsertApproval(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	want.ID, want.CreatedAt, want.ExpiresAt, want.Status = got.ID, got.CreatedAt, inMillis(want.ExpiresAt), ApprovalPending
	stored, err := s.Approval(ctx, got.ID[:20])
	if diff := cmp.Diff(want, stored); err != nil || diff != "" {
		t.Errorf("stored: %v\n%s", err, diff)
	}
	at := want.CreatedAt.Add(time.Second)
	if _, err := s.UseApproval(ctx, got.ID, run.ID, got.Digest, at); !errors.Is(err, ErrFinal) {
		t.Errorf("it was used before it was granted: %v", err)
	}
	want.Status, want.DecidedAt, want.DecidedBy, want.Note = ApprovalGranted, &at, "operator", "once"
	granted, err := s.DecideApproval(ctx, got.ID, ApprovalDecision{Grant: true, By: "operator", Note: "once", At: at})
	if diff := cmp.Diff(want, granted); err != nil || diff != "" {
		t.Errorf("granted: %v\n%s", err, diff)
	}
	for _, grant := range []bool{true, false} {
		if _, err := s.DecideApproval(ctx, got.ID, ApprovalDecision{Grant: grant, By: "ctx_x", At: at}); !errors.Is(err, ErrFinal) || !contains(err, "granted already") {
			t.Errorf("it was decided again: %v", err)
		}
	}
	other := newRun(t, s)
	for name, err := range map[string]error{
		"command": second(s.UseApproval(ctx, got.ID, run.ID, newKey("", "git push").Hash, at)), "run": second(s.UseApproval(ctx, got.ID, other.ID, got.Digest, at)),
	} {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("it was used for another %s: %v", name, err)
		}
	}
	want.Status, want.EndedAt = ApprovalUsed, &at
	used, err := s.UseApproval(ctx, got.ID, run.ID, got.Digest, at)
	if diff := cmp.Diff(want, used); err != nil || diff != "" {
		t.Errorf("used: %v\n%s", err, diff)
	}
	if _, err := s.UseApproval(ctx, got.ID, run.ID, got.Digest, at); !errors.Is(err, ErrFinal) || !contains(err, "is used") {
		t.Errorf("it was used again: %v", err)
	}
	if after, changed, err := s.EndApproval(ctx, got.ID, ApprovalWithdrawn, "x"); err != nil || changed || cmp.Diff(want, after) != "" {
		t.Errorf("what was used was withdrawn: %+v, %v, %v", after, changed, err)
	}
	for name, err := range map[string]error{
		"decide": second(s.DecideApproval(ctx, "aprx", ApprovalDecision{By: "operator", At: at})), "use": second(s.UseApproval(ctx, "aprx", "", "", at)), "find": second(s.Approval(ctx, "aprx")),
	} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Nothing comes of an approval after its time, nor once its run is over or forgotten, whether it was granted or not.
func TestApprovalsEnd(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	for name, c := range map[string]struct {
		end  func(*testing.T, Approval) time.Time
		want string
	}{
		"time": {func(_ *testing.T, a Approval) time.Time { return a.ExpiresAt }, "has expired"},
		"run is over": {func(t *testing.T, a Approval) time.Time {
			if _, err := s.UpdateRun(ctx, a.RunID, func(r *Run) error { r.Status = RunSucceeded; return nil }); err != nil {
				t.Fatal(err)
			}
			return a.CreatedAt
		}, "is succeeded"},
		"run is forgotten": {func(t *testing.T, a Approval) time.Time {
			if _, err := s.db.ExecContext(ctx, `DELETE FROM runs WHERE id = ?`, a.RunID); err != nil {
				t.Fatal(err)
			}
			return a.CreatedAt
		}, "is not there any more"},
		"withdrawn": {func(t *testing.T, a Approval) time.Time {
			if _, changed, err := s.EndApproval(ctx, a.ID, ApprovalWithdrawn, "the turn is over"); err != nil || !changed {
				t.Fatal(changed, err)
			}
			return a.CreatedAt
		}, "is withdrawn"},
	} {
		t.Run(name, func(t *testing.T) {
			run := newRun(t, s)
			pending, err := s.InsertApproval(ctx, newApproval(run, "a"))
			if err != nil {
				t.Fatal(err)
			}
			granted, err := s.InsertApproval(ctx, newApproval(run, "b"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.DecideApproval(ctx, granted.ID, ApprovalDecision{Grant: true, By: "operator", At: granted.CreatedAt}); err != nil {
				t.Fatal(err)
			}
			at := c.end(t, pending)
			if name != "time" && name != "withdrawn" {
				if _, err := s.InsertApproval(ctx, newApproval(run, "c")); !errors.Is(err, ErrFinal) {
					t.Errorf("it asks for more: %v", err)
				}
			}
			for _, grant := range []bool{true, false} {
				if _, err := s.DecideApproval(ctx, pending.ID, ApprovalDecision{Grant: grant, By: "operator", At: at}); !errors.Is(err, ErrFinal) || !contains(err, c.want) {
					t.Errorf("it was decided: %v", err)
				}
			}
			if c.end(t, granted); name == "time" {
				at = granted.ExpiresAt
			}
			if _, err := s.UseApproval(ctx, granted.ID, run.ID, granted.Digest, at); !errors.Is(err, ErrFinal) || !contains(err, c.want) {
				t.Errorf("it was used: %v", err)
			}
		})
	}
}

func TestApprovalsThatAreRefused(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	run, at := newRun(t, s), Now()
	for name, change := range map[string]func(*Approval){
		"digest": func(a *Approval) { a.Digest = "" }, "a command as digest": func(a *Approval) { a.Digest = strings.Repeat("x", 64) },
		"capital digest": func(a *Approval) { a.Digest = strings.Repeat("A", 64) },
		"no command":     func(a *Approval) { a.Command = "" }, "no tool": func(a *Approval) { a.Tool = "" }, "no time": func(a *Approval) { a.ExpiresAt = time.Time{} },
		"decided": func(a *Approval) { a.DecidedAt = &at }, "by": func(a *Approval) { a.DecidedBy = "operator" }, "ended": func(a *Approval) { a.EndedAt = &at },
		"zero bytes": func(a *Approval) { a.Command = "echo\x00rm" }, "no text": func(a *Approval) { a.Command = "\xff" }, "family": func(a *Approval) { a.Family = "\xff" },
	} {
		a := newApproval(run, "x")
		change(&a)
		if _, err := s.InsertApproval(ctx, a); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	a := newApproval(run, "x")
	a.Command = strings.Repeat("x", MaxCommand+1)
	if _, err := s.InsertApproval(ctx, a); !errors.Is(err, ErrTooLarge) {
		t.Errorf("one byte more than can be shown: %v", err)
	}
	a.Command = a.Command[1:]
	whole, err := s.InsertApproval(ctx, a)
	if err != nil || whole.Command != a.Command {
		t.Fatalf("what can just be shown: %v", err)
	}
	for i := range MaxWaiting - 1 {
		if _, err := s.InsertApproval(ctx, newApproval(run, fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.InsertApproval(ctx, newApproval(run, "y")); !errors.Is(err, ErrInvalid) || !contains(err, "32 of it wait") {
		t.Errorf("one more: %v", err)
	}
	if _, err := s.InsertApproval(ctx, newApproval(newRun(t, s), "y")); err != nil {
		t.Errorf("another run's: %v", err)
	}
	for name, d := range map[string]ApprovalDecision{"nobody": {Grant: true, At: at}, "note": {Grant: true, By: "operator", Note: "\xff", At: at}} {
		if _, err := s.DecideApproval(ctx, whole.ID, d); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, how := range []ApprovalStatus{ApprovalGranted, ApprovalUsed, ApprovalPending, ApprovalDenied, ""} {
		if _, _, err := s.EndApproval(ctx, whole.ID, how, ""); !errors.Is(err, ErrInvalid) {
			t.Errorf("it ended as %q: %v", how, err)
		}
	}
	if got, err := s.Approval(ctx, whole.ID); err != nil || cmp.Diff(whole, got) != "" {
		t.Errorf("it has become %+v, %v", got, err)
	}
}

// The table itself refuses what would make of one approval another, whoever writes.
func TestApprovalsNeverChange(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	run := newRun(t, s)
	pending, err := s.InsertApproval(ctx, newApproval(run, "ls"))
	if err != nil {
		t.Fatal(err)
	}
	for _, column := range []string{"id", "run_id", "session_id", "agent_id", "tool", "command", "family", "reason", "digest"} {
		if _, err := s.db.ExecContext(ctx, `UPDATE approvals SET `+column+` = replace(printf('%064d', 7), '0', 'a')`); err == nil || !contains(err, "never changes") {
			t.Errorf("%s: %v", column, err)
		}
	}
	for name, query := range map[string]string{
		"expires_at": `UPDATE approvals SET expires_at = expires_at + 1`, "created_at": `UPDATE approvals SET created_at = 0`, "place": `UPDATE approvals SET place = 9`,
		"used at once": `UPDATE approvals SET status = 'used', decided_at = 1, decided_by = 'x', ended_at = 1`,
		"by nobody":    `UPDATE approvals SET status = 'granted'`,
		"born granted": `INSERT INTO approvals (id, run_id, tool, digest, command, status, created_at, expires_at, decided_at, decided_by)
			SELECT 'aprx', run_id, tool, digest, command, 'granted', 1, 2, 1, 'x' FROM approvals`,
		"replaced": `INSERT OR REPLACE INTO approvals (id, run_id, tool, digest, command, status, created_at, expires_at)
			SELECT id, run_id, tool, digest, 'rm -rf /', 'pending', 1, 2 FROM approvals`,
	} {
		if _, err := s.db.ExecContext(ctx, query); err == nil {
			t.Errorf("%s: it was written", name)
		}
	}
	if got, err := s.Approval(ctx, pending.ID); err != nil || cmp.Diff(pending, got) != "" {
		t.Errorf("it has become %+v, %v", got, err)
	}
	if _, err := s.DecideApproval(ctx, pending.ID, ApprovalDecision{By: "operator", At: Now()}); err != nil {
		t.Fatal(err)
	}
	for _, query := range []string{`UPDATE approvals SET status = 'granted', ended_at = NULL`, `UPDATE approvals SET status = 'used'`, `UPDATE approvals SET note = 'x'`} {
		if _, err := s.db.ExecContext(ctx, query); err == nil || !contains(err, "never changes") {
			t.Errorf("what was denied, %s: %v", query, err)
		}
	}
}

func TestListApprovals(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	one, two := newRun(t, s), newRun(t, s)
	var all []Approval
	for i, run := range []Run{one, one, two, two, one} {
		a, err := s.InsertApproval(ctx, newApproval(run, fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, a)
	}
	for i, grant := range map[int]bool{0: true, 2: false} {
		if _, err := s.DecideApproval(ctx, all[i].ID, ApprovalDecision{Grant: grant, By: "operator", At: Now()}); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		filter ApprovalFilter
		want   string
	}{
		"all": {ApprovalFilter{}, "43210"}, "live": {ApprovalFilter{Live: true}, "4310"}, "pending": {ApprovalFilter{Pending: true, At: Now()}, "431"},
		"later": {ApprovalFilter{Pending: true, At: Now().Add(time.Hour)}, ""}, "run": {ApprovalFilter{RunID: two.ID}, "32"},
		"runs": {ApprovalFilter{RunIDs: []string{one.ID, "runx"}}, "410"}, "no runs": {ApprovalFilter{RunIDs: []string{}}, ""},
		"page": {ApprovalFilter{Before: all[3].ID, Limit: 2}, "21"}, "pending run": {ApprovalFilter{RunID: one.ID, Pending: true, At: Now()}, "41"},
	} {
		found, err := s.ListApprovals(ctx, c.filter)
		got := ""
		for _, a := range found {
			got += a.Command
		}
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
}

// Whatever is asked for, granted, denied, used, ended and left to expire, in which order and by which of two stores on one
// file: what is used was granted, before its end and its run's, and once.
func TestApprovalsAsAModel(t *testing.T) {
	home := t.TempDir()
	var stores []*Store
	for range 2 {
		s, err := Open(t.Context(), home)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		stores = append(stores, s)
	}
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		store := func() *Store { return rapid.SampledFrom(stores).Draw(t, "store") }
		run, err := store().InsertRun(ctx, Run{Status: RunRunning})
		if err != nil {
			t.Fatal(err)
		}
		over := false
		var asked []Approval
		want, uses := map[string]ApprovalStatus{}, map[string]int{}
		clock := Now()
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			step := rapid.SampledFrom([]string{"ask", "grant", "grant", "deny", "use", "use", "use wrongly", "expire", "withdraw", "wait", "run ends"}).Draw(t, "step")
			if len(asked) == 0 && step != "wait" && step != "run ends" {
				step = "ask"
			}
			var a Approval
			if step != "ask" && len(asked) > 0 {
				a = rapid.SampledFrom(asked).Draw(t, "approval")
			}
			live := !over && clock.Before(a.ExpiresAt)
			should := func(ok bool, err error) {
				if ok != (err == nil) || err != nil && !errors.Is(err, ErrFinal) && !errors.Is(err, ErrInvalid) {
					t.Fatalf("%s of one that is %s, live %v: %v", step, want[a.ID], live, err)
				}
			}
			switch step {
			case "ask":
				a := newApproval(run, fmt.Sprint(len(asked)))
				a.CreatedAt, a.ExpiresAt = clock, clock.Add(time.Duration(rapid.IntRange(1, 60).Draw(t, "seconds"))*time.Second)
				got, err := store().InsertApproval(ctx, a)
				if (err == nil) == over {
					t.Fatalf("asked while the run is over: %v; %v", over, err)
				}
				if err == nil {
					asked, want[got.ID] = append(asked, got), ApprovalPending
				}
			case "grant", "deny":
				ok := live && want[a.ID] == ApprovalPending
				_, err := store().DecideApproval(ctx, a.ID, ApprovalDecision{Grant: step == "grant", By: "operator", At: clock})
				if should(ok, err); ok {
					want[a.ID] = map[string]ApprovalStatus{"grant": ApprovalGranted, "deny": ApprovalDenied}[step]
				}
			case "use", "use wrongly":
				digest := a.Digest
				if step == "use wrongly" {
					digest = newKey("", "another").Hash
				}
				ok := step == "use" && live && want[a.ID] == ApprovalGranted
				_, err := store().UseApproval(ctx, a.ID, run.ID, digest, clock)
				if err == nil {
					uses[a.ID]++
				}
				if should(ok, err); ok {
					want[a.ID] = ApprovalUsed
				}
			case "expire", "withdraw":
				how := map[string]ApprovalStatus{"expire": ApprovalExpired, "withdraw": ApprovalWithdrawn}[step]
				ok := want[a.ID] == ApprovalPending || want[a.ID] == ApprovalGranted
				if _, changed, err := store().EndApproval(ctx, a.ID, how, "x"); err != nil || changed != ok {
					t.Fatalf("%s of one that is %s: %v, %v", step, want[a.ID], changed, err)
				}
				if ok {
					want[a.ID] = how
				}
			case "wait":
				clock = clock.Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "later")) * time.Second)
			case "run ends":
				if _, err := store().UpdateRun(ctx, run.ID, func(r *Run) error { r.Status = RunSucceeded; return nil }); err != nil {
					t.Fatal(err)
				}
				over = true
			}
			for _, a := range asked {
				if got, err := store().Approval(ctx, a.ID); err != nil || got.Status != want[a.ID] || uses[a.ID] > 1 {
					t.Fatalf("after %s it is %s, used %d times, %v; want %s", step, got.Status, uses[a.ID], err, want[a.ID])
				}
			}
		}
	})
}

// useAll uses all that was granted, and says how much that was.
func useAll(ctx context.Context, s *Store) error {
	all, err := s.ListApprovals(ctx, ApprovalFilter{Live: true})
	if err != nil {
		return err
	}
	used := 0
	for _, a := range all {
		switch _, err := s.UseApproval(ctx, a.ID, a.RunID, a.Digest, Now()); {
		case err == nil:
			used++
		case !errors.Is(err, ErrFinal):
			return err
		}
	}
	fmt.Fprint(os.Stdout, used)
	return nil
}

// Processes that reach for the same grants at once share them: each is used by one of them.
func TestProcessesUseAGrantOnce(t *testing.T) {
	home := t.TempDir()
	s, err := Open(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const grants = 3 * MaxWaiting
	for i := range grants / MaxWaiting {
		run := newRun(t, s)
		for j := range MaxWaiting {
			a, err := s.InsertApproval(t.Context(), newApproval(run, fmt.Sprint(i, " ", j)))
			if err == nil {
				_, err = s.DecideApproval(t.Context(), a.ID, ApprovalDecision{Grant: true, By: "operator", At: Now()})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	var begin []func()
	var wait []func() int
	for range 3 {
		cmd, goOn, out := startChild(t, home, usingVariable+"=1")
		begin = append(begin, goOn)
		wait = append(wait, func() (n int) {
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v: %s", err, out)
			} else if _, err := fmt.Sscan(out.String(), &n); err != nil {
				t.Errorf("%v: %q", err, out)
			}
			return n
		})
	}
	for _, goOn := range begin {
		goOn()
	}
	sum := 0
	for _, w := range wait {
		sum += w()
	}
	if sum != grants {
		t.Errorf("%d grants were used %d times", grants, sum)
	}
	if used, err := number(t.Context(), s.db, `SELECT count(*) FROM approvals WHERE status = 'used'`); err != nil || used != grants {
		t.Errorf("%d are used, %v", used, err)
	}
}

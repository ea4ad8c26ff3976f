package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"ravi/internal/approval"
	"ravi/internal/audit"
	"ravi/internal/keeper"
	"ravi/internal/procid"
	"ravi/internal/programs"
	"ravi/internal/store"
)

// Sweeper ends sandboxes that are recorded, and removes what crashes left.
type Sweeper struct {
	Home  string
	Store *store.Store
	// AuditHead is the file of the audit's head; empty: where it is unless told otherwise.
	AuditHead string
}

// ErrElsewhere says that a sandbox is on another machine.
var ErrElsewhere = errors.New("it is on a runner, and ends with its run")

// Kill ends one sandbox, from any state. One that is on another machine is its run's process's alone.
func (s Sweeper) Kill(ctx context.Context, b store.Sandbox) error {
	if b.Dir == "" && !b.Seen.Final() && procid.Alive(b.Owner) {
		return WithHint(fmt.Errorf("the sandbox %s cannot be ended from here: %w", b.ID, ErrElsewhere), "ravi runs cancel "+b.RunID)
	}
	if err := s.end(ctx, b.ID, "killed"); err != nil {
		return err
	}
	if b.Seen.Final() {
		return nil
	}
	return Recorder{Store: s.Store}.Ended(ctx, b.ID, "killed")
}

// end ends a sandbox through its keeper, or without one by what its plan says.
func (s Sweeper) end(ctx context.Context, id, reason string) error {
	dir := filepath.Join(s.Home, "sandboxes", id)
	ctx, cancel := context.WithTimeoutCause(ctx, 20*time.Second, errors.New("it did not end within 20 s"))
	defer cancel()
	h, err := keeper.Attach(ctx, dir, false, 0)
	if err == nil {
		return h.EndFor(ctx, reason)
	}
	plan, err := keeper.ReadPlan(dir)
	if errors.Is(err, fs.ErrNotExist) {
		// It ended, or it never got as far as a plan.
		plan = keeper.Plan{ID: id, Dir: dir, Cgroup: "/ravi/" + id}
	} else if err != nil {
		return err
	}
	return keeper.Remove(plan)
}

// Prune ends sandboxes that nobody owns, and removes what is left of those
// that ended.
func (s Sweeper) Prune(ctx context.Context) (store.Swept, error) {
	r := store.Swept{Ended: []string{}, Problems: []string{}}
	all, err := s.Store.ListSandboxes(ctx, store.SandboxFilter{Live: true})
	if err != nil {
		return r, err
	}
	alive := map[string]bool{}
	for _, b := range all {
		if procid.Alive(b.Owner) || procid.Alive(b.Keeper) {
			alive[b.ID] = true
			continue
		}
		if err := s.end(ctx, b.ID, keeper.ReasonOwnerGone); err != nil {
			r.Problems = append(r.Problems, fmt.Sprintf("%s: %v", b.ID, err))
			continue
		}
		if err := (Recorder{Store: s.Store}).Ended(ctx, b.ID, keeper.ReasonOwnerGone); err != nil {
			return r, err
		}
		r.Ended = append(r.Ended, b.ID)
	}
	if err := s.orphans(ctx, alive, &r); err != nil {
		return r, err
	}
	if err := s.programs(ctx, &r); err != nil {
		r.Problems = append(r.Problems, fmt.Sprintf("older programs: %v", err))
	}
	return r, s.runs(ctx, &r)
}

// programs removes versions of Ravi's own programs that none runs. Where there is only one it is left: to tell whether
// that is this one's would take laying this one's out.
func (s Sweeper) programs(ctx context.Context, r *store.Swept) error {
	versions, err := os.ReadDir(filepath.Join(s.Home, "lib"))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(versions) < 2 {
		return nil
	}
	if err != nil {
		return err
	}
	r.Programs, err = programs.RemoveUnused(ctx, s.Home)
	return err
}

// orphans removes directories and control groups of sandboxes of this home
// that are not alive. One whose keeper answers is left: it may have been made
// since the record was read, or by a program that keeps no record.
func (s Sweeper) orphans(ctx context.Context, alive map[string]bool, r *store.Swept) error {
	entries, err := os.ReadDir(filepath.Join(s.Home, "sandboxes"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		id := e.Name()
		dir := filepath.Join(s.Home, "sandboxes", id)
		if alive[id] || s.recent(dir) {
			continue
		}
		// It may have been recorded since; the clock alone, which may jump, does not tell.
		if b, err := s.Store.Sandbox(ctx, id); err == nil && b.ID == id && !b.Seen.Final() && procid.Alive(b.Owner) {
			continue
		}
		probe, cancel := context.WithTimeout(ctx, 2*time.Second)
		h, err := keeper.Attach(probe, dir, false, 0)
		cancel()
		if err == nil {
			h.Detach()
			continue
		}
		if err := s.end(ctx, id, keeper.ReasonOwnerGone); err != nil {
			r.Problems = append(r.Problems, fmt.Sprintf("%s: %v", id, err))
			continue
		}
		r.Dirs++
	}
	return nil
}

// recent says whether a directory is so new that its maker may still be at it.
func (s Sweeper) recent(dir string) bool {
	st, err := os.Stat(dir)
	if err != nil {
		return true
	}
	_, err = os.Stat(filepath.Join(dir, keeper.PlanFile))
	return err != nil && time.Since(st.ModTime()) < time.Minute
}

// runs closes the record of runs whose process is gone, and ends the keys and leases of all that are over.
func (s Sweeper) runs(ctx context.Context, r *store.Swept) error {
	live, err := s.Store.ListRuns(ctx, store.RunFilter{Live: true})
	if err != nil {
		return err
	}
	for _, run := range live {
		owned, err := s.owned(ctx, run)
		if err != nil {
			return err
		}
		if owned {
			continue
		}
		// One whose folder cannot be read keeps no other from its end.
		if err := s.closeRun(ctx, run); err != nil {
			r.Problems = append(r.Problems, fmt.Sprintf("%s: %v", run.ID, err))
		}
	}
	// One that somebody else ended, as a cancel does, and whose process did not live to say what came of it.
	over, err := s.Store.ListRuns(ctx, store.RunFilter{Owned: true})
	if err != nil {
		return err
	}
	for _, run := range over {
		if !run.Status.Final() || procid.Alive(run.Owner) {
			continue
		}
		if err := s.settle(ctx, run); err != nil {
			r.Problems = append(r.Problems, fmt.Sprintf("%s: %v", run.ID, err))
		}
	}
	return s.leavings(ctx)
}

// owned says whether the process that does a run is there.
func (s Sweeper) owned(ctx context.Context, run store.Run) (bool, error) {
	if run.Owner.PID != 0 {
		return procid.Alive(run.Owner), nil
	}
	// It was recorded before runs had owners: their sandboxes have.
	boxes, err := s.Store.ListSandboxes(ctx, store.SandboxFilter{RunID: run.ID})
	if err != nil {
		return false, err
	}
	owned := len(boxes) == 0 && time.Since(run.CreatedAt) < time.Minute
	for _, b := range boxes {
		owned = owned || procid.Alive(b.Owner)
	}
	return owned, nil
}

func (s Sweeper) closeRun(ctx context.Context, run store.Run) error {
	run, err := s.Store.UpdateRun(ctx, run.ID, func(r *store.Run) error {
		r.Status, r.Reason = store.RunError, keeper.ReasonOwnerGone
		return nil
	})
	if errors.Is(err, store.ErrFinal) {
		return nil
	}
	if err != nil {
		return err
	}
	if run.TaskID != "" {
		if _, err := s.Store.AddComment(ctx, store.TaskComment{
			TaskID: run.TaskID, Kind: store.CommentPlain, Author: "ravi", RunID: run.ID, Text: "the run ended: the process that did it was killed",
		}); err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	return s.settle(ctx, run)
}

// settle writes down what came of a run that is over and whose process is gone.
func (s Sweeper) settle(ctx context.Context, run store.Run) error {
	err := s.closeFolder(run)
	_, gone := s.Store.UpdateRun(ctx, run.ID, func(r *store.Run) error {
		r.Owner = procid.ID{}
		return nil
	})
	return errors.Join(err, gone)
}

// leavings ends what runs that are over would have ended themselves.
func (s Sweeper) leavings(ctx context.Context) error {
	const runOver = "the run is over"
	over := func(id string) (bool, error) {
		run, err := s.Store.Run(ctx, id)
		if errors.Is(err, store.ErrNotFound) {
			return true, nil
		}
		return err == nil && run.Status.Final(), err
	}
	leases, err := s.Store.LiveLeases(ctx)
	if err != nil {
		return err
	}
	for _, l := range leases {
		ended, why := !procid.Alive(l.Owner), "its process is gone"
		if l.RunID != "" {
			why = runOver
			if ended, err = over(l.RunID); err != nil {
				return err
			}
		}
		if ended {
			if _, err := s.Store.EndLease(ctx, l.ID, why); err != nil {
				return err
			}
		}
	}
	models, err := s.Store.LiveModelLeases(ctx)
	if err != nil {
		return err
	}
	for _, l := range models {
		ended, err := over(l.RunID)
		if err != nil {
			return err
		}
		if ended {
			if _, err := s.Store.EndModelLease(ctx, l.ID, runOver); err != nil {
				return err
			}
		}
	}
	keys, err := s.Store.ListKeys(ctx, store.KeyFilter{Live: true, Kind: store.KeyRun})
	if err != nil {
		return err
	}
	for _, k := range keys {
		ended, err := over(k.RunID)
		if err != nil {
			return err
		}
		if ended {
			if _, err := s.Store.RevokeRunKeys(ctx, k.RunID, runOver); err != nil {
				return err
			}
		}
	}
	return approval.Settle(ctx, s.Store, audit.Log{Store: s.Store, Head: s.AuditHead})
}

// closeFolder does in a run's folder what its process did not live to do: it
// removes what is of no more use, and says in task.json how the run ended. The
// patch that was saved last and the logs stay.
func (s Sweeper) closeFolder(run store.Run) error {
	dir := filepath.Join(s.Home, "runs", run.ID)
	scraps, err := filepath.Glob(filepath.Join(dir, workPrefix+"*"))
	if err != nil {
		return err
	}
	for _, scrap := range append(scraps, filepath.Join(dir, PatchFile+".tmp")) {
		if err := os.RemoveAll(scrap); err != nil {
			return err
		}
	}
	t, err := ReadTask(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was killed before it began, or its folder was removed
	}
	if err != nil {
		return err
	}
	if t.Status != store.RunRunning {
		return nil
	}
	t.Status, t.Reason, t.EndedAt = run.Status, run.Reason, run.EndedAt
	t.Error = "the process that did the run was killed"
	if _, err := os.Stat(filepath.Join(dir, PatchFile)); err == nil {
		t.Hint = PatchFile + " is what was saved before; it was not proven"
	} else if _, err := os.Stat(filepath.Join(dir, HeldFile)); err == nil {
		t.Hint = HeldFile + " is what was saved before; it holds the value of a secret, and was not proven"
	}
	return (&folder{dir: dir}).writeTask(&t)
}

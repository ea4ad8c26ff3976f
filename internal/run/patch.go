package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"ravi/internal/backend/remote"
	"ravi/internal/gitbox"
	"ravi/internal/procid"
	"ravi/internal/store"
	"ravi/sandbox"
)

// saveNowAndThen saves the work while the command runs, so that a sandbox that
// dies leaves its last patch. The function that it returns stops that.
func (s *state) saveNowAndThen(ctx context.Context) func() {
	return begin(ctx, s.SaveEvery, func(ctx context.Context) {
		if err := s.save(ctx, false); err != nil && ctx.Err() == nil {
			// The final one may work; if not, that is the error to tell.
			s.dir.event("save_failed", map[string]any{"error": err.Error()})
		}
	}).end
}

// save captures the work tree as changes.patch, unless it is as it was. A patch
// that holds a secret becomes changes.patch.held; there is never but one of them.
func (s *state) save(ctx context.Context, final bool) error {
	s.saving.Lock()
	defer s.saving.Unlock()
	tmp := s.dir.path(PatchFile + ".tmp")
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(tmp) // after the rename there is nothing to remove
	opt := gitbox.CaptureOptions{Exclude: []string{TaskTextFile}, Fresh: final}
	if !final {
		opt.Last = s.last
	}
	c, err := s.base.Capture(ctx, guest{s.sb}, s.layout(), opt, f)
	if final && errors.Is(err, gitbox.ErrDiskFull) && s.sb.Backend() != sandbox.BackendHost {
		// The command filled the sandbox's disk, on which a patch is made.
		c, err = s.captureInMemory(ctx, opt, f)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if c.Same {
		return nil
	}
	secrets, err := secretsIn(ctx, s.Redact, tmp)
	if err != nil {
		return err
	}
	if i := slices.Index(secrets, contextKeyName); i >= 0 {
		// It is worth nothing once the run has ended, so the patch is not held back for it.
		secrets = slices.Delete(secrets, i, i+1)
		if final {
			s.note("the patch holds %s, which is over", contextKeyName)
		}
	}
	name, other := patchName(secrets), HeldFile
	fields := map[string]any{"bytes": c.Bytes, "tree": c.Tree}
	if len(secrets) > 0 {
		other, fields["secrets"] = PatchFile, secrets
	}
	if err := os.Rename(tmp, s.dir.path(name)); err != nil {
		return err
	}
	s.last, s.capture, s.secrets = c.Tree, c, secrets
	s.dir.event("saved", fields)
	if err := os.Remove(s.dir.path(other)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// patchName is the file for a patch that holds these secrets.
func patchName(secrets []string) string {
	if len(secrets) > 0 {
		return HeldFile
	}
	return PatchFile
}

// captureInMemory makes the patch where there is room though the sandbox's disk
// is full: in its shared memory, where only root reaches it.
func (s *state) captureInMemory(ctx context.Context, opt gitbox.CaptureOptions, patch *os.File) (*gitbox.Capture, error) {
	if err := patch.Truncate(0); err != nil {
		return nil, err
	}
	if _, err := patch.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	layout := s.layout()
	var dir strings.Builder
	code, said, err := guest{s.sb}.Run(ctx, gitbox.Command{User: layout.Root, Dir: "/", Stdout: &dir, Args: []string{"sh", "-c",
		`d=$(mktemp -d /dev/shm/ravi.XXXXXX) && ln -s "$1/base.git" "$d" && { [ ! -e "$1/info.attributes" ] || cp "$1/info.attributes" "$d"; } && printf %s "$d"`,
		"sh", layout.Private}})
	if err != nil {
		return nil, err
	}
	if code != 0 {
		return nil, fmt.Errorf("%w: the sandbox's, and its memory has no room for the patch either: %s", gitbox.ErrDiskFull, said)
	}
	layout.Private = dir.String()
	s.note("the sandbox's disk was full")
	return s.base.Capture(ctx, guest{s.sb}, layout, opt, patch)
}

// bringOut takes the final patch and proves it. If the sandbox is gone, the
// patch that was saved last is what there is.
func (s *state) bringOut(ctx context.Context) error {
	partial := false
	err := s.step("patch", "Make the patch", func() error {
		err := s.save(ctx, true)
		if err != nil && errors.Is(err, sandbox.ErrEnded) {
			partial = true
			return nil
		}
		return err
	})
	if partial && s.capture == nil {
		s.note("the sandbox ended before its work was saved: there is no patch")
		return err
	}
	if s.capture == nil {
		return err
	}
	if err != nil {
		partial = true
		s.note("the last state could not be taken; the patch is of an earlier one")
	}
	err = errors.Join(err, s.step("prove", "Prove the patch", func() error { return s.prove(ctx, partial) }))
	// First: that it is held back is what matters most.
	return errors.Join(s.held(), err)
}

// reasonSecret is a run's reason when its patch was held back.
const reasonSecret = "secret"

var errHeld = errors.New("the patch was held back")

// held is the error of a patch that holds a secret.
func (s *state) held() error {
	if len(s.secrets) == 0 {
		return nil
	}
	if s.task.Patch == nil {
		s.task.Patch = &Patch{}
	}
	s.task.Patch.Secrets = s.secrets
	return &failure{reasonSecret, WithHint(fmt.Errorf("%w, since it holds the value of %s", errHeld, strings.Join(s.secrets, ", ")),
		fmt.Sprintf("it is %s, for you alone; see how the value got in, have it taken out and run again, or clean the patch and lay it on with `git apply`. "+
			"If the command should never have seen the value, replace it where it is issued", s.dir.path(HeldFile)))}
}

func (s *state) prove(ctx context.Context, partial bool) error {
	proof, err := s.base.Prove(ctx, s.dir.path(patchName(s.secrets)), s.capture.Tree)
	if proof != nil {
		s.task.Patch = &Patch{
			Files: proof.Files, Insertions: proof.Insertions, Deletions: proof.Deletions,
			Bytes: proof.Bytes, SHA256: proof.SHA256, Applies: proof.Applies && err == nil,
			Partial: partial, Paths: proof.Paths, Risky: proof.Risky, LFS: s.capture.LFS.First,
		}
	}
	for _, n := range s.capture.Notes {
		s.note("%s", n)
	}
	if n := s.capture.LFS; n.Count > 0 {
		s.note("%d changed files are under Git LFS; their content is not in the patch (%s)", n.Count, first(n))
	}
	if n := s.capture.Nested; n.Count > 0 {
		s.note("%d repositories inside the work tree are not in the patch (%s)", n.Count, first(n))
	}
	return err
}

func (s *state) apply(ctx context.Context) error {
	decide := s.Decide
	if decide != nil {
		decide = func(paths []gitbox.RiskyPath) error { return s.Decide(scrub(s.Redact, paths)) }
	}
	r, err := s.base.Apply(ctx, s.Repo, s.dir.path(PatchFile), decide)
	if err != nil {
		return err
	}
	for _, c := range r.Paths {
		s.task.Applied = append(s.task.Applied, c.Path)
	}
	if r.Merged {
		s.note("the work tree had moved on; the patch was merged with it")
	}
	return nil
}

// outcome sets what an error of Ravi's means for the task.
func (s *state) outcome(ctx context.Context, err error) {
	t := s.task
	if have, rerr := s.Store.Run(context.WithoutCancel(ctx), t.ID); rerr == nil && have.Status == store.RunCanceled {
		// Somebody else canceled it. That its sandbox was gone then is no failure.
		t.Status, t.Reason, t.Exit, t.Error, t.Hint = store.RunCanceled, sandbox.ReasonCanceled, exitCanceled, "", ""
		return
	}
	if err == nil {
		return
	}
	if ctx.Err() != nil && t.ExitCode == nil && t.Patch == nil && !errors.Is(err, errUnaudited) {
		// The user ended it before there was anything.
		t.Status, t.Reason, t.Exit = store.RunCanceled, sandbox.ReasonCanceled, exitCanceled
		return
	}
	t.Status, t.Exit, t.Error = store.RunError, exitRavi, err.Error()
	var f *failure
	var end *sandbox.EndError
	switch {
	case errors.Is(err, errHeld):
		t.Reason = reasonSecret
	case errors.Is(err, errUnaudited):
		t.Reason = reasonAudit
	case errors.Is(err, remote.ErrFull), errors.Is(err, remote.ErrDraining):
		t.Reason = ReasonNoRoom
	case errors.Is(err, ErrNotReached):
		t.Reason = ReasonNotReached
	case errors.As(err, &end):
		t.Reason = end.Reason
	case errors.As(err, &f):
		t.Reason = f.step
	}
	var ie *sandbox.InitError
	var h *hinted
	switch {
	case errors.As(err, &h):
		t.Hint = h.hint
	case errors.As(err, &ie):
		t.Hint = ie.Hint
	}
}

// finish records the outcome: task.json, the store, and the copy that the user
// asked for. Every run that was recorded gets here.
func (s *state) finish(ctx context.Context) error {
	t := s.task
	s.suggest()
	now := store.Now()
	t.EndedAt, t.Answer = &now, cut(s.answer, mostAnswer)
	s.dir.event("ended", map[string]any{"status": t.Status, "exit_code": t.ExitCode, "reason": t.Reason, "error": t.Error})
	errs := []error{s.dir.writeTask(t), s.endTask(ctx)}
	_, err := s.Store.UpdateRun(ctx, t.ID, func(r *store.Run) error {
		r.Status, r.Reason, r.ExitCode, r.SandboxID, r.Owner = t.Status, t.Reason, t.ExitCode, t.Sandbox, procid.ID{}
		if p := t.Patch; p != nil {
			r.Patch = &store.Patch{Files: p.Files, Insertions: p.Insertions, Deletions: p.Deletions, Bytes: p.Bytes, SHA256: p.SHA256, Applies: p.Applies}
		}
		return nil
	})
	errs = append(errs, err)
	if s.Out != "" {
		if err := copyFolder(s.dir.dir, s.Out); err != nil {
			errs = append(errs, fmt.Errorf("copying the run to %s: %w", s.Out, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		t.Exit = exitRavi
		return fmt.Errorf("writing down the run's outcome: %w", err)
	}
	return nil
}

// copyFolder copies the run's files into dir, which is made if need be. All of
// them were written by Ravi.
func copyFolder(from, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, rel)
		if d.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		if rel == HeldFile || rel == StateFile {
			return nil // it stays where it is held, and where --resume looks for it
		}
		return copyFile(p, to)
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

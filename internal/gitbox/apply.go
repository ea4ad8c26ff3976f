package gitbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ApplyResult is what Apply wrote.
type ApplyResult struct {
	Paths  []PathChange `json:"-"`
	Merged bool         `json:"merged"` // the work tree was no longer the base; a three-way merge was made
}

// Apply brings a patch against the base onto the work tree at path: all of it, or nothing. The work tree may have moved on
// since: the merge is made in private from base, patched base and a snapshot of the work tree, and a conflict ends it with
// ErrConflict before anything is written. The index and the Git directory stay as they are, so the changes are unstaged,
// and no hook or filter of the repository runs.
//
// Changed paths that something will execute or obey are passed to decide; its error ends Apply. Without decide they are
// refused.
func (b *Base) Apply(ctx context.Context, path, patch string, decide func([]RiskyPath) error) (*ApplyResult, error) {
	if err := needGit(ctx, mergeGit); err != nil {
		return nil, err
	}
	r, err := Open(ctx, path)
	if err != nil {
		return nil, err
	}
	if r.Bare {
		return nil, fmt.Errorf("%w: %s has no work tree to apply a patch to", ErrUnsupported, printable(r.Top))
	}
	if r.Format != b.Format {
		return nil, fmt.Errorf("%w: %s names objects by %s, the patch's base by %s", ErrUnsupported, printable(r.Top), r.Format, b.Format)
	}
	work, err := openRoot(r.Top)
	if err != nil {
		return nil, err
	}
	defer work.Close()
	if err := noLeftovers(r.Top); err != nil {
		return nil, err
	}
	tmp, err := scratch(b.dir)
	if err != nil {
		return nil, err
	}
	defer clean(tmp)
	var p Proof
	bx, err := b.apply(ctx, patch, tmp, &p)
	if err == nil {
		err = p.describe(ctx, bx, b.Tree)
	}
	if err != nil {
		return nil, err
	}
	m := &merge{b: b, r: r, bx: bx, patched: p.Tree, seen: map[string]unix.Stat_t{}}
	for _, c := range p.Paths {
		m.look(work, c.Path)
		m.look(work, c.From)
	}
	if err := m.settle(ctx, work, tmp); err != nil {
		return nil, err
	}
	res := &ApplyResult{Paths: m.changes, Merged: m.ours != b.Tree}
	if len(m.changes) == 0 {
		return res, nil
	}
	if err := m.check(ctx, decide); err != nil {
		return nil, err
	}
	out := tmp + "/out"
	if err := m.checkOut(ctx, tmp, out); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// From here on it is done to the end, or taken back.
	if err := place(work, out, m.changes, m.seen); err != nil {
		return nil, fmt.Errorf("%s was left as it was: %w", printable(r.Top), err)
	}
	return res, nil
}

// merge is one attempt to bring a patched tree and a work tree together.
type merge struct {
	b             *Base
	r             *Repo
	bx            box
	patched, ours string
	merged        string
	src           box
	changes       []PathChange
	seen          map[string]unix.Stat_t // what lay in the work tree before the snapshot was taken; a zero value where nothing did
}

func (m *merge) look(work *root, name string) bool {
	if _, known := m.seen[name]; known || name == "" {
		return false
	}
	st, err := work.lstat(name)
	if err != nil {
		st = unix.Stat_t{}
	}
	m.seen[name] = st
	return true
}

// settle computes what has to change in the work tree. Each path of it must have been looked at before the snapshot, so
// that an edit made meanwhile is noticed; a merge that follows renames may name others, and then it is done once more.
func (m *merge) settle(ctx context.Context, work *root, tmp string) error {
	for round := range 3 {
		dir := fmt.Sprintf("%s/round%d", tmp, round)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		m.src = box{dir: dir + "/src.git"}
		if err := m.r.borrowing(m.src); err != nil {
			return err
		}
		head, branch, err := m.r.readHead()
		if err != nil {
			return err
		}
		if branch != "" { // only a work tree without an index needs HEAD's commit
			refs, _, err := m.r.readRefs(Limits{}.orDefault().Refs)
			if err != nil {
				return err
			}
			if i := slices.IndexFunc(refs, func(n ref) bool { return n.name == branch }); i >= 0 {
				head = refs[i].oid
			}
		}
		if head != "" {
			if err := os.WriteFile(m.src.dir+"/HEAD", []byte(head+"\n"), 0o600); err != nil {
				return err
			}
		}
		snap, err := m.r.snapshot(ctx, m.src, box{dir: m.bx.dir, objects: m.bx.objects}, dir, Limits{}.orDefault())
		if err != nil {
			return err
		}
		m.ours = snap.tree
		if err := m.join(ctx); err != nil {
			return err
		}
		if m.changes, err = m.bx.changes(ctx, m.ours, m.merged, "--no-renames"); err != nil {
			return err
		}
		again := false
		for _, c := range m.changes {
			again = m.look(work, c.Path) || again
		}
		if !again {
			return nil
		}
	}
	return fmt.Errorf("%w: %s keeps changing", ErrConflict, printable(m.r.Top))
}

// join merges the patched tree and the work tree's, from the base.
func (m *merge) join(ctx context.Context) error {
	if m.ours == m.b.Tree {
		m.merged = m.patched
		return nil
	}
	var ids [3]string
	for i, tree := range []string{m.b.Tree, m.ours, m.patched} {
		args := []string{"commit-tree", tree, "-m", []string{"base", "ours", "theirs"}[i]}
		if i > 0 {
			args = append(args, "-p", ids[0])
		}
		var err error
		if ids[i], err = m.bx.line(ctx, args...); err != nil {
			return err
		}
	}
	var out capped
	out.max = 64 << 20
	err := m.bx.run(ctx, nil, &out, "merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", ids[1], ids[2])
	f := splitNul(out.String())
	if err != nil && exitCode(err) != 1 || len(f) == 0 || !validOID(m.b.Format, f[0]) {
		return errors.Join(errors.New("merging failed"), err)
	}
	if err != nil {
		return fmt.Errorf("%w in %s; nothing was written; see the differences side by side with: git apply --3way PATCH", ErrConflict, names(f[1:]))
	}
	m.merged = f[0]
	return nil
}

// check refuses what cannot be written faithfully and asks about what is dangerous.
func (m *merge) check(ctx context.Context, decide func([]RiskyPath) error) error {
	var paths []string
	for _, c := range m.changes {
		if why := unsafePath(c.Path); why != "" {
			return fmt.Errorf("%w: the path %s %s", ErrRefused, printable(c.Path), why)
		}
		if c.OldMode == gitlink || c.NewMode == gitlink {
			return fmt.Errorf("%w: the patch changes the submodule %s; nothing was written", ErrUnsupported, printable(c.Path))
		}
		paths = append(paths, c.Path)
	}
	src := m.src
	src.work, src.index = m.r.Top, strings.TrimSuffix(m.src.dir, "src.git")+"index.src"
	drivers, err := src.filters(ctx, paths)
	if err != nil {
		return err
	}
	if len(drivers) > 0 {
		var list []string
		for p := range drivers {
			list = append(list, p)
		}
		slices.Sort(list)
		return fmt.Errorf("%w: a filter driver of yours converts %s, and Ravi runs none; nothing was written; apply with your own git: git apply --3way PATCH",
			ErrUnsupported, names(list))
	}
	danger, err := m.bx.risky(ctx, m.changes)
	if err != nil || len(danger) == 0 {
		return err
	}
	if decide == nil {
		var list []string
		for _, d := range danger {
			list = append(list, d.Path+" ("+d.Why+")")
		}
		return fmt.Errorf("%w: nobody was there to agree to changes of %s; nothing was written", ErrRefused, names(list))
	}
	return decide(danger)
}

// checkOut writes the new files to out, with line ends and encodings as the work tree has them.
func (m *merge) checkOut(ctx context.Context, tmp, out string) error {
	if err := os.Mkdir(out, 0o700); err != nil {
		return err
	}
	var list []string
	for _, c := range m.changes {
		if c.Status != "D" {
			list = append(list, c.Path)
		}
	}
	bx := m.bx
	bx.index, bx.work = tmp+"/index.merged", out
	if err := bx.run(ctx, nil, nil, "read-tree", m.merged); err != nil {
		return err
	}
	if len(list) == 0 {
		return nil
	}
	return bx.run(ctx, strings.NewReader(nulList(list)), nil, "checkout-index", "-z", "--stdin")
}

const leftover = ".ravi-apply-"

// noLeftovers refuses a work tree in which an earlier Apply was cut off, by a power failure for instance: its directory
// holds the only copy of what it had moved away.
func noLeftovers(top string) error {
	entries, err := os.ReadDir(top)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), leftover) {
			return fmt.Errorf("%w: an earlier apply was cut off or is running; %s/%s has the former files in old/ and their names in list; move them back and remove it",
				ErrRefused, printable(top), printable(e.Name()))
		}
	}
	return nil
}

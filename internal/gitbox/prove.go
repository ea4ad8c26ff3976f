package gitbox

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Proof is what is known of a patch after it was applied outside.
type Proof struct {
	Files      int          `json:"files"`
	Insertions int          `json:"insertions"`
	Deletions  int          `json:"deletions"`
	Bytes      int64        `json:"bytes"`
	SHA256     string       `json:"sha256"`
	Applies    bool         `json:"applies"`
	Tree       string       `json:"tree"` // the base with the patch applied
	Paths      []PathChange `json:"-"`
	Risky      []RiskyPath  `json:"risky,omitempty"` // what somebody's tools would execute or obey
}

// Prove applies the patch file to the base in an index of its own, without a check-out and without any configuration but
// ours, and reports what it does. Tree, when given, is what Capture saw: the patch must lead to exactly that. An error
// wraps ErrNotProven when the patch is at fault; the Proof is then filled as far as it goes, with Applies false.
func (b *Base) Prove(ctx context.Context, patch, tree string) (*Proof, error) {
	p := &Proof{}
	if err := needGit(ctx, minGit); err != nil {
		return p, err
	}
	tmp, err := scratch("")
	if err != nil {
		return p, err
	}
	defer clean(tmp)
	bx, err := b.apply(ctx, patch, tmp, p)
	if err != nil {
		return p, err
	}
	if tree != "" && tree != p.Tree {
		return p, fmt.Errorf("%w: it applies, but leads to the tree %s where the sandbox had %s", ErrNotProven, p.Tree, printable(tree))
	}
	if err := p.describe(ctx, bx, b.Tree); err != nil {
		return p, err
	}
	p.Applies = true
	return p, nil
}

// apply applies the patch to the base in a box beneath tmp, which it returns.
func (b *Base) apply(ctx context.Context, patch, tmp string, p *Proof) (box, error) {
	bx := b.box()
	bx.index, bx.objects, bx.work = tmp+"/index", tmp+"/objects", tmp+"/none"
	for _, d := range []string{bx.objects, bx.work} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return bx, err
		}
	}
	f, err := os.Open(patch)
	if err != nil {
		return bx, err
	}
	defer f.Close()
	sum := sha256.New()
	if p.Bytes, err = io.Copy(sum, f); err != nil {
		return bx, err
	}
	p.SHA256 = fmt.Sprintf("%x", sum.Sum(nil))
	if err := bx.run(ctx, nil, nil, "read-tree", b.Tree); err != nil {
		return bx, err
	}
	if p.Bytes > 0 { // nothing changed is a patch too, but not to git apply
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return bx, err
		}
		// From standard input: the patch's own name is then never an argument.
		if err := bx.run(ctx, f, nil, "apply", "--cached", "--whitespace=nowarn", "-p1", "-"); err != nil {
			if ctx.Err() != nil || errors.Is(err, ErrDiskFull) {
				return bx, err
			}
			return bx, fmt.Errorf("%w: it does not apply to its own base: %w", ErrNotProven, err)
		}
	}
	p.Tree, err = bx.line(ctx, "write-tree")
	return bx, err
}

// describe fills in what changed between the base and the patched tree.
func (p *Proof) describe(ctx context.Context, bx box, base string) error {
	list, err := bx.changes(ctx, base, p.Tree, "-M", "-l1000")
	if err != nil {
		return err
	}
	out, err := bx.output(ctx, nil, "diff-tree", "-r", "-z", "--numstat", "-M", "-l1000", "--no-ext-diff", "--no-textconv", base, p.Tree)
	if err != nil {
		return err
	}
	stats, err := parseNumstat(out)
	if err != nil {
		return err
	}
	for i := range list {
		c := &list[i]
		if why := unsafePath(c.Path); why != "" {
			return fmt.Errorf("%w: the path %s %s", ErrNotProven, printable(c.Path), why)
		}
		n := stats[c.Path]
		c.Insertions, c.Deletions, c.Binary = n.ins, n.del, n.binary
		p.Insertions += n.ins
		p.Deletions += n.del
	}
	p.Files, p.Paths = len(list), list
	p.Risky, err = bx.risky(ctx, list)
	return err
}

// risky picks the changes that deserve a question.
func (b box) risky(ctx context.Context, list []PathChange) ([]RiskyPath, error) {
	var out []RiskyPath
	for _, c := range list {
		if c.Status == "D" {
			continue
		}
		target := ""
		if c.NewMode == "120000" {
			var err error
			if target, err = b.output(ctx, nil, "cat-file", "blob", c.newID); err != nil {
				return nil, err
			}
			if strings.IndexByte(target, 0) >= 0 {
				return nil, fmt.Errorf("%w: the link %s holds a NUL", ErrNotProven, printable(c.Path))
			}
		}
		if why := risky(c, target); why != "" {
			out = append(out, RiskyPath{Path: c.Path, Why: why})
		}
	}
	return out, nil
}

package gitbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Base is what a run starts from, and the directory that holds it: base.git, a repository of our own in which each object
// was checked, and base.json, this struct.
type Base struct {
	Commit     string `json:"commit"`         // HEAD, or what the ref names; empty in a repository without commits
	Branch     string `json:"branch"`         // full name of the branch that is checked out; empty when detached
	Ref        string `json:"ref,omitempty"`  // as asked for
	Tree       string `json:"tree"`           // the state that the patch is made against: Commit's tree, or the dirty one
	Head       string `json:"head,omitempty"` // the tree of Commit
	Format     string `json:"object_format"`
	Shallow    bool   `json:"shallow,omitempty"`
	Empty      bool   `json:"empty,omitempty"`
	Dirty      Dirty  `json:"dirty"`
	LFS        Names  `json:"lfs"`        // paths under Git LFS: pointers go in, not content
	Filtered   Names  `json:"filtered"`   // changed files that were not taken along, since a filter (LFS, encryption) converts them
	Submodules Names  `json:"submodules"` // kept as they are, not descended into
	Left       Names  `json:"left"`       // special files, repositories inside the work tree, names that Git refuses
	Refs       Names  `json:"refs_left"`  // refs that are broken

	Settings map[string]string `json:"settings,omitempty"` // core.autocrlf and core.eol of the source

	dir string
}

// Dirty counts how the work tree differed from Commit.
type Dirty struct {
	Modified int   `json:"modified"`
	Added    int   `json:"added"`
	Deleted  int   `json:"deleted"`
	Paths    Names `json:"paths"`
}

// Any tells whether there was a difference.
func (d Dirty) Any() bool { return d.Modified+d.Added+d.Deleted > 0 }

// Names is a list that may be long: a count and the first hundred. A name that is not UTF-8, or holds control characters,
// is shown in a harmless form.
type Names struct {
	Count int      `json:"count"`
	First []string `json:"first,omitempty"`
}

func namesOf(list []string) Names {
	n := Names{Count: len(list)}
	for _, s := range list[:min(len(list), 100)] {
		n.First = append(n.First, printable(s))
	}
	return n
}

// Dir is the directory of the export.
func (b *Base) Dir() string { return b.dir }

func (b *Base) box() box { return box{dir: b.dir + "/base.git"} }

// Load reads what Export left in dir.
func Load(dir string) (*Base, error) {
	data, err := os.ReadFile(dir + "/base.json")
	if err != nil {
		return nil, err
	}
	b := &Base{dir: dir}
	if err := json.Unmarshal(data, b); err != nil {
		return nil, fmt.Errorf("%s/base.json: %w", dir, err)
	}
	if dir, err = filepath.Abs(dir); err == nil {
		b.dir, err = filepath.EvalSymlinks(dir)
	}
	return b, err
}

// Export writes the state to start from into dir, which it makes: a ref, or with "" the work tree as it lies, changed and
// untracked files included. The history of all branches, tags and remote-tracking branches comes along.
func (r *Repo) Export(ctx context.Context, ref, dir string, lim Limits) (*Base, error) {
	lim = lim.orDefault()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir+"/base.git", 0o700); err != nil {
		return nil, fmt.Errorf("each export needs a directory of its own: %w", err)
	}
	tmp, err := scratch(dir)
	if err != nil {
		return nil, err
	}
	defer clean(tmp)
	b := &Base{Ref: ref, Format: r.Format, Shallow: r.Shallow, dir: dir, Settings: map[string]string{}}
	for _, key := range []string{"autocrlf", "eol"} {
		if v := r.settings[key]; v != "" {
			b.Settings[key] = v
		}
	}
	src, refs, err := r.source(ctx, tmp, b, lim)
	if err != nil {
		return nil, err
	}
	if err := b.history(ctx, r, src, refs); err != nil {
		return nil, err
	}
	if err := b.state(ctx, r, src, tmp, lim); err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return nil, err
	}
	return b, os.WriteFile(dir+"/base.json", append(data, '\n'), 0o600)
}

// source makes the box that borrows the repository's objects, with refs that we read, and resolves what to start from.
func (r *Repo) source(ctx context.Context, tmp string, b *Base, lim Limits) (box, []ref, error) {
	src := box{dir: tmp + "/src.git"}
	refs, broken, err := r.readRefs(lim.Refs)
	if err != nil {
		return src, nil, err
	}
	head, branch, err := r.readHead()
	if err != nil {
		return src, nil, err
	}
	if err := r.borrowing(src); err != nil {
		return src, nil, err
	}

	// Broken refs are dropped and named; Git would refuse to work at all.
	var ask strings.Builder
	for _, n := range refs {
		ask.WriteString(n.oid + "\n")
	}
	absent, err := src.missing(ctx, ask.String())
	if err != nil {
		return src, nil, err
	}
	if len(absent) > 0 {
		refs = slices.DeleteFunc(refs, func(n ref) bool {
			_, bad := slices.BinarySearch(absent, n.oid)
			if bad && n.name == branch {
				err = fmt.Errorf("%w: the branch %s points to a missing object; look with: git fsck", ErrCorrupt, printable(n.name))
			}
			if bad {
				broken = append(broken, n.name)
			}
			return bad
		})
		if err != nil {
			return src, nil, err
		}
	}
	b.Refs = namesOf(broken)
	if branch != "" {
		if i := slices.IndexFunc(refs, func(n ref) bool { return n.name == branch }); i >= 0 {
			head = refs[i].oid
		}
		b.Branch = branch
	}
	if err := os.WriteFile(src.dir+"/packed-refs", packedRefs(refs), 0o600); err != nil {
		return src, nil, err
	}
	text := head
	if branch != "" {
		text = "ref: " + branch
	}
	if err := os.WriteFile(src.dir+"/HEAD", []byte(text+"\n"), 0o600); err != nil {
		return src, nil, err
	}
	b.Commit, b.Empty = head, head == ""
	if b.Ref != "" {
		if err := b.resolve(ctx, src, refs); err != nil {
			return src, nil, err
		}
	}
	if b.Commit != "" {
		if b.Head, err = src.line(ctx, "rev-parse", "--verify", "--end-of-options", b.Commit+"^{tree}"); err != nil {
			return src, nil, fmt.Errorf("%w: %s is not a readable commit; look with: git fsck: %w", ErrCorrupt, b.Commit, err)
		}
	}
	return src, refs, nil
}

// borrowing makes src a box over the repository's objects.
func (r *Repo) borrowing(src box) error {
	if err := makeBox(src.dir, r.Format, r.settings); err != nil {
		return err
	}
	if err := os.WriteFile(src.dir+"/objects/info/alternates", []byte(cquote(r.common+"/objects")+"\n"), 0o600); err != nil {
		return err
	}
	if r.Shallow {
		if err := os.WriteFile(src.dir+"/shallow", []byte(strings.Join(r.shallow, "\n")+"\n"), 0o600); err != nil {
			return err
		}
	}
	return r.copyInfo(src.dir)
}

// copyInfo carries the repository's own ignore rules and attributes, and the operator's ignore rules: what somebody ignores
// everywhere, .env files for instance, must not go in as an untracked file.
func (r *Repo) copyInfo(to string) error {
	common, err := openRoot(r.common)
	if err != nil {
		return err
	}
	defer common.Close()
	const max = 4 << 20
	for _, name := range []string{"info/exclude", "info/attributes"} {
		data, err := common.readFile(name, max)
		if err != nil && !gone(err) {
			return fmt.Errorf("%w: %w", ErrRefused, err)
		}
		if name == "info/exclude" {
			mine, err := operatorExcludes()
			if err != nil {
				return err
			}
			data = bytes.Join([][]byte{mine, data}, []byte("\n"))
		}
		if err := os.WriteFile(to+"/"+name, data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// operatorExcludes reads the ignore file that the operator's own configuration names. That configuration is trusted.
func operatorExcludes() ([]byte, error) {
	cmd := exec.Command("git", "config", "--global", "--type=path", "--get", "core.excludesFile")
	cmd.Dir = "/"
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "GIT_") && !strings.HasPrefix(kv, "GIT_CONFIG_GLOBAL=")
	})
	out, err := cmd.Output()
	file := strings.TrimSuffix(string(out), "\n")
	var exit *exec.ExitError
	if errors.As(err, &exit) { // 1: no such key, or no such file
		base := os.Getenv("XDG_CONFIG_HOME")
		if home, herr := os.UserHomeDir(); base == "" && herr == nil {
			base = home + "/.config"
		}
		file = base + "/git/ignore"
	} else if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// resolve finds the commit that the operator asked for by name.
func (b *Base) resolve(ctx context.Context, src box, refs []ref) error {
	out, err := src.line(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", b.Ref+"^{commit}")
	if err != nil || !validOID(b.Format, out) || strings.HasPrefix(b.Ref, "-") {
		var have []string
		for _, n := range refs {
			if short, ok := strings.CutPrefix(n.name, "refs/heads/"); ok {
				have = append(have, short)
			}
		}
		return fmt.Errorf("%w: %s names no commit; branches here: %s", ErrBadRef, printable(b.Ref), names(have))
	}
	b.Commit, b.Branch, b.Empty = out, "", false
	for _, n := range refs {
		if n.name == b.Ref && strings.HasPrefix(n.name, "refs/heads/") || n.name == "refs/heads/"+b.Ref {
			b.Branch = n.name
		}
	}
	return nil
}

// history fills base.git with checked objects and refs.
func (b *Base) history(ctx context.Context, r *Repo, src box, refs []ref) error {
	dst := b.box()
	if err := makeBox(dst.dir, r.Format, r.settings); err != nil {
		return err
	}
	if r.Shallow {
		if err := os.WriteFile(dst.dir+"/shallow", []byte(strings.Join(r.shallow, "\n")+"\n"), 0o600); err != nil {
			return err
		}
	}
	if err := r.copyInfo(dst.dir); err != nil {
		return err
	}
	var revs strings.Builder
	for _, n := range refs {
		revs.WriteString(n.oid + "\n")
	}
	if b.Commit != "" {
		revs.WriteString(b.Commit + "\n")
	}
	if revs.Len() > 0 {
		if err := copyObjects(ctx, src, dst, strings.NewReader(revs.String()), "--revs"); err != nil {
			return r.brokenHistory(ctx, err)
		}
	}
	return os.WriteFile(dst.dir+"/packed-refs", packedRefs(refs), 0o600)
}

// brokenHistory explains why objects could not be carried.
func (r *Repo) brokenHistory(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, ErrDiskFull) {
		return err
	}
	packs, _ := filepath.Glob(r.common + "/objects/pack/*.promisor")
	if len(packs) > 0 {
		return fmt.Errorf("%w: %s is a partial clone and lacks objects; fetch them with: git fetch --refetch --no-filter: %w", ErrCorrupt, printable(r.Top), err)
	}
	return fmt.Errorf("%w: an object of %s is missing, broken or forbidden; look with: git fsck --strict: %w", ErrCorrupt, printable(r.Top), err)
}

// state settles the tree that the run starts from, and describes it.
func (b *Base) state(ctx context.Context, r *Repo, src box, tmp string, lim Limits) error {
	dst := b.box()
	b.Tree = b.Head
	if b.Ref == "" && !r.Bare {
		snap, err := r.snapshot(ctx, src, dst, tmp, lim)
		if err != nil {
			return err
		}
		b.Tree, b.Filtered, b.Left = snap.tree, namesOf(snap.filtered), namesOf(snap.left)
	}
	idx := box{dir: dst.dir, index: tmp + "/index.base", work: tmp}
	if b.Tree == "" {
		var err error // a bare repository without commits
		if b.Tree, err = idx.line(ctx, "write-tree"); err != nil {
			return err
		}
	}
	if err := b.describe(ctx, idx); err != nil {
		return err
	}
	if b.Tree == b.Head {
		return nil
	}
	// A ref keeps the dirty tree's objects in the packs. Its date and name are fixed, so that equal states are equal objects.
	args := []string{"commit-tree", b.Tree, "-m", "The state that the run starts from"}
	if b.Commit != "" {
		args = append(args, "-p", b.Commit)
	}
	commit, err := dst.line(ctx, args...)
	if err != nil {
		return err
	}
	if err := dst.run(ctx, nil, nil, "update-ref", startRef, commit); err != nil {
		return err
	}
	return dst.run(ctx, nil, nil, "repack", "-d", "-q", "-n")
}

// startRef never leaves base.git: the agent's own repository does not have it.
const startRef = "refs/ravi/start"

func (b *Base) describe(ctx context.Context, idx box) error {
	if err := idx.run(ctx, nil, nil, "read-tree", b.Tree); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	out, err := idx.output(ctx, nil, "ls-files", "-s", "-z")
	if err != nil {
		return err
	}
	var files, modules []string
	for _, line := range splitNul(out) {
		meta, path, _ := strings.Cut(line, "\t")
		if strings.HasPrefix(meta, gitlink) {
			modules = append(modules, path)
		} else {
			files = append(files, path)
		}
	}
	b.Submodules = namesOf(modules)
	drivers, err := idx.filters(ctx, files, "--cached")
	if err != nil {
		return err
	}
	var lfs []string
	for path, driver := range drivers {
		if driver == "lfs" {
			lfs = append(lfs, path)
		}
	}
	slices.Sort(lfs)
	b.LFS = namesOf(lfs)
	from := b.Head
	if from == "" {
		if from, err = (box{dir: idx.dir, index: idx.index + ".none"}).line(ctx, "write-tree"); err != nil {
			return err
		}
	}
	changes, err := idx.changes(ctx, from, b.Tree)
	if err != nil {
		return err
	}
	var paths []string
	for _, c := range changes {
		switch c.Status {
		case "A":
			b.Dirty.Added++
		case "D":
			b.Dirty.Deleted++
		default:
			b.Dirty.Modified++
		}
		paths = append(paths, c.Path)
	}
	b.Dirty.Paths = namesOf(paths)
	return nil
}

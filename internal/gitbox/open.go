package gitbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Repo is a repository that was found and looked at. Nothing in it is trusted.
type Repo struct {
	Top     string // the work tree, or the repository itself where Bare
	Bare    bool
	Format  string // "sha1" or "sha256"
	Shallow bool
	Linked  bool // Top is a linked work tree: its .git is a file
	// Origin is where the repository says that it comes from, in the form of
	// Hosted; empty if it does not.
	Origin string

	gitDir   string // what belongs to this work tree: HEAD and index
	common   string // what all work trees share: objects and refs
	shallow  []string
	settings map[string]string // the few core.* values that change what a file's content means
}

// Open finds the repository that holds path, upwards, and reads how it is built. It runs nothing of it, and takes no part
// from a place that does not itself acknowledge belonging to it.
func Open(ctx context.Context, path string) (*Repo, error) {
	if err := needGit(ctx, minGit); err != nil {
		return nil, err
	}
	abs, err := filepath.Abs(path)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs) // the path is the operator's choice, so are its links
	}
	if err != nil {
		return nil, fmt.Errorf("repository %s: %w", printable(path), err)
	}
	if st, err := os.Stat(abs); err != nil {
		return nil, fmt.Errorf("repository %s: %w", printable(path), err)
	} else if !st.IsDir() {
		return nil, fmt.Errorf("%w: %s is a file; name a directory", ErrNotRepository, printable(path))
	}
	for dir := abs; ; dir = filepath.Dir(dir) {
		r, err := lookAt(ctx, dir)
		if err != nil {
			return nil, err
		}
		if r != nil {
			return r, r.inspect(ctx)
		}
		if dir == "/" {
			return nil, fmt.Errorf("%w: neither %s nor a directory above it; make one with: git init", ErrNotRepository, printable(path))
		}
	}
}

// lookAt tells whether dir is a work tree or a bare repository; nil means neither.
func lookAt(ctx context.Context, dir string) (*Repo, error) {
	at, err := openRoot(dir)
	if err != nil {
		return nil, err
	}
	defer at.Close()
	dotGit := filepath.Join(dir, ".git")
	st, err := at.lstat(".git")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if isGitDir(at) && exists(at, "refs") && exists(at, "objects") {
			return &Repo{Top: dir, Bare: true, gitDir: dir, common: dir}, nil
		}
		return nil, nil
	case err != nil:
		return nil, err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		git, err := openRoot(dotGit)
		if err != nil {
			return nil, err
		}
		defer git.Close()
		if !isGitDir(git) {
			return nil, nil // as git does: an empty .git is no repository, one above may be
		}
		if exists(git, "commondir") {
			return nil, fmt.Errorf("%w: %s/commondir says that its objects are elsewhere; run on the main work tree", ErrRefused, printable(dotGit))
		}
		return &Repo{Top: dir, gitDir: dotGit, common: dotGit}, nil
	case unix.S_IFREG:
		return linked(ctx, dir, at)
	case unix.S_IFLNK:
		return nil, fmt.Errorf("%w: %s is a symbolic link; run on the directory that it leads to", ErrRefused, printable(dotGit))
	}
	return nil, fmt.Errorf("%w: %s is neither a directory nor a file", ErrRefused, printable(dotGit))
}

func exists(r *root, name string) bool {
	_, err := r.lstat(name)
	return err == nil
}

// isGitDir looks for HEAD alone: what else is missing gets a better message later.
func isGitDir(r *root) bool { return exists(r, "HEAD") }

// linked resolves a .git that is a file. Anybody can write a file that points at somebody's private repository, so the
// other side must point back: through its record of linked work trees, or its core.worktree (submodules).
func linked(ctx context.Context, top string, at *root) (*Repo, error) {
	dotGit := filepath.Join(top, ".git")
	data, err := at.readFile(".git", 8192)
	if err != nil {
		return nil, err
	}
	target, err := parseGitFile(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %v", ErrNotRepository, printable(dotGit), err)
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(top, target)
	}
	gitDir, err := filepath.EvalSymlinks(target)
	if err != nil {
		return nil, fmt.Errorf("%w: %s points to %s: %v; mend it with: git worktree repair", ErrNotRepository, printable(dotGit), printable(target), err)
	}
	git, err := openRoot(gitDir)
	if err != nil {
		return nil, err
	}
	defer git.Close()
	r := &Repo{Top: top, gitDir: gitDir, common: gitDir, Linked: true}
	stranger := fmt.Errorf("%w: %s points to %s, which does not point back; if they belong together: git worktree repair, or git -C %s config core.worktree %s",
		ErrRefused, printable(dotGit), printable(gitDir), strconv.Quote(top), strconv.Quote(top))

	if data, err := git.readFile("commondir", 8192); err == nil {
		common := strings.TrimRight(string(data), "\r\n")
		if !filepath.IsAbs(common) {
			common = filepath.Join(gitDir, common)
		}
		if r.common, err = filepath.EvalSymlinks(common); err != nil {
			return nil, fmt.Errorf("%w: %s: %v", ErrNotRepository, printable(gitDir)+"/commondir", err)
		}
		if filepath.Dir(gitDir) != filepath.Join(r.common, "worktrees") {
			return nil, stranger
		}
		back, err := git.readFile("gitdir", 8192)
		if err != nil {
			return nil, stranger
		}
		name := strings.TrimRight(string(back), "\r\n")
		if !filepath.IsAbs(name) {
			name = filepath.Join(gitDir, name)
		}
		if !sameFile(name, dotGit) {
			return nil, stranger
		}
		return r, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	values, err := readConfig(ctx, git)
	if err != nil {
		return nil, err
	}
	work := values["core.worktree"]
	if work != "" && !filepath.IsAbs(work) {
		work = filepath.Join(gitDir, work)
	}
	if work == "" || !sameFile(work, top) {
		return nil, stranger
	}
	return r, nil
}

func sameFile(a, b string) bool {
	x, err1 := os.Stat(a)
	y, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

// knownExtensions change nothing in what this package reads, or are handled.
var knownExtensions = map[string]bool{
	"noop": true, "noop-v1": true, "preciousobjects": true, "partialclone": true, "worktreeconfig": true,
	"objectformat": true, "refstorage": true, "relativeworktrees": true, "compatobjectformat": true,
}

// inspect checks the parts of the repository and reads its format.
func (r *Repo) inspect(ctx context.Context) error {
	common, err := openRoot(r.common)
	if err != nil {
		return err
	}
	defer common.Close()
	values, err := readConfig(ctx, common)
	if err != nil {
		return err
	}
	r.Format = sha1Format
	if version, _ := strconv.Atoi(values["core.repositoryformatversion"]); version > 1 {
		return fmt.Errorf("%w: %s has format version %d", ErrUnsupported, printable(r.common), version)
	} else if version == 1 {
		for key, v := range values {
			name, ok := strings.CutPrefix(key, "extensions.")
			if ok && !knownExtensions[name] {
				return fmt.Errorf("%w: %s uses the extension %s", ErrUnsupported, printable(r.common), printable(name))
			}
			if name == "objectformat" {
				r.Format = v
			}
		}
	}
	if r.Format != sha1Format && r.Format != sha256Format {
		return fmt.Errorf("%w: object format %s", ErrUnsupported, printable(r.Format))
	}
	if v := values["extensions.refstorage"]; v != "" && v != "files" || exists(common, "reftable") {
		return fmt.Errorf("%w: %s keeps its refs as %s; change that with: git refs migrate --ref-format=files", ErrUnsupported, printable(r.common), "reftable")
	}
	r.settings = meaning(values)
	r.Origin = Hosted(values["remote.origin.url"])
	if data, err := common.readFile("shallow", 16<<20); err == nil {
		if r.shallow, err = parseShallow(r.Format, data); err != nil {
			return err
		}
		r.Shallow = len(r.shallow) > 0
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return r.checkObjects(common)
}

// checkObjects refuses an object store that reaches out of itself: through alternates or links somebody who wrote the
// repository would have objects of other repositories, private ones, carried into a sandbox. Files that are not regular
// could block git for ever.
func (r *Repo) checkObjects(common *root) error {
	objects, err := common.sub("objects")
	if err != nil {
		return fmt.Errorf("%w: %s/objects is not a plain directory: %v", ErrRefused, printable(r.common), err)
	}
	defer objects.Close()
	return objects.walk("", func(name string, mode fs.FileMode) error {
		if !mode.IsDir() && !mode.IsRegular() {
			return fmt.Errorf("%w: %s is not a regular file; make the repository whole with: git clone --no-local", ErrRefused, printable(r.common+"/objects/"+name))
		}
		if name == "info/alternates" || name == "info/http-alternates" {
			data, err := objects.readFile(name, 1<<20)
			if err != nil {
				return err
			}
			if len(bytes.TrimSpace(data)) > 0 {
				return fmt.Errorf("%w: %s borrows objects from elsewhere (%s); make it whole with: git -C %s repack -a -d && rm %s",
					ErrRefused, printable(r.Top), printable("objects/"+name), strconv.Quote(r.Top), strconv.Quote(r.common+"/objects/"+name))
			}
		}
		return nil
	})
}

// readConfig lists a repository's configuration without following an include. Of the values only a handful with a fixed
// set of meanings is used; none reaches git as it was written.
func readConfig(ctx context.Context, git *root) (map[string]string, error) {
	data, err := git.readFile("config", 4<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	dir, err := scratch("")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	return parseConfig(ctx, dir, data)
}

// parseConfig has git read data as a configuration file, in an empty directory.
func parseConfig(ctx context.Context, dir string, data []byte) (map[string]string, error) {
	if err := os.WriteFile(dir+"/config-copy", data, 0o600); err != nil {
		return nil, err
	}
	if err := makeBox(dir+"/box", sha1Format, nil); err != nil {
		return nil, err
	}
	out, err := box{dir: dir + "/box"}.output(ctx, nil, "config", "--file", dir+"/config-copy", "--no-includes", "--null", "--list")
	if err != nil {
		return nil, fmt.Errorf("%w: its configuration: %w", ErrCorrupt, err)
	}
	values := map[string]string{}
	for item := range strings.SplitSeq(out, "\x00") {
		if key, value, ok := strings.Cut(item, "\n"); ok {
			values[key] = value
		} else if item != "" {
			values[item] = "true" // a key without a value
		}
	}
	return values, nil
}

// meaning picks the settings without which the files of a work tree would be misread.
func meaning(values map[string]string) map[string]string {
	out := map[string]string{}
	for _, key := range []string{"autocrlf", "filemode"} {
		switch v := strings.ToLower(values["core."+key]); v {
		case "true", "yes", "on", "1":
			out[key] = "true"
		case "false", "no", "off", "0":
			out[key] = "false"
		case "input":
			if key == "autocrlf" {
				out[key] = v
			}
		}
	}
	switch v := strings.ToLower(values["core.eol"]); v {
	case "lf", "crlf", "native":
		out["eol"] = v
	}
	return out
}

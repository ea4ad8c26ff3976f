package gitbox

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Guest is the little that this package needs of a sandbox.
type Guest interface {
	// Run runs a command to its end. An exit code other than 0 is no error; err means that the command could not be run
	// or that ctx ended, in which case the command is gone. Stderr is what it said last, bounded.
	Run(ctx context.Context, c Command) (code int, stderr string, err error)
	// PutTar extracts a tar stream beneath dir, which exists, keeping the modes, owned by the user.
	PutTar(ctx context.Context, user, dir string, tar io.Reader) error
}

// Command is one command in a sandbox. Env adds to the guest's own environment, of which only PATH matters.
type Command struct {
	User   string
	Dir    string
	Args   []string
	Env    []string
	Stdin  io.Reader
	Stdout io.Writer
}

// Layout says where things are in a sandbox. Root must be able to read what User wrote, and User must not be able to enter
// Private: that is what makes a patch independent of what the agent does to its own .git.
type Layout struct {
	Work    string // "/workspace"
	Private string // "/var/lib/ravi"
	User    string // "user"
	Root    string // "root"
}

// DefaultLayout is where a run has its things.
var DefaultLayout = Layout{Work: "/workspace", Private: "/var/lib/ravi", User: "user", Root: "root"}

// guestGit runs git in a sandbox on the private repository.
type guestGit struct {
	g     Guest
	l     Layout
	index string
	env   []string
}

func (b *Base) guestGit(g Guest, l Layout) guestGit {
	return guestGit{g: g, l: l, env: append(gitEnv("/nonexistent"), "GIT_DIR="+l.Private+"/base.git", "GIT_WORK_TREE="+l.Work)}
}

func (gg guestGit) run(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) error {
	env := gg.env
	if gg.index != "" {
		env = append(env[:len(env):len(env)], "GIT_INDEX_FILE="+gg.l.Private+"/"+gg.index,
			"GIT_OBJECT_DIRECTORY="+gg.l.Private+"/objects", "GIT_ALTERNATE_OBJECT_DIRECTORIES="+gg.l.Private+"/base.git/objects")
	}
	c := Command{User: gg.l.Root, Dir: gg.l.Work, Args: append([]string{"git"}, args...), Env: env, Stdin: stdin, Stdout: stdout}
	return runGuest(ctx, gg.g, c, args[0])
}

func (gg guestGit) output(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	out := capped{max: 64 << 20}
	err := gg.run(ctx, stdin, &out, args...)
	if out.over {
		err = fmt.Errorf("%w: git %s in the sandbox said more than %d bytes", ErrTooBig, args[0], out.max)
	}
	return out.String(), err
}

func (gg guestGit) shell(ctx context.Context, user, script string, args ...string) error {
	c := Command{User: user, Dir: "/", Args: append([]string{"sh", "-c", "set -eu; umask 022; " + script, "sh"}, args...), Env: gitEnv("/nonexistent")}
	return runGuest(ctx, gg.g, c, "set-up")
}

func runGuest(ctx context.Context, g Guest, c Command, name string) error {
	code, stderr, err := g.Run(ctx, c)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("git %s in the sandbox: %w", name, err)
	}
	if code == 0 {
		return nil
	}
	ge := &gitError{command: name + " in the sandbox", code: code, stderr: stderr, err: fmt.Errorf("exit code %d", code)}
	if saysFull(stderr) {
		return fmt.Errorf("%w: the sandbox's: %w", ErrDiskFull, ge)
	}
	return ge
}

// saysFull tells a full disk by what git, or the system, says of it.
func saysFull(stderr string) bool {
	return strings.Contains(stderr, "No space left on device") || strings.Contains(stderr, "Out of diskspace")
}

// Enter lays the base in a sandbox: a private repository that only root reaches, and in the work directory a repository
// of the user's with the same branches, tags and files. The user's shares the private packs, which stay root's.
func (b *Base) Enter(ctx context.Context, g Guest, l Layout) error {
	gg := b.guestGit(g, l)
	code, stderr, err := g.Run(ctx, Command{User: l.Root, Dir: "/", Args: []string{"git", "version"}, Env: gitEnv("/nonexistent"), Stdout: io.Discard})
	if err != nil || code != 0 {
		return errors.Join(fmt.Errorf("%w: the sandbox's image has no git that runs (%s); choose an image with git", ErrGit, printable(stderr)), err)
	}
	if err := gg.shell(ctx, l.Root, `mkdir -p "$1" "$2" && chmod 0700 "$1" && chown "$3" "$2"`, l.Private, l.Work, l.User); err != nil {
		return err
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(b.tar(w)) }()
	err = g.PutTar(ctx, l.Root, l.Private, r)
	r.CloseWithError(errors.New("the sandbox stopped reading")) // ends the writer in any case
	if err != nil {
		return fmt.Errorf("carrying the repository into the sandbox: %w", err)
	}
	format := ""
	if b.Format != sha1Format {
		format = "--object-format=" + b.Format
	}
	head := b.Commit
	if b.Branch != "" {
		head = "ref: " + b.Branch
	}
	for _, step := range []struct{ user, script string }{
		{l.User, `git -c init.defaultBranch=main init -q --template= $3 -- "$1" && mkdir -p "$1/.git/info"`},
		{l.Root, `for f in "$2"/base.git/objects/pack/*; do
			[ -e "$f" ] || continue
			ln "$f" "$1/.git/objects/pack/" 2>/dev/null || { cp "$f" "$1/.git/objects/pack/" && chown "$6" "$1/.git/objects/pack/${f##*/}"; }
		done
		for f in packed-refs shallow info/exclude info/attributes; do
			[ -e "$2/base.git/$f" ] || continue
			cp "$2/base.git/$f" "$1/.git/$f" && chmod 0644 "$1/.git/$f" && chown "$6" "$1/.git/$f"
		done`},
		{l.User, `cd "$1" && printf '%s\n' "$4" >.git/HEAD
		printf '[user]\n\tname = ravi\n\temail = ravi@localhost\n' >>.git/config # two programs less
		[ -z "$7" ] || git config core.autocrlf "$7"
		[ -z "$8" ] || git config core.eol "$8"
		git read-tree --reset -u "$5"
		[ "$5" = "$9" ] || if [ -n "$9" ]; then git read-tree "$9"; else git read-tree --empty; fi
		git update-index -q --refresh || :`},
	} {
		if err := gg.shell(ctx, step.user, step.script, l.Work, l.Private, format, head, b.Tree, l.User,
			b.Settings["autocrlf"], b.Settings["eol"], b.Head); err != nil {
			return err
		}
	}
	return nil
}

// tar streams base.git.
func (b *Base) tar(w io.Writer) error {
	out := tar.NewWriter(w)
	err := filepath.WalkDir(b.dir+"/base.git", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(b.dir, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o700})
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			return err
		}
		mode := int64(0o600)
		if strings.HasPrefix(name, "base.git/objects/") {
			mode = 0o444
		}
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: st.Size()}); err != nil {
			return err
		}
		_, err = io.Copy(out, f)
		return err
	})
	return errors.Join(err, out.Close())
}

package gitbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// minGit is the oldest git that honours GIT_CONFIG_GLOBAL and opens .gitignore and .gitattributes without following links;
// mergeGit is the oldest with `merge-tree --write-tree`, which Apply needs.
var (
	minGit   = [2]int{2, 32}
	mergeGit = [2]int{2, 38}
)

var versionText = regexp.MustCompile(`^git version (\d+)\.(\d+)`)

func parseVersion(out string) (v [2]int, ok bool) {
	m := versionText.FindStringSubmatch(out)
	if m == nil {
		return v, false
	}
	v[0], _ = strconv.Atoi(m[1])
	v[1], _ = strconv.Atoi(m[2])
	return v, true
}

// needGit fails unless the host's git is at least min.
func needGit(ctx context.Context, min [2]int) error {
	bin, err := exec.LookPath("git")
	if err != nil {
		return fmt.Errorf("%w: this host has no git; install it, for instance with: apt-get install git", ErrGit)
	}
	cmd := exec.CommandContext(ctx, bin, "version")
	cmd.Env = scrubbed("/nonexistent")
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%w: %s does not run: %v", ErrGit, bin, err)
	}
	v, ok := parseVersion(string(out))
	if !ok || slices.Compare(v[:], min[:]) < 0 {
		return fmt.Errorf("%w: %s is %q, %d.%d or newer is needed", ErrGit, bin, printable(string(out)), min[0], min[1])
	}
	return nil
}

// scrubbed is the whole environment of a git that runs for us: nothing of the caller's but PATH.
func scrubbed(home string) []string {
	path := os.Getenv("PATH")
	if path == "" {
		path = "/usr/local/bin:/usr/bin:/bin"
	}
	return append(gitEnv(home), "PATH="+path, "TMPDIR="+os.TempDir())
}

// gitEnv is the part that is the same on the host and in the sandbox.
func gitEnv(home string) []string {
	return []string{
		"HOME=" + home, "XDG_CONFIG_HOME=" + home, "LC_ALL=C", "LANG=C", "TZ=UTC",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_ATTR_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=/bin/false", "SSH_ASKPASS=/bin/false", "GIT_PAGER=cat", "GIT_EDITOR=/bin/false",
		"GIT_OPTIONAL_LOCKS=0", "GIT_NO_LAZY_FETCH=1", "GIT_NO_REPLACE_OBJECTS=1", "GIT_ALLOW_PROTOCOL=",
		"GIT_LITERAL_PATHSPECS=1", "GIT_LFS_SKIP_SMUDGE=1",
		"GIT_AUTHOR_NAME=ravi", "GIT_AUTHOR_EMAIL=ravi@localhost", "GIT_AUTHOR_DATE=@0 +0000",
		"GIT_COMMITTER_NAME=ravi", "GIT_COMMITTER_EMAIL=ravi@localhost", "GIT_COMMITTER_DATE=@0 +0000",
	}
}

// boxConfig is the configuration of each repository that this package makes. Most of it repeats Git's defaults, so that
// reading it shows what is relied on.
const boxConfig = `[core]
	repositoryformatversion = %d
	bare = false
	fsmonitor = false
	untrackedCache = false
	hooksPath = /dev/null
	attributesFile = /dev/null
	excludesFile = /dev/null
	commitGraph = false
	multiPackIndex = false
	bigFileThreshold = 64m
	compression = 1
	protectHFS = true
	protectNTFS = true
	safecrlf = false
	quotePath = true
	symlinks = true
	logAllRefUpdates = false
[pack]
	useBitmaps = false
	windowMemory = 128m
[gc]
	auto = 0
[maintenance]
	auto = false
[protocol]
	allow = never
[submodule]
	recurse = false
`

// makeBox creates an empty repository of our own at dir, without asking git, so that no template is copied.
func makeBox(dir, format string, settings map[string]string) error {
	for _, d := range []string{dir, dir + "/objects/pack", dir + "/objects/info", dir + "/refs/heads", dir + "/info"} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	version := 0
	if format != sha1Format {
		version = 1
	}
	text := fmt.Sprintf(boxConfig, version)
	if format != sha1Format {
		text += "[extensions]\n\tobjectformat = " + format + "\n"
	}
	for _, key := range []string{"autocrlf", "eol"} {
		if v := settings[key]; v != "" {
			text += "[core]\n\t" + key + " = " + v + "\n"
		}
	}
	if err := os.WriteFile(dir+"/config", []byte(text), 0o600); err != nil {
		return err
	}
	return os.WriteFile(dir+"/HEAD", []byte("ref: refs/heads/none\n"), 0o600)
}

// box is a place in which git runs.
type box struct {
	dir      string            // GIT_DIR, always one of ours
	work     string            // GIT_WORK_TREE, or empty
	index    string            // GIT_INDEX_FILE, or empty
	objects  string            // where new objects go, if not to dir
	settings map[string]string // core.* settings that hold on this host only
}

func (b box) env() []string {
	env := append(scrubbed(b.dir+"/home"), "GIT_DIR="+b.dir)
	if b.work != "" {
		env = append(env, "GIT_WORK_TREE="+b.work)
	}
	if b.index != "" {
		env = append(env, "GIT_INDEX_FILE="+b.index)
	}
	if b.objects != "" {
		env = append(env, "GIT_OBJECT_DIRECTORY="+b.objects, "GIT_ALTERNATE_OBJECT_DIRECTORIES="+cquote(b.dir+"/objects"))
	}
	if v := b.settings["filemode"]; v != "" {
		env = append(env, "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=core.filemode", "GIT_CONFIG_VALUE_0="+v)
	}
	return env
}

// command prepares a git whose whole process group ends with ctx.
func (b box) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Env = b.env()
	cmd.Dir = b.dir
	if b.work != "" {
		cmd.Dir = b.work
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

func (b box) run(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) error {
	cmd := b.command(ctx, args...)
	var stderr tail
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, &stderr
	return gitFailed(ctx, args[0], cmd.Run(), stderr.String())
}

// output returns at most 256 MiB of what git says.
func (b box) output(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	out := capped{max: 256 << 20}
	if err := b.run(ctx, stdin, &out, args...); err != nil {
		if out.over {
			return "", fmt.Errorf("%w: git %s said more than %d bytes", ErrTooBig, args[0], out.max)
		}
		return "", err
	}
	return out.String(), nil
}

// line is output without its final newline.
func (b box) line(ctx context.Context, args ...string) (string, error) {
	out, err := b.output(ctx, nil, args...)
	return strings.TrimSuffix(out, "\n"), err
}

// gitError is a git command that failed.
type gitError struct {
	command string
	code    int
	stderr  string
	err     error
}

func (e *gitError) Error() string {
	text := printable(strings.TrimSpace(e.stderr))
	if text == "" {
		text = e.err.Error()
	}
	return "git " + e.command + ": " + text
}

func (e *gitError) Unwrap() error { return e.err }

func gitFailed(ctx context.Context, command string, err error, stderr string) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("git %s: %w", command, context.Cause(ctx))
	}
	ge := &gitError{command: command, code: -1, stderr: stderr, err: err}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		ge.code = exit.ExitCode()
	}
	if saysFull(stderr) || errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%w: %w", ErrDiskFull, ge)
	}
	return ge
}

// exitCode returns git's exit code, 0 without an error and -1 where git gave none.
func exitCode(err error) int {
	var ge *gitError
	if errors.As(err, &ge) {
		return ge.code
	}
	if err == nil {
		return 0
	}
	return -1
}

// copyObjects carries objects from one box to another and checks each on the way: what list (for `git pack-objects`) names.
func copyObjects(ctx context.Context, from, to box, list io.Reader, args ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pack := from.command(ctx, append([]string{"pack-objects", "-q", "--stdout", "--delta-base-offset", "--no-use-bitmap-index"}, args...)...)
	index := to.command(ctx, "index-pack", "--stdin", "--strict="+legacy)
	var packErr, indexErr tail
	pack.Stdin, pack.Stderr, index.Stderr = list, &packErr, &indexErr
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	pack.Stdout, index.Stdin = w, r
	defer r.Close()
	if err := index.Start(); err != nil {
		w.Close()
		return err
	}
	r.Close()
	perr := pack.Start()
	w.Close()
	if perr == nil {
		perr = pack.Wait()
	}
	ierr := index.Wait()
	// The cause is the packer's failure: the indexer then only says that its input ended early. A broken pipe is the reverse.
	if perr = gitFailed(ctx, "pack-objects", perr, packErr.String()); perr != nil && packErr.Len() > 0 {
		return perr
	}
	if ierr = gitFailed(ctx, "index-pack", ierr, indexErr.String()); ierr != nil {
		return ierr
	}
	return perr
}

// legacy are blemishes of old histories that do no harm: what they concern is text shown to people, or a mode with a zero
// too many. Everything about paths, links and submodules stays an error.
const legacy = "zeroPaddedFilemode=ignore,missingSpaceBeforeDate=ignore,missingSpaceBeforeEmail=ignore,missingNameBeforeEmail=ignore," +
	"missingEmail=ignore,badEmail=ignore,badName=ignore,badDate=ignore,zeroPaddedDate=ignore,badTimezone=ignore,multipleAuthors=ignore,missingTaggerEntry=ignore"

// tail keeps the last 8 KiB of what is written to it.
type tail struct{ buf []byte }

func (t *tail) Write(p []byte) (int, error) {
	const max = 8 << 10
	t.buf = append(t.buf, p...)
	if len(t.buf) > max {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-max:]...)
	}
	return len(p), nil
}

func (t *tail) String() string { return string(t.buf) }
func (t *tail) Len() int       { return len(t.buf) }

// capped is a buffer that refuses to grow beyond max.
type capped struct {
	bytes.Buffer
	max  int
	over bool
}

func (c *capped) Write(p []byte) (int, error) {
	if c.Len()+len(p) > c.max {
		c.over = true
		return 0, ErrTooBig
	}
	return c.Buffer.Write(p)
}

// scratch makes a private directory beside the exports, or in the system's place for such.
func scratch(parent string) (string, error) {
	dir, err := os.MkdirTemp(parent, ".gitbox-")
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}

// cquote quotes a path in the way that Git reads in its lists of alternates.
func cquote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			fmt.Fprintf(&b, "\\%03o", c)
		} else {
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

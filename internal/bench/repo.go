package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
)

const repoFiles = 5000

// makeRepo makes a repository of many small files, and gives a bundle of it:
// the form in which a repository comes into a sandbox.
func makeRepo(ctx context.Context, dir string) (bundle string, err error) {
	repo := filepath.Join(dir, "repo.git")
	if err := git(ctx, nil, "init", "-q", "--bare", "--initial-branch=main", repo); err != nil {
		return "", err
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(writeRepo(w)) }()
	err = git(ctx, r, "--git-dir="+repo, "fast-import", "--quiet")
	r.Close() // lets the writer go when git did not read to the end
	if err != nil {
		return "", err
	}
	in := filepath.Join(dir, "in")
	if err := os.Mkdir(in, 0o755); err != nil {
		return "", err
	}
	bundle = filepath.Join(in, "repo.bundle")
	return bundle, git(ctx, nil, "--git-dir="+repo, "bundle", "create", "-q", bundle, "--all")
}

// emptyRepo makes a repository with one commit, and nothing in it.
func emptyRepo(ctx context.Context, dir string) error {
	if err := git(ctx, nil, "init", "-q", "--initial-branch=main", dir); err != nil {
		return err
	}
	return git(ctx, nil, "-C", dir, "-c", "user.name=bench", "-c", "user.email=bench@invalid", "commit", "-q", "--allow-empty", "-m", "bench")
}

// writeRepo writes one commit for git fast-import. It is the same every time.
func writeRepo(to io.Writer) error {
	w := bufio.NewWriter(to)
	rnd := rand.New(rand.NewPCG(1, 2))
	const words = "abcdefghijklmnopqrstuvwxyz0123456789 \n"
	fmt.Fprint(w, "commit refs/heads/main\ncommitter bench <bench@invalid> 1700000000 +0000\ndata 6\nbench\n\n")
	for i := range repoFiles {
		text := make([]byte, 200+rnd.IntN(3000))
		for k := range text {
			text[k] = words[rnd.IntN(len(words))]
		}
		fmt.Fprintf(w, "M 100644 inline dir%02d/sub%d/file%d.txt\ndata %d\n%s\n", i%50, i%7, i, len(text), text)
	}
	return w.Flush()
}

// gitEnv keeps git to what it is told: no settings of the user's or the machine's.
var gitEnv = []string{"PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "HOME=/nonexistent", "LC_ALL=C"}

func git(ctx context.Context, stdin io.Reader, args ...string) error {
	cmd := program(ctx, "git", args...)
	if cmd.Err != nil {
		return fmt.Errorf("git: %w", exec.ErrNotFound)
	}
	cmd.Env, cmd.Stdin = gitEnv, stdin
	return finish(cmd)
}

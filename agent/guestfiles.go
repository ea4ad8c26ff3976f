package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"ravi/sandbox"
)

// guestFiles are a sandbox's, as its user sees them: what they are and where links lead to is the guest's business, and
// stays in it.
type guestFiles struct{ sb *sandbox.Sandbox }

func filesOf(sb *sandbox.Sandbox) (files, error) {
	if sb.Backend() == sandbox.BackendHost {
		return openHostFiles(sb.Workspace())
	}
	return guestFiles{sb}, nil
}

func (g guestFiles) at(name string) string { return inWorkspace(g.sb.Workspace(), name) }

func (g guestFiles) read(ctx context.Context, name string) ([]byte, error) {
	return g.sb.Files().ReadFile(ctx, g.at(name), mostFile)
}

func (g guestFiles) write(ctx context.Context, name string, data []byte) error {
	if len(data) > mostFile {
		return errors.New(tooMuch(name+" would have", len(data), mostFile))
	}
	return g.sb.Files().Write(ctx, g.at(name), bytes.NewReader(data))
}

func (g guestFiles) list(ctx context.Context, name string, depth int) ([]string, bool, error) {
	all, err := g.sb.Files().List(ctx, g.at(name), depth)
	if err != nil {
		return nil, false, err
	}
	more := len(all) > mostListed
	var out []string
	for _, e := range all[:min(len(all), mostListed)] {
		out = append(out, listed(g.name(e.Path), e.Kind, e.Size, e.Target))
	}
	return out, more, nil
}

// name is a path as it can be given to a tool again: from the workspace on, if it is in there.
func (g guestFiles) name(at string) string {
	return strings.TrimPrefix(at, path.Clean(g.sb.Workspace())+"/")
}

// listed is one entry of a folder in a line.
func listed(name, kind string, size int64, target string) string {
	switch kind {
	case "dir":
		return name + "/"
	case "symlink":
		if target != "" {
			return name + " -> " + target
		}
	case "file":
		return fmt.Sprintf("%s (%d bytes)", name, size)
	}
	return name + " (" + kind + ")"
}

const (
	searchTime  = 60 * time.Second
	mostMatches = 200 // of one file
)

// search has grep do it, which every image has; there is no shell between.
func (g guestFiles) search(ctx context.Context, pattern, name, glob string) (string, error) {
	args := []string{"grep", "-rnHIE", "-m", fmt.Sprint(mostMatches), "--exclude-dir=.git"}
	if glob != "" {
		args = append(args, "--include="+glob)
	}
	at := g.at(name)
	res, err := g.sb.Exec(ctx, sandbox.Cmd{Args: append(args, "-e", pattern, "--", at), GuestDir: g.sb.Workspace(), Timeout: sandbox.After(searchTime), MaxOutput: mostExecOutput})
	switch {
	case err != nil:
		return "", err
	case res.Reason != "":
		return "", fmt.Errorf("the search was ended: %s", res.Reason)
	case res.ExitCode > 1 && res.Stdout == "":
		return "", fmt.Errorf("the search failed: %s", strings.TrimSpace(res.Stderr))
	}
	found := strings.ReplaceAll("\n"+res.Stdout, "\n"+path.Clean(g.sb.Workspace())+"/", "\n")[1:]
	return found, nil
}

func (g guestFiles) close() error { return nil }

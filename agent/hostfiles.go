package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"

	"ravi/internal/beneath"
)

// hostFiles are the workspace's on the host, where there is no guest that bounds what a path leads to.
type hostFiles struct{ root *beneath.Root }

func openHostFiles(workspace string) (files, error) {
	root, err := beneath.Open(workspace)
	if err != nil {
		return nil, err
	}
	return hostFiles{root}, nil
}

func (h hostFiles) read(ctx context.Context, name string) ([]byte, error) {
	return h.root.ReadFile(ctx, orRoot(name), mostFile)
}

func (h hostFiles) write(ctx context.Context, name string, data []byte) error {
	if len(data) > mostFile {
		return errors.New(tooMuch(name+" would have", len(data), mostFile))
	}
	return h.root.WriteFile(ctx, orRoot(name), data)
}

func (h hostFiles) list(ctx context.Context, name string, depth int) ([]string, bool, error) {
	all, more, err := h.root.List(ctx, orRoot(name), depth, mostListed)
	var out []string
	for _, e := range all {
		out = append(out, listed(e.Path, e.Kind, e.Size, ""))
	}
	return out, more, err
}

func (h hostFiles) search(ctx context.Context, pattern, name, glob string) (string, error) {
	re, err := regexp.Compile(pattern) // of what grep -E has it lacks references, and what else it has is meant to be used
	if err != nil {
		return "", err
	}
	var b strings.Builder
	skipped, more := 0, false
	walked, err := h.root.Walk(ctx, orRoot(name), beneath.Bounds{Entries: 100_000, Depth: 64, FileBytes: mostFile, Bytes: 256 << 20}, func(e beneath.Entry, read func() ([]byte, error)) error {
		if ok, err := path.Match(glob, path.Base(e.Path)); glob != "" && (err != nil || !ok) {
			return err
		}
		data, err := read()
		switch {
		case err != nil:
			skipped++
			return nil
		case len(data) == 0, bytes.IndexByte(data, 0) >= 0: // what is no text has no lines
			return nil
		}
		n := 0
		for i, line := range strings.Split(strings.TrimSuffix(string(data), "\n"), "\n") {
			if !re.MatchString(line) {
				continue
			}
			fmt.Fprintf(&b, "%s:%d:%s\n", e.Path, i+1, headAndTail(line, mostLine))
			if n++; n >= mostMatches {
				break
			}
			if b.Len() > mostExecOutput {
				more = true
				return fs.SkipAll
			}
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if more || walked.More {
		b.WriteString("(there is more than is searched at once: name a folder, or a glob)\n")
	}
	if n := skipped + len(walked.Unread); n > 0 {
		fmt.Fprintf(&b, "(%d files and folders could not be read, or are larger than %d bytes)\n", n, mostFile)
	}
	return b.String(), nil
}

func (h hostFiles) close() error { return h.root.Close() }

func orRoot(name string) string {
	if name == "" {
		return "."
	}
	return name
}

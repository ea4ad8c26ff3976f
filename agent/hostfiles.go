package agent

import (
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
	re, err := regexp.CompilePOSIX(pattern)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	_, err = h.root.Walk(ctx, orRoot(name), beneath.Bounds{Entries: 100_000, Depth: 64, FileBytes: mostFile, Bytes: 256 << 20}, func(e beneath.Entry, read func() ([]byte, error)) error {
		if ok, err := path.Match(glob, path.Base(e.Path)); glob != "" && (err != nil || !ok) {
			return err
		}
		data, err := read()
		if err != nil || strings.ContainsRune(string(data[:min(len(data), 8<<10)]), 0) {
			return nil // one that cannot be read, or is no text, has no match
		}
		n := 0
		for i, line := range strings.Split(string(data), "\n") {
			if !re.MatchString(line) {
				continue
			}
			fmt.Fprintf(&b, "%s:%d:%s\n", e.Path, i+1, headAndTail(line, mostLine))
			if n++; n >= mostMatches {
				break
			}
			if b.Len() > mostExecOutput {
				return fs.SkipAll
			}
		}
		return nil
	})
	return b.String(), err
}

func (h hostFiles) close() error { return h.root.Close() }

func orRoot(name string) string {
	if name == "" {
		return "."
	}
	return name
}

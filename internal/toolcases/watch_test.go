package toolcases

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ravi/sandbox"
)

// A tool that watches a shared folder sees what is written from inside and by
// the file API. What is written on the host it does not see, and the API's own
// watch of such a folder is refused rather than half blind.
func TestWatchASharedFolder(t *testing.T) {
	r := open(t)
	r.needs(t, "node")
	out, w := io.Pipe()
	p, err := r.Start(ctx(t), sandbox.Cmd{Args: []string{"node", "-e", `
const fs = require("fs");
fs.watch("/workspace", (event, name) => console.log(name));
console.log("watching");
`}, Stdout: w, Stderr: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-p.Done()
		w.Close()
	}()
	seen := bufio.NewScanner(out)
	until := func(name string) {
		t.Helper()
		for seen.Scan() {
			switch seen.Text() {
			case name:
				return
			case "host":
				t.Error("a change on the host was seen: say so in docs/limits.md")
			}
		}
		t.Fatalf("the watch ended before %s", name)
	}
	until("watching")
	if err := os.WriteFile(filepath.Join(r.ws, "host"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	want(t, "what the host wrote, read inside", r.sh(t, "cat host"), "x")
	r.sh(t, "echo x > inside")
	until("inside")
	r.put(t, "api", "x")
	until("api")
	r.sh(t, "echo x >> inside; mv inside moved")
	until("moved")
	if err := p.Kill(ctx(t)); err != nil {
		t.Fatal(err)
	}

	events, err := r.Files().Watch(ctx(t), "/workspace", false)
	if err == nil {
		t.Fatalf("a watch of a shared folder was accepted: %v", events)
	}
	contains(t, "the refusal", err.Error(), "/workspace", "not seen")
}

// A workspace that is copied on write has no outside, so watching it works.
func TestWatchAnOverlay(t *testing.T) {
	r := open(t, func(c *sandbox.Config) { c.Workspace = sandbox.WorkspaceOverlay })
	events, err := r.Files().Watch(ctx(t), "/workspace", true)
	if err != nil {
		t.Fatal(err)
	}
	r.sh(t, "mkdir sub; echo x > sub/file")
	var names []string
	for e := range events {
		names = append(names, e.Name)
		if e.Name == "sub/file" {
			return
		}
	}
	t.Fatalf("the watch ended, after %s", strings.Join(names, ", "))
}

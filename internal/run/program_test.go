package run

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"ravi/internal/adapter"
	"ravi/internal/filelock"
	"ravi/internal/store"
)

// While a run goes on nobody takes away the folder of its program, and afterwards anybody can. One that goes while the
// run begins is told.
func TestProgramIsHeld(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "1.0")
	must(t, os.Mkdir(dir, 0o755))
	lock := func() (*os.File, bool) {
		f, err := os.Open(dir)
		must(t, err)
		t.Cleanup(func() { f.Close() })
		ok, err := filelock.Try(f, syscall.LOCK_EX)
		must(t, err)
		return f, ok
	}
	free := true
	u := newUpstream(t, func(string) { _, free = lock() })
	o, out := modeledRun(t, u, `say m`)
	o.Agent.Dir = dir
	if task, err := Run(t.Context(), o); err != nil || out.String() != "200\n" || free {
		t.Errorf("%v, %+v, %s; while it went on its program could be taken away: %v", err, task, out, free)
	}
	f, ok := lock()
	if !ok {
		t.Error("after the run it is held")
	}
	for _, c := range [][2]string{{"held", "it is being removed"}, {"gone", "no such file"}} { // in this order
		how, want := c[0], c[1]
		if how == "gone" {
			must(t, os.Remove(dir))
			f.Close()
		}
		o, _ := modeledRun(t, u, `say m`)
		o.Agent.Dir = dir
		task, err := Run(t.Context(), o)
		if err == nil || task.Status != store.RunError || task.Reason != "agent" || task.Hint != "start the run again" || !strings.Contains(task.Error, want) {
			t.Errorf("%s: %v, %+v", how, err, task)
		}
	}
}

// A folder that another one took the place of is not what was opened.
func TestSameFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "1.0")
	must(t, os.Mkdir(dir, 0o755))
	f, err := os.Open(dir)
	must(t, err)
	defer f.Close()
	must(t, sameFile(f, dir))
	must(t, os.Rename(dir, dir+".leaving"))
	must(t, os.Mkdir(dir, 0o755))
	if err := sameFile(f, dir); err == nil {
		t.Error("it is taken for the same")
	}
}

// The Node.js of the image is looked at before the program is started.
func TestNodeInside(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	p, ok := adapter.Lookup("gemini")
	if !ok {
		t.Fatal("there is no gemini")
	}
	for said, want := range map[string]string{"v18.1.0": "there is v18.1.0 in the image host", "v20.1.0": ""} {
		must(t, os.WriteFile(filepath.Join(bin, "node"), []byte("#!/bin/sh\necho "+said+"\n"), 0o755))
		u := newUpstream(t, nil)
		o, _ := modeledRun(t, u, "say m")
		o.Agent.Program.Node, o.Agent.CheckNode = p.Node, true
		task, err := Run(t.Context(), o)
		switch {
		case want == "":
			if err != nil || task.Status != store.RunSucceeded {
				t.Errorf("%s: %v, %+v", said, err, task)
			}
		case !errors.Is(err, adapter.ErrNode) || task.Reason != "agent" || !strings.Contains(task.Error, want) || !strings.Contains(task.Hint, "apt-get install -y nodejs") || len(u.bodies()) > 0:
			t.Errorf("%s: %v, %+v", said, err, task)
		}
	}
}

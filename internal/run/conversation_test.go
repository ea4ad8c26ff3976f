package run

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ravi/internal/adapter"
	"ravi/internal/store"
	"ravi/sandbox"
)

// talks is a program in a gVisor sandbox that stands for codex: it begins a conversation, and does what script says.
func talks(t *testing.T, script string) Options {
	t.Helper()
	o := agentRun(t, `echo '{"type":"thread.started","thread_id":"talk-1"}'
		state=$HOME/.codex/sessions; mkdir -p "$state"
		`+script+`
		echo '{"type":"turn.completed","usage":{"input_tokens":1,"output_tokens":1}}'`)
	must(t, os.Chmod(o.Agent.Dir, 0o755))
	o.Config.Backend = sandbox.BackendGVisor
	return o
}

// names are those of the files in a kept conversation.
func names(t *testing.T, file string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(file)
	must(t, err)
	found := map[string]string{}
	for in := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		must(t, err)
		content, err := io.ReadAll(in)
		must(t, err)
		found[h.Name] = string(content) + h.Linkname
	}
}

// What a program keeps of its conversation comes out, and lies in its home, as its own, when another run goes on with it.
// The copy that the user asked for lacks it.
func TestConversationGoesOn(t *testing.T) {
	o := talks(t, `mkdir -p "$state/2026"; echo "I said something." >"$state/2026/talk-1.jsonl"; ln -s /etc/passwd "$state/link"; echo x >"$HOME/.codex/other"`)
	o.Out = filepath.Join(t.TempDir(), "out")
	task, err := Run(t.Context(), o)
	if err != nil || task.Status != store.RunSucceeded {
		t.Fatalf("%v, %+v", err, task)
	}
	file := filepath.Join(task.Dir, StateFile)
	st, err := os.Stat(file)
	must(t, err)
	if c := task.Conversation; c == nil || *c != (Conversation{ID: "talk-1", Bytes: st.Size()}) || st.Mode().Perm() != 0o600 {
		t.Errorf("%+v of a file of %d bytes, %v", c, st.Size(), st.Mode())
	}
	got := names(t, file)
	if got["2026/talk-1.jsonl"] != "I said something.\n" || got["link"] != "/etc/passwd" || strings.Contains(strings.Join(holders(t, filepath.Dir(file), "root:x"), ""), StateFile) {
		t.Errorf("kept are %q", got)
	}
	for name := range got {
		if strings.Contains(name, "other") || strings.Contains(name, "..") {
			t.Errorf("%s is none of it", name)
		}
	}
	if !exists(filepath.Join(o.Out, TaskFile)) || exists(filepath.Join(o.Out, StateFile)) {
		t.Errorf("what was copied: %q", holders(t, o.Out, ""))
	}

	next := talks(t, `{ echo "args $*"; cat "$state/2026/talk-1.jsonl"; stat -c '%U %a' "$state/2026/talk-1.jsonl"; } >found.txt; echo "And more." >>"$state/2026/talk-1.jsonl"`)
	next.Agent.Resume = &Resume{RunID: task.ID, ID: "talk-1", File: file}
	task, err = Run(t.Context(), next)
	if err != nil || task.Status != store.RunSucceeded {
		t.Fatalf("%v, %+v", err, task)
	}
	patch, err := os.ReadFile(filepath.Join(task.Dir, PatchFile))
	must(t, err)
	for _, want := range []string{" resume talk-1 -\n", "+I said something.\n", "+user 644\n"} {
		if !strings.Contains(string(patch), want) {
			t.Errorf("it did not find %q:\n%s", want, patch)
		}
	}
	if c := task.Conversation; c.Resumed != filepath.Base(filepath.Dir(file)) || c.Lost != "" {
		t.Errorf("%+v", c)
	}
	if got := names(t, filepath.Join(task.Dir, StateFile))["2026/talk-1.jsonl"]; got != "I said something.\nAnd more.\n" {
		t.Errorf("in the end it is %q", got)
	}
}

// What cannot be kept is not, wholly, and the run says why; the patch is not touched by it.
func TestConversationIsLost(t *testing.T) {
	const waits = `echo '{"type":"item.completed","item":{"id":"1","type":"agent_message","text":"waiting"}}'; exec sleep 600`
	for name, c := range map[string]struct {
		script string
		lost   string
		status store.RunStatus
	}{
		"a secret":     {script: `echo "it is ` + value + `" >"$state/a"`, lost: "it holds the value of TOKEN"},
		"in a name":    {script: `touch "$state/another-value-of-mine"`, lost: "it holds the value of OTHER"},
		"the lease":    {script: `echo "$OPENAI_API_KEY" >"$state/a"`, lost: "it holds the value of " + modelLeaseName},
		"too much":     {script: `head -c 68m /dev/zero >"$state/a"`, lost: "more than 64 MiB"},
		"nothing":      {script: `rm -r "$state"`, lost: "Codex kept nothing of it"},
		"no id":        {script: `exit 0`, lost: "Codex began none"},
		"canceled":     {script: `echo hi >"$state/a"; ` + waits, status: store.RunCanceled},
		"sandbox ends": {script: `echo hi >"$state/a"; ` + waits, lost: "ended", status: store.RunError},
	} {
		t.Run(name, func(t *testing.T) {
			o := talks(t, "touch done; "+c.script)
			if name == "no id" {
				must(t, os.WriteFile(filepath.Join(o.Agent.Dir, "codex"), []byte("#!/bin/sh\nmkdir -p ~/.codex/sessions; touch done\n"), 0o755))
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			o.Agent.Tell = func(e adapter.Event) {
				if e.Kind != adapter.Text {
					return
				}
				if name == "canceled" {
					cancel()
					return
				}
				boxes, err := o.Store.ListSandboxes(t.Context(), store.SandboxFilter{Live: true})
				if err != nil || len(boxes) != 1 {
					t.Errorf("%v, %v", boxes, err)
					return
				}
				if err := (Sweeper{Home: o.Home, Store: o.Store}).Kill(t.Context(), boxes[0]); err != nil {
					t.Error(err)
				}
			}
			task, _ := Run(ctx, o)
			if task == nil || task.Conversation == nil || c.status != "" && task.Status != c.status {
				t.Fatalf("%+v", task)
			}
			got := task.Conversation
			if (c.lost == "") != (got.Lost == "") || !strings.Contains(got.Lost, c.lost) || exists(filepath.Join(task.Dir, StateFile)) != (c.lost == "") {
				t.Errorf("%+v, there is a file: %v", got, exists(filepath.Join(task.Dir, StateFile)))
			}
			if list := holders(t, o.Home, value); len(list) > 0 {
				t.Errorf("the secret is in %q", list)
			}
			said := strings.Contains(strings.Join(task.Notes, "\n"), "no run can go on with this conversation: "+got.Lost)
			if want := got.Lost != "" && name != "no id"; said != want {
				t.Errorf("the notes are %q", task.Notes)
			}
			if name != "sandbox ends" && (task.Patch == nil || task.Patch.Files != 1 || !task.Patch.Applies) {
				t.Errorf("the patch is %+v, %s", task.Patch, task.Error)
			}
		})
	}
}

// On the host there is no wall between a program and its user's files, so nothing is kept for another run to read.
func TestNoConversationOnTheHost(t *testing.T) {
	o := agentRun(t, `echo '{"type":"thread.started","thread_id":"talk-1"}'; mkdir -p ~/.codex; ln -s / ~/.codex/sessions; echo '{"type":"turn.completed"}'`)
	task, err := Run(t.Context(), o)
	if err != nil || task.Conversation == nil || !strings.Contains(task.Conversation.Lost, "on the host") || exists(filepath.Join(task.Dir, StateFile)) {
		t.Errorf("%v, %+v", err, task.Conversation)
	}
}

// A conversation is not given to a run whose secrets it holds, nor one that is none; a run that was killed has none.
func TestConversationIsRefused(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	must(t, w.WriteHeader(&tar.Header{Name: "a", Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(value))}))
	_, err := io.WriteString(w, value)
	must(t, errors.Join(err, w.Close()))
	for name, c := range map[string]struct {
		archive []byte
		says    string
	}{
		"a secret": {b.Bytes(), "it holds the value of TOKEN"},
		"cut":      {b.Bytes()[:520], ""},
		"none":     {bytes.Repeat([]byte("no archive "), 100), ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := talks(t, "touch started")
			file := filepath.Join(t.TempDir(), StateFile)
			must(t, os.WriteFile(file, c.archive, 0o600))
			o.Agent.Resume = &Resume{RunID: "run1", ID: "talk-1", File: file}
			task, err := Run(t.Context(), o)
			if err == nil || task.Status != store.RunError || task.Exit != exitRavi || !strings.Contains(task.Error, "laying out the conversation of run run1: "+c.says) {
				t.Fatalf("%v, %+v", err, task)
			}
			if task.Patch != nil && task.Patch.Files > 0 {
				t.Error("it was started")
			}
		})
	}
	a := &Agent{Program: adapter.Program{StateDir: "x"}, Resume: &Resume{RunID: "run1"}}
	if c := a.conversation(); c == nil || *c != (Conversation{Resumed: "run1", Lost: lostEarly}) {
		t.Errorf("in the beginning it is %+v", c)
	}
}

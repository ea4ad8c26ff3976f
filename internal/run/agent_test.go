package run

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ravi/internal/adapter"
	"ravi/internal/broker"
	"ravi/internal/store"
)

// agentRun are the options of a run on the host whose agent program is a script that stands for codex.
func agentRun(t *testing.T, script string) Options {
	t.Helper()
	o, _ := modeledRun(t, newUpstream(t, nil), "")
	p, ok := adapter.Lookup("codex")
	if !ok {
		t.Fatal("there is no codex")
	}
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "codex"), []byte("#!/bin/sh\n"+script), 0o755))
	o.Models.Providers[0].Name, o.Models.Providers[0].Dialect = "openai", broker.OpenAI
	o.Agent = &Agent{Program: p, Dir: dir, Path: "codex"}
	o.Command, o.Task = nil, "- do it\n"
	return o
}

// A program is taken at its word when it says that it failed, and never when it says that it did not.
func TestAgentIsJudged(t *testing.T) {
	const (
		begin = `echo '{"type":"thread.started","thread_id":"x"}'; echo '{"type":"turn.started"}'` + "\n"
		fine  = `echo '{"type":"turn.completed","usage":{"input_tokens":1,"output_tokens":1}}'` + "\n"
		bad   = `echo '{"type":"turn.failed","error":{"message":"the model said no, ` + value + `"}}'` + "\n"
	)
	for name, c := range map[string]struct {
		script  string
		timeout time.Duration
		status  store.RunStatus
		reason  string
		exit    int
		code    int // of the program; -1: none
		says    string
	}{
		"fine":                  {begin + fine, 0, store.RunSucceeded, "", 0, 0, ""},
		"it says that it fails": {begin + bad, 0, store.RunFailed, reasonAgent, exitAgent, 0, "the model said no, [secret TOKEN]"},
		"it fails":              {begin + bad + "exit 3", 0, store.RunFailed, "", 3, 3, "exit code 3"},
		"its exit counts":       {begin + fine + "exit 4", 0, store.RunFailed, "", 4, 4, "exit code 4"},
		"it is too slow":        {begin + bad + "exec sleep 600", 5 * time.Second, store.RunTimeout, "timeout", exitTimeout, -1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := agentRun(t, c.script)
			o.Timeout = c.timeout
			var last adapter.Event
			o.Agent.Tell = func(e adapter.Event) { last = e }
			task, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			code := -1
			if task.ExitCode != nil {
				code = *task.ExitCode
			}
			if task.Status != c.status || task.Reason != c.reason || task.Exit != c.exit || code != c.code || !strings.Contains(task.Error, c.says) || (c.says == "") != (task.Error == "") {
				t.Errorf("%s (%s), exit %d of %d: %q", task.Status, task.Reason, task.Exit, code, task.Error)
			}
			if last.Kind != adapter.End || strings.Contains(last.Text, value) {
				t.Errorf("the last that was told is %+v", last)
			}
			kept, err := o.Store.Run(t.Context(), task.ID)
			if err != nil || kept.Status != c.status {
				t.Errorf("the store has %s, %v", kept.Status, err)
			}
			if list := holders(t, o.Home, value); len(list) > 0 {
				t.Errorf("the secret is in %q", list)
			}
		})
	}
}

// What a program needs lies in its home before it starts: its task, which is no argument, its configuration, and the
// context by links. On the host its home is the sandbox's own.
func TestWhatAnAgentNeeds(t *testing.T) {
	o := agentRun(t, `{
		echo "home $HOME"; echo "args $*"; echo "task $(cat)"
		stat -c 'mode %a' "$HOME/.ravi/task" "$HOME/.codex/config.toml"
		echo "link $(readlink "$HOME/.codex/AGENTS.md")"
		cat "$HOME/.codex/AGENTS.md" | grep kind
		grep base_url "$HOME/.codex/config.toml"
		printf %s "$OPENAI_API_KEY" | cut -c1-7
	} >found.txt 2>&1
	echo '{"type":"turn.completed"}'`)
	agent, err := o.Store.InsertAgent(t.Context(), store.Agent{Name: "anna", Instructions: "Be kind."})
	must(t, err)
	o.AgentID, o.Snapshot = agent.ID, true
	task, err := Run(t.Context(), o)
	if err != nil || task.Status != store.RunSucceeded {
		t.Fatalf("%v, %+v", err, task)
	}
	b, err := os.ReadFile(filepath.Join(task.Dir, PatchFile))
	must(t, err)
	found := map[string][]string{}
	for line := range strings.Lines(string(b)) {
		if line, ok := strings.CutPrefix(strings.TrimSpace(line), "+"); ok {
			word, rest, _ := strings.Cut(line, " ")
			found[word] = append(found[word], rest)
		}
	}
	home := strings.Join(found["home"], "")
	user, err := os.UserHomeDir()
	must(t, err)
	if home == "" || home == user || !strings.HasSuffix(home, "/home") {
		t.Errorf("its home is %q", home)
	}
	if args := found["args"]; len(args) != 1 || strings.Contains(args[0], "do it") || strings.Contains(args[0], "rlease_") {
		t.Errorf("its arguments are %q", args)
	}
	if !slices.Equal(found["task"], []string{"- do it"}) || !slices.Equal(found["mode"], []string{"600", "600"}) || len(found["rlease_"]) != 1 {
		t.Errorf("it found %q", found)
	}
	if link := found["link"]; len(link) != 1 || !strings.HasSuffix(link[0], "/AGENTS.md") || found["Be"] == nil {
		t.Errorf("its context is %q, %q", link, found["Be"])
	}
	if u := found["base_url"]; len(u) != 1 || !strings.Contains(u[0], "http://127.0.0.1:") || !strings.HasSuffix(u[0], `/openai/v1"`) {
		t.Errorf("its provider is at %q", u)
	}
	if _, err := os.Stat(home); err == nil {
		t.Errorf("%s is there after the run", home)
	}
}

// What a program says is kept within bounds, and told beyond them.
func TestAgentEventsAreBounded(t *testing.T) {
	dir, err := newFolder(t.TempDir(), "run", redactor())
	must(t, err)
	defer dir.close()
	p, _ := adapter.Lookup("codex")
	told := 0
	s := &state{Options: Options{Agent: &Agent{Program: p, Tell: func(adapter.Event) { told++ }}}, dir: dir}
	w, last := s.agentEvents()
	text, err := json.Marshal(strings.Repeat("ü", mostEventText))
	must(t, err)
	const more = 50
	fmt.Fprintf(w, `{"type":"item.completed","item":{"id":"1","type":"agent_message","text":%s}}`+"\n", text)
	fmt.Fprintf(w, `{"type":"item.started","item":{"id":"2","type":"mcp_tool_call","server":"s","tool":"t","arguments":{"a":%s},"status":"in_progress"}}`+"\n", text)
	fmt.Fprintf(w, `{"type":"item.started","item":{"id":%s,"type":"mcp_tool_call","server":%[1]s,"tool":%[1]s,"arguments":{},"status":"in_progress"}}`+"\n", text)
	fmt.Fprintf(w, `{"type":"thread.started","thread_id":%s}`+"\n", text)
	for i := range mostEvents + more {
		fmt.Fprintf(w, `{"type":"item.completed","item":{"id":"%d","type":"agent_message","text":"hi"}}`+"\n", i)
	}
	fmt.Fprintln(w, `{"type":"turn.completed"}`)
	must(t, w.Close())
	if told < mostEvents+more+2 {
		t.Errorf("%d events were told", told)
	}
	if e := last(); e.Kind != adapter.End || e.Failed {
		t.Errorf("the last is %+v", e)
	}
	b, err := os.ReadFile(dir.path(EventsFile))
	must(t, err)
	// Beside the bound there are a word about what is missing, and the last event.
	if n := bytes.Count(b, []byte("\n")); n != mostEvents+2 || bytes.Count(b, []byte(`"event":"agent_said_more"`)) != 1 || !bytes.Contains(b, []byte(`"kind":"end"`)) {
		t.Errorf("%d events are kept", n)
	}
	for line := range bytes.Lines(b) {
		if len(line) > mostEventText+500 || !bytes.Contains(line, []byte(`"event":"agent`)) {
			t.Fatalf("a line of %d bytes: %.200s", len(line), line)
		}
	}
}

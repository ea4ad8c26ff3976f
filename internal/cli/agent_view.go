package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"ravi/internal/adapter"
	"ravi/internal/command"
	safe "ravi/internal/term"
)

// agentView shows what an agent program says and does, as it does.
type agentView struct {
	w      io.Writer
	json   bool
	colour bool
}

// newAgentView shows an agent's events: in lines for people, or with --json one value for each.
func newAgentView(env *command.Env) func(adapter.Event) {
	v := &agentView{w: env.Stdout, json: env.JSON, colour: colours(env.StdoutTerminal)}
	if env.Quiet && !env.JSON {
		return func(adapter.Event) {}
	}
	return v.show
}

func (v *agentView) show(e adapter.Event) {
	if v.json {
		b, err := json.Marshal(struct {
			Name string `json:"event"`
			adapter.Event
		}{"agent", e})
		if err == nil {
			fmt.Fprintf(v.w, "%s\n", safe.SafeJSON(b))
		}
		return
	}
	within := ""
	if e.Parent != "" { // a sub-agent does it
		within = "  "
	}
	switch e.Kind {
	case adapter.Text:
		fmt.Fprintln(v.w, safe.SafeText(strings.TrimRight(e.Text, "\n")))
	case adapter.Tool:
		v.dim(within + "> " + e.Tool + ": " + gist(e.Input))
	case adapter.Result:
		if e.Failed {
			line, _, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(e.Text, "STDERR:\n")), "\n") // as sandbox.Result has it
			v.dim(within + "! " + shortened(line, 200))
		}
	case adapter.Note:
		if e.Failed {
			v.dim("! " + shortened(e.Text, 200))
		}
	case adapter.Error:
		fmt.Fprintln(v.w, "! "+safe.SafeText(strings.TrimRight(e.Text, "\n")))
	}
}

func (v *agentView) dim(line string) {
	line = safe.Safe(line)
	if v.colour {
		line = "\x1b[2m" + line + "\x1b[0m"
	}
	fmt.Fprintln(v.w, line)
}

// gist is what a tool call is about, in a line: its command, its file, or else the names of what it was given.
func gist(input json.RawMessage) string {
	var fields map[string]any
	if json.Unmarshal(input, &fields) != nil {
		return shortened(string(input), 120)
	}
	for _, name := range []string{"command", "cmd", "file_path", "filePath", "path", "pattern", "query", "url", "description", "label"} {
		switch v := fields[name].(type) {
		case string:
			line, rest, more := strings.Cut(strings.TrimSpace(v), "\n")
			if more && rest != "" {
				line += " …"
			}
			return shortened(line, 160)
		case []any:
			words := make([]string, len(v))
			for i := range v {
				words[i] = fmt.Sprint(v[i])
			}
			return shortened(strings.Join(words, " "), 160)
		}
	}
	var names []string
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	return shortened(strings.Join(names, ", "), 120)
}

func shortened(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

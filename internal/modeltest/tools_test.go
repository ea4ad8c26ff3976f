package modeltest

import (
	"strings"
	"testing"
)

func TestShellTools(t *testing.T) {
	text, list := object{"type": "string"}, object{"type": "array", "items": object{"type": "string"}}
	schema := func(required []string, properties object) object {
		return object{"type": "object", "properties": properties, "required": required}
	}
	const cmd = `echo "a b" > f`
	const argv = `["bash","-lc","echo \"a b\" \u003e f"]`
	const line = `"echo \"a b\" \u003e f"`
	for name, c := range map[string]struct {
		way         int
		tools       []object
		tool, input string
	}{
		"claude":              {0, []object{{"name": "Bash", "input_schema": commandSchema}}, "Bash", `{"command":` + line + `,"description":"as the script says"}`},
		"its own kind":        {0, []object{{"type": "bash_20250124", "name": "bash"}}, "bash", `{"command":` + line + `}`},
		"exec_command":        {1, []object{{"type": "function", "name": "exec_command", "parameters": schema([]string{"cmd"}, object{"cmd": text, "workdir": text})}}, "exec_command", `{"cmd":` + line + `}`},
		"shell with an array": {1, []object{{"type": "function", "name": "shell", "parameters": schema([]string{"command"}, object{"command": list})}}, "shell", `{"command":` + argv + `}`},
		"shell_command":       {1, []object{{"type": "function", "name": "shell_command", "parameters": schema([]string{"command", "timeout_ms"}, object{"command": text, "timeout_ms": object{"type": "number"}})}}, "shell_command", `{"command":` + line + `,"timeout_ms":0}`},
		"local_shell":         {1, []object{{"type": "web_search"}, {"type": "local_shell"}}, "local_shell_call", `{"command":` + argv + `,"env":{},"type":"exec"}`},
		"shell":               {1, []object{{"type": "shell"}}, "shell_call", `{"commands":[` + line + `]}`},
		"custom":              {1, []object{{"type": "custom", "name": "shell"}}, "shell", cmd},
		"in a namespace":      {1, []object{{"type": "namespace", "name": "x", "tools": []object{{"type": "function", "name": "bash", "parameters": schema(nil, object{"command": text})}}}}, "bash", `{"command":` + line + `}`},
		"chat, custom":        {2, []object{{"type": "custom", "custom": object{"name": "bash"}}}, "bash", cmd},
		"opencode":            {2, []object{{"type": "function", "function": object{"name": "bash", "parameters": commandSchema}}}, "bash", `{"command":` + line + `,"description":"as the script says"}`},
		"gemini":              {3, []object{{"name": "run_shell_command", "parameters": object{"type": "OBJECT", "properties": object{"command": object{"type": "STRING"}, "is_background": object{"type": "BOOLEAN"}}, "required": []string{"command", "is_background"}}}}, "run_shell_command", `{"command":` + line + `,"is_background":false}`},
		"an array or not":     {0, []object{{"name": "shell", "input_schema": schema(nil, object{"command": object{"anyOf": []object{list, text}}})}}, "shell", `{"command":` + line + `}`},
		"the better one":      {0, []object{{"name": "terminal"}, {"name": "Bash"}}, "Bash", `{"command":` + line + `}`},
	} {
		t.Run(name, func(t *testing.T) {
			s, url := start(t, Script{Turns: []Turn{{Shell(cmd)}}})
			got := ways[c.way].says(t, url, "u", c.tools)
			if len(got.Calls) != 1 || got.Calls[0].Name != c.tool || !sameJSON(got.Calls[0].Input, c.input) {
				t.Errorf("%+v, not %s", got, c.input)
			}
			if p := s.Requests()[0].Problem; p != "" {
				t.Error(p)
			}
		})
	}
}

func TestNamespaceComesBack(t *testing.T) {
	_, url := start(t, Script{Turns: []Turn{{Call("look", 1)}}})
	w := ways[1]
	tools := []object{{"type": "namespace", "name": "mine", "tools": []object{{"type": "function", "name": "look"}}}}
	var r response
	decode(t, ask(t, "POST", url+w.path(false), w.body("u", false, tools)).body, &r)
	if r.Output[0].Name != "look" || r.Output[0].Namespace != "mine" {
		t.Errorf("%+v", r.Output)
	}
}

// TestCommandsAsTheyAre: a model does not write > as \\u003e, so that whoever looks for a string finds it.
func TestCommandsAsTheyAre(t *testing.T) {
	for _, w := range ways {
		_, url := start(t, Script{Turns: []Turn{{Shell("a <b >c & d")}}})
		if a := ask(t, "POST", url+w.path(false), w.body("u", false, w.offers())); !strings.Contains(a.body, "a <b >c & d") {
			t.Errorf("%s: %s", w.name(), a.body)
		}
	}
}

func TestNoShellTool(t *testing.T) {
	for _, w := range ways {
		s, url := start(t, Script{Turns: []Turn{{Shell("ls")}}})
		got := w.says(t, url, "u", []object{w.tool("read_file", object{}), w.tool("write", object{})})
		if p := s.Requests()[0].Problem; !strings.Contains(p, "read_file, write") || !strings.Contains(got.Text, p) || got.Stop != "end" {
			t.Errorf("%s: %q, %+v", w.name(), p, got)
		}
	}
}

func TestACallThatCannotBeJSONPanics(t *testing.T) {
	defer func() {
		if p, _ := recover().(string); !strings.Contains(p, "cannot be JSON") {
			t.Errorf("it said %q", p)
		}
	}()
	Call("bash", func() {})
}

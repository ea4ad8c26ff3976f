package modeltest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// tool is one that a request offers.
type tool struct {
	Name      string
	Namespace string // of OpenAI's tools that come in groups
	Type      string // function, custom, local_shell, shell
	Schema    schema
}

// schema is what matters here of a JSON schema.
type schema struct {
	Type       any               `json:"type"` // a string, or an array of them
	Properties map[string]schema `json:"properties"`
	Required   []string          `json:"required"`
	Items      *schema           `json:"items"`
	Enum       []any             `json:"enum"`
	Const      any               `json:"const"`
	AnyOf      []schema          `json:"anyOf"`
	OneOf      []schema          `json:"oneOf"`
}

// is says whether a value of the type is allowed. Gemini writes types in capitals.
func (s schema) is(name string) bool {
	switch t := s.Type.(type) {
	case string:
		return strings.EqualFold(t, name)
	case []any:
		return slices.ContainsFunc(t, func(v any) bool {
			one, ok := v.(string)
			return ok && strings.EqualFold(one, name)
		})
	}
	return slices.ContainsFunc(append(s.AnyOf, s.OneOf...), func(s schema) bool { return s.is(name) })
}

// example is a value of the schema, as small as can be.
func (s schema) example() any {
	switch {
	case s.Const != nil:
		return s.Const
	case len(s.Enum) > 0:
		return s.Enum[0]
	case len(s.AnyOf) > 0:
		return s.AnyOf[0].example()
	case len(s.OneOf) > 0:
		return s.OneOf[0].example()
	case s.is("object") || len(s.Properties) > 0:
		out := map[string]any{}
		for _, name := range s.Required {
			out[name] = s.Properties[name].example()
		}
		return out
	case s.is("array"):
		return []any{}
	case s.is("boolean"):
		return false
	case s.is("integer") || s.is("number"):
		return 0
	}
	return "as the script says"
}

// shells are the names under which programs offer a tool for commands.
var shells = []string{"Bash", "bash", "exec_command", "shell_command", "shell", "local_shell", "run_shell_command", "run_command", "run_terminal_cmd", "execute_command", "container.exec", "terminal", "exec"}

// called is a call of a tool, as it goes over the wire.
type called struct {
	tool
	Input json.RawMessage
}

// input is what stands for the input on the wire: JSON, or the text itself of a tool that takes any.
func (c called) input() string {
	var s string
	if c.Type == "custom" && json.Unmarshal(c.Input, &s) == nil {
		return s
	}
	return string(c.Input)
}

// shellCall says which of the tools takes commands, and how this one is given to it.
func shellCall(tools []tool, command string) (called, error) {
	at := -1
	for _, name := range shells {
		if at = slices.IndexFunc(tools, func(t tool) bool { return t.Name == name }); at >= 0 {
			break
		}
	}
	if at < 0 {
		var names []string
		for _, t := range tools {
			names = append(names, t.Name)
		}
		return called{}, fmt.Errorf("none of the tools offered is known to take commands: %s", strings.Join(names, ", "))
	}
	t := tools[at]
	argv := []string{"bash", "-lc", command}
	switch t.Type {
	case "local_shell":
		return called{t, encodeJSON(map[string]any{"type": "exec", "command": argv, "env": map[string]string{}})}, nil
	case "shell":
		return called{t, encodeJSON(map[string]any{"commands": []string{command}})}, nil
	case "custom":
		return called{t, encodeJSON(command)}, nil
	}
	input, _ := t.Schema.example().(map[string]any)
	if input == nil {
		input = map[string]any{}
	}
	name := "command" // also for the tools that Anthropic knows itself, which come without a schema
	for _, n := range []string{"command", "cmd", "script"} {
		if _, ok := t.Schema.Properties[n]; ok {
			name = n
			break
		}
	}
	if p := t.Schema.Properties[name]; p.is("array") && !p.is("string") {
		input[name] = argv
	} else {
		input[name] = command
	}
	return called{t, encodeJSON(input)}, nil
}

// toolCall is a call by name; what is not offered is called as a function.
func toolCall(tools []tool, name string, input json.RawMessage) called {
	if at := slices.IndexFunc(tools, func(t tool) bool { return t.Name == name }); at >= 0 {
		return called{tool: tools[at], Input: input}
	}
	return called{tool: tool{Name: name, Type: "function"}, Input: input}
}

// pieces cuts a text as a stream carries it. No character is torn apart, and none is lost.
func pieces(s string, size int) []string {
	var out []string
	for len(s) > size {
		n := size
		for n < len(s) && !utf8.RuneStart(s[n]) {
			n++
		}
		out, s = append(out, s[:n]), s[n:]
	}
	if s != "" {
		out = append(out, s)
	}
	return out
}

// words are the pieces of prose, and partials those of a call's input: larger ones where it is long, since what is around
// each is many times as long.
func words(s string) []string    { return pieces(s, 13) }
func partials(s string) []string { return pieces(s, max(9, len(s)/20_000)) }

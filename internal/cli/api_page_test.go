package cli

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"ravi/internal/command"
	"ravi/internal/gateway"
)

const (
	apiPage = "../../docs/api.md"
	// apiMark begins what is made from the table; what stands before it is written by hand.
	apiMark = "<!-- From here on: go test ./internal/cli -run TestAPIPage -update -->\n"
	apiWide = 120
)

// docs/api.md is what the table says.
func TestAPIPage(t *testing.T) {
	page, err := os.ReadFile(apiPage)
	if err != nil {
		t.Fatal(err)
	}
	written, made, _ := strings.Cut(string(page), apiMark)
	want := commandsPage(newTable(program()))
	for line := range strings.Lines(want) {
		if strings.HasPrefix(line, "|") && utf8.RuneCountInString(line) > apiWide+1 {
			t.Errorf("a line of a table is too wide: %s", line)
		}
	}
	if made == want {
		return
	}
	if !*update {
		t.Fatal("docs/api.md is not what the table says: go test ./internal/cli -run TestAPIPage -update")
	}
	if err := os.WriteFile(apiPage, []byte(written+apiMark+want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// commandsPage are all commands that a gateway takes, as Markdown.
func commandsPage(table *command.Table) string {
	var b strings.Builder
	for _, g := range table.Groups() {
		first := true
		for _, c := range table.Commands() {
			if c.Group != g.Name || c.Reach == command.LocalOnly {
				continue
			}
			if first {
				fmt.Fprintf(&b, "\n## %s\n\n%s.\n", g.Name, cell(g.Summary))
				first = false
			}
			who := fmt.Sprintf("`%s:%s`", c.Access, c.FullName())
			if c.Reach == command.OperatorOnly {
				who = fmt.Sprintf("%ss; for the operator only", c.Access)
			}
			fmt.Fprintf(&b, "\n### %s/%s\n\n%s. (%s)\n", c.Group, c.Name, cell(c.Summary), who)
			if len(c.Fields) == 0 {
				continue
			}
			b.WriteString("\n| input | type | class | required | |\n|---|---|---|---|---|\n")
			for i := range c.Fields {
				fieldRows(&b, &c.Fields[i])
			}
		}
	}
	return b.String()
}

// fieldRows is one row of the table of inputs, or several for what does not fit into one.
func fieldRows(b *strings.Builder, f *command.Field) {
	required := ""
	if f.Arg != "" && !f.Optional {
		required = "yes"
	}
	row := fmt.Sprintf("| `%s` | %s | %s | %s |", f.JSON, apiType(f), f.Host, required)
	room := apiWide - utf8.RuneCountInString(row) - len("  |")
	line := ""
	for word := range strings.FieldsSeq(cell(f.Usage)) {
		if line != "" && utf8.RuneCountInString(line+" "+word) > room {
			fmt.Fprintf(b, "%s %s |\n", row, line)
			row, line = "| | | | |", ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	fmt.Fprintf(b, "%s %s |\n", row, line)
}

// apiType is what a field's value is in JSON.
func apiType(f *command.Field) string {
	kind := gateway.TypeOf(f.Type)
	return cmp.Or(map[string]string{"strings": "array of strings", "map": "object of strings"}[kind], kind)
}

// cell is a text that can stand in a cell of a table.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`, "_", `\_`, "\n", " ").Replace(s)
}

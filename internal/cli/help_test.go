package cli

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ravi/internal/command"
)

var update = flag.Bool("update", false, "write the help of the groups to testdata/help, to be read before it is committed")

// What the commands on records say about themselves stands in testdata/help, so that a change of it is seen.
func TestHelpOfGroups(t *testing.T) {
	table := newTable(parts{})
	for _, group := range []string{"agents", "sessions", "memory", "tasks", "runs", "approvals", "context", "profiles"} {
		var got bytes.Buffer
		for _, c := range table.Commands() {
			if c.Group != group || c.FullName() == "context.snapshot" {
				continue
			}
			var exit int
			root := newRoot(table, &command.Env{}, &exit)
			root.SetArgs([]string{group, c.Name, "--help"})
			root.SetOut(&got)
			got.WriteString("$ ravi " + group + " " + c.Name + " --help\n")
			if err := root.Execute(); err != nil {
				t.Fatal(err)
			}
			got.WriteString("\n")
		}
		file := filepath.Join("testdata", "help", group+".txt")
		if *update {
			if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		a, b := strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				t.Errorf("%s:%d: %q has become %q; go test ./internal/cli -run HelpOfGroups -update writes it anew", file, i+1, a[i], b[i])
				break
			}
		}
		if len(a) != len(b) {
			t.Errorf("%s has %d lines, now there are %d", file, len(a), len(b))
		}
	}
}

package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"ravi/internal/command"
	safe "ravi/internal/term"
)

// The table of the program is complete enough to be read by people, and every declaration in it makes sense (a
// host resource that is not classified would panic here).
func TestTable(t *testing.T) {
	table := newTable(program())
	if len(table.Commands()) == 0 {
		t.Fatal("no commands")
	}
	for _, c := range table.Commands() {
		if c.Long == "" || len(c.Examples) == 0 {
			t.Errorf("%s has no long help or no example", c.FullName())
		}
		if safe.Width(c.Summary) > 66 {
			t.Errorf("%s: the summary is too wide for the list of commands: %q", c.FullName(), c.Summary)
		}
	}
}

// Help fits into eighty columns wherever cobra leaves the lines as they were written.
func TestHelpFits(t *testing.T) {
	exit := 0
	root := newRoot(newTable(program()), &command.Env{}, &exit)
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		for line := range strings.Lines(cmd.Long + "\n" + cmd.Example + "\n" + cmd.UseLine()) {
			if safe.Width(strings.TrimSuffix(line, "\n")) > 80 {
				t.Errorf("%s: %q is wider than 80", cmd.CommandPath(), line)
			}
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(root)
}

package agent

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// docs/loop.md names each tool, and no other one, and the bounds that hold.
func TestDocumented(t *testing.T) {
	b, err := os.ReadFile("../docs/loop.md")
	if err != nil {
		t.Fatal(err)
	}
	_, tools, _ := strings.Cut(string(b), "\n## Tools\n")
	tools, _, _ = strings.Cut(tools, "\n## ")
	loop := loopOf(t, Config{Model: script(t), Hands: NewHands(nil), Subagents: NewSubagents(nil, SubLimits{})})
	for _, s := range loop.specs() {
		if !strings.Contains(tools, "\n| `"+s.Name+"` |") {
			t.Errorf("there is no row for the tool %s", s.Name)
		}
	}
	if rows, want := strings.Count(tools, "\n| `"), len(loop.specs())+1; rows != want { // MCP servers have one for all
		t.Errorf("%d rows of tools, want %d", rows, want)
	}
	turn, sub := Limits{}.withDefaults(), SubLimits{}.withDefaults()
	for key, n := range map[string]any{
		"agents.defaults.max_iterations": turn.Iterations, "agents.defaults.max_tool_output": turn.Output, "tools.exec.timeout": execTime.Seconds(),
		"max_concurrent_subagents": sub.AtOnce, "max_queued_subagents": sub.Queue, "max_subagent_spawns_per_hour": sub.PerHour, "max_subagent_minutes": sub.Wall.Minutes(),
	} {
		if row := fmt.Sprintf("\n| `%s` | %v |", key, n); !strings.Contains(string(b), row) {
			t.Errorf("it does not say:%s", row)
		}
	}
}

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"ravi/sandbox"
)

// However many tools servers have, a model is offered as many as each provider takes, its own ones first; that others are
// missing is told once.
func TestServersToolsAreBounded(t *testing.T) {
	var many []Spec
	for i := range 300 {
		many = append(many, Spec{Name: fmt.Sprintf("mcp_a_%d", i), Schema: json.RawMessage(`{"type":"object"}`)})
	}
	hands := HandsOf(onHost(t, t.TempDir())).WithServers(func(context.Context, *sandbox.Sandbox) (Servers, error) {
		return servants{specs: func() []Spec { return many },
			call:   func(context.Context, string) (string, bool, error) { return "done", false, nil },
			closed: func() error { return nil }}, nil
	})
	defer hands.Close(t.Context())
	m := script(t, asks(call("mcp_a_0", nil), call("mcp_a_299", nil)))
	told := 0
	turnOf(t, loopOf(t, Config{Model: m, Hands: hands, Emit: func(e Event) {
		if e.Kind == EventNote && strings.Contains(e.Text, "128 tools") {
			told++
		}
	}}), Finished)
	if tools := m.request(1).Tools; len(tools) != mostTools || tools[0].Name != finishName {
		t.Errorf("%d tools are offered, the first is %s", len(tools), tools[0].Name)
	}
	if told != 1 {
		t.Errorf("that some are missing was told %d times", told)
	}
	got := m.told(1).Results
	if text, _ := inFence(t, got[0].Text); text != "done" {
		t.Errorf("the result is %+v", got[0])
	}
	mentions(t, got[1].Text, "no tool")
}

package mcphost

import (
	"fmt"
	"testing"

	"ravi/sandbox"
)

// A server has its input and output to itself. When no more can have that, it works all the same, and that is told.
func TestServersHaveLanes(t *testing.T) {
	sb := open(t, sandbox.Default())
	const lanes, more = 8, 2
	var servers []Server
	for i := range lanes + more {
		s := own("plain")
		s.Name = fmt.Sprint("s", i)
		servers = append(servers, s)
	}
	e := newEar()
	h := connect(t, sb, e, servers...)
	for _, s := range servers {
		if got := works(t, h, "mcp_"+s.Name+"_count", ""); got != "1" {
			t.Errorf("%s: %s", s.Name, got)
		}
	}
	if n := e.count(KindLog, slower); n != more {
		t.Errorf("of %d servers it was told, not of %d: %+v", n, more, e.events())
	}
}

// What a server leaves behind, and that floods what was its output, holds up neither its end nor another server.
func TestServerLeavesAFlood(t *testing.T) {
	sb := open(t, sandbox.Default())
	e := newEar()
	h := connect(t, sb, e, own("plain"), Server{Name: "flood", Command: "sh", Args: []string{"-c", "yes '{}' & exit 4"}})
	if st := h.Servers()[1]; st.OK || st.Problem == "" {
		t.Errorf("%+v", st)
	}
	for range 20 {
		works(t, h, "mcp_own_count", "")
	}
	left, err := sb.Processes(t.Context())
	if err != nil || len(left) != 1 {
		t.Errorf("%v, %+v", err, left)
	}
}

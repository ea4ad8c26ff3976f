package cli

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"ravi/internal/doctor"
	"ravi/internal/porttest"
)

// stock is another's server, which takes anybody, on two ports: for programs and for leaf nodes.
type stock struct {
	t           *testing.T
	dir         string
	port, leafs int
}

func newStock(t *testing.T) *stock { return &stock{t, t.TempDir(), porttest.Free(t), porttest.Free(t)} }

func (s *stock) run() (stop func()) {
	s.t.Helper()
	ns, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: s.port, JetStream: true, StoreDir: s.dir, NoSigs: true, NoLog: true, LeafNode: server.LeafNodeOpts{Host: "127.0.0.1", Port: s.leafs},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	ns.Start()
	if !ns.ReadyForConnections(time.Minute) {
		s.t.Fatal("the server does not start")
	}
	stop = func() {
		ns.Shutdown()
		ns.WaitForShutdown()
	}
	s.t.Cleanup(stop)
	return stop
}

// withBus writes config.json.
func (c clinic) withBus(bus map[string]any) {
	c.t.Helper()
	b, err := json.Marshal(map[string]any{"gateway": map[string]any{"port": 0}, "bus": bus})
	if err == nil {
		err = os.WriteFile(filepath.Join(c.dir, "config.json"), b, 0o600)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// goes waits until a finding, and all others of the check, are gone by themselves.
func (c clinic) goes(check string) doctor.Report {
	c.t.Helper()
	var r doctor.Report
	eventually(c.t, func() bool { r = c.look(check); return len(r.Findings) == 0 && r.Checks[0].Status == doctor.Pass })
	return r
}

// A bus whose hub does not answer is told, with what it has to say, and is well once the hub is there; and so is a daemon
// that has lost another's bus.
func TestDoctorMissesOtherServers(t *testing.T) {
	c := newClinic(t, map[string]any{"port": 0})
	const check = "bus.works"
	if r := c.look(check); r.Checks[0].Status != doctor.Skip {
		t.Errorf("without a daemon: %+v", r)
	}
	c.shell("ravi daemon start")
	if r := c.look(check); len(r.Findings) > 0 || r.Checks[0].Status != doctor.Pass {
		t.Errorf("%+v", r)
	}
	creds := filepath.Join(c.bin, "far.creds")
	c.shell("ravi bus creds issue --runner far --out " + creds)
	other := newStock(t)

	c.withBus(map[string]any{"port": 0, "leaf": map[string]any{"url": fmt.Sprint("nats://127.0.0.1:", other.leafs), "creds": creds}})
	c.shell("ravi daemon restart")
	var f doctor.Finding
	eventually(t, func() bool { f = c.finds(check, "bus.hub_not_joined", doctor.Error); return len(f.Evidence) == 1 })
	if !strings.Contains(f.Evidence[0], "leafnode") || !strings.Contains(f.Fix, fmt.Sprint(other.leafs)) {
		t.Errorf("%+v", f)
	}
	if said := c.shell("ravi daemon status"); !strings.Contains(said, "ravi doctor --only bus") {
		t.Errorf("the status says nothing of it:\n%s", said)
	}
	stop := other.run()
	if r := c.goes(check); !strings.Contains(r.Checks[0].Said, "it has joined ") {
		t.Errorf("%+v", r)
	}

	c.withBus(map[string]any{"url": "nats://" + net.JoinHostPort("127.0.0.1", fmt.Sprint(other.port)), "creds": creds})
	c.shell("ravi daemon restart")
	c.goes(check)
	stop()
	eventually(t, func() bool { // a server that ends stores nothing before it is away
		return slices.ContainsFunc(c.look(check).Findings, func(f doctor.Finding) bool { return f.ID == "bus.away" })
	})
	if f := c.finds(check, "bus.away", doctor.Error); !strings.Contains(f.Summary, fmt.Sprint(other.port)) {
		t.Errorf("%+v", f)
	}
	other.run()
	c.goes(check)
}

package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// withBusGuest puts the program busguest into a repository.
func withBusGuest(t *testing.T, r *repo) {
	t.Helper()
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", r.path("busguest"), "./busguest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r.commit("a program for the bus")
}

// onBus is a connection with a credential that may hear everything of the control account, or with one of a client's.
func (w *world) onBus(args ...string) *nats.Conn {
	w.t.Helper()
	path := filepath.Join(w.t.TempDir(), "creds")
	w.ravi(append([]string{"bus", "creds", "issue", "--name", "watcher", "--out", path}, args...)...).want(0)
	var s struct {
		State struct{ Bus struct{ URL string } }
	}
	must(w.t, json.Unmarshal([]byte(w.ravi("daemon", "status", "--json").want(0).stdout), &s))
	nc, err := nats.Connect(s.State.Bus.URL, nats.UserCredentials(path), nats.CustomInboxPrefix("_INBOX_watcher"), nats.Timeout(time.Minute))
	must(w.t, err)
	w.t.Cleanup(nc.Close)
	return nc
}

// What runs in a sandbox speaks on the bus, with what it may say and hear; all else is refused, and what it says comes to
// others without what would have a meaning there.
func TestARunOnTheBus(t *testing.T) {
	w := newWorld(t)
	r := plain(t)
	withBusGuest(t, r)
	w.ravi("config", "set", "gateway.port", "0").want(0)
	w.ravi("daemon", "start").want(0)
	t.Cleanup(func() { w.ravi("daemon", "stop").want(0) })
	w.ravi("clients", "create", "acme").want(0)
	w.withWorker("anna", r, "--client", "acme", "--connect", "read", "--", "sh", "-c", `
		./busguest say '{"step":1}' hello; ./busguest hear & sleep 1; wait
		cat $RAVI_BUS_CREDS > stolen; ls -ln $RAVI_BUS_CREDS; (echo x > $RAVI_BUS_CREDS) 2>&1; (mv $RAVI_BUS_CREDS /tmp/x) 2>&1; rm stolen; true`)
	w.withWorker("eve", r, "--connect", "read", "--", "sh", "-c", `./busguest attack $(cat TASK.md); ./busguest flood`)
	control := w.onBus("--subscribe", "run.*.>", "--subscribe", "work.>")
	all := &heard{}
	_, err := control.Subscribe("run.*.>", all.take)
	must(t, err)
	must(t, control.FlushTimeout(time.Minute))

	w.ravi("sessions", "send", "good", "go", "--agent", "anna").want(0)
	eventually(t, "the run", func() bool { k := w.works(); return len(k) == 1 && k[0].RunID != "" })
	victim := w.works()[0].RunID
	w.ravi("sessions", "send", "bad", victim, "--agent", "eve").want(0)
	// While the first run listens something more is said in its session, and it is told.
	listening := filepath.Join(w.home, "runs", victim, "logs", "stdout.log")
	eventually(t, "the listening", func() bool { b, _ := os.ReadFile(listening); return bytes.Contains(b, []byte("listening")) })
	w.ravi("sessions", "send", "good", "more").want(0)
	eventually(t, "the end of both", func() bool {
		k := w.works()
		return len(k) == 3 && k[1].Status == "done" && k[2].Status == "done"
	})
	said := read(t, listening)
	if !strings.Contains(said, `heard message {"role":"user","seq":2,"session":"`) {
		t.Errorf("the good run says\n%s", said)
	}
	if !strings.Contains(said, "-rw------- 1 1000 ") || strings.Count(said, "denied")+strings.Count(said, "not permitted") != 1 {
		// It is its own file to write; nobody but root puts another in its place.
		t.Errorf("the credential's file is\n%s", said)
	}
	bad := read(t, filepath.Join(w.home, "runs", w.works()[1].RunID, "logs", "stdout.log"))
	for _, line := range strings.Split(strings.TrimSpace(bad), "\n") {
		name, came, _ := strings.Cut(line, ": ")
		want := "refused"
		switch name {
		case "own", "reply and headers":
			want = "taken"
		case "too large":
			want = "error"
		case "flooded":
			want = "<nil>"
		}
		if !strings.HasPrefix(came, want) && !(name == "flooded" && came != "") {
			t.Errorf("%s: %s, want %s", name, came, want)
		}
	}
	if n := strings.Count(bad, "refused"); n < 16 {
		t.Errorf("only %d attempts were refused:\n%s", n, bad)
	}
	// What they wrote last is put on the bus while their ends are recorded.
	for _, run := range []string{victim, w.works()[1].RunID} {
		eventually(t, "the last words of "+run, func() bool {
			return slices.ContainsFunc(all.all(), func(m *nats.Msg) bool {
				return m.Subject == "run."+run+".event" && strings.Contains(string(m.Data), `"event":"ended"`)
			})
		})
	}
	// What the good run said, and its events, are there, whatever the other one did. What guests say comes by another way
	// than events.
	flooded, sneaky := 0, 0
	eventually(t, "what the guests said", func() bool {
		saidOnBus := ""
		flooded, sneaky = 0, 0
		for _, m := range all.all() {
			if strings.HasPrefix(m.Subject, "run."+victim+".") {
				saidOnBus += m.Subject + " " + string(m.Data) + "\n"
			}
			if strings.HasSuffix(m.Subject, ".guest") {
				flooded += strings.Count(string(m.Data), `"topic":"flood"`)
				sneaky += strings.Count(string(m.Data), "sneaky\":true")
			}
		}
		wanted := []string{`.guest {"topic":"progress","data":{"step":1}}`, `.guest {"topic":"progress","text":"hello"}`, `"event":"ended"`}
		return flooded > 0 && sneaky > 0 && !slices.ContainsFunc(wanted, func(s string) bool { return !strings.Contains(saidOnBus, s) })
	})
	for _, m := range all.all() {
		if !strings.HasSuffix(m.Subject, ".guest") {
			continue
		}
		if len(m.Header) > 1 || m.Header.Get("Nats-Rollup") != "" || strings.Contains(m.Header.Get("Nats-Msg-Id"), "the-same") || !strings.HasPrefix(m.Reply, "_INBOX_") {
			t.Errorf("passed on with %v, reply %q", m.Header, m.Reply)
		}
		if strings.Contains(string(m.Data), "forged") {
			t.Errorf("forged: %s %s", m.Subject, m.Data)
		}
	}
	if sneaky != 1 || flooded > 600 {
		t.Errorf("passed on were %d of the one with headers, and %d of some 3,400 of the flood", sneaky, flooded)
	}
	// Their credentials are over with the runs.
	eventually(t, "the end of their credentials", func() bool {
		return !strings.Contains(w.ravi("bus", "creds", "ls").want(0).stdout, "guest") || w.works()[0].Status != "done"
	})
	for _, action := range []string{"work.begin", "bus.issue", "bus.revoke"} {
		eventually(t, "two of "+action+" in the audit", func() bool {
			return strings.Count(w.ravi("audit", "tail", "--limit", "200").want(0).stdout, action) >= 2
		})
	}
	w.ravi("bus", "creds", "revoke", "watcher").want(0)
	eventually(t, "the cut", func() bool { return !control.IsConnected() })
}

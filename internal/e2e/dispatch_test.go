package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

type workItem struct {
	ID        string `json:"id"`
	Status    string `json:"status"`
	Reason    string `json:"reason"`
	Tries     int    `json:"tries"`
	RunID     string `json:"run_id"`
	Runner    string `json:"runner"`
	SessionID string `json:"session_id"`
	ReplyID   string `json:"reply_id"`
}

// works is all work of a world, the newest first.
func (w *world) works() (all []workItem) {
	w.t.Helper()
	var list struct{ Items []workItem }
	must(w.t, json.Unmarshal([]byte(w.ravi("work", "ls", "--all", "--json", "--limit", "500").want(0).stdout), &list))
	return list.Items
}

// withWorker has messages to an agent of a world worked on.
func (w *world) withWorker(name string, r *repo, args ...string) {
	w.t.Helper()
	w.ravi("agents", "create", name).want(0)
	w.ravi(append([]string{"agents", "work", name, "--repo", r.dir}, args...)...).want(0)
}

// A message goes over the bus to a sandbox, and comes back as a reply and a proven patch. Nothing but a daemon that starts
// by itself was set up.
func TestAMessageComesBackAsAReplyAndAPatch(t *testing.T) {
	w := newWorld(t)
	r := plain(t)
	w.ravi("config", "set", "gateway.port", "0").want(0)
	t.Cleanup(func() { w.ravi("daemon", "stop").want(0) })
	w.withWorker("anna", r, "--", "sh", "-c", `cat TASK.md; cat /ravi/context/conversation.md >&2; echo more >> new`)
	sent := w.ravi("sessions", "send", "main", "mend it\nplease", "--agent", "anna", "--wait").want(0)
	if !strings.Contains(sent.stdout, "mend it\nplease") || !strings.Contains(sent.stdout, "its patch changes 1 file (+1 -0)") || !strings.Contains(sent.stdout, sent.dir+"/changes.patch") {
		t.Errorf("it says\n%s", sent.stdout)
	}
	sent.task().is(t, "succeeded", "")
	if !strings.Contains(sent.patch(), "+more") {
		t.Errorf("the patch is %s", sent.patch())
	}
	if said := read(t, filepath.Join(sent.dir, "logs", "stderr.log")); !strings.Contains(said, "mend it") {
		t.Errorf("the conversation inside was %q", said)
	}
	// The command's status is the sender's, and the reply says it.
	w.ravi("agents", "work", "anna", "--repo", r.dir, "--", "sh", "-c", "echo no; exit 7").want(0)
	if again := w.ravi("sessions", "send", "main", "again", "-w").want(7); !strings.Contains(again.stdout, "no\n\n[the run ended as failed, with status 7]") {
		t.Errorf("it says\n%s", again.stdout)
	}
	transcript := w.ravi("sessions", "transcript", "main").want(0).stdout
	if n := strings.Count(transcript, "assistant"); n != 2 {
		t.Errorf("the session has %d replies:\n%s", n, transcript)
	}
	// Nobody works on what is only to be kept, nor on what is said to nobody who works.
	w.ravi("sessions", "send", "main", "for the record", "--no-work").want(0)
	w.ravi("agents", "work", "anna", "--off").want(0)
	w.ravi("sessions", "send", "main", "also").want(0)
	w.ravi("sessions", "send", "main", "and now", "--wait").want(2).says("nobody works on messages to the agent anna", "ravi agents work anna --repo")
	if all := w.works(); len(all) != 2 || all[0].Status != "done" || all[1].ReplyID == "" {
		t.Errorf("the work is %+v", all)
	}
	// The bus listens on loopback only.
	var s struct {
		State struct {
			Bus struct {
				URL     string
				Listens []string
			}
		}
	}
	must(t, json.Unmarshal([]byte(w.ravi("daemon", "status", "--json").want(0).stdout), &s))
	if len(s.State.Bus.Listens) != 1 || !strings.HasPrefix(s.State.Bus.Listens[0], "127.0.0.1:") {
		t.Errorf("the bus is %+v", s.State.Bus)
	}
	w.ravi("audit", "verify").want(0)
}

// What cannot be worked on ends visibly: in the session, in the record, with what mends it.
func TestWorkThatCannotBeDone(t *testing.T) {
	w := newWorld(t)
	r := plain(t)
	w.ravi("config", "set", "gateway.port", "0").want(0)
	t.Cleanup(func() { w.ravi("daemon", "stop").want(0) })
	w.withWorker("anna", r, "--", "true")
	must(t, os.Rename(r.dir, r.dir+"-away"))
	if sent := w.ravi("sessions", "send", "main", "do it", "--agent", "anna", "--wait").want(125); !strings.Contains(sent.stdout, "was not worked on") {
		t.Errorf("it says\n%s", sent.stdout)
	}
	must(t, os.Rename(r.dir+"-away", r.dir))
	all := w.works()
	if len(all) != 1 || all[0].Status != "failed" || all[0].Reason == "" {
		t.Fatalf("the work is %+v", all)
	}
	again := strings.TrimSpace(w.ravi("work", "retry", all[0].ID).want(0).stdout)
	eventually(t, "the second try", func() bool { return strings.Contains(w.ravi("work", "show", again).want(0).stdout, "done") })
	// What waits can be taken back, and what runs be canceled.
	w.ravi("agents", "work", "anna", "--repo", r.dir, "--", "sleep", "1000").want(0)
	w.ravi("sessions", "send", "main", "one").want(0)
	w.ravi("sessions", "send", "main", "two").want(0)
	eventually(t, "a run", func() bool { return w.works()[1].Status == "running" })
	all = w.works()
	w.ravi("work", "cancel", all[0].ID).want(0)
	w.ravi("work", "cancel", all[1].ID).want(0)
	eventually(t, "the end", func() bool { all = w.works(); return all[0].Status == "canceled" && all[1].Status == "canceled" })
	w.ravi("work", "cancel", all[0].ID).want(1).says("is canceled already")
}

// The daemon is killed with twenty messages waiting and five at work: each is done once, in its session's order.
func TestDaemonKilledWithWork(t *testing.T) {
	w := newWorld(t)
	r := plain(t)
	w.ravi("config", "set", "gateway.port", "0").want(0)
	w.ravi("config", "set", "dispatch.runs", "5").want(0)
	w.ravi("daemon", "start").want(0)
	t.Cleanup(func() { w.ravi("daemon", "stop").want(0) })
	w.withWorker("anna", r, "--", "sh", "-c", "sleep 1; cat TASK.md")
	const sessions, each = 5, 5
	for n := range each {
		for s := range sessions {
			w.ravi("sessions", "send", fmt.Sprint("s", s), strconv.Itoa(n), "--agent", "anna").want(0)
		}
	}
	for range 3 {
		eventually(t, "runs", func() bool {
			running, left := 0, 0
			for _, k := range w.works() {
				switch k.Status {
				case "running":
					running++
				case "queued":
					left++
				}
			}
			return running > 0 || left == 0
		})
		w.killDaemon()
	}
	eventually(t, "the end of most", func() bool {
		over := 0
		for _, k := range w.works() {
			if k.Status == "done" {
				over++
			}
		}
		return over > sessions*each/2
	})
	eventually(t, "the end of all", func() bool {
		for _, k := range w.works() {
			if k.Status == "queued" || k.Status == "running" {
				return false
			}
		}
		return true
	})
	for _, k := range w.works() {
		if k.Status != "done" || k.Tries != 0 {
			t.Errorf("%+v", k)
		}
	}
	for s := range sessions {
		var said struct {
			Items []struct{ Role, Text string }
		}
		must(t, json.Unmarshal([]byte(w.ravi("sessions", "transcript", fmt.Sprint("s", s), "--json").want(0).stdout), &said))
		next := 0
		for _, m := range said.Items {
			if m.Role != "assistant" {
				continue
			}
			if strings.TrimSpace(m.Text) != strconv.Itoa(next) {
				t.Errorf("session %d was answered %q, want %d", s, m.Text, next)
			}
			next++
		}
		if next != each {
			t.Errorf("session %d has %d replies", s, next)
		}
	}
	var list struct{ Items []struct{ ID string } }
	must(t, json.Unmarshal([]byte(w.ravi("runs", "ls", "--json", "--limit", "500").want(0).stdout), &list))
	if len(list.Items) != sessions*each {
		t.Errorf("%d runs for %d messages", len(list.Items), sessions*each)
	}
	w.ravi("audit", "verify").want(0)
}

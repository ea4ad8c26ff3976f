package e2e

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"ravi/internal/store"
)

// counts is a command that says numbers, one a second, and then changes a file.
func counts(seconds int) string {
	return fmt.Sprintf("for i in $(seq %d); do echo $i; sleep 1; done; echo more >> new", seconds)
}

func counted(seconds int) string {
	var b strings.Builder
	for i := range seconds {
		fmt.Fprintln(&b, i+1)
	}
	return b.String()
}

// A cable that is cut for less than a minute is bridged, whether the run goes on longer than the cut or ends within it: it
// is the same run, and nothing of it is lost or doubled.
func TestACutIsBridged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ cut, run int }{{5, 15}, {40, 20}} {
		t.Run(fmt.Sprint(c.cut, " s"), func(t *testing.T) {
			t.Parallel()
			l, r := newLAN(t, nil), plain(t)
			l.withWorker("anna", r, "--", "sh", "-c", counts(c.run))
			runners := map[string]*lender{"one": l.runner("one"), "two": l.runner("two")}
			l.send("main", "count")
			w := l.says("2\n")
			h := runners[w.Runner].at
			h.cable("down")
			time.Sleep(time.Duration(c.cut) * time.Second) // the fault itself
			h.cable("up")
			got := l.over()[0]
			if got.Status != store.WorkDone || got.RunID != w.RunID || got.Tries != 0 {
				t.Errorf("%+v, and it was run %s", got, w.RunID)
			}
			if out := l.out(w.RunID); out != counted(c.run) {
				t.Errorf("it said\n%s", out)
			}
			run := &result{t: t, dir: filepath.Join(l.home, "runs", w.RunID)}
			run.task().is(t, "succeeded", "")
			if !strings.Contains(run.patch(), "+more") {
				t.Errorf("the patch is %s", run.patch())
			}
		})
	}
}

// A cut of two minutes is no bridge: the try ends, the work is done elsewhere, the runner that is cut off ends its sandbox
// by itself meanwhile, and is one like any other once it is back.
func TestALongCutEndsTheTry(t *testing.T) {
	t.Parallel()
	l, r := newLAN(t, nil), plain(t)
	l.withWorker("anna", r, "--", "sh", "-c", "echo begun; sleep 1000")
	one := l.runner("one")
	l.send("main", "work")
	w := l.says("begun")
	boxes := one.boxes()
	if len(boxes) != 1 {
		t.Fatalf("it has the sandboxes %v", boxes)
	}
	two := l.runner("two")
	l.worked(r, "echo elsewhere; echo more >> new") // the next try
	one.at.cable("down")
	cut := time.Now()
	one.empty(boxes...) // by itself: nobody reaches it
	got := l.over()[0]
	if got.Status != store.WorkDone || got.Runner != "two" || got.Tries != 1 || got.RunID == w.RunID {
		t.Errorf("%+v", got)
	}
	time.Sleep(time.Until(cut.Add(2 * time.Minute))) // the fault itself
	one.at.cable("up")
	l.ready("one")
	two.term()
	if code := two.wait(); code != 0 {
		t.Errorf("the other one ended with %d", code)
	}
	l.send("main", "more work")
	if got := l.over()[1]; got.Status != store.WorkDone || got.Runner != "one" || got.Tries != 0 {
		t.Errorf("%+v", got)
	}
	if said := l.replies(w.SessionID); len(said) != 2 {
		t.Errorf("the replies are %q", said)
	}
}

// The daemon, and with it the bus, is killed with five runs on a runner and twenty messages waiting. Each is done once, in
// its session's order, and the five by the runs that were under way.
func TestDaemonKilledWithRunsElsewhere(t *testing.T) {
	t.Parallel()
	l, r := newLAN(t, nil), plain(t)
	l.ravi("agents", "create", "anna").want(0)
	l.worked(r, "echo begun; sleep 30; cat TASK.md", "--cpus", "1", "--memory", "256")
	const sessions, each = 5, 5
	for n := range each {
		for s := range sessions {
			l.send(fmt.Sprint("s", s), strconv.Itoa(n))
		}
	}
	l.runner("one", "--capacity", "5", "--cpus", "20", "--memory", "40000") // it finds all of it waiting
	var under map[string]string                                             // by work, the runs
	inTime(t, "five runs", func() bool {
		under = map[string]string{}
		for _, w := range l.all() {
			if w.Status == store.WorkRunning && strings.Contains(l.out(w.RunID), "begun") {
				under[w.ID] = w.RunID
			}
		}
		return len(under) == sessions
	})
	l.killDaemon()
	l.worked(r, "echo begun; cat TASK.md", "--cpus", "1", "--memory", "256")
	in := map[string]bool{}
	all := l.over()
	for _, w := range all {
		if w.Status != store.WorkDone || w.Tries != 0 || w.Runner != "one" {
			t.Errorf("%+v", w)
		}
		if run := under[w.ID]; run != "" && w.RunID != run {
			t.Errorf("%s was done by run %s, and %s was under way", w.ID, w.RunID, run)
		}
		in[w.SessionID] = true
	}
	if len(in) != sessions {
		t.Errorf("it was in %d sessions", len(in))
	}
	for session := range in {
		said := l.replies(session)
		for n, text := range said {
			if text != fmt.Sprint("begun\n", n) {
				t.Errorf("reply %d of %s is %q", n, session, text)
			}
		}
		if len(said) != each {
			t.Errorf("%s has %d replies", session, len(said))
		}
	}
	if runs := l.runs(); len(all) != sessions*each || len(runs) != sessions*each {
		t.Errorf("%d runs for %d messages", len(runs), len(all))
	}
	l.ravi("audit", "verify").want(0)
}

// The bus is started anew, and is killed, while a large repository is on its way to a runner.
func TestTheBusRestartsInMidStream(t *testing.T) {
	t.Parallel()
	l, r := newLAN(t, nil), plain(t)
	b := make([]byte, 50<<20)
	_, err := rand.Read(b)
	must(t, err)
	must(t, os.WriteFile(r.path("big"), b, 0o644))
	r.commit("big")
	l.withWorker("anna", r, "--", "sh", "-c", "sha256sum big; echo more >> new")
	one := l.runner("one")
	// So slow that it is on its way for a while.
	must(t, tool("tc", "-n", l.at.name, "qdisc", "add", "dev", one.at.plug, "root", "tbf", "rate", "40mbit", "burst", "64kb", "latency", "400ms"))
	at := one.at.received()
	l.send("main", "add it up")
	inTime(t, "the transfer", func() bool { return one.at.received() > at+10<<20 })
	l.ravi("daemon", "restart").want(0)
	inTime(t, "the transfer after that", func() bool { return one.at.received() > at+25<<20 })
	l.killDaemon()
	w := l.over()[0]
	if w.Status != store.WorkDone || w.Tries != 0 || len(l.runs()) != 1 {
		t.Errorf("%+v, of %v", w, l.runs())
	}
	if want := fmt.Sprintf("%x  big\n", sha256.Sum256(b)); l.out(w.RunID) != want {
		t.Errorf("there it is %q, want %q", l.out(w.RunID), want)
	}
	if n := one.at.received() - at; n < 50<<20 {
		t.Errorf("%d bytes were sent for 50 MiB", n)
	}
	run := &result{t: t, dir: filepath.Join(l.home, "runs", w.RunID)}
	if p := run.patch(); !strings.Contains(p, "+more") {
		t.Errorf("the patch is %s", p)
	}
}

// A message that has its runner die each time ends as failed: in the session, in the record and among the dead letters.
func TestAMessageThatKillsItsRunner(t *testing.T) {
	t.Parallel()
	l, r := newLAN(t, nil), plain(t)
	l.withWorker("anna", r, "--", "sh", "-c", "echo begun; sleep 1000")
	one := l.runner("one")
	dead := l.hears(l.program("board", "", "dead.>"), "dead.>")
	l.send("main", "die")
	seen := map[string]bool{}
	for range 3 {
		inTime(t, "a new try", func() bool { w := l.last(); return !seen[w.RunID] && strings.Contains(l.out(w.RunID), "begun") })
		seen[l.last().RunID] = true
		one.kill()
		one.start(l.ca)
	}
	w := l.over()[0]
	if w.Status != store.WorkFailed || len(seen) != 3 || !strings.Contains(w.Reason, "3 tries came to nothing") || !strings.Contains(w.Reason, "runner_gone") {
		t.Errorf("%+v after the runs %v", w, seen)
	}
	if said := l.replies(w.SessionID); len(said) != 1 || !strings.Contains(said[0], "was not worked on") || !strings.Contains(said[0], "ravi work retry "+w.ID) {
		t.Errorf("the replies are %q", said)
	}
	eventually(t, "the dead letter", func() bool { return len(dead.all()) > 0 })
	letters := dead.all()
	if len(letters) != 1 || !strings.HasSuffix(letters[0].Subject, "."+w.ID) || !strings.Contains(string(letters[0].Data), `"tries":3`) || strings.Contains(string(letters[0].Data), "die") {
		t.Errorf("the dead letters are %v", letters)
	}
	// The next one is done.
	l.worked(r, "true")
	l.send("main", "live")
	if w := l.over()[1]; w.Status != store.WorkDone {
		t.Errorf("%+v", w)
	}
}

// The bus's disk is full, to the last byte. What is said is kept, and it is told why it waits; a run that is under way ends
// as it would; and when there is space again all is done, once and in order.
func TestTheDiskOfTheBusIsFull(t *testing.T) {
	t.Parallel()
	l, r := newLAN(t, nil), plain(t)
	dir := filepath.Join(l.home, "bus")
	l.at.own(t, `cp -a "$0" "$0.before"; mount -t tmpfs -o size=40m,mode=700 none "$0"; cp -a "$0.before/." "$0"; rm -r "$0.before"`, dir)
	l.withWorker("anna", r, "--", "sh", "-c", "echo begun; sleep 10; cat TASK.md")
	l.runner("one")
	l.send("main", "0")
	under := l.says("begun")
	ballast := filepath.Join(dir, "ballast")
	l.at.do(t, func() {
		if err := os.WriteFile(ballast, make([]byte, 50<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("filling the disk: %v", err)
		}
	})
	for n := range 4 {
		for _, session := range []string{"main", "other"} {
			if n == 0 && session == "main" {
				continue
			}
			l.ravi("sessions", "send", session, strconv.Itoa(n), "--agent", "anna").want(0).says("the message is kept", "the disk of "+dir+" is full", "df -h")
		}
	}
	inTime(t, "the end of the run that was under way", func() bool {
		run, err := l.st.Run(t.Context(), under.RunID)
		must(t, err)
		return run.Status.Final()
	})
	l.worked(r, "echo begun; cat TASK.md")
	l.at.do(t, func() {
		if err := os.Remove(ballast); err != nil {
			t.Error(err)
		}
	})
	all := l.over()
	sessions := map[string]bool{}
	for _, w := range all {
		if w.Status != store.WorkDone || w.Tries != 0 {
			t.Errorf("%+v", w)
		}
		sessions[w.SessionID] = true
	}
	if all[0].RunID != under.RunID || len(l.runs()) != 8 {
		t.Errorf("the first was done by %s, not %s; there are %d runs", all[0].RunID, under.RunID, len(l.runs()))
	}
	for session := range sessions {
		said := l.replies(session)
		for n, text := range said {
			if text != fmt.Sprint("begun\n", n) {
				t.Errorf("reply %d of %s is %q", n, session, text)
			}
		}
		if len(said) != 4 {
			t.Errorf("%s has %d replies", session, len(said))
		}
	}
}

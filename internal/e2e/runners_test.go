package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ravi/internal/store"
)

// A message is done in a sandbox of another machine. Of two such machines one dies at work: the other does it, once, and
// the dead one's sandboxes end without it.
func TestARunnerElsewhereAndItsDeath(t *testing.T) {
	t.Parallel()
	l, r := newLAN(t, nil), plain(t)
	l.withWorker("anna", r, "--", "sh", "-c", "cat TASK.md; echo more >> new")
	one := l.runner("one")
	sent := l.ravi("sessions", "send", "main", "mend it", "--agent", "anna", "--wait").want(0)
	if w := l.last(); w.Runner != "one" || w.Tries != 0 || !strings.Contains(sent.stdout, "mend it") || !strings.Contains(sent.patch(), "+more") {
		t.Errorf("%+v\n%s", w, sent.stdout)
	}
	sent.task().is(t, "succeeded", "")
	one.empty()

	l.worked(r, "echo begun; sleep 1000")
	l.send("main", "again")
	w := l.says("begun")
	l.runner("two")
	boxes := one.boxes()
	if w.Runner != "one" || len(boxes) != 1 {
		t.Fatalf("%+v, with the sandboxes %v", w, boxes)
	}
	l.worked(r, "echo done elsewhere; echo more >> new") // the next try
	one.kill()
	one.empty(boxes...) // by their keepers
	all := l.over()
	if got := all[1]; got.Status != store.WorkDone || got.Runner != "two" || got.Tries != 1 || got.RunID == w.RunID {
		t.Errorf("%+v", got)
	}
	if said := l.replies(w.SessionID); len(said) != 2 || !strings.Contains(said[1], "done elsewhere") {
		t.Errorf("the replies are %q", said)
	}
	before, err := l.st.Run(t.Context(), w.RunID)
	must(t, err)
	if before.Status != store.RunError || before.Reason != "runner_gone" {
		t.Errorf("the run of the runner that died: %+v", before)
	}
	l.ravi("audit", "verify").want(0)
}

// A runner that is asked to end lets its work end, takes nothing new, and ends in order.
func TestARunnerDrains(t *testing.T) {
	t.Parallel()
	l, r := newLAN(t, nil), plain(t)
	l.withWorker("anna", r, "--", "sh", "-c", "echo begun; sleep 20; echo over")
	one := l.runner("one")
	l.send("main", "first")
	l.says("begun")
	one.term() // while it works
	l.worked(r, "echo over")
	eventually(t, "word at home that it takes nothing new", func() bool {
		all, err := l.st.ListRunners(t.Context())
		must(t, err)
		for _, r := range all {
			if r.Name == "one" && bytes.Contains(r.Status, []byte(`"draining":true`)) {
				return true
			}
		}
		return false
	})
	l.send("other", "second")
	if code := one.wait(); code != 0 {
		t.Errorf("it ended with %d:\n%s", code, read(t, one.said))
	}
	one.empty()
	all := l.all()
	if all[1].Status != store.WorkQueued || all[1].Tries != 0 {
		t.Errorf("the second: %+v", all[1])
	}
	one.start(l.ca)
	for _, w := range l.over() {
		if w.Status != store.WorkDone || w.Tries != 0 {
			t.Errorf("%+v", w)
		}
		if said := l.replies(w.SessionID); len(said) != 1 || !strings.Contains(said[0], "over") {
			t.Errorf("the replies are %q", said)
		}
	}
}

// What a full runner cannot take waits for it, and has failed in nothing. What it is full of, home need not know.
func TestAFullRunner(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ runner, work []string }{
		"by number": {[]string{"--capacity", "1"}, nil},
		"by memory": {[]string{"--memory", "5000"}, []string{"--memory", "3000"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, r := newLAN(t, nil), plain(t)
			l.ravi("agents", "create", "anna").want(0)
			l.worked(r, "cat TASK.md; sleep 3", c.work...)
			one := l.runner("one", c.runner...)
			for _, session := range []string{"a", "b", "c"} {
				l.send(session, "for "+session)
			}
			most := 0
			inTime(t, "the end", func() bool {
				most = max(most, len(one.boxes()))
				for _, w := range l.all() {
					if !w.Status.Final() {
						return false
					}
				}
				return true
			})
			if most != 1 {
				t.Errorf("it had %d sandboxes at once", most)
			}
			for _, w := range l.over() {
				if said := l.replies(w.SessionID); w.Status != store.WorkDone || w.Tries != 0 || len(said) != 1 || !strings.Contains(said[0], "for ") {
					t.Errorf("%+v: %q", w, said)
				}
			}
		})
	}
}

// Of what was said and of the repository, nothing is left on the runner's machine.
func TestWhatARunnerKeeps(t *testing.T) {
	t.Parallel()
	l, r := newLAN(t, nil), plain(t)
	r.write("mine", "a word that is in the repository: quaggy\n")
	r.commit("more")
	l.withWorker("anna", r, "--", "sh", "-c", "cat TASK.md mine")
	one := l.runner("one")
	if sent := l.ravi("sessions", "send", "main", "a word that was said: brillig", "--agent", "anna", "--wait").want(0); !strings.Contains(sent.stdout, "brillig") || !strings.Contains(sent.stdout, "quaggy") {
		t.Fatal(sent.stdout)
	}
	one.empty()
	one.term()
	if code := one.wait(); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	for name, b := range files(t, one.user) {
		if strings.Contains(string(b), "brillig") || strings.Contains(string(b), "quaggy") {
			t.Errorf("%s has what was said", name)
		}
	}
	if _, err := os.Stat(filepath.Join(one.home, "runs")); err == nil {
		t.Error("there are runs")
	}
}

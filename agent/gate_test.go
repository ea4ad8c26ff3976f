package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"ravi/internal/gate"
)

// shell is a tool that has commands run, but does not: the gate judges it as it does exec.
type shell struct {
	mu  sync.Mutex
	ran []string
}

func (*shell) Spec() Spec { return Spec{Name: "shell", Schema: json.RawMessage(`{"type":"object"}`)} }

func (*shell) Shell(raw json.RawMessage) (command, dir string, err error) {
	var a struct{ Command, Dir string }
	err = json.Unmarshal(raw, &a)
	return a.Command, a.Dir, err
}

func (*shell) Folder(dir string) string { return inWorkspace("/workspace", dir) }

func (s *shell) Do(_ context.Context, raw json.RawMessage) (Result, error) {
	command, _, err := s.Shell(raw)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ran = append(s.ran, command)
	return Result{Text: "ran"}, err
}

// person answers questions.
type person struct {
	mu     sync.Mutex
	asked  []Question
	answer func(Question) (bool, string, error)
}

func (p *person) Ask(_ context.Context, q Question) (bool, string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, q)
	return p.answer(q)
}

const (
	asking  = "git push --force origin main"
	denied  = "rm -rf /"
	allowed = "echo hello"
)

func run(command string) Call { return call("shell", object{"command": command}) }

// gated plays a script with a shell, and gives what the model was told after the first answer.
func gated(t *testing.T, p Approver, want Reason, steps ...step) (*shell, *scripted, *heard) {
	t.Helper()
	sh, m, ear := &shell{}, script(t, steps...), &heard{}
	turnOf(t, loopOf(t, Config{Model: m, Tools: []Tool{sh}, Approver: p, Emit: ear.hear, DenyPatterns: []string{`^make deploy`}}), want)
	return sh, m, ear
}

// What nobody can allow is refused without a question; what needs a yes and nobody can give is refused too.
func TestGateRefuses(t *testing.T) {
	p := &person{answer: func(Question) (bool, string, error) { return true, "", nil }}
	sh, m, _ := gated(t, p, Finished, asks(run(denied), run("make deploy"), run(allowed)))
	if len(p.asked) != 0 || fmt.Sprint(sh.ran) != "["+allowed+"]" {
		t.Errorf("%d questions, and %q ran", len(p.asked), sh.ran)
	}
	for _, r := range m.told(1).Results[:2] {
		mentions(t, r.Text, "not allowed, and nobody can allow it")
	}
	sh, m, ear := gated(t, nil, Finished, asks(run(asking)))
	mentions(t, m.told(1).Results[0].Text, "needs somebody's approval", "nobody can be asked")
	if len(sh.ran) != 0 || !m.told(1).Results[0].Failed || len(ear.of(EventAsk)) != 0 {
		t.Errorf("without a person %q ran", sh.ran)
	}
}

// A yes is good for the very command, and each time anew; a no for the rest of the turn.
func TestGateAsks(t *testing.T) {
	var yes bool
	p := &person{answer: func(Question) (bool, string, error) { return yes, "not on a Friday", nil }}
	sh, m, ear := &shell{}, script(t, asks(run(asking)), asks(run(asking)), asks(run(asking+" ")), says("then not"), asks(run(asking)), asks(run(asking))), &heard{}
	l := loopOf(t, Config{Model: m, Tools: []Tool{sh}, Approver: p, Emit: ear.hear})
	turnOf(t, l, Finished)
	if len(p.asked) != 2 || len(sh.ran) != 0 || len(ear.of(EventAsk)) != 2 {
		t.Fatalf("%d questions, %d told, %d ran", len(p.asked), len(ear.of(EventAsk)), len(sh.ran))
	}
	q := p.asked[0]
	if q.Command != asking || q.Digest != gate.Digest(asking) || q.Tool != "shell" || q.Family != gate.VCS || q.Reason == "" || p.asked[1].Digest == q.Digest {
		t.Errorf("the questions are %+v", p.asked)
	}
	mentions(t, m.told(1).Results[0].Text, "not approved", "not on a Friday")
	mentions(t, m.told(2).Results[0].Text, "refused in this turn already", "not on a Friday")
	yes = true
	turnOf(t, l, Finished)
	if len(p.asked) != 4 || len(sh.ran) != 2 {
		t.Errorf("in the next turn: %d questions, %q ran", len(p.asked), sh.ran)
	}
}

// Where a command runs is a part of what it does: it is judged there, and who is asked is told.
func TestGateFolder(t *testing.T) {
	p := &person{answer: func(Question) (bool, string, error) { return false, "no", nil }}
	sh, m, _ := gated(t, p, Finished, asks(call("shell", object{"command": "rm -rf *", "dir": ".."}), call("shell", object{"command": asking, "dir": "../etc\n"})))
	mentions(t, m.told(1).Results[0].Text, "nobody can allow it")
	if len(sh.ran) != 0 || len(p.asked) != 1 || !strings.Contains(p.asked[0].Reason, `in the folder "/etc\n"`) {
		t.Errorf("%q ran, and the questions are %+v", sh.ran, p.asked)
	}
}

// An approver that fails ends the turn: it is not a no, and surely not a yes.
func TestGateFails(t *testing.T) {
	p := &person{answer: func(Question) (bool, string, error) { return true, "", errors.New("the record cannot be written") }}
	sh, _, _ := gated(t, p, Failed, asks(run(asking)))
	if len(sh.ran) != 0 {
		t.Errorf("%q ran", sh.ran)
	}
}

// A command that is not let through was not begun.
func TestRefusedIsNotBegun(t *testing.T) {
	j := journalAt(t, t.TempDir()+"/journal")
	turnOf(t, loopOf(t, Config{Model: script(t, asks(run(denied), run(asking), run(allowed))), Tools: []Tool{&shell{}}, Journal: j}), Finished)
	name := j.f.Name()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	begun := 0
	for _, e := range journalAt(t, name).past {
		if e.Begun != "" {
			begun++
		}
	}
	if begun != 1 {
		t.Errorf("%d calls were begun", begun)
	}
}

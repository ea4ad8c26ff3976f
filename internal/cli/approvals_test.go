package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"ravi/internal/access"
	"ravi/internal/approval"
	"ravi/internal/audit"
	"ravi/internal/command"
	"ravi/internal/contextkey"
	"ravi/internal/procid"
	"ravi/internal/store"
)

// ask is a run that asks for a command. It writes the id of the approval to one named pipe, and its turn is over when
// another one is written to.
func ask(ctx context.Context, text, told, over string) error {
	env := &command.Env{Caller: access.AsOperator()}
	defer env.Close()
	s, err := env.Store(ctx)
	if err != nil {
		return err
	}
	self, err := procid.Self()
	if err != nil {
		return err
	}
	run, err := s.InsertRun(ctx, store.Run{Status: store.RunRunning, Owner: self, CreatedBy: access.Operator})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		if _, err := os.ReadFile(over); err == nil {
			stop()
		}
	}()
	var telling error
	asker := &approval.Asker{Store: s, Audit: audit.Log{Store: s}, RunID: run.ID, CreatedBy: run.CreatedBy,
		Tell: func(a store.Approval) { telling = os.WriteFile(told, []byte(a.ID), 0) }}
	a, err := asker.Ask(ctx, approval.Request{Tool: "exec", Command: text, Digest: digest(text), Family: "publish", Reason: "it cannot be undone"})
	switch {
	case telling != nil:
		return telling
	case ctx.Err() != nil && err != nil:
		fmt.Println("interrupted")
	case err != nil:
		return err
	case a.Granted:
		fmt.Println("granted")
	default:
		fmt.Println("not granted:", a.Why)
	}
	return nil
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// asks is an approval that waits, of a run whose process is this one.
func (w *world) asks(b belongings, text string) store.Approval {
	w.t.Helper()
	self := must[procid.ID](w.t)(procid.Self())
	must[store.Run](w.t)(w.store.UpdateRun(w.t.Context(), b.run.ID, func(r *store.Run) error { r.Owner = self; return nil }))
	return must[store.Approval](w.t)(w.store.InsertApproval(w.t.Context(), store.Approval{RunID: b.run.ID, AgentID: b.agent.ID, SessionID: b.session.ID,
		Tool: "exec", Command: text, Digest: digest(text), Family: "publish", Reason: "it cannot be undone", ExpiresAt: store.Now().Add(time.Hour)}))
}

// resolve is the caller with a key that is issued for it.
func (w *world) resolve(by access.Caller, run string, capabilities ...string) access.Caller {
	w.t.Helper()
	for i := range capabilities {
		capabilities[i] = w.fill(capabilities[i])
	}
	held := must[access.Capabilities](w.t)(access.ParseCapabilities(capabilities))
	keys := contextkey.Keys{Store: w.store}
	token, key, err := keys.Issue(w.t.Context(), by, contextkey.Request{Capabilities: held, RunID: run})
	if err != nil {
		w.t.Fatal(err)
	}
	return must[access.Caller](w.t)(keys.Resolve(w.t.Context(), token, contextkey.Wire{RunID: key.RunID}))
}

// Who sees what waits, and who decides about it.
func TestApprovalsOfKeys(t *testing.T) {
	w := newWorld(t)
	op := access.AsOperator()
	mine, theirs := w.asks(w.mine, "npm publish # anna"), w.asks(w.theirs, "npm publish # bert")
	one := func(a store.Approval) string { return fmt.Sprintf(`{"id": %q}`, a.ID) }

	reader := w.resolve(op, "", "read:approvals@MINE.RUN")
	out := w.allow(reader, "approvals.ls", "", mine.ID, "npm publish # anna", `"next":""`)
	w.leaks("approvals.ls", out)
	w.leaks("approvals.ls", w.allow(reader, "approvals.ls", `{"run": "MINE.RUN"}`, mine.ID))
	w.refuse(reader, "approvals.ls", `{"run": "`+w.theirs.run.ID[:28]+`"}`, command.CodeNotFound, "there is no run")
	if out := w.allow(reader, "approvals.ls", `{"run": "THEIRS.RUN"}`); strings.Contains(out, "apr") {
		t.Errorf("of another run it sees %s", out)
	}
	w.allow(reader, "approvals.show", one(mine), `"exact":true`, mine.Digest)
	w.allow(reader, "approvals.show", `{"id": "`+mine.ID[:len(mine.ID)-1]+`"}`, mine.ID)
	for _, typed := range []string{theirs.ID, theirs.ID[:len(theirs.ID)-1], "apr", "nothing"} {
		w.deny(reader, "approvals.show", `{"id": "`+typed+`"}`, "read:approvals.show@"+typed+",")
		w.deny(w.resolve(op, "", "write:approvals@MINE.RUN"), "approvals.grant", `{"id": "`+typed+`"}`, "write:approvals.grant@"+typed+",")
	}
	w.deny(reader, "approvals.grant", one(mine), "write:approvals.grant")
	w.deny(w.resolve(op, "", "read:runs", "read:tasks"), "approvals.ls", "", "read:approvals.ls")
	if out := w.allow(w.resolve(op, "", "read:*"), "approvals.ls", ""); strings.Count(out, `"id":"apr`) != 2 {
		t.Errorf("who may read everything sees %s", out)
	}
	if out := w.allow(w.resolve(op, "", "read:approvals@own"), "approvals.ls", ""); strings.Contains(out, "apr") {
		t.Errorf("what the operator runs is a key's own: %s", out)
	}

	// Nobody in a sandbox grants anything, and nobody whom a sandbox made.
	for name, caller := range map[string]access.Caller{
		"its own run":         w.resolve(op, w.mine.run.ID, "write:*", "read:*"),
		"its own run, named":  w.resolve(op, w.mine.run.ID, "write:approvals@MINE.RUN"),
		"another run":         w.resolve(op, w.theirs.run.ID, "write:approvals@run*"),
		"a child of a run":    w.resolve(w.resolve(op, w.mine.run.ID, "write:*"), "", "write:approvals@MINE.RUN"),
		"a run of a good key": w.resolve(w.resolve(op, "", "write:approvals@run*"), w.mine.run.ID, "write:approvals@run*"),
		"everything":          w.resolve(op, "", "write:*"),
		"all approvals":       w.resolve(op, "", "write:approvals"),
		"its own":             w.resolve(op, "", "write:approvals@own"),
		"another's":           w.resolve(op, "", "write:approvals@THEIRS.RUN"),
		"nobody":              {},
	} {
		for _, what := range []string{"grant", "deny"} {
			before := w.changes()
			_, err := w.call(caller, "approvals."+what, one(mine))
			if err == nil || command.AsError(err).Code != command.CodeDenied || w.changes() != before {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
	}
	named := w.resolve(op, "", "write:approvals@MINE.RUN")
	w.audit = nil
	w.allow(named, "approvals.grant", `{"id": "`+mine.ID+`", "note": " due today "}`, `"status":"granted"`, `"decided_by":"`+named.Key.ID+`"`, `"note":"due today"`)
	var rows []string
	for _, r := range w.audit {
		rows = append(rows, r.Action+" "+r.Object+" "+r.Caller+" "+string(r.Decision))
	}
	want := []string{"command.approvals.grant " + w.mine.run.ID, "approval.grant " + mine.ID, "outcome.approvals.grant " + w.mine.run.ID}
	if got := strings.Join(rows, "\n"); got != strings.Join(want, " "+named.Key.ID+" allowed\n")+" "+named.Key.ID+" allowed" {
		t.Errorf("the audit:\n%s", got)
	}
	w.refuse(named, "approvals.deny", one(mine), command.CodeConflict, "nothing was denied: "+mine.ID+" was granted already, by "+named.Key.ID)
	w.allow(op, "approvals.deny", one(theirs), `"status":"denied"`, `"decided_by":"operator"`)
	if out := w.allow(op, "approvals.ls", ""); strings.Contains(out, "apr") {
		t.Errorf("what was decided waits: %s", out)
	}
	w.allow(op, "approvals.ls", `{"all": true}`, mine.ID, theirs.ID)
	w.refuse(op, "approvals.grant", `{"id": "aprx"}`, command.CodeNotFound, "ravi approvals ls --all")
	w.refuse(op, "approvals.grant", `{"id": "apr"}`, command.CodeAmbiguous, "write more of the id")
}

// What a program made, it decides about; the operator's runs it does not.
func TestApprovalsOfOnesOwn(t *testing.T) {
	w := newWorld(t)
	bot := w.resolve(access.AsOperator(), "", "write:approvals@own", "read:approvals@own")
	run := must[store.Run](t)(w.store.InsertRun(t.Context(), store.Run{Status: store.RunRunning, CreatedBy: bot.Key.ID}))
	b := w.mine
	b.run = run
	own, operators := w.asks(b, "git push"), w.asks(w.mine, "git push --force")
	if out := w.allow(bot, "approvals.ls", "", own.ID); strings.Contains(out, operators.ID) {
		t.Errorf("it sees %s", out)
	}
	w.deny(bot, "approvals.grant", `{"id": "`+operators.ID+`"}`, "write:approvals.grant@"+operators.ID)
	w.allow(bot, "approvals.grant", `{"id": "`+own.ID+`"}`, `"status":"granted"`)
}

// A command is shown to the last byte, on lines that are its own, with nothing that a terminal obeys or hides.
func TestApprovalIsShownWhole(t *testing.T) {
	w := newWorld(t)
	op := access.AsOperator()
	for text, want := range map[string][]string{
		"ls\r\x1b[2Knpm publish":                   {`  | ls\r\x1b[2Knpm publish`, "1 line, 18 bytes"},
		"ls" + strings.Repeat("\n", 300) + "rm -r": {"301 lines", "\n  | \n  | rm -r\n"},
		"echo a\nstatus:       granted":            {"\n  | echo a\n  | status:       granted\n"},
		"git\u00a0push\u200b \u202e--force":        {`  | git\u00a0push\u200b \u202e--force`, "3 characters beyond ASCII: look closely"},
		"\u0440m -rf x; e\u0301":                   {`; e\u0301`, "2 characters beyond ASCII"},
		"a\tb":                                     {`  | a\tb`},
		strings.Repeat("x", store.MaxCommand):      {"  | " + strings.Repeat("x", store.MaxCommand) + "\n", "1 line, 16384 bytes"},
	} {
		a := w.asks(w.mine, text)
		got := w.text(op, "approvals.show", `{"id": "`+a.ID+`"}`)
		for _, part := range append(want, "sha256:       "+digest(text), "run:          "+w.mine.run.ID, "reason:       it cannot be undone") {
			if !strings.Contains(got, part) {
				t.Errorf("%.40q: no %.80q in %.500s", text, part, got)
			}
		}
		if strings.ContainsAny(got, "\x1b\r\u202e\u200b\u00a0\u0301\t") {
			t.Errorf("%.40q: it is not made safe: %.500q", text, got)
		}
		_, shown, _ := strings.Cut(got, "command: ")
		if _, shown, _ = strings.Cut(shown, "\n"); strings.Count(shown, "\n") != strings.Count(text, "\n")+1 || strings.Count("\n"+shown, "\n  | ") != strings.Count(text, "\n")+1 {
			t.Errorf("%.40q: other lines than its own: %.500q", text, shown)
		}
		list := w.text(op, "approvals.ls", `{"limit": 1}`)
		for line := range strings.Lines(list) {
			if len([]rune(line)) > 81 || strings.ContainsAny(line, "\x1b\r\u202e\u200b\u00a0\t") {
				t.Errorf("%.40q: a line of the list is %q", text, line)
			}
		}
		agents := w.text(w.resolve(op, "", "read:approvals"), "approvals.show", `{"id": "`+a.ID+`"}`)
		if outside, fences := outsideFences(t, agents); fences != 1 || strings.Contains(outside, "rm -r") || strings.Contains(outside, "git") {
			t.Errorf("%.40q: an agent reads it as Ravi's word: %.500s", text, agents)
		}
		must[store.Approval](t)(w.store.DecideApproval(t.Context(), a.ID, store.ApprovalDecision{By: access.Operator, At: store.Now()}))
	}
	if text := w.text(op, "approvals.ls", ""); text != "nothing waits for a decision\n" {
		t.Errorf("got %s", text)
	}
	// Where a secret was taken out, the digest is still that of the command.
	sum := digest("curl -H 'x: hush'")
	a := must[store.Approval](t)(w.store.InsertApproval(t.Context(), store.Approval{RunID: w.mine.run.ID, Tool: "exec", Command: "curl -H 'x: [TOKEN]'", Digest: sum, ExpiresAt: store.Now().Add(time.Hour)}))
	if got := w.text(op, "approvals.show", `{"id": "`+a.ID+`"}`); !strings.Contains(got, "the value of a secret was taken out") || !strings.Contains(got, sum) {
		t.Errorf("got %s", got)
	}
	w.allow(op, "approvals.show", `{"id": "`+a.ID+`"}`, `"exact":false`)
}

// Over the gateway it is the same: a program of the operator's decides with a key for the run, and with none for everything.
func TestApprovalsOverTheGateway(t *testing.T) {
	a := newAPI(t)
	waits := a.asks(a.mine, "npm publish")
	everything, named := a.key("write:*", "read:*"), a.key("write:approvals@"+a.mine.run.ID, "read:approvals@"+a.mine.run.ID)
	if status, answer := a.doAs(everything, http.MethodPost, "approvals/grant", `{"id":"`+waits.ID+`"}`); status != http.StatusForbidden {
		t.Errorf("a key for everything: %d %s", status, answer)
	}
	held := must[access.Capabilities](t)(access.ParseCapabilities([]string{"write:approvals@" + a.mine.run.ID}))
	runs, _, err := contextkey.Keys{Store: a.store}.Issue(t.Context(), access.AsOperator(), contextkey.Request{Capabilities: held, RunID: a.mine.run.ID})
	if err != nil {
		t.Fatal(err)
	}
	if status, answer := a.doAs(runs, http.MethodPost, "approvals/grant", `{"id":"`+waits.ID+`"}`); status != http.StatusUnauthorized {
		t.Errorf("a run's key, which was stolen: %d %s", status, answer)
	}
	_, answer := a.doAs(named, http.MethodPost, "approvals/ls", "")
	var list paged[store.Approval]
	if err := json.Unmarshal(answer, &list); err != nil || len(list.Items) != 1 || list.Items[0].Command != "npm publish" {
		t.Fatalf("%s: %v", answer, err)
	}
	for _, want := range []int{http.StatusOK, http.StatusConflict} {
		if status, answer := a.doAs(named, http.MethodPost, "approvals/grant", `{"id":"`+list.Items[0].ID+`"}`); status != want {
			t.Errorf("a key for the run: %d %s, want %d", status, answer, want)
		}
	}
}

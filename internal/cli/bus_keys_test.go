package cli

import (
	"testing"

	"ravi/internal/access"
	"ravi/internal/command"
	"ravi/internal/store"
)

// No key works with the bus, its clients, runners and queue, or says how messages are worked on, whatever it holds.
func TestTheBusIsTheOperators(t *testing.T) {
	w := newWorld(t)
	for name, input := range map[string]string{
		"work.ls": "", "work.show": `{"work": "wrk"}`, "work.cancel": `{"work": "wrk"}`, "work.retry": `{"work": "wrk"}`,
		"bus-creds.issue": `{"runner": "evil"}`, "bus-creds.ls": "", "bus-creds.revoke": `{"credential": "x"}`, "bus-creds.renew": `{"user": "U"}`,
		"clients.ls": "", "clients.create": `{"name": "evil"}`, "runners.ls": "",
		"agents.work": `{"agent": "MINE.AGENT", "repo": "/", "command": ["sh"]}`,
	} {
		w.deny(w.holder("write:*", "read:*"), name, input, "the operator")
	}
}

// Who may only send messages does not learn by that which agents there are, nor changes what comes of them.
func TestSendersSendOnly(t *testing.T) {
	w := newWorld(t)
	me := w.holder("write:sessions.send@MINE.SESSION")
	for _, agent := range []string{"bert", "THEIRS.AGENT", "nobody", "ber", "agt", ""} {
		input := `{"session": "MINE.SESSION", "text": "--help", "agent": "` + agent + `"}`
		if agent == "" {
			w.allow(me, "sessions.send", input, `"text":"--help"`)
			continue
		}
		w.refuse(me, "sessions.send", input, command.CodeUsage, "the session MINE.SESSION is not one of an agent")
	}
	w.allow(me, "sessions.send", `{"session": "MINE.SESSION", "text": "-v /:/host", "agent": "anna"}`, `"text":"-v /:/host"`)
	w.allow(me, "sessions.send", `{"session": "MINE.SESSION", "text": "x", "agent": "MINE.AGENT"}`)
	w.deny(me, "sessions.send", `{"session": "another", "text": "x", "agent": "anna"}`, "write:sessions.send@another")
	for _, input := range []string{`"priority": "urgent"`, `"priority": "high"`, `"role": "system"`, `"role": "assistant"`, `"author": "operator"`, `"author": " RAVI"`} {
		w.deny(me, "sessions.send", `{"session": "MINE.SESSION", "text": "x", `+input+`}`, "the operator")
	}
}

// A key that waits when too many do is told so, and has said nothing then.
func TestTooManyWait(t *testing.T) {
	w := newWorld(t)
	_, err := w.store.UpdateAgent(t.Context(), w.mine.agent.ID, func(a *store.Agent) error { a.Work = []byte(`{"repo":"/r"}`); return nil })
	if err != nil {
		t.Fatal(err)
	}
	key := *w.holder("write:sessions.send").Key
	key.RunID = ""
	before := waitsOfKeys.all
	waitsOfKeys.all = mostWaitsOfKeys
	t.Cleanup(func() { waitsOfKeys.all = before })
	w.refuse(access.WithKey(key), "sessions.send", `{"session": "MINE.SESSION", "text": "x", "wait": true}`, command.CodeUnavailable, "too many calls wait")
	if n, err := w.store.CountWork(t.Context(), store.WorkFilter{}); err != nil || n != 0 {
		t.Errorf("there is %d work, %v", n, err)
	}
}

package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAgentRoundTrip(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	want := Agent{Name: "ada", Instructions: "be kind\n", AutoApprove: []string{"notes/*"}, Profile: "small", Client: DefaultClient, Work: []byte(`{"repo":"/r"}`)}
	got, err := s.InsertAgent(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	want.ID, want.CreatedAt, want.UpdatedAt = got.ID, got.CreatedAt, got.CreatedAt
	if diff := cmp.Diff(want, got); diff != "" || !strings.HasPrefix(got.ID, "agt") {
		t.Errorf("given back:\n%s", diff)
	}
	for _, by := range []string{got.ID, got.ID[:20], "ada"} {
		if stored, err := s.Agent(ctx, by); err != nil || cmp.Diff(want, stored) != "" {
			t.Errorf("by %q: %+v, %v", by, stored, err)
		}
	}
	for _, by := range []string{"", "ad", "Ada", "agtx", "%"} {
		if _, err := s.Agent(ctx, by); !errors.Is(err, ErrNotFound) {
			t.Errorf("by %q: %v", by, err)
		}
	}
	plain, err := s.InsertAgent(ctx, Agent{Name: "bob"})
	if err != nil || plain.Profile != "default" || plain.AutoApprove == nil {
		t.Errorf("a plain one: %+v, %v", plain, err)
	}
	if _, err := s.InsertAgent(ctx, Agent{Name: "ada"}); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), `"ada"`) {
		t.Errorf("the name again: %v", err)
	}
	if _, err := s.UpdateAgent(ctx, plain.ID, func(a *Agent) error { a.Name = "ada"; return nil }); !errors.Is(err, ErrExists) {
		t.Errorf("the name of another: %v", err)
	}
	if _, err := s.UpdateAgent(ctx, "agtnone", func(*Agent) error { return nil }); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown one: %v", err)
	}
	for name, change := range map[string]func(*Agent) error{
		"id": func(a *Agent) error { a.ID = "agtx"; return nil }, "time": func(a *Agent) error { a.CreatedAt = time.Now(); return nil },
		"size": func(a *Agent) error { a.Instructions = strings.Repeat("x", MaxText+1); return nil },
		"zero": func(a *Agent) error { a.Instructions = "a\x00b"; return nil },
	} {
		if _, err := s.UpdateAgent(ctx, plain.ID, change); err == nil {
			t.Errorf("%s was changed", name)
		}
	}
	now := Now()
	if _, err := s.UpdateAgent(ctx, got.ID, func(a *Agent) error { a.ArchivedAt = &now; return nil }); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		filter AgentFilter
		want   string
	}{
		"now": {AgentFilter{}, "bob"}, "archived": {AgentFilter{Archived: true}, "bob ada"}, "limit": {AgentFilter{Archived: true, Limit: 1}, "bob"},
		"page": {AgentFilter{Archived: true, Before: plain.ID}, "ada"}, "ids": {AgentFilter{IDs: []string{plain.ID, got.ID}}, "bob"}, "no ids": {AgentFilter{IDs: []string{}}, ""},
	} {
		found, err := s.ListAgents(ctx, test.filter)
		var names []string
		for _, a := range found {
			names = append(names, a.Name)
		}
		if got := strings.Join(names, " "); err != nil || got != test.want || found == nil {
			t.Errorf("%s: %q, %v; want %q", name, got, err, test.want)
		}
	}
}

func TestNames(t *testing.T) {
	id := newID("agt")
	for _, name := range []string{"a", "Ada-2", "telegram:123", "a.b_c@d+e", "agent", "agt1", strings.Repeat("x", MaxName), id} {
		if err := checkName("agt", id, name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{
		"", "-a", ".", "..", ".a", "a b", "a/b", "a\\b", "a\n", "a\x1b[2J", "a\x00", "ä", "a\u202eb", "*", "a%", strings.Repeat("x", MaxName+1), newID("agt"), "\xff",
	} {
		if err := checkName("agt", id, name); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// The beginning of an id never leads past a name, and a name never past an id.
func TestNamesBesideIDs(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	w := fillOnce(t, s)
	shadow := w.session.ID[:10]
	named, err := s.InsertSession(ctx, Session{AgentID: w.agent.ID, Name: shadow})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Session(ctx, shadow); err != nil || got.ID != named.ID {
		t.Errorf("by name: %s, %v", got.ID, err)
	}
	if got, err := s.Session(ctx, w.session.ID); err != nil || got.ID != w.session.ID {
		t.Errorf("by id: %s, %v", got.ID, err)
	}
	if _, err := s.InsertSession(ctx, Session{AgentID: w.agent.ID, Name: w.session.ID}); !errors.Is(err, ErrInvalid) {
		t.Errorf("the id of another as name: %v", err)
	}
	for id, name := range map[string]string{"ses-x": "plain", "ses-y": "ses-x"} {
		if _, err := s.InsertSession(ctx, Session{ID: id, AgentID: w.agent.ID, Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.Session(ctx, "ses-x"); err != nil || got.ID != "ses-x" {
		t.Errorf("an id that is a name, too: %s, %v", got.ID, err)
	}
	if _, err := s.Session(ctx, "ses"); !errors.Is(err, ErrAmbiguous) {
		t.Errorf("a beginning of two: %v", err)
	}
}

func TestSandboxNames(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	first, err := s.InsertSandbox(ctx, Sandbox{Backend: "gvisor", Name: "box", CreatedBy: "operator"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.InsertSandbox(ctx, Sandbox{Backend: "gvisor", Name: "box"}); !errors.Is(err, ErrExists) {
		t.Errorf("the name twice: %v", err)
	}
	plain, err := s.InsertSandbox(ctx, Sandbox{Backend: "gvisor"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.UpdateSandbox(ctx, plain.ID, func(b *Sandbox) error { b.Name = "box"; return nil }); !errors.Is(err, ErrExists) {
		t.Errorf("named as another: %v", err)
	}
	if _, err := s.UpdateSandbox(ctx, plain.ID, func(b *Sandbox) error { b.CreatedBy = "ctx_a"; return nil }); err == nil {
		t.Error("the creator was changed")
	}
	if _, err := s.UpdateSandboxState(ctx, first.ID, SeenEnded, ""); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Sandbox(ctx, "box"); err != nil || got.ID != first.ID || got.CreatedBy != "operator" {
		t.Errorf("the ended one: %+v, %v", got, err)
	}
	// Made earlier by the clock, and still the one that lives.
	second, err := s.InsertSandbox(ctx, Sandbox{Backend: "gvisor", Name: "box", CreatedAt: first.CreatedAt.Add(-time.Hour)})
	if err != nil {
		t.Fatalf("the name is free again: %v", err)
	}
	if got, err := s.Sandbox(ctx, "box"); err != nil || got.ID != second.ID {
		t.Errorf("the live one: %+v, %v", got, err)
	}
	if n, err := s.CountSandboxes(ctx, SandboxFilter{Live: true}); err != nil || n != 2 {
		t.Errorf("counted %d, %v", n, err)
	}
	if _, err := s.InsertSandbox(ctx, Sandbox{Backend: "gvisor", Name: "../x"}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a path as name: %v", err)
	}
}

func TestSessions(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	w := fillOnce(t, s)
	other, err := s.InsertAgent(ctx, Agent{Name: "bob"})
	if err != nil {
		t.Fatal(err)
	}
	want := Session{AgentID: other.ID, Title: "Ünï"}
	got, err := s.InsertSession(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	want.ID, want.Name, want.CreatedAt, want.UpdatedAt = got.ID, got.ID, got.CreatedAt, got.CreatedAt
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("given back:\n%s", diff)
	}
	if stored, err := s.Session(ctx, got.ID); err != nil || cmp.Diff(want, stored) != "" {
		t.Errorf("stored: %+v, %v", stored, err)
	}
	if _, err := s.InsertSession(ctx, Session{AgentID: "agtnone"}); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), `agent "agtnone"`) {
		t.Errorf("of no agent: %v", err)
	}
	if _, err := s.InsertSession(ctx, Session{AgentID: w.agent.ID, Name: w.session.Name}); !errors.Is(err, ErrExists) {
		t.Errorf("the name again: %v", err)
	}
	if _, err := s.UpdateSession(ctx, got.ID, func(c *Session) error { c.AgentID = w.agent.ID; return nil }); err == nil {
		t.Error("a session was given to another agent")
	}
	now := Now()
	if _, err := s.UpdateSession(ctx, got.ID, func(c *Session) error { c.ClosedAt = &now; return nil }); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		filter SessionFilter
		want   []string
	}{
		"all": {SessionFilter{}, []string{got.ID, w.session.ID}}, "open": {SessionFilter{Open: true}, []string{w.session.ID}},
		"agent": {SessionFilter{AgentID: other.ID}, []string{got.ID}}, "both": {SessionFilter{AgentID: other.ID, Open: true}, nil},
		"page": {SessionFilter{Before: got.ID, Limit: 1}, []string{w.session.ID}}, "ids": {SessionFilter{IDs: []string{w.session.ID}}, []string{w.session.ID}},
		"no ids": {SessionFilter{IDs: []string{}}, nil},
	} {
		found, err := s.ListSessions(ctx, test.filter)
		var ids []string
		for _, c := range found {
			ids = append(ids, c.ID)
		}
		if diff := cmp.Diff(test.want, ids); err != nil || found == nil || diff != "" {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
}

func TestMessages(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	w := fillOnce(t, s)
	want := Message{SessionID: w.session.ID, Role: RoleAssistant, Author: "Ada", Channel: "cli", Text: "á\n\x1b[2J", KeyID: "ctx_a", RunID: w.run.ID}
	got, err := s.AppendMessage(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	want.ID, want.Seq, want.CreatedAt = got.ID, 2, got.CreatedAt
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("given back:\n%s", diff)
	}
	session, err := s.Session(ctx, w.session.ID)
	if err != nil || session.UpdatedAt.Before(got.CreatedAt) {
		t.Errorf("the session was updated at %v, %v", session.UpdatedAt, err)
	}
	// The clock goes back; the order is that in which they came.
	for i := range 5 {
		if _, err := s.AppendMessage(ctx, Message{SessionID: w.session.ID, Role: RoleUser, Text: fmt.Sprint(i), CreatedAt: Now().AddDate(0, 0, -i)}); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		filter MessageFilter
		want   string
	}{
		"all": {MessageFilter{}, "[1 2 3 4 5 6 7]"}, "after": {MessageFilter{After: 3, Limit: 2}, "[4 5]"}, "before": {MessageFilter{Before: 3}, "[1 2]"},
		"newest": {MessageFilter{Newest: true, Limit: 3}, "[7 6 5]"}, "older": {MessageFilter{Newest: true, Before: 5, Limit: 2}, "[4 3]"},
		"between": {MessageFilter{After: 2, Before: 5}, "[3 4]"}, "end": {MessageFilter{After: 7}, "[]"},
	} {
		found, err := s.Messages(ctx, w.session.ID, test.filter)
		seqs := []int64{}
		for _, m := range found {
			seqs = append(seqs, m.Seq)
			if m.ID == got.ID && cmp.Diff(want, m) != "" {
				t.Errorf("stored: %s", cmp.Diff(want, m))
			}
		}
		if got := fmt.Sprint(seqs); err != nil || got != test.want || found == nil {
			t.Errorf("%s: %s, %v; want %s", name, got, err, test.want)
		}
	}
	for name, test := range map[string]struct {
		message Message
		want    error
	}{
		"session": {Message{SessionID: "sesnone", Role: RoleUser}, ErrNotFound},
		"part":    {Message{SessionID: w.session.ID[:20], Role: RoleUser}, ErrNotFound},
		"role":    {Message{SessionID: w.session.ID, Role: "root"}, ErrInvalid},
		"size":    {Message{SessionID: w.session.ID, Role: RoleUser, Text: strings.Repeat("x", MaxText+1)}, ErrTooLarge},
		"bytes":   {Message{SessionID: w.session.ID, Role: RoleUser, Text: "\xff"}, ErrInvalid},
		"zero":    {Message{SessionID: w.session.ID, Role: RoleUser, Text: "a\x00b"}, ErrInvalid},
		"author":  {Message{SessionID: w.session.ID, Role: RoleUser, Author: strings.Repeat("x", MaxLine+1)}, ErrTooLarge},
	} {
		if _, err := s.AppendMessage(ctx, test.message); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.AppendMessage(ctx, Message{SessionID: w.session.ID, Role: RoleUser, Text: strings.Repeat("x", MaxText)}); err != nil {
		t.Errorf("the largest: %v", err)
	}
	now := Now()
	if _, err := s.UpdateSession(ctx, w.session.ID, func(c *Session) error { c.ClosedAt = &now; return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AppendMessage(ctx, Message{SessionID: w.session.ID, Role: RoleUser, Text: "late"}); !errors.Is(err, ErrFinal) {
		t.Errorf("to a closed session: %v", err)
	}
	if n, err := s.CountMessages(ctx, w.session.ID); err != nil || n != 8 {
		t.Errorf("there are %d, %v", n, err)
	}
	if _, err := s.UpdateSession(ctx, w.session.ID, func(c *Session) error { c.ClosedAt = nil; return nil }); err != nil {
		t.Fatal(err)
	}
	if m, err := s.AppendMessage(ctx, Message{SessionID: w.session.ID, Role: RoleUser, Text: "again"}); err != nil || m.Seq != 9 {
		t.Errorf("to one that is open again: %+v, %v", m, err)
	}
}

package store

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func workedOn(t testing.TB, s *Store, client, name string) Session {
	t.Helper()
	ctx := t.Context()
	if _, err := s.Client(ctx, client); errors.Is(err, ErrNotFound) {
		if _, err := s.InsertClient(ctx, Client{Name: client}); err != nil {
			t.Fatal(err)
		}
	}
	a, err := s.InsertAgent(ctx, Agent{Name: "agent-" + name, Client: client, Work: []byte(`{"repo":"/r"}`)})
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.InsertSession(ctx, Session{AgentID: a.ID, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func say(t testing.TB, s *Store, c Session, p Priority) Work {
	t.Helper()
	m, w, err := s.AppendWork(t.Context(), Message{SessionID: c.ID, Role: RoleUser, Text: "do it"}, Work{Priority: p, CreatedBy: "operator"})
	if err != nil {
		t.Fatal(err)
	}
	if w.MessageID != m.ID || w.SessionID != c.ID || w.AgentID != c.AgentID || w.Status != WorkQueued {
		t.Fatalf("got %+v for %+v", w, m)
	}
	return w
}

func waiting(t testing.TB, s *Store, client string) (ids []string) {
	t.Helper()
	found, err := s.WaitingWork(t.Context(), client, Now().Add(time.Second), 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range found {
		ids = append(ids, w.ID)
	}
	return ids
}

func TestWorkIsThereWithItsMessageOrNot(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	c := workedOn(t, s, "acme", "one")
	w := say(t, s, c, Normal)
	if w.Client != "acme" {
		t.Errorf("the client is %q", w.Client)
	}
	if _, _, err := s.AppendWork(ctx, Message{SessionID: c.ID, Role: RoleUser, Text: "x"}, Work{Priority: 9}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a priority that is none: %v", err)
	}
	now := Now()
	if _, err := s.UpdateSession(ctx, c.ID, func(c *Session) error { c.ClosedAt = &now; return nil }); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.AppendWork(ctx, Message{SessionID: c.ID, Role: RoleUser, Text: "x"}, Work{}); !errors.Is(err, ErrFinal) {
		t.Errorf("in a closed session: %v", err)
	}
	if n, err := s.CountMessages(ctx, c.ID); err != nil || n != 1 {
		t.Errorf("%d messages, %v", n, err)
	}
	if n, err := s.CountWork(ctx, WorkFilter{}); err != nil || n != 1 {
		t.Errorf("%d work, %v", n, err)
	}
	// The session is closed: the work ends all the same, without a reply.
	got, err := s.EndWork(ctx, w.ID, WorkDone, "", Message{Role: RoleAssistant, Text: "done"})
	if err != nil || got.Status != WorkDone || got.ReplyID != "" {
		t.Errorf("ended as %+v, %v", got, err)
	}
}

func TestWorkOfASessionIsDoneInOrder(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	a, b := workedOn(t, s, "acme", "a"), workedOn(t, s, "acme", "b")
	first, second, other := say(t, s, a, Normal), say(t, s, a, Urgent), say(t, s, b, Low)
	if got := fmt.Sprint(waiting(t, s, "acme")); got != fmt.Sprint([]string{first.ID, other.ID}) {
		t.Errorf("waiting are %v; what is urgent overtakes nothing in its session", got)
	}
	if _, err := s.BeginWork(ctx, second.ID, "run1", ""); !errors.Is(err, ErrBusy) {
		t.Errorf("the second before the first: %v", err)
	}
	if _, err := s.BeginWork(ctx, first.ID, "run1", "far"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.BeginWork(ctx, first.ID, "run2", ""); !errors.Is(err, ErrFinal) {
		t.Errorf("begun twice: %v", err)
	}
	if _, err := s.BeginWork(ctx, second.ID, "run2", ""); !errors.Is(err, ErrBusy) {
		t.Errorf("two at once in a session: %v", err)
	}
	// A try that came to nothing keeps its place.
	w, err := s.RetryWork(ctx, first.ID, "run1", "runner_gone", Now().Add(50*time.Second), true)
	if err != nil || w.Tries != 1 || w.Status != WorkQueued || w.Runner != "far" {
		t.Errorf("got %+v, %v", w, err)
	}
	if got := waiting(t, s, "acme"); len(got) != 1 || got[0] != other.ID {
		t.Errorf("waiting are %v", got)
	}
	if _, err := s.RetryWork(ctx, first.ID, "run1", "again", Now(), true); !errors.Is(err, ErrFinal) {
		t.Errorf("the same try failed twice: %v", err)
	}
	if _, err := s.BeginWork(ctx, first.ID, "run3", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RetryWork(ctx, first.ID, "run1", "late", Now(), true); !errors.Is(err, ErrFinal) {
		t.Errorf("the end of an older try: %v", err)
	}
	w, err = s.EndWork(ctx, first.ID, WorkDone, "", Message{Role: RoleAssistant, Author: "ravi", Text: "it is mended", RunID: "run3"})
	if err != nil || w.ReplyID == "" || w.EndedAt == nil {
		t.Fatalf("got %+v, %v", w, err)
	}
	if _, err := s.EndWork(ctx, first.ID, WorkFailed, "", Message{Role: RoleAssistant, Text: "twice"}); !errors.Is(err, ErrFinal) {
		t.Errorf("ended twice: %v", err)
	}
	said, err := s.Messages(ctx, a.ID, MessageFilter{})
	if err != nil || len(said) != 3 || said[2].Text != "it is mended" || said[2].ID != w.ReplyID {
		t.Errorf("said was %+v, %v", said, err)
	}
	if got := waiting(t, s, "acme"); len(got) != 2 || got[0] != second.ID {
		t.Errorf("waiting are %v", got)
	}
}

// Whatever many dispatchers do at once: never two of a session at a time, never one twice, all in their order.
func TestWorkIsNeverDoneTwice(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		s, ctx := newStore(t), t.Context()
		sessions := []Session{workedOn(t, s, "one", "a"), workedOn(t, s, "one", "b"), workedOn(t, s, "two", "c")}
		order := map[string][]string{}
		for range rapid.IntRange(1, 12).Draw(r, "messages") {
			c := sessions[rapid.IntRange(0, 2).Draw(r, "session")]
			w := say(t, s, c, Priority(rapid.IntRange(0, 3).Draw(r, "priority")))
			order[c.ID] = append(order[c.ID], w.ID)
		}
		var mu sync.Mutex
		done := map[string][]string{}
		fails := rapid.IntRange(0, 3).Draw(r, "fails")
		var all sync.WaitGroup
		for worker := range 4 {
			all.Go(func() {
				for n := 0; ; n++ {
					left, err := s.CountWork(ctx, WorkFilter{Live: true})
					if err != nil {
						t.Error(err)
						return
					}
					if left == 0 {
						return
					}
					for _, client := range []string{"one", "two"} {
						found, err := s.WaitingWork(ctx, client, Now().Add(time.Minute), 10)
						if err != nil {
							t.Error(err)
							return
						}
						for _, w := range found {
							run := fmt.Sprint("run", worker, "-", n, w.ID)
							if _, err := s.BeginWork(ctx, w.ID, run, ""); errors.Is(err, ErrBusy) || errors.Is(err, ErrFinal) {
								continue
							} else if err != nil {
								t.Error(err)
								return
							}
							if w.Tries < fails {
								if _, err := s.RetryWork(ctx, w.ID, run, "", Now(), true); err != nil {
									t.Error(err)
								}
								continue
							}
							mu.Lock()
							done[w.SessionID] = append(done[w.SessionID], w.ID)
							mu.Unlock()
							if _, err := s.EndWork(ctx, w.ID, WorkDone, "", Message{Role: RoleAssistant, Text: w.ID}); err != nil {
								t.Error(err)
							}
						}
					}
				}
			})
		}
		all.Wait()
		if fmt.Sprint(done) != fmt.Sprint(order) {
			t.Errorf("done was %v, asked for %v", done, order)
		}
	})
}

func TestClients(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	for _, name := range []string{"", "Acme", "a.b", "a b", "a*", "-a", "ä", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"} {
		if _, err := s.InsertClient(ctx, Client{Name: name}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := s.InsertClient(ctx, Client{Name: "acme", Most: 2}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.InsertClient(ctx, Client{Name: "acme"}); !errors.Is(err, ErrExists) {
		t.Errorf("twice: %v", err)
	}
	now := Now()
	put := func(c *Client) error { c.ArchivedAt = &now; return nil }
	if _, err := s.UpdateClient(ctx, DefaultClient, put); !errors.Is(err, ErrInvalid) {
		t.Errorf("the default one put away: %v", err)
	}
	if _, err := s.UpdateClient(ctx, "acme", put); err != nil {
		t.Fatal(err)
	}
	if all, err := s.ListClients(ctx, false); err != nil || len(all) != 1 || all[0].Name != DefaultClient {
		t.Errorf("left are %+v, %v", all, err)
	}
	if _, err := s.InsertAgent(ctx, Agent{Name: "x", Client: "nobody"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("an agent of nobody: %v", err)
	}
}

func TestBusCredentials(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	later := Now().Add(time.Hour)
	for i, c := range []BusCredential{
		{ID: "UA", Kind: BusRunner, Name: "far", XKey: "XA"},
		{ID: "UB", Kind: BusGuest, Name: "run1", Client: "acme", RunID: "run1", ExpiresAt: &later},
		{ID: "UC", Kind: BusOwner, Name: "run1", RunID: "run1", ExpiresAt: &later},
	} {
		if _, err := s.InsertBusCredential(ctx, c); err != nil {
			t.Fatal(i, err)
		}
	}
	if _, err := s.InsertBusCredential(ctx, BusCredential{ID: "UD", Kind: BusRunner, Name: "far"}); !errors.Is(err, ErrExists) {
		t.Errorf("two runners of one name: %v", err)
	}
	if _, err := s.RevokeBusCredentials(ctx, BusCredentialFilter{}, "", "all"); err == nil {
		t.Error("all were revoked")
	}
	if n, err := s.RevokeBusCredentials(ctx, BusCredentialFilter{RunID: "run1"}, "", "the run ended"); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := s.RevokeBusCredentials(ctx, BusCredentialFilter{RunID: "run1"}, "", "again"); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	revoked, err := s.ListBusCredentials(ctx, BusCredentialFilter{Revoked: true})
	if err != nil || len(revoked) != 2 || revoked[0].Reason != "the run ended" {
		t.Errorf("%+v, %v", revoked, err)
	}
	live, err := s.ListBusCredentials(ctx, BusCredentialFilter{Live: true})
	if err != nil || len(live) != 1 || live[0].XKey != "XA" {
		t.Errorf("%+v, %v", live, err)
	}
	if n, err := s.RevokeBusCredentials(ctx, BusCredentialFilter{}, "UA", "stolen"); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := s.InsertBusCredential(ctx, BusCredential{ID: "UE", Kind: BusRunner, Name: "far"}); err != nil {
		t.Errorf("a new one for the runner: %v", err)
	}
}

// A client has its queue filled at most, and neither its message nor work on it is there then; the others have theirs.
func TestAFullQueue(t *testing.T) {
	s := newStore(t)
	c, other := workedOn(t, s, "acme", "main"), workedOn(t, s, "other", "theirs")
	first := say(t, s, c, Normal)
	// Written at once: one by one it takes a while.
	const numbers = `WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < ?) `
	_, err := s.db.ExecContext(t.Context(), numbers+`INSERT INTO messages (id, session_id, seq, role, author, channel, text, key_id, run_id, created_at)
		SELECT 'msg' || i, session_id, i, role, author, channel, text, key_id, run_id, created_at FROM messages, n WHERE id = ?`, MostLiveWork, first.MessageID)
	if err == nil {
		_, err = s.db.ExecContext(t.Context(), numbers+`INSERT INTO work (id, client, agent_id, session_id, message_id, priority, status, created_at)
			SELECT 'wrk' || i, client, agent_id, session_id, 'msg' || i, priority, status, created_at FROM work, n WHERE id = ?`, MostLiveWork, first.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	more := func() error {
		_, _, err := s.AppendWork(t.Context(), Message{SessionID: c.ID, Role: RoleUser, Text: "more"}, Work{})
		return err
	}
	if err := more(); !errors.Is(err, ErrQueueFull) {
		t.Errorf("beyond what can wait: %v", err)
	}
	if n, err := s.CountMessages(t.Context(), c.ID); err != nil || n != MostLiveWork {
		t.Errorf("the session has %d messages, %v", n, err)
	}
	say(t, s, other, Normal)
	if _, err := s.EndWork(t.Context(), first.ID, WorkCanceled, "", Message{}); err != nil {
		t.Fatal(err)
	}
	if err := more(); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// Work waits for its moment, and not for one that a clock told which was put back since.
func TestAClockThatWasPutBack(t *testing.T) {
	s := newStore(t)
	w := say(t, s, workedOn(t, s, "acme", "main"), Normal)
	if _, err := s.BeginWork(t.Context(), w.ID, "run1", ""); err != nil {
		t.Fatal(err)
	}
	now := Now()
	if _, err := s.RetryWork(t.Context(), w.ID, "run1", "x", now.Add(30*time.Second), true); err != nil {
		t.Fatal(err)
	}
	for after, want := range map[time.Duration]int{0: 0, 29 * time.Second: 0, 31 * time.Second: 1, time.Hour: 1, -10 * time.Second: 0, -time.Hour: 1} {
		if found, err := s.WaitingWork(t.Context(), "acme", now.Add(after), 10); err != nil || len(found) != want {
			t.Errorf("after %v: %d, %v", after, len(found), err)
		}
	}
}

// What waits can be canceled, and what was begun cannot: its run goes on.
func TestCancelOfWork(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	c := workedOn(t, s, "acme", "main")
	waits, begun := say(t, s, c, Normal), say(t, s, workedOn(t, s, "acme", "other"), Normal)
	if _, err := s.BeginWork(ctx, begun.ID, "run1", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CancelWork(ctx, begun.ID, "canceled"); !errors.Is(err, ErrBusy) {
		t.Errorf("work that was begun: %v", err)
	}
	if w, err := s.Work(ctx, begun.ID); err != nil || w.Status != WorkRunning {
		t.Errorf("%+v %v", w, err)
	}
	if w, err := s.CancelWork(ctx, waits.ID, "canceled"); err != nil || w.Status != WorkCanceled || w.EndedAt == nil || w.Reason != "canceled" {
		t.Errorf("%+v %v", w, err)
	}
	if _, err := s.CancelWork(ctx, waits.ID, "canceled"); !errors.Is(err, ErrFinal) {
		t.Errorf("once more: %v", err)
	}
	if _, err := s.BeginWork(ctx, waits.ID, "run2", ""); !errors.Is(err, ErrFinal) {
		t.Errorf("it is begun all the same: %v", err)
	}
}

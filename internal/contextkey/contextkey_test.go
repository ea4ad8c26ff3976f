package contextkey

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ravi/internal/access"
	"ravi/internal/store"
)

type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func newKeys(t testing.TB) (Keys, *clock, string) {
	t.Helper()
	home := t.TempDir()
	s, err := store.Open(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	c := &clock{store.Now()}
	return Keys{Store: s, Now: c.now}, c, home
}

func capabilities(t testing.TB, texts ...string) access.Capabilities {
	t.Helper()
	c, err := access.ParseCapabilities(texts)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func issue(t testing.TB, k Keys, by access.Caller, r Request) (string, store.Key) {
	t.Helper()
	token, key, err := k.Issue(t.Context(), by, r)
	if err != nil {
		t.Fatal(err)
	}
	return token, key
}

func resolve(t testing.TB, k Keys, token string, w Wire) access.Caller {
	t.Helper()
	c, err := k.Resolve(t.Context(), token, w)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestIssueAndResolve(t *testing.T) {
	k, clock, home := newKeys(t)
	token, key := issue(t, k, access.AsOperator(), Request{Label: "L", AgentID: "agt1", SessionID: "ses1", TaskID: "tsk1", Capabilities: capabilities(t, "read:tasks@tsk1", "read:*")})
	if !WellFormed(token) || key.Kind != store.KeyPlain || key.Profile != "default" || !key.ExpiresAt.Equal(clock.t.Add(DefaultTTL)) || key.CreatedBy != "operator" {
		t.Errorf("got %+v", key)
	}
	who := resolve(t, k, token, Wire{})
	if who.Name() != key.ID || who.IsOperator() || who.Key.AgentID != "agt1" || who.Key.SessionID != "ses1" || who.Key.TaskID != "tsk1" ||
		strings.Join(who.Key.Capabilities.Strings(), " ") != "read:*" {
		t.Errorf("got %+v", who.Key)
	}
	// Neither the token nor a part of it is in the record.
	db, err := sql.Open("sqlite", "file:"+filepath.Join(home, store.File))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var found int
	if err := db.QueryRow(`SELECT count(*) FROM keys WHERE instr(id || hash || label || capabilities, ?) > 0`, token[len(Prefix):len(Prefix)+8]).Scan(&found); err != nil || found != 0 {
		t.Errorf("%d rows hold a part of the key, %v", found, err)
	}
}

func TestRefusals(t *testing.T) {
	k, clock, _ := newKeys(t)
	ctx := t.Context()
	all := capabilities(t, "read:*", "write:*")
	parentToken, parent := issue(t, k, access.AsOperator(), Request{Capabilities: all, TTL: 30 * time.Minute})
	childToken, child := issue(t, k, resolve(t, k, parentToken, Wire{}), Request{Capabilities: capabilities(t, "read:tasks"), TTL: time.Hour})
	if !child.ExpiresAt.Equal(parent.ExpiresAt) {
		t.Errorf("the child ends at %v, its parent at %v", child.ExpiresAt, parent.ExpiresAt)
	}
	runToken, run := issue(t, k, access.AsOperator(), Request{RunID: "run1", Capabilities: all})
	runChild, _ := issue(t, k, resolve(t, k, runToken, Wire{"run1"}), Request{Capabilities: all})
	for name, c := range map[string]struct {
		token string
		wire  Wire
		want  error
	}{
		"none":               {"", Wire{}, ErrMissing},
		"not one":            {"secret", Wire{}, ErrMalformed},
		"the id":             {parent.ID, Wire{}, ErrMalformed},
		"truncated":          {parentToken[:len(parentToken)-1], Wire{}, ErrMalformed},
		"with more":          {parentToken + "A", Wire{}, ErrMalformed},
		"with a line feed":   {parentToken + "\n", Wire{}, ErrMalformed},
		"1 MB":               {Prefix + strings.Repeat("A", 1<<20), Wire{}, ErrMalformed},
		"unknown":            {Prefix + strings.Repeat("A", 24), Wire{}, ErrUnknown},
		"over a run's wires": {parentToken, Wire{"run1"}, ErrWire},
		"run's, elsewhere":   {runToken, Wire{}, ErrWire},
		"run's, other run's": {runToken, Wire{"run2"}, ErrWire},
		"run's child":        {runChild, Wire{}, ErrWire},
		"run's child, other": {runChild, Wire{"run2"}, ErrWire},
	} {
		if _, err := k.Resolve(ctx, c.token, c.wire); !errors.Is(err, c.want) || !errors.Is(err, ErrRefused) || c.token != "" && strings.Contains(err.Error(), c.token) {
			t.Errorf("%s: %v", name, err)
		}
	}
	resolve(t, k, runChild, Wire{"run1"})
	before := clock.t
	clock.t = before.Add(30 * time.Minute)
	for _, token := range []string{parentToken, childToken} {
		if _, err := k.Resolve(ctx, token, Wire{}); !errors.Is(err, ErrExpired) {
			t.Errorf("after its time: %v", err)
		}
	}
	clock.t = before
	if _, err := k.Revoke(ctx, access.AsOperator(), parent.ID, "test"); err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{parentToken, childToken} {
		if _, err := k.Resolve(ctx, token, Wire{}); !errors.Is(err, ErrRevoked) {
			t.Errorf("after its revocation: %v", err)
		}
	}
	if _, err := k.Recheck(ctx, child.ID, Wire{}); !errors.Is(err, ErrRevoked) {
		t.Errorf("an open stream: %v", err)
	}
	if _, err := k.Recheck(ctx, run.ID, Wire{"run2"}); !errors.Is(err, ErrWire) {
		t.Errorf("an open stream elsewhere: %v", err)
	}
	if _, err := k.Revoke(ctx, resolve(t, k, runChild, Wire{"run1"}), run.ID, ""); !errors.Is(err, access.ErrDenied) {
		t.Errorf("a child ended its parent: %v", err)
	}
	if _, err := k.Store.RevokeRunKeys(ctx, "run1", "the run ended"); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Resolve(ctx, runChild, Wire{"run1"}); !errors.Is(err, ErrRevoked) {
		t.Errorf("after its run: %v", err)
	}
}

func TestRunKeysLiveShortly(t *testing.T) {
	k, clock, _ := newKeys(t)
	ctx := t.Context()
	if _, _, err := k.Issue(ctx, access.AsOperator(), Request{RunID: "run1", TTL: time.Hour + 1}); err == nil {
		t.Error("a run's key for more than an hour")
	}
	if _, _, err := k.Issue(ctx, access.AsOperator(), Request{TTL: -1}); err == nil {
		t.Error("a key of the past")
	}
	token, key := issue(t, k, access.AsOperator(), Request{RunID: "run1", Capabilities: capabilities(t, "read:*")})
	for range 10 {
		clock.t = clock.t.Add(RunTTL - time.Second)
		resolve(t, k, token, Wire{"run1"})
		if err := k.Slide(ctx, key.ID); err != nil {
			t.Fatal(err)
		}
		now, err := k.Store.KeyByID(ctx, key.ID)
		if err != nil || now.ExpiresAt.After(clock.t.Add(MaxRunTTL)) {
			t.Errorf("it ends at %v, and now is %v", now.ExpiresAt, clock.t)
		}
	}
}

// Children must not get what their parent has not, whatever they ask for.
func TestNarrow(t *testing.T) {
	k, _, _ := newKeys(t)
	token, _ := issue(t, k, access.AsOperator(), Request{AgentID: "agt1", SessionID: "ses1", Capabilities: capabilities(t, "read:tasks", "write:tasks.comment@tsk1"), Profile: "small"})
	parent := resolve(t, k, token, Wire{})
	for name, r := range map[string]Request{
		"more":             {Capabilities: capabilities(t, "read:runs")},
		"wider":            {Capabilities: capabilities(t, "write:tasks.comment")},
		"write":            {Capabilities: capabilities(t, "write:tasks")},
		"everything":       {Capabilities: capabilities(t, "read:*")},
		"another agent":    {AgentID: "agt2"},
		"another session":  {SessionID: "ses2"},
		"another profile":  {Profile: "large"},
		"the default one":  {Profile: "default"},
		"one of it and it": {Capabilities: capabilities(t, "read:tasks.ls", "read:memory")},
	} {
		if _, key, err := k.Issue(t.Context(), parent, r); !errors.Is(err, ErrExceeds) {
			t.Errorf("%s: %+v, %v", name, key, err)
		}
	}
	_, child := issue(t, k, parent, Request{Capabilities: capabilities(t, "read:tasks.show@tsk9"), TaskID: "tsk1"})
	if child.AgentID != "agt1" || child.SessionID != "ses1" || child.Profile != "small" || child.TaskID != "tsk1" {
		t.Errorf("got %+v", child)
	}
	if _, _, err := k.Issue(t.Context(), access.Caller{}, Request{}); !errors.Is(err, access.ErrDenied) {
		t.Errorf("nobody: %v", err)
	}
}

func TestFewChildren(t *testing.T) {
	k, _, _ := newKeys(t)
	token, _ := issue(t, k, access.AsOperator(), Request{Capabilities: capabilities(t, "read:tasks")})
	parent := resolve(t, k, token, Wire{})
	var last store.Key
	for range MaxChildren {
		_, last = issue(t, k, parent, Request{})
	}
	if _, _, err := k.Issue(t.Context(), parent, Request{}); !errors.Is(err, ErrExceeds) {
		t.Errorf("one more: %v", err)
	}
	if _, err := k.Revoke(t.Context(), access.AsOperator(), last.ID, ""); err != nil {
		t.Fatal(err)
	}
	issue(t, k, parent, Request{})
}

// A row that somebody changed behind our back gives no more than its parent's.
func TestLineageCannotBeEdited(t *testing.T) {
	k, _, home := newKeys(t)
	ctx := t.Context()
	token, _ := issue(t, k, access.AsOperator(), Request{Capabilities: capabilities(t, "read:tasks")})
	childToken, child := issue(t, k, resolve(t, k, token, Wire{}), Request{Capabilities: capabilities(t, "read:tasks@tsk1")})
	db, err := sql.Open("sqlite", "file:"+filepath.Join(home, store.File)+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, change := range []string{`parent_id = ''`, `capabilities = '["write:*"]'`, `kind = 'run', run_id = 'run1'`, `hash = lower(hex(randomblob(32)))`, `profile = 'x'`, `created_at = 0`} {
		if _, err := db.ExecContext(ctx, `UPDATE keys SET `+change+` WHERE id = ?`, child.ID); err == nil {
			t.Errorf("%s was taken", change)
		}
	}
	if _, err := db.ExecContext(ctx, `DELETE FROM keys`); err == nil {
		t.Error("keys were deleted")
	}
	if _, err := db.ExecContext(ctx, `DROP TRIGGER keys_no_change`); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, `UPDATE keys SET capabilities = '["write:*"]' WHERE id = ?`, child.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Resolve(ctx, childToken, Wire{}); !errors.Is(err, ErrExceeds) {
		t.Errorf("a changed row: %v", err)
	}
}

// A child never exceeds its parent, through any sequence of issues, revocations and time.
func TestChildrenNeverExceed(t *testing.T) {
	type held struct {
		token  string
		key    store.Key
		parent int // -1: the operator
		dead   bool
	}
	texts := []string{"read:*", "write:*", "read:tasks", "read:tasks@tsk1", "read:tasks.show@tsk1", "write:tasks.comment@tsk1", "write:tasks", "read:runs@run*"}
	asks := []access.Ask{{Access: "read", Group: "tasks", Command: "show", Object: "tsk1"}, {Access: "write", Group: "tasks", Command: "comment", Object: "tsk1"},
		{Access: "write", Group: "tasks", Command: "done", Object: "tsk2"}, {Access: "read", Group: "runs", Command: "show", Object: "run9"}, {Access: "read", Group: "secrets", Command: "ls"}}
	k, clock, _ := newKeys(t)
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		var all []held
		over := func(i int) bool {
			for ; i >= 0; i = all[i].parent {
				if all[i].dead || !clock.t.Before(all[i].key.ExpiresAt) {
					return true
				}
			}
			return false
		}
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			switch rapid.IntRange(0, 3).Draw(rt, "what") {
			case 0, 1: // issue
				parent := rapid.IntRange(-1, len(all)-1).Draw(rt, "parent")
				by := access.AsOperator()
				if parent >= 0 {
					c, err := k.Resolve(ctx, all[parent].token, Wire{})
					if (err == nil) == over(parent) {
						rt.Fatalf("resolving a key that is over=%v: %v", over(parent), err)
					}
					if err != nil {
						continue
					}
					by = c
				}
				want, err := access.ParseCapabilities(rapid.SliceOfN(rapid.SampledFrom(texts), 0, 3).Draw(rt, "capabilities"))
				if err != nil {
					rt.Fatal(err)
				}
				token, key, err := k.Issue(ctx, by, Request{Capabilities: want, TTL: time.Duration(rapid.IntRange(1, 100).Draw(rt, "minutes")) * time.Minute})
				if err != nil {
					if !errors.Is(err, ErrExceeds) {
						rt.Fatal(err)
					}
					continue
				}
				all = append(all, held{token: token, key: key, parent: parent})
			case 2: // revoke
				if len(all) > 0 {
					i := rapid.IntRange(0, len(all)-1).Draw(rt, "revoked")
					if _, err := k.Revoke(ctx, access.AsOperator(), all[i].key.ID, ""); err != nil {
						rt.Fatal(err)
					}
					all[i].dead = true
				}
			case 3: // time goes on
				clock.t = clock.t.Add(time.Duration(rapid.IntRange(0, 40).Draw(rt, "later")) * time.Minute)
			}
			for i, h := range all {
				c, err := k.Resolve(ctx, h.token, Wire{})
				if (err == nil) == over(i) {
					rt.Fatalf("key %d: over=%v, resolved with %v", i, over(i), err)
				}
				if err != nil || h.parent < 0 {
					continue
				}
				above, err := k.Resolve(ctx, all[h.parent].token, Wire{})
				if err != nil {
					rt.Fatalf("a child lives, and its parent does not: %v", err)
				}
				for _, ask := range asks {
					if c.Check(ask) == nil && above.Check(ask) != nil {
						rt.Fatalf("a child may %+v, its parent not", ask)
					}
				}
			}
		}
	})
}

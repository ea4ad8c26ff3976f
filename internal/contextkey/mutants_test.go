package contextkey

import (
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ravi/internal/access"
	"ravi/internal/store"
)

// What has the length of a key is none by that.
func TestWellFormed(t *testing.T) {
	good := Prefix + strings.Repeat("A", 24)
	for text, want := range map[string]bool{
		good: true, "xxxxx" + good[len(Prefix):]: false, "RCTX_" + good[len(Prefix):]: false, " " + good: false, good[len(Prefix):]: false,
		Prefix + strings.Repeat("!", 24): false, Prefix + strings.Repeat("A", 23) + "=": false, Prefix + strings.Repeat("A", 23) + "+": false, Prefix: false,
	} {
		if WellFormed(text) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}

// How long keys live, of both kinds, and what they have if nothing was said.
func TestTimesOfKeys(t *testing.T) {
	k, clock, _ := newKeys(t)
	for _, c := range []struct {
		r    Request
		want time.Duration // 0: refused
	}{
		{Request{}, DefaultTTL}, {Request{TTL: MaxTTL}, MaxTTL}, {Request{TTL: MaxTTL + 1}, 0}, {Request{TTL: -time.Hour}, 0},
		{Request{RunID: "run1"}, RunTTL}, {Request{RunID: "run1", TTL: MaxRunTTL}, MaxRunTTL}, {Request{RunID: "run1", TTL: MaxRunTTL + time.Millisecond}, 0},
		{Request{RunID: "run1", TTL: -time.Hour}, 0},
	} {
		_, key, err := k.Issue(t.Context(), access.AsOperator(), c.r)
		if c.want == 0 && err == nil || c.want != 0 && (err != nil || !key.ExpiresAt.Equal(clock.t.Add(c.want))) {
			t.Errorf("%+v: until %v, %v", c.r, key.ExpiresAt, err)
		}
	}
}

// A caller who was let in before its key was over issues nothing after.
func TestWhatIsOverIssuesNothing(t *testing.T) {
	k, clock, _ := newKeys(t)
	token, _ := issue(t, k, access.AsOperator(), Request{TTL: time.Minute, Capabilities: capabilities(t, "read:*")})
	by := resolve(t, k, token, Wire{})
	clock.t = clock.t.Add(time.Minute)
	if _, key, err := k.Issue(t.Context(), by, Request{TTL: time.Second}); err == nil {
		t.Errorf("an expired key issued %+v", key)
	}
	clock.t = clock.t.Add(-time.Second)
	if _, err := k.Revoke(t.Context(), access.AsOperator(), by.Key.ID, ""); err != nil {
		t.Fatal(err)
	}
	if _, key, err := k.Issue(t.Context(), by, Request{TTL: time.Millisecond}); err == nil {
		t.Errorf("a revoked key issued %+v", key)
	}
}

// A child is for what its parent is for, each by itself; only what the parent leaves open may be chosen.
func TestNarrowLooksAtEachField(t *testing.T) {
	k, _, _ := newKeys(t)
	all := capabilities(t, "read:*")
	token, _ := issue(t, k, access.AsOperator(), Request{AgentID: "agt1", SessionID: "ses1", TaskID: "tsk1", Capabilities: all, Profile: "small"})
	parent := resolve(t, k, token, Wire{})
	for what, r := range map[string]Request{
		"agent": {AgentID: "agt2"}, "session": {SessionID: "ses2"}, "task": {TaskID: "tsk2"}, "profile": {Profile: "large"},
	} {
		if _, key, err := k.Issue(t.Context(), parent, r); !errors.Is(err, ErrExceeds) || !strings.Contains(err.Error(), "another "+what) {
			t.Errorf("%s: %+v, %v", what, key, err)
		}
	}
	_, same := issue(t, k, parent, Request{AgentID: "agt1", SessionID: "ses1", TaskID: "tsk1", Profile: "small"})
	if same.ParentID != parent.Key.ID || same.AgentID != "agt1" || same.SessionID != "ses1" || same.TaskID != "tsk1" || same.Profile != "small" {
		t.Errorf("got %+v", same)
	}
	openToken, _ := issue(t, k, access.AsOperator(), Request{Capabilities: all})
	open := resolve(t, k, openToken, Wire{})
	if _, chosen := issue(t, k, open, Request{AgentID: "agt2", TaskID: "tsk2"}); chosen.AgentID != "agt2" || chosen.TaskID != "tsk2" || chosen.Profile != access.DefaultName {
		t.Errorf("got %+v", chosen)
	}
	if _, _, err := k.Issue(t.Context(), open, Request{Profile: "small"}); !errors.Is(err, ErrExceeds) {
		t.Errorf("a child chose its profile: %v", err)
	}
}

// Each ancestor is asked at each call, also if somebody changed its row behind our back: whether it lives, what it holds,
// and what bounds it.
func TestEveryAncestorIsAsked(t *testing.T) {
	for name, c := range map[string]struct {
		change string
		want   error
	}{
		"revoked":      {`revoked_at = 1`, ErrRevoked},
		"expired":      {`expires_at = created_at + 1`, ErrExpired},
		"capabilities": {`capabilities = '["read:runs"]'`, ErrExceeds},
		"profile":      {`profile = 'smaller'`, ErrExceeds},
		"unreadable":   {`capabilities = '["all"]'`, nil},
	} {
		for generation := range 3 {
			k, clock, home := newKeys(t)
			var tokens []string
			var ids []string
			by := access.AsOperator()
			for range 4 {
				token, key := issue(t, k, by, Request{Capabilities: capabilities(t, "read:tasks"), TTL: 10 * time.Minute})
				tokens, ids = append(tokens, token), append(ids, key.ID)
				by = resolve(t, k, token, Wire{})
			}
			db, err := sql.Open("sqlite", "file:"+filepath.Join(home, store.File)+"?_pragma=busy_timeout(5000)")
			if err != nil {
				t.Fatal(err)
			}
			rows, err := db.QueryContext(t.Context(), `SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'keys'`)
			if err != nil {
				t.Fatal(err)
			}
			var triggers []string
			for rows.Next() {
				var name string
				if err := rows.Scan(&name); err != nil {
					t.Fatal(err)
				}
				triggers = append(triggers, name)
			}
			if err := errors.Join(rows.Err(), rows.Close()); err != nil {
				t.Fatal(err)
			}
			for _, trigger := range triggers {
				if _, err := db.ExecContext(t.Context(), `DROP TRIGGER `+trigger); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := db.ExecContext(t.Context(), `UPDATE keys SET `+c.change+` WHERE id = ?`, ids[generation]); err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			clock.t = clock.t.Add(time.Second)
			if _, err := k.Resolve(t.Context(), tokens[3], Wire{}); err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%s, of the ancestor %d: %v", name, 3-generation, err)
			}
			if _, err := k.Recheck(t.Context(), ids[3], Wire{}); err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%s, of the ancestor %d, with an open stream: %v", name, 3-generation, err)
			}
		}
	}
}

// Who holds a key ends that one and what descends from it: no sister, no parent, and nobody ends anything.
func TestWhomKeysRevoke(t *testing.T) {
	k, _, _ := newKeys(t)
	ctx := t.Context()
	all := capabilities(t, "read:*", "write:*")
	topToken, top := issue(t, k, access.AsOperator(), Request{Capabilities: all})
	byTop := resolve(t, k, topToken, Wire{})
	oneToken, one := issue(t, k, byTop, Request{Capabilities: all})
	byOne := resolve(t, k, oneToken, Wire{})
	_, sister := issue(t, k, byTop, Request{Capabilities: all})
	_, niece := issue(t, k, byOne, Request{Capabilities: all})
	for id, by := range map[string]access.Caller{sister.ID: byOne, top.ID: byOne, one.ID: {}} {
		if ids, err := k.Revoke(ctx, by, id, ""); !errors.Is(err, access.ErrDenied) || len(ids) > 0 {
			t.Errorf("%s ended %s: %v, %v", by.Name(), id, ids, err)
		}
	}
	if _, err := k.Revoke(ctx, byOne, "ctx_none", ""); err == nil {
		t.Error("a key that is not was ended")
	}
	if ids, err := k.Revoke(ctx, byTop, niece.ID, ""); err != nil || len(ids) != 1 {
		t.Errorf("its child's child: %v, %v", ids, err)
	}
	if ids, err := k.Revoke(ctx, byOne, one.ID, ""); err != nil || len(ids) != 1 {
		t.Errorf("itself: %v, %v", ids, err)
	}
}

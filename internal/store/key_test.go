package store

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// newKey is a key below parent that lives for an hour.
func newKey(parent, secret string) Key {
	sum := sha256.Sum256([]byte(secret))
	return Key{Hash: hex.EncodeToString(sum[:]), ParentID: parent, Capabilities: []string{"read:tasks"}, ExpiresAt: time.Now().Add(time.Hour)}
}

// line3 makes a key, its child and its grandchild.
func line3(t *testing.T, s *Store) (a, b, c Key) {
	t.Helper()
	ctx := t.Context()
	a, err := s.InsertKey(ctx, newKey("", "a"), nil)
	if err != nil {
		t.Fatal(err)
	}
	child := newKey(a.ID, "b")
	child.Kind, child.RunID, child.ExpiresAt = KeyRun, "run1", a.ExpiresAt.Add(-time.Minute)
	if b, err = s.InsertKey(ctx, child, nil); err != nil {
		t.Fatal(err)
	}
	grandchild := newKey(b.ID, "c")
	grandchild.ExpiresAt = b.ExpiresAt.Add(-time.Minute)
	if c, err = s.InsertKey(ctx, grandchild, nil); err != nil {
		t.Fatal(err)
	}
	return a, b, c
}

func TestKeyRoundTrip(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	want := newKey("", "secret")
	want.Kind, want.Label, want.AgentID, want.SessionID, want.TaskID, want.RunID = KeyRun, "of a turn", "agt1", "ses1", "tsk1", "run1"
	want.Profile, want.CreatedBy = "small", "operator"
	got, err := s.InsertKey(ctx, want, nil)
	if err != nil {
		t.Fatal(err)
	}
	want.ID, want.CreatedAt, want.ExpiresAt = got.ID, got.CreatedAt, inMillis(want.ExpiresAt)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("given back:\n%s", diff)
	}
	stored, parents, err := s.KeyByHash(ctx, want.Hash)
	if diff := cmp.Diff(want, stored); err != nil || diff != "" || len(parents) != 0 {
		t.Errorf("stored: %v, %v\n%s", parents, err, diff)
	}
	if byID, err := s.KeyByID(ctx, got.ID[:12]); err != nil || byID.ID != got.ID {
		t.Errorf("by a part of its id: %+v, %v", byID, err)
	}
	if len(got.ID) != len("ctx_")+24 || !strings.HasPrefix(got.ID, "ctx_") {
		t.Errorf("the id is %q", got.ID)
	}
	text, err := json.Marshal(got)
	if err != nil || strings.Contains(string(text), want.Hash) || strings.Contains(strings.ToLower(string(text)), "hash") {
		t.Errorf("the hash is shown: %s, %v", text, err)
	}
	if _, _, err := s.KeyByHash(ctx, strings.Repeat("0", 64)); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown one: %v", err)
	}
	for name, filter := range map[string]KeyFilter{
		"live": {Live: true}, "run": {RunID: "run1"}, "ids": {IDs: []string{got.ID, "x"}}, "all": {},
	} {
		if found, err := s.ListKeys(ctx, filter); err != nil || len(found) != 1 {
			t.Errorf("%s: %v, %v", name, found, err)
		}
	}
	for name, filter := range map[string]KeyFilter{
		"run": {RunID: "run2"}, "no ids": {IDs: []string{}}, "parent": {ParentID: "x"}, "page": {Before: got.ID},
	} {
		if found, err := s.ListKeys(ctx, filter); err != nil || len(found) != 0 {
			t.Errorf("%s: %v, %v", name, found, err)
		}
	}
}

func TestKeyRefusals(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	a, b, c := line3(t, s)
	now := time.Now()
	for name, test := range map[string]struct {
		change func(*Key)
		want   error
	}{
		"no hash":           {func(k *Key) { k.Hash = "" }, ErrInvalid},
		"half a hash":       {func(k *Key) { k.Hash = k.Hash[:32] }, ErrInvalid},
		"capitals":          {func(k *Key) { k.Hash = strings.ToUpper(k.Hash) }, ErrInvalid},
		"hash of another":   {func(k *Key) { k.Hash = a.Hash }, nil},
		"id of another":     {func(k *Key) { k.ID = a.ID }, nil},
		"unknown kind":      {func(k *Key) { k.Kind = "root" }, ErrInvalid},
		"run without a run": {func(k *Key) { k.Kind = KeyRun }, ErrInvalid},
		"expired":           {func(k *Key) { k.ExpiresAt = now.Add(-time.Second) }, ErrInvalid},
		"no expiry":         {func(k *Key) { k.ExpiresAt = time.Time{} }, ErrInvalid},
		"revoked":           {func(k *Key) { k.RevokedAt = &now }, ErrInvalid},
		"no such parent":    {func(k *Key) { k.ParentID = "ctx_none" }, ErrNotFound},
		"part of a parent":  {func(k *Key) { k.ParentID = a.ID[:20] }, ErrNotFound},
		"outlives parent":   {func(k *Key) { k.ParentID, k.ExpiresAt = b.ID, b.ExpiresAt.Add(time.Millisecond) }, ErrInvalid},
		"own parent":        {func(k *Key) { k.ID, k.ParentID = "ctx_self", "ctx_self" }, ErrNotFound},
		"long label":        {func(k *Key) { k.Label = strings.Repeat("x", MaxLine+1) }, ErrTooLarge},
	} {
		k := newKey("", "other")
		test.change(&k)
		got, err := s.InsertKey(ctx, k, nil)
		if err == nil || test.want != nil && !errors.Is(err, test.want) || got.ID != "" {
			t.Errorf("%s: got %q, %v; want %v", name, got.ID, err, test.want)
		}
	}
	refused := errors.New("refused")
	var seen []string
	k := newKey(c.ID, "d")
	k.ExpiresAt = c.ExpiresAt
	if _, err := s.InsertKey(ctx, k, func(parents []Key) error {
		for _, p := range parents {
			seen = append(seen, p.ID)
		}
		return refused
	}); !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff([]string{c.ID, b.ID, a.ID}, seen); diff != "" {
		t.Errorf("what the check saw:\n%s", diff)
	}
	if n, err := s.CountKeys(ctx, KeyFilter{}); err != nil || n != 3 {
		t.Errorf("there are %d keys, %v", n, err)
	}
	eventsOf(t, s, EventKeyIssued, 3)
}

// eventsOf fails unless so many events of a kind were written.
func eventsOf(t *testing.T, s *Store, kind string, want int64) {
	t.Helper()
	n, err := number(t.Context(), s.db, `SELECT count(*) FROM events WHERE kind = ?`, kind)
	if err != nil || n != want {
		t.Errorf("there are %d events %s, %v; want %d", n, kind, err, want)
	}
}

func TestKeyDepth(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	last, err := s.InsertKey(ctx, newKey("", "0"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range KeyDepth {
		k := newKey(last.ID, fmt.Sprint(i+1))
		k.ExpiresAt = last.ExpiresAt
		if last, err = s.InsertKey(ctx, k, nil); err != nil {
			t.Fatalf("%d below: %v", i+1, err)
		}
	}
	if _, parents, err := s.KeyByHash(ctx, last.Hash); err != nil || len(parents) != KeyDepth || parents[KeyDepth-1].ParentID != "" {
		t.Errorf("the deepest has %d ancestors, %v", len(parents), err)
	}
	k := newKey(last.ID, "one more")
	k.ExpiresAt = last.ExpiresAt
	if _, err := s.InsertKey(ctx, k, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("too deep: %v", err)
	}
	found, err := s.ListKeys(ctx, KeyFilter{})
	if err != nil {
		t.Fatal(err)
	}
	if ids, err := s.RevokeKey(ctx, found[KeyDepth].ID, "all"); err != nil || len(ids) != KeyDepth+1 {
		t.Errorf("revoked %d, %v", len(ids), err)
	}
}

func TestRevoke(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	a, b, c := line3(t, s)
	other, err := s.InsertKey(ctx, newKey("", "other"), nil)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := s.RevokeKey(ctx, b.ID, "lost")
	if diff := cmp.Diff([]string{b.ID, c.ID}, ids); err != nil || diff != "" {
		t.Errorf("revoked: %v\n%s", err, diff)
	}
	for id, dead := range map[string]bool{a.ID: false, b.ID: true, c.ID: true, other.ID: false} {
		k, err := s.KeyByID(ctx, id)
		if err != nil || (k.RevokedAt != nil) != dead || (k.Reason == "lost") != dead || k.Live(time.Now()) == dead {
			t.Errorf("%s: %+v, %v", id, k, err)
		}
	}
	if live, err := s.ListKeys(ctx, KeyFilter{Live: true}); err != nil || len(live) != 2 {
		t.Errorf("live: %v, %v", live, err)
	}
	if ids, err := s.RevokeKey(ctx, b.ID, "again"); err != nil || len(ids) != 0 || ids == nil {
		t.Errorf("twice: %v, %v", ids, err)
	}
	if k, _ := s.KeyByID(ctx, b.ID); k.Reason != "lost" {
		t.Errorf("the reason became %q", k.Reason)
	}
	if _, err := s.RevokeKey(ctx, b.ID[:10], ""); !errors.Is(err, ErrNotFound) {
		t.Errorf("a part of an id: %v", err)
	}
	k := newKey(b.ID, "late")
	k.ExpiresAt = b.ExpiresAt
	if _, err := s.InsertKey(ctx, k, nil); !errors.Is(err, ErrFinal) {
		t.Errorf("a child of a revoked one: %v", err)
	}
	k.ParentID, k.ExpiresAt = c.ID, c.ExpiresAt
	if _, err := s.InsertKey(ctx, k, nil); !errors.Is(err, ErrFinal) {
		t.Errorf("a child of a revoked one's child: %v", err)
	}
	eventsOf(t, s, EventKeyRevoked, 2)
}

func TestRevokeRun(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	a, b, c := line3(t, s)
	if _, err := s.RevokeRunKeys(ctx, "", "all"); err == nil {
		t.Error("the run without an id was taken for all that have none")
	}
	if ids, err := s.RevokeRunKeys(ctx, "run2", "over"); err != nil || len(ids) != 0 {
		t.Errorf("another run: %v, %v", ids, err)
	}
	if ids, err := s.RevokeRunKeys(ctx, "run1", "over"); err != nil || !slices.Equal(ids, []string{b.ID, c.ID}) {
		t.Errorf("got %v, %v", ids, err)
	}
	if k, err := s.KeyByID(ctx, a.ID); err != nil || k.RevokedAt != nil {
		t.Errorf("the parent: %+v, %v", k, err)
	}
}

func TestExtend(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	a, b, _ := line3(t, s)
	if k, err := s.ExtendKey(ctx, b.ID, b.ExpiresAt.Add(time.Second)); err != nil || !k.ExpiresAt.Equal(b.ExpiresAt.Add(time.Second)) {
		t.Errorf("a second: %v, %v", k.ExpiresAt, err)
	}
	if k, err := s.ExtendKey(ctx, b.ID, a.ExpiresAt.Add(time.Hour)); err != nil || !k.ExpiresAt.Equal(a.ExpiresAt) {
		t.Errorf("beyond its parent's end %v: %v, %v", a.ExpiresAt, k.ExpiresAt, err)
	}
	if k, err := s.ExtendKey(ctx, b.ID, b.CreatedAt); err != nil || !k.ExpiresAt.Equal(a.ExpiresAt) {
		t.Errorf("back: %v, %v", k.ExpiresAt, err)
	}
	if stored, err := s.KeyByID(ctx, b.ID); err != nil || !stored.ExpiresAt.Equal(a.ExpiresAt) {
		t.Errorf("stored: %v, %v", stored.ExpiresAt, err)
	}
	if _, err := s.ExtendKey(ctx, "ctx_none", a.ExpiresAt); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown one: %v", err)
	}
	if _, err := s.RevokeKey(ctx, a.ID, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ExtendKey(ctx, b.ID, time.Now().Add(2*time.Hour)); !errors.Is(err, ErrFinal) {
		t.Errorf("a revoked one: %v", err)
	}
	old := newKey("", "old")
	old.CreatedAt, old.ExpiresAt = Now().Add(-time.Hour), Now().Add(-time.Minute)
	old, err := s.InsertKey(ctx, old, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.ExtendKey(ctx, old.ID, time.Now().Add(time.Hour)); !errors.Is(err, ErrFinal) {
		t.Errorf("an expired one: %v", err)
	}
	if live, err := s.ListKeys(ctx, KeyFilter{Live: true}); err != nil || len(live) != 0 {
		t.Errorf("live: %v, %v", live, err)
	}
	// Its machine slept; its owner is there and extends it. Below one that is over, nothing goes on.
	slept := newKey("", "slept")
	slept.Kind, slept.RunID, slept.CreatedAt, slept.ExpiresAt = KeyRun, "run1", Now().Add(-time.Hour), Now().Add(-time.Minute)
	if slept, err = s.InsertKey(ctx, slept, nil); err != nil {
		t.Fatal(err)
	}
	until := Now().Add(time.Minute)
	if k, err := s.ExtendKey(ctx, slept.ID, until); err != nil || !k.ExpiresAt.Equal(until) {
		t.Errorf("the key of a run that slept: %v, %v", k.ExpiresAt, err)
	}
	below := newKey(old.ID, "below")
	below.Kind, below.RunID, below.CreatedAt, below.ExpiresAt = KeyRun, "run2", old.CreatedAt, old.ExpiresAt
	if below, err = s.InsertKey(ctx, below, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ExtendKey(ctx, below.ID, until); !errors.Is(err, ErrFinal) {
		t.Errorf("a run's key below an expired one: %v", err)
	}
	if _, err := s.RevokeKey(ctx, slept.ID, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ExtendKey(ctx, slept.ID, until.Add(time.Minute)); !errors.Is(err, ErrFinal) {
		t.Errorf("a run's key that is revoked: %v", err)
	}
}

func TestCountLiveBy(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	a, b, c := line3(t, s)
	other, err := s.InsertKey(ctx, newKey("", "other"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, by := range []string{a.ID, b.ID, c.ID, other.ID, "operator"} {
		run, err := s.InsertRun(ctx, Run{CreatedBy: by})
		if err != nil {
			t.Fatal(err)
		}
		of := []Sandbox{{RunID: run.ID, CreatedBy: by}, {CreatedBy: by}, {CreatedBy: by, Seen: SeenEnded}}
		if by == b.ID || by == c.ID { // a run with two sub-agents, of which one has ended
			of = append(of, Sandbox{RunID: run.ID}, Sandbox{RunID: run.ID, Seen: SeenEnded})
		}
		for _, b := range of {
			b.Backend = "gvisor"
			if _, err := s.InsertSandbox(ctx, b); err != nil {
				t.Fatal(err)
			}
		}
		if i == 2 {
			if _, err := s.UpdateRun(ctx, run.ID, func(r *Run) error { r.Status = RunFailed; return nil }); err != nil {
				t.Fatal(err)
			}
		}
	}
	for id, want := range map[string]int{a.ID: 6, b.ID: 6, c.ID: 6, other.ID: 2, "ctx_none": 0, "": 0} {
		if n, err := s.CountLiveBy(ctx, id); err != nil || n != want {
			t.Errorf("%s: %d, %v; want %d", id, n, err, want)
		}
	}
}

// Who can write to the table, but not to the schema, changes no line of keys and no right, and revives none.
func TestKeysAreNotEdited(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	a, b, c := line3(t, s)
	if _, err := s.RevokeKey(ctx, c.ID, ""); err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{
		`UPDATE keys SET parent_id = '' WHERE id = '` + b.ID + `'`,
		`UPDATE keys SET capabilities = '["*"]'`, `UPDATE keys SET profile = 'large'`, `UPDATE keys SET run_id = 'run2'`,
		`UPDATE keys SET kind = 'key', run_id = '' WHERE id = '` + b.ID + `'`, `UPDATE keys SET hash = replace(hash, 'a', 'b')`,
		`UPDATE keys SET id = 'ctx_x' WHERE id = '` + a.ID + `'`, `UPDATE keys SET agent_id = 'x'`, `UPDATE keys SET session_id = 'x'`,
		`UPDATE keys SET task_id = 'x'`, `UPDATE keys SET created_by = 'x'`, `UPDATE keys SET created_at = 0`, `UPDATE keys SET place = place + 100`,
		`UPDATE keys SET revoked_at = NULL WHERE id = '` + c.ID + `'`, `UPDATE keys SET revoked_at = revoked_at + 1 WHERE id = '` + c.ID + `'`,
		`UPDATE keys SET expires_at = expires_at + 1 WHERE id = '` + c.ID + `'`,
		`DELETE FROM keys`, `DELETE FROM keys WHERE id = '` + c.ID + `'`,
		`REPLACE INTO keys SELECT place, id, hash, kind, label, agent_id, session_id, task_id, run_id, '["*"]', profile, '', created_by,
			created_at, expires_at, NULL, '' FROM keys WHERE id = '` + c.ID + `'`,
		`REPLACE INTO keys SELECT place, id || 'x', '` + strings.Repeat("0", 64) + `', kind, label, agent_id, session_id, task_id, run_id, '["*"]', profile, '',
			created_by, created_at, expires_at, NULL, '' FROM keys WHERE id = '` + c.ID + `'`,
		`REPLACE INTO keys (id, hash, kind, capabilities, created_at, expires_at) VALUES ('` + c.ID + `', '` + strings.Repeat("2", 64) + `', 'key', '["*"]', 1, 2)`,
		`REPLACE INTO keys (id, hash, kind, capabilities, created_at, expires_at) VALUES ('ctx_y', '` + c.Hash + `', 'key', '["*"]', 1, 2)`,
		`INSERT INTO keys (id, hash, kind, capabilities, parent_id, created_at, expires_at)
			VALUES ('ctx_y', '` + strings.Repeat("1", 64) + `', 'key', '[]', 'ctx_none', 1, 2)`,
		`INSERT INTO keys (id, hash, kind, capabilities, parent_id, created_at, expires_at)
			VALUES ('ctx_y', '` + strings.Repeat("1", 64) + `', 'key', '[]', 'ctx_y', 1, 2)`,
	} {
		if _, err := s.db.ExecContext(ctx, statement); err == nil {
			t.Errorf("this passed: %s", statement)
		}
	}
	found, err := s.ListKeys(ctx, KeyFilter{})
	if err != nil || len(found) != 3 || found[0].RevokedAt == nil || found[1].ParentID != a.ID {
		t.Errorf("got %+v, %v", found, err)
	}
}

// A line that does not reach a key without a parent is none, however it came to be.
func TestBrokenLine(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	a, b, c := line3(t, s)
	if _, err := s.db.ExecContext(ctx, `DROP TRIGGER keys_no_delete; DELETE FROM keys WHERE id = '`+a.ID+`'`); err != nil {
		t.Fatal(err)
	}
	for _, k := range []Key{b, c} {
		if _, _, err := s.KeyByHash(ctx, k.Hash); !errors.Is(err, ErrNotFound) {
			t.Errorf("got %v", err)
		}
		if _, err := s.ExtendKey(ctx, k.ID, time.Now().Add(time.Minute)); !errors.Is(err, ErrNotFound) {
			t.Errorf("got %v", err)
		}
	}
	k := newKey(c.ID, "d")
	k.ExpiresAt = c.ExpiresAt
	if _, err := s.InsertKey(ctx, k, nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

// While children are made, their ancestor is revoked: none is left alive.
func TestRevokeAgainstIssue(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	a, err := s.InsertKey(ctx, newKey("", "a"), nil)
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	for worker := range 4 {
		wait.Go(func() {
			parent := a
			for i := range 15 {
				k := newKey(parent.ID, fmt.Sprint(worker, i))
				k.ExpiresAt = a.ExpiresAt
				made, err := s.InsertKey(ctx, k, nil)
				if errors.Is(err, ErrFinal) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				parent = made
				if worker == 0 && i == 5 {
					if _, err := s.RevokeKey(ctx, a.ID, "now"); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wait.Wait()
	if live, err := s.ListKeys(ctx, KeyFilter{Live: true}); err != nil || len(live) != 0 {
		t.Errorf("%d keys live, %v", len(live), err)
	}
}

// Whatever is issued, extended and revoked in which order: a key that counts has ancestors that all count, and none
// outlives its parent.
func TestKeysAsAModel(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	made := 0
	rapid.Check(t, func(t *rapid.T) {
		var ids []string
		revoked := map[string]bool{}
		parent := map[string]string{}
		t.Repeat(map[string]func(*rapid.T){
			"issue": func(t *rapid.T) {
				made++
				k := newKey("", fmt.Sprint("model", made))
				if len(ids) > 0 && rapid.Bool().Draw(t, "child") {
					k.ParentID = rapid.SampledFrom(ids).Draw(t, "parent")
				}
				k.ExpiresAt = Now().Add(time.Duration(rapid.IntRange(10, 60).Draw(t, "minutes")) * time.Minute)
				got, err := s.InsertKey(ctx, k, nil)
				if err != nil && !errors.Is(err, ErrFinal) && !errors.Is(err, ErrInvalid) {
					t.Fatal(err)
				}
				if err == nil {
					ids = append(ids, got.ID)
					parent[got.ID] = k.ParentID
				}
				if err == nil && revoked[k.ParentID] {
					t.Fatalf("a child of %s, which is revoked", k.ParentID)
				}
			},
			"extend": func(t *rapid.T) {
				if len(ids) == 0 {
					t.Skip("none")
				}
				id := rapid.SampledFrom(ids).Draw(t, "id")
				_, err := s.ExtendKey(ctx, id, Now().Add(time.Duration(rapid.IntRange(10, 120).Draw(t, "minutes"))*time.Minute))
				if (err != nil) != revoked[id] {
					t.Fatalf("%s, revoked %v: %v", id, revoked[id], err)
				}
			},
			"revoke": func(t *rapid.T) {
				if len(ids) == 0 {
					t.Skip("none")
				}
				if _, err := s.RevokeKey(ctx, rapid.SampledFrom(ids).Draw(t, "id"), ""); err != nil {
					t.Fatal(err)
				}
				for _, id := range ids {
					k, err := s.KeyByID(ctx, id)
					if err != nil {
						t.Fatal(err)
					}
					revoked[id] = k.RevokedAt != nil
				}
			},
			"": func(t *rapid.T) {
				found, err := s.ListKeys(ctx, KeyFilter{IDs: append([]string{}, ids...)})
				if err != nil || len(found) != len(ids) {
					t.Fatal(found, err)
				}
				now, byID := Now(), map[string]Key{}
				for _, k := range found {
					byID[k.ID] = k
				}
				for _, k := range found {
					p, below := byID[k.ParentID]
					if k.ParentID != parent[k.ID] || below != (k.ParentID != "") {
						t.Fatalf("the parent of %s became %q", k.ID, k.ParentID)
					}
					if below && (k.Live(now) && !p.Live(now) || k.ExpiresAt.After(p.ExpiresAt)) {
						t.Fatalf("%+v lives below %+v", k, p)
					}
				}
			},
		})
	})
}

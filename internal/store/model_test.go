package store

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"ravi/internal/procid"
)

func newModelLease(run, token string) ModelLease {
	sum := sha256.Sum256([]byte(token))
	return ModelLease{Hash: hex.EncodeToString(sum[:]), RunID: run, ExpiresAt: Now().Add(time.Hour)}
}

func TestModelLease(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	want := newModelLease("run1", "a")
	want.AgentID, want.SessionID, want.CreatedBy, want.Owner = "agt1", "ses1", "ctx_a", procid.ID{PID: 7, Start: 1 << 63}
	want.Providers, want.Models = []string{"anthropic", "mine"}, []string{"anthropic/claude-*"}
	want.Limits = ModelLimits{Requests: 1 << 60, Tokens: 2, USD: 0.5, PerMinute: 4}
	got, err := s.InsertModelLease(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	want.ID, want.CreatedAt = got.ID, got.CreatedAt
	stored, err := s.ModelLease(ctx, got.ID[:20])
	if diff := cmp.Diff(want, stored); err != nil || diff != "" {
		t.Errorf("stored: %v\n%s", err, diff)
	}
	// The expiry goes forth, never back.
	later := got.ExpiresAt.Add(time.Hour)
	for _, until := range []time.Time{later, later.Add(-time.Minute)} {
		if err := s.SlideModelLease(ctx, got.ID, until); err != nil {
			t.Fatal(err)
		}
		if l, err := s.ModelLease(ctx, got.ID); err != nil || !l.ExpiresAt.Equal(later) || !l.Live(later.Add(-1)) || l.Live(later) {
			t.Errorf("slid: %+v, %v", l, err)
		}
	}
	if live, err := s.LiveModelLeases(ctx); err != nil || len(live) != 1 || live[0].ID != got.ID {
		t.Errorf("live: %+v, %v", live, err)
	}
	for _, reason := range []string{"the run ended", "again"} {
		l, err := s.EndModelLease(ctx, got.ID, reason)
		if err != nil || l.EndedAt == nil || l.Reason != "the run ended" || l.Live(Now()) {
			t.Errorf("ended: %+v, %v", l, err)
		}
	}
	if live, err := s.LiveModelLeases(ctx); err != nil || len(live) != 0 {
		t.Errorf("live after its end: %+v, %v", live, err)
	}
	if err := s.SlideModelLease(ctx, got.ID, later.Add(time.Hour)); !errors.Is(err, ErrFinal) {
		t.Errorf("what has ended was extended: %v", err)
	}
	if _, err := s.InsertModelLease(ctx, newModelLease("run2", "a")); !errors.Is(err, ErrExists) {
		t.Errorf("the same token again: %v", err)
	}
	for name, change := range map[string]func(*ModelLease){
		"no hash": func(l *ModelLease) { l.Hash = "" }, "the token": func(l *ModelLease) { l.Hash = "rlease_x" },
		"no run": func(l *ModelLease) { l.RunID = "" }, "over": func(l *ModelLease) { l.ExpiresAt = Now().Add(-time.Hour) },
		"ended": func(l *ModelLease) { l.EndedAt = &later }, "a reason": func(l *ModelLease) { l.Reason = "x" },
	} {
		l := newModelLease("run2", name)
		change(&l)
		if _, err := s.InsertModelLease(ctx, l); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, err := range map[string]error{
		"slide": s.SlideModelLease(ctx, "mlsx", later), "end": second(s.EndModelLease(ctx, "mlsx", "")), "use": s.AddModelUsage(ctx, "mlsx", "p", "m", ModelUse{Requests: 1}),
	} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestModelUsage(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	var ids []string
	for i := range 3 {
		l := newModelLease(fmt.Sprintf("run%d", i), fmt.Sprint(i))
		l.SessionID, l.AgentID, l.CreatedBy = fmt.Sprintf("ses%d", i/2), "agt", []string{"operator", "ctx_a", ""}[i]
		l, err := s.InsertModelLease(ctx, l)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, l.ID)
	}
	if _, err := s.EndModelLease(ctx, ids[0], "over"); err != nil { // the last calls are counted all the same
		t.Fatal(err)
	}
	add := func(lease int, provider, model string, u ModelUse) {
		t.Helper()
		if err := s.AddModelUsage(ctx, ids[lease], provider, model, u); err != nil {
			t.Fatal(err)
		}
	}
	call := ModelUse{Requests: 1, Input: 1, Output: 2, CacheRead: 3, CacheWrite: 4, MicroUSD: 5, Priced: true}
	unpriced := ModelUse{Requests: 1, Output: 7}
	for range 3 {
		add(0, "anthropic", "a", call)
	}
	add(0, "anthropic", "b", call)
	add(1, "anthropic", "a", unpriced)
	add(2, "mine", "a", ModelUse{Requests: 1, Failed: 1}) // used nothing, so nothing lacks a price
	if err := s.AddModelUsage(ctx, ids[0], "anthropic", "a", ModelUse{Requests: 1, Output: -1}); !errors.Is(err, ErrInvalid) {
		t.Errorf("less than nothing: %v", err)
	}
	// What was used long ago.
	day := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	for i, at := range []time.Time{day.Add(-time.Hour), day, day.Add(23 * time.Hour)} {
		if _, err := s.db.ExecContext(ctx, `INSERT INTO model_usage SELECT lease_id, 'old', 'm', ?, 'runold', '', '', 'ctx_old', 0, 0, 0, ?, 0, 0, 0, 0, ?, ?
			FROM model_usage WHERE model = 'b'`, at.UnixMilli(), 1<<i, at.UnixMilli(), at.UnixMilli()); err != nil {
			t.Fatal(err)
		}
	}
	now := Now().Add(-24 * time.Hour)
	for name, test := range map[string]struct {
		filter UsageFilter
		want   map[string]UsageSum
	}{
		"all": {UsageFilter{Since: now}, map[string]UsageSum{"": {Requests: 6, Failed: 1, Unpriced: 1, Input: 4, Output: 15, CacheRead: 12, CacheWrite: 16, MicroUSD: 20}}},
		"run": {UsageFilter{By: ByRun, Since: now, AgentID: "agt"}, map[string]UsageSum{
			"run0": {Requests: 4, Input: 4, Output: 8, CacheRead: 12, CacheWrite: 16, MicroUSD: 20},
			"run1": {Requests: 1, Unpriced: 1, Output: 7}, "run2": {Requests: 1, Failed: 1}}},
		"session": {UsageFilter{By: BySession, SessionID: "ses1"}, map[string]UsageSum{"ses1": {Requests: 1, Failed: 1}}},
		"agent":   {UsageFilter{By: ByAgent, RunID: "run1"}, map[string]UsageSum{"agt": {Requests: 1, Unpriced: 1, Output: 7}}},
		"caller": {UsageFilter{By: ByCaller, Of: []string{"run1", "run2", ""}}, map[string]UsageSum{
			"ctx_a": {Requests: 1, Unpriced: 1, Output: 7}, "": {Requests: 1, Failed: 1}}},
		"provider": {UsageFilter{By: ByProvider, CreatedBy: "ctx_a"}, map[string]UsageSum{"anthropic": {Requests: 1, Unpriced: 1, Output: 7}}},
		"model": {UsageFilter{By: ByModel, RunID: "run0"}, map[string]UsageSum{
			"anthropic/a": {Requests: 3, Input: 3, Output: 6, CacheRead: 9, CacheWrite: 12, MicroUSD: 15},
			"anthropic/b": {Requests: 1, Input: 1, Output: 2, CacheRead: 3, CacheWrite: 4, MicroUSD: 5}}},
		"day":                    {UsageFilter{By: ByDay, Until: day.Add(48 * time.Hour)}, map[string]UsageSum{"2026-10-31": {Input: 1}, "2026-11-01": {Input: 6}}},
		"a day":                  {UsageFilter{Since: day, Until: day.Add(24 * time.Hour)}, map[string]UsageSum{"": {Input: 6}}},
		"next":                   {UsageFilter{Since: day.Add(24 * time.Hour), Until: day.Add(48 * time.Hour)}, map[string]UsageSum{}},
		"in the hour":            {UsageFilter{Since: day.Add(30 * time.Minute), Until: day.Add(time.Hour)}, map[string]UsageSum{"": {Input: 2}}},
		"of nothing":             {UsageFilter{Of: []string{}}, map[string]UsageSum{}},
		"of nobody":              {UsageFilter{Of: []string{""}}, map[string]UsageSum{}},
		"of a session and a key": {UsageFilter{Of: []string{"ses1", "ctx_a"}, By: ByRun}, map[string]UsageSum{"run1": {Requests: 1, Unpriced: 1, Output: 7}, "run2": {Requests: 1, Failed: 1}}},
		"of an agent":            {UsageFilter{Of: []string{"agt"}, SessionID: "ses1"}, map[string]UsageSum{"": {Requests: 1, Failed: 1}}},
		"of what begins so":      {UsageFilter{Of: []string{"ctx_o*", "ses1*", "*"}, By: ByRun}, map[string]UsageSum{"runold": {Input: 7}, "run2": {Requests: 1, Failed: 1}}},
		"of what is more": {UsageFilter{Of: []string{"ses*"}, By: BySession}, map[string]UsageSum{
			"ses0": {Requests: 5, Unpriced: 1, Input: 4, Output: 15, CacheRead: 12, CacheWrite: 16, MicroUSD: 20}, "ses1": {Requests: 1, Failed: 1}}},
		"last": {UsageFilter{By: ByRun, Limit: 1, Until: day.Add(48 * time.Hour)}, map[string]UsageSum{"runold": {Input: 7}}},
	} {
		sums, err := s.ModelUsage(ctx, test.filter)
		got := map[string]UsageSum{}
		for _, u := range sums {
			if u.FirstAt.IsZero() || u.LastAt.Before(u.FirstAt) {
				t.Errorf("%s: the times of %+v", name, u)
			}
			key := u.Key
			u.Key, u.FirstAt, u.LastAt = "", time.Time{}, time.Time{}
			got[key] = u
		}
		if diff := cmp.Diff(test.want, got); err != nil || diff != "" || len(sums) != len(got) {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
	days, err := s.ModelUsage(ctx, UsageFilter{By: ByDay})
	if err != nil || len(days) < 3 || days[len(days)-1].Key != "2026-10-31" {
		t.Errorf("the newest is not first: %+v, %v", days, err)
	}
	if _, err := s.ModelUsage(ctx, UsageFilter{By: "input; DROP TABLE runs"}); err == nil {
		t.Error("sums for anything")
	}
}

func TestAgentProgram(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	a, err := s.InsertAgent(ctx, Agent{Name: "anna", Program: "claude"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.UpdateAgent(ctx, a.ID, func(a *Agent) error { a.Program = "codex"; return nil }); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Agent(ctx, "anna"); err != nil || got.Program != "codex" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := s.UpdateAgent(ctx, a.ID, func(a *Agent) error { a.Program = "../x"; return nil }); !errors.Is(err, ErrInvalid) {
		t.Errorf("a path: %v", err)
	}
}

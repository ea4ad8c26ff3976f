package store

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"ravi/internal/procid"
)

func TestProfiles(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	first, err := s.PutProfile(ctx, Profile{Name: "small", Spec: []byte(`{"cpus":1}`)})
	if err != nil || first.CreatedAt.IsZero() {
		t.Fatalf("got %+v, %v", first, err)
	}
	if _, err := s.PutProfile(ctx, Profile{Name: "large", Spec: []byte(`{}`)}); err != nil {
		t.Fatal(err)
	}
	second, err := s.PutProfile(ctx, Profile{Name: "small", Spec: []byte(`{"cpus":2}`), CreatedAt: first.CreatedAt.Add(time.Hour)})
	if err != nil || string(second.Spec) != `{"cpus":2}` || !second.CreatedAt.Equal(first.CreatedAt) {
		t.Errorf("changed: %+v, %v", second, err)
	}
	all, err := s.Profiles(ctx)
	if err != nil || len(all) != 2 || all[0].Name != "large" || cmp.Diff(second, all[1]) != "" {
		t.Errorf("all: %+v, %v", all, err)
	}
	for name, p := range map[string]Profile{
		"name": {Name: "../x", Spec: []byte(`{}`)}, "no name": {Spec: []byte(`{}`)}, "spec": {Name: "x", Spec: []byte(`{`)}, "no spec": {Name: "x"},
	} {
		if _, err := s.PutProfile(ctx, p); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.PutProfile(ctx, Profile{Name: "x", Spec: []byte(`"` + strings.Repeat("x", MaxContent) + `"`)}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}

	k := newKey("", "a")
	k.Profile = "small"
	if k, err = s.InsertKey(ctx, k, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.InsertAgent(ctx, Agent{Name: "ada", Profile: "large"}); err != nil {
		t.Fatal(err)
	}
	for name, user := range map[string]string{"small": "key " + k.ID, "large": "agent ada"} {
		if err := s.DeleteProfile(ctx, name); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), user) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.RevokeKey(ctx, k.ID, ""); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteProfile(ctx, "small"); err != nil {
		t.Errorf("once its key is revoked: %v", err)
	}
	if _, err := s.Profile(ctx, "small"); !errors.Is(err, ErrNotFound) {
		t.Errorf("the forgotten one: %v", err)
	}
	if err := s.DeleteProfile(ctx, "small"); !errors.Is(err, ErrNotFound) {
		t.Errorf("forgotten twice: %v", err)
	}
}

func TestLeases(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	until := Now().Add(time.Hour)
	want := Lease{Secret: "TOKEN", RunID: "run1", Owner: procid.ID{PID: 3, Start: 1 << 63}, ExpiresAt: &until}
	got, err := s.InsertLease(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	want.ID, want.CreatedAt = got.ID, got.CreatedAt
	if diff := cmp.Diff(want, got); diff != "" || !strings.HasPrefix(got.ID, "lse") {
		t.Errorf("given back:\n%s", diff)
	}
	other, err := s.InsertLease(ctx, Lease{Secret: "TOKEN", RunID: "run2"})
	if err != nil {
		t.Fatal(err)
	}
	live, err := s.LiveLeases(ctx)
	if diff := cmp.Diff([]Lease{other, want}, live); err != nil || diff != "" {
		t.Errorf("live: %v\n%s", err, diff)
	}
	ended, err := s.EndLease(ctx, got.ID, "over")
	if err != nil || ended.EndedAt == nil || ended.Reason != "over" {
		t.Errorf("ended: %+v, %v", ended, err)
	}
	again, err := s.EndLease(ctx, got.ID, "again")
	if diff := cmp.Diff(ended, again); err != nil || diff != "" {
		t.Errorf("twice: %v\n%s", err, diff)
	}
	eventsOf(t, s, EventLeaseEnded, 1)
	if _, err := s.EndLease(ctx, "lsenone", ""); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown one: %v", err)
	}
	if live, err := s.LiveLeases(ctx); err != nil || len(live) != 1 || live[0].ID != other.ID {
		t.Errorf("live: %+v, %v", live, err)
	}
}

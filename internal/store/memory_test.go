package store

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestMemoryPaths(t *testing.T) {
	for _, ok := range []string{"a", "a.md", "notes/2026/ä b.md", "a/b/c/d/e/f/g/h", strings.Repeat("x", 200), "a..b", "日本"} {
		if err := CheckMemoryPath(ok); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/../b", "a/./b", ".a", "a/.git/config", "a\\b", "..\\a", "a\nb", "a\x00b", "a\x1bb", "\x7f",
		"a\u202eb", "a\u200bb", "a\u0085b", "\xff", "a/\xc0\xaf", "a/b/c/d/e/f/g/h/i", strings.Repeat("x", 201), "a\u2028b", "a\u00a0b",
	} {
		if err := CheckMemoryPath(bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzMemoryPath(f *testing.F) {
	for _, seed := range []string{"a/b.md", "../x", "/x", "a//b", ".x", "a\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, p string) {
		if CheckMemoryPath(p) == nil && (path.Clean(p) != p || path.IsAbs(p) || strings.HasPrefix(p, "..") || path.Join("/root", p) != "/root/"+p || len(p) > 200) {
			t.Errorf("%q passed", p)
		}
	})
}

// What a run wrote changes nothing before it is approved.
func TestMemoryHolds(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	w := fillOnce(t, s) // a.md, which is x
	other, err := s.InsertAgent(ctx, Agent{Name: "bob"})
	if err != nil {
		t.Fatal(err)
	}
	write := func(m MemoryFile) MemoryFile {
		t.Helper()
		m.AgentID, m.Kind = w.agent.ID, MemoryNote
		got, err := s.WriteMemory(ctx, m)
		if err != nil {
			t.Fatal(err)
		}
		stored, err := s.MemoryByID(ctx, got.ID)
		if diff := cmp.Diff(got, stored); err != nil || diff != "" {
			t.Errorf("stored: %v\n%s", err, diff)
		}
		return got
	}
	holds := func(when, want string) {
		t.Helper()
		found, err := s.Memory(ctx, w.agent.ID, MemoryNote)
		if err != nil {
			t.Fatal(err)
		}
		names, err := s.MemoryNames(ctx, w.agent.ID, MemoryNote)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for i, m := range found {
			got = append(got, m.Path+"="+m.Content)
			one, err := s.MemoryFile(ctx, w.agent.ID, MemoryNote, m.Path)
			if err != nil || cmp.Diff(m, one) != "" {
				t.Errorf("%s: %s is %+v, %v", when, m.Path, one, err)
			}
			m.Content = ""
			if i >= len(names) || cmp.Diff(m, names[i]) != "" {
				t.Errorf("%s: named %+v, not %+v", when, names, m)
			}
		}
		if strings.Join(got, " ") != want || len(names) != len(found) {
			t.Errorf("%s: %v, want %s", when, got, want)
		}
	}
	holds("at first", "a.md=x")
	early := write(MemoryFile{Path: "a.md", Content: "early", State: MemoryPending, RunID: "run1", KeyID: "ctx_a", Author: "run"})
	late := write(MemoryFile{Path: "a.md", Content: "late", State: MemoryPending})
	b := write(MemoryFile{Path: "b", Content: "ü", State: MemoryPending})
	holds("pending", "a.md=x")
	if b.Size != 2 || early.DecidedAt != nil {
		t.Errorf("written: %+v, %+v", b, early)
	}
	pending, err := s.PendingMemory(ctx, MemoryFilter{Agents: []string{w.agent.ID}})
	if err != nil || len(pending) != 3 || pending[0].ID != b.ID || pending[2].ID != early.ID {
		t.Errorf("pending: %+v, %v", pending, err)
	}
	for name, f := range map[string]MemoryFilter{"other": {AgentID: other.ID}, "no agents": {Agents: []string{}}, "end": {Before: early.ID}} {
		if found, err := s.PendingMemory(ctx, f); err != nil || len(found) != 0 {
			t.Errorf("pending, %s: %v, %v", name, found, err)
		}
	}
	decide := func(m MemoryFile, approve bool) {
		t.Helper()
		got, err := s.DecideMemory(ctx, m.ID, approve, "operator")
		if err != nil || got.DecidedAt == nil || got.DecidedBy != "operator" || (got.State == MemoryApproved) != approve {
			t.Errorf("decided: %+v, %v", got, err)
		}
	}
	decide(late, true)
	holds("the later one", "a.md=late")
	decide(early, true) // written before, decided after
	holds("the earlier one", "a.md=early")
	decide(b, false)
	holds("one was rejected", "a.md=early")
	for _, m := range []MemoryFile{b, early} {
		if _, err := s.DecideMemory(ctx, m.ID, true, "x"); !errors.Is(err, ErrFinal) {
			t.Errorf("decided twice: %v", err)
		}
	}
	if _, err := s.DecideMemory(ctx, "memnone", true, "x"); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown one: %v", err)
	}
	write(MemoryFile{Path: "a.md", Removed: true, State: MemoryPending})
	holds("a removal is pending", "a.md=early")
	write(MemoryFile{Path: "a.md", Removed: true, State: MemoryApproved})
	holds("removed", "")
	if _, err := s.MemoryFile(ctx, w.agent.ID, MemoryNote, "a.md"); !errors.Is(err, ErrNotFound) {
		t.Errorf("the removed one: %v", err)
	}
	// The clock goes back by a day: what is decided last holds.
	write(MemoryFile{Path: "a.md", Content: "after", State: MemoryApproved, CreatedAt: Now().AddDate(0, 0, -1)})
	holds("written after", "a.md=after")
	if history, err := s.MemoryHistory(ctx, w.agent.ID, MemoryNote, "a.md", 0); err != nil || len(history) != 6 || history[0].Content != "after" || history[5].Content != "x" {
		t.Errorf("history: %+v, %v", history, err)
	}
	if history, err := s.MemoryHistory(ctx, w.agent.ID, MemoryNote, "a.md", 2); err != nil || len(history) != 2 {
		t.Errorf("the last two: %+v, %v", history, err)
	}
	for _, kind := range []MemoryKind{MemorySkill} {
		if found, err := s.Memory(ctx, w.agent.ID, kind); err != nil || len(found) != 0 || found == nil {
			t.Errorf("%s: %v, %v", kind, found, err)
		}
	}
	if found, err := s.Memory(ctx, other.ID, MemoryNote); err != nil || len(found) != 0 {
		t.Errorf("of another: %v, %v", found, err)
	}
}

func TestMemoryRefusals(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	w := fillOnce(t, s)
	for name, test := range map[string]struct {
		change func(*MemoryFile)
		want   error
	}{
		"agent":     {func(m *MemoryFile) { m.AgentID = "agtnone" }, ErrNotFound},
		"kind":      {func(m *MemoryFile) { m.Kind = "odd" }, ErrInvalid},
		"rejected":  {func(m *MemoryFile) { m.State = MemoryRejected }, ErrInvalid},
		"no state":  {func(m *MemoryFile) { m.State = "" }, ErrInvalid},
		"path":      {func(m *MemoryFile) { m.Path = "../a" }, ErrInvalid},
		"size":      {func(m *MemoryFile) { m.Content = strings.Repeat("x", MaxContent+1) }, ErrTooLarge},
		"bytes":     {func(m *MemoryFile) { m.Content = "\xff" }, ErrInvalid},
		"zero":      {func(m *MemoryFile) { m.Content = "a\x00b" }, ErrInvalid},
		"removal":   {func(m *MemoryFile) { m.Removed = true }, ErrInvalid},
		"below":     {func(m *MemoryFile) { m.Path = "a.md/b" }, ErrExists},
		"far below": {func(m *MemoryFile) { m.Path = "a.md/b/c" }, ErrExists},
	} {
		m := MemoryFile{AgentID: w.agent.ID, Kind: MemoryNote, Path: "new", Content: "x", State: MemoryApproved}
		test.change(&m)
		if _, err := s.WriteMemory(ctx, m); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if found, err := s.Memory(ctx, w.agent.ID, MemoryNote); err != nil || len(found) != 1 {
		t.Errorf("there are %v, %v", found, err)
	}
	largest := MemoryFile{AgentID: w.agent.ID, Kind: MemoryNote, Path: "dir/sub/file", Content: strings.Repeat("x", MaxContent), State: MemoryApproved}
	if _, err := s.WriteMemory(ctx, largest); err != nil {
		t.Errorf("the largest: %v", err)
	}
	pending, err := s.WriteMemory(ctx, MemoryFile{AgentID: w.agent.ID, Kind: MemoryNote, Path: "dir/sub", State: MemoryPending})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.DecideMemory(ctx, pending.ID, true, ""); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "dir/sub/file") {
		t.Errorf("a file where a directory is: %v", err)
	}
	for _, beside := range []string{"dir/sub.md", "dir/sub0", "dir/su", "a.md0"} {
		if _, err := s.WriteMemory(ctx, MemoryFile{AgentID: w.agent.ID, Kind: MemoryNote, Path: beside, State: MemoryApproved}); err != nil {
			t.Errorf("beside: %v", err)
		}
	}
	if _, err := s.WriteMemory(ctx, MemoryFile{AgentID: w.agent.ID, Kind: MemoryNote, Path: "dir/sub/file", Removed: true, State: MemoryApproved}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.DecideMemory(ctx, pending.ID, true, ""); err != nil {
		t.Errorf("once the directory is gone: %v", err)
	}
}

// Whatever is written, approved, rejected and removed in which order, with whatever the clock says: of each path the
// last approval holds, and what is pending never does.
func TestMemoryAsAModel(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	round := 0
	rapid.Check(t, func(t *rapid.T) {
		round++
		agent, err := s.InsertAgent(ctx, Agent{Name: fmt.Sprint("a", round)})
		if err != nil {
			t.Fatal(err)
		}
		held, waiting := map[string]string{}, map[string]MemoryFile{}
		hold := func(m MemoryFile) {
			if delete(held, m.Path); !m.Removed {
				held[m.Path] = m.Content
			}
		}
		steps := rapid.IntRange(1, 12).Draw(t, "steps")
		for i := range steps {
			ids := slices.Sorted(maps.Keys(waiting))
			if len(ids) > 0 && rapid.Bool().Draw(t, "decide") {
				m := waiting[rapid.SampledFrom(ids).Draw(t, "id")]
				approve := rapid.Bool().Draw(t, "approve")
				if _, err := s.DecideMemory(ctx, m.ID, approve, ""); err != nil {
					t.Fatal(err)
				}
				if delete(waiting, m.ID); approve {
					hold(m)
				}
			} else {
				m := MemoryFile{AgentID: agent.ID, Kind: MemoryNote, Path: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "path"),
					State: rapid.SampledFrom([]MemoryState{MemoryPending, MemoryApproved}).Draw(t, "state"), Removed: rapid.Bool().Draw(t, "removed"),
					CreatedAt: Now().Add(time.Duration(rapid.IntRange(-100, 100).Draw(t, "clock")) * time.Second)}
				if !m.Removed {
					m.Content = fmt.Sprint(i)
				}
				got, err := s.WriteMemory(ctx, m)
				if err != nil {
					t.Fatal(err)
				}
				if m.State == MemoryApproved {
					hold(got)
				} else {
					waiting[got.ID] = got
				}
			}
			found, err := s.Memory(ctx, agent.ID, MemoryNote)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, m := range found {
				got[m.Path] = m.Content
			}
			if diff := cmp.Diff(held, got); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

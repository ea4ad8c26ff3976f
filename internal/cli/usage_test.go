package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ravi/internal/access"
	"ravi/internal/command"
	"ravi/internal/store"
	safe "ravi/internal/term"
)

// used records what a run used.
func (w *world) used(r store.Run, model string, u store.ModelUse) {
	w.t.Helper()
	sum := sha256.Sum256([]byte(r.ID + model))
	l := must[store.ModelLease](w.t)(w.store.InsertModelLease(w.t.Context(), store.ModelLease{
		Hash: hex.EncodeToString(sum[:]), RunID: r.ID, AgentID: r.AgentID, SessionID: r.SessionID, CreatedBy: r.CreatedBy, ExpiresAt: store.Now().Add(time.Hour),
	}))
	if err := w.store.AddModelUsage(w.t.Context(), l.ID, "anthropic", model, u); err != nil {
		w.t.Fatal(err)
	}
}

// sums are the sums that a caller is given, by what they are for, as CALLS or CALLS/TOTAL.
func (w *world) sums(who access.Caller, input string) string {
	w.t.Helper()
	var out usageSums
	if err := json.Unmarshal([]byte(w.allow(who, "usage.usage", w.fill(input))), &out); err != nil {
		w.t.Fatal(err)
	}
	var text []string
	for _, s := range out.Items {
		text = append(text, fmt.Sprintf("%s=%d", s.Key, s.Requests))
	}
	slices.Sort(text)
	return fmt.Sprintf("%s of %d", strings.Join(text, " "), out.Total.Requests)
}

// A holder of a key sees what its own run and session used and what was made with its key or one below it; of another's it
// learns nothing, however it asks.
func TestKeysOfUsage(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	call := store.ModelUse{Requests: 1, Input: 10, Output: 20, MicroUSD: 5, Priced: true}
	w.used(w.mine.run, "a", call)
	w.used(w.theirs.run, "secret-model", call)
	more := func(by, session string) store.Run {
		return must[store.Run](t)(w.store.InsertRun(ctx, store.Run{SessionID: session, CreatedBy: by}))
	}
	w.used(more(access.Operator, w.mine.session.ID), "b", call) // in the same session
	w.used(more(access.Operator, ""), "c", call)                // nobody's
	until := store.Now().Add(time.Hour)
	w.used(must[store.Run](t)(w.store.InsertRun(ctx, store.Run{AgentID: w.mine.agent.ID, CreatedBy: access.Operator})), "e", call) // the same agent's, elsewhere
	key := func(parent string) store.Key {
		sum := sha256.Sum256([]byte("key of " + parent))
		return must[store.Key](t)(w.store.InsertKey(ctx, store.Key{Hash: hex.EncodeToString(sum[:]), ParentID: parent, ExpiresAt: until}, nil))
	}
	parent := key("")
	child := key(parent.ID)
	byChild := more(child.ID, w.theirs.session.ID)
	w.used(byChild, "d", call)

	operator := access.AsOperator()
	for input, want := range map[string]string{
		`{}`:              "anthropic/a=1 anthropic/b=1 anthropic/c=1 anthropic/d=1 anthropic/e=1 anthropic/secret-model=1 of 6",
		`{"by": "agent"}`: "=3 MINE.AGENT=2 THEIRS.AGENT=1 of 6",
		`{"by": "session", "session": "bert-web"}`: "THEIRS.SESSION=2 of 2", `{"by": "run", "agent": "bert"}`: "THEIRS.RUN=1 of 1",
		`{"by": "provider", "caller": "operator"}`: "anthropic=5 of 5", `{"by": "model", "run": "THEIRS.RUN"}`: "anthropic/secret-model=1 of 1",
		`{"by": "day", "since": "2h"}`: store.Now().Format(time.DateOnly) + "=6 of 6", `{"by": "day", "until": "7d"}`: " of 0",
	} {
		if got := w.sums(operator, input); got != w.fill(want) {
			t.Errorf("the operator, %s: %s", input, got)
		}
	}
	me := w.holder() // a run's key with nothing in it
	holds := func(id string, capabilities ...string) access.Caller {
		held, err := access.ParseCapabilities(capabilities)
		if err != nil {
			t.Fatal(err)
		}
		return access.WithKey(access.Key{ID: id, Capabilities: held, Profile: access.DefaultName})
	}
	for _, c := range []struct {
		name  string
		who   access.Caller
		input string
		want  string
	}{
		{"its own", me, `{}`, "anthropic/a=1 anthropic/b=1 of 2"},
		{"its run", me, `{"run": "MINE.RUN", "by": "run"}`, "MINE.RUN=1 of 1"},
		{"another's run", me, `{"run": "THEIRS.RUN"}`, " of 0"},
		{"another's session", me, `{"session": "THEIRS.SESSION"}`, " of 0"},
		{"another's agent", me, `{"agent": "THEIRS.AGENT", "by": "agent"}`, " of 0"},
		{"the operator's", me, `{"caller": "operator"}`, "anthropic/a=1 anthropic/b=1 of 2"},
		{"another key's", me, `{"caller": "` + child.ID + `"}`, " of 0"},
		{"by caller", me, `{"by": "caller"}`, "operator=2 of 2"},
		{"what a key below it made", holds(parent.ID), `{}`, "anthropic/d=1 of 1"},
		{"what it made", holds(child.ID), `{"by": "run"}`, byChild.ID + "=1 of 1"},
		{"not upwards", holds("ctx_stranger"), `{}`, " of 0"},
		{"a session's, by a capability", holds("ctx_stranger", "read:usage@"+w.theirs.session.ID), `{}`, "anthropic/d=1 anthropic/secret-model=1 of 2"},
		{"an agent's", holds("ctx_stranger", "read:usage.usage@"+w.theirs.agent.ID), `{}`, "anthropic/secret-model=1 of 1"},
		{"by a pattern", holds("ctx_stranger", "read:usage@"+w.mine.run.ID[:29]+"*"), `{}`, "anthropic/a=1 of 1"},
		{"all of it", holds("ctx_stranger", "read:usage"), `{"by": "provider"}`, "anthropic=6 of 6"},
		{"of other groups nothing", holds("ctx_stranger", "read:runs", "write:usage"), `{}`, " of 0"},
	} {
		if got := w.sums(c.who, c.input); got != w.fill(c.want) {
			t.Errorf("%s: %s", c.name, got)
		}
	}
	w.deny(access.Caller{}, "usage.usage", `{}`, "")
}

// Tables fit into eighty columns, whatever was used.
func TestUsageIsPrinted(t *testing.T) {
	sum := func(key string, n int64, unpriced int64) store.UsageSum {
		return store.UsageSum{Key: key, Requests: n, Failed: n, Input: n, CacheRead: n / 2, CacheWrite: n / 2, Output: n, MicroUSD: n, Unpriced: unpriced}
	}
	out := usageSums{By: "run", More: true, Total: sum("", 9_000_000_000, 1), Items: []store.UsageSum{
		sum("run01m8nar81mqgm7bvrx2k17az55", 1_234_567, 0), sum("", 12, 0), {Key: "none", Requests: 1, Unpriced: 1, Output: 9}, {Key: "\x1b[2Jevil", Requests: 1},
	}}
	var b strings.Builder
	if err := printUsage(&command.Env{}, &b, out); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if safe.Width(strings.TrimSuffix(line, "\n")) > 80 {
			t.Errorf("too wide: %s", line)
		}
	}
	for _, want := range []string{"\nrun01m8nar81mqgm7bvrx2k17az55   1.2M    1.2M  1.2M    1.2M  1.2M    1.2346\n", "\nno run ", "       -\n", "9000.00+\n", `\x1b[2Jevil`, "add --limit"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
}

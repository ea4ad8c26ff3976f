package bench

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ravi/internal/adapter"
	"ravi/internal/broker"
	"ravi/internal/install"
	"ravi/internal/store"
)

// The measures of models are taken only if they are named, and without a sandbox of the benchmark's own.
func TestModelsOnlyWhenNamed(t *testing.T) {
	all := &bench{}
	for _, name := range modelMeasures {
		if all.want(name) {
			t.Errorf("%s is measured though nobody named it", name)
		}
	}
	named := &bench{Options: Options{Only: expand([]string{modelsAll})}}
	if !named.wantAny("model_first") || !named.want("model_mem") || !named.want(agentTurn) || named.want("version") || !named.alone() {
		t.Errorf("%v is wrong", named.Only)
	}
	if !slices.Contains(Groups(), modelsAll) {
		t.Errorf("there is no group %s in %v", modelsAll, Groups())
	}
}

// upstream is one for a test.
func upstream(t *testing.T) *modelUpstream {
	t.Helper()
	u, err := newModelUpstream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := u.close(); err != nil {
			t.Error(err)
		}
	})
	return u
}

// startedJob does jobBroker in this process, and gives its address.
func startedJob(t *testing.T, j job) string {
	t.Helper()
	in, stop := io.Pipe()
	out, said := io.Pipe()
	over := make(chan error, 1)
	go func() { over <- j.broker(context.Background(), in, said) }()
	var at brokerAt
	if err := json.NewDecoder(out).Decode(&at); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop.Close()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	return at.URL
}

// A call passes the broker whole, with the lease alone, and is written down if it is to be.
func TestBrokerJob(t *testing.T) {
	up := upstream(t)
	for _, recorded := range []bool{false, true} {
		token, hash := broker.NewToken()
		j := job{Do: jobBroker, Base: up.url, Body: hash}
		if recorded {
			j.Home = t.TempDir()
		}
		base := startedJob(t, j) + "/" + benchProvider
		c := newModelClient(token)
		defer c.close()
		for range 2 {
			if took, err := c.first(t.Context(), base, question(shortModel, 1000)); err != nil || took <= 0 {
				t.Fatalf("%v, %v", took, err)
			}
		}
		foreign := newModelClient("rlease_" + strings.Repeat("A", 24))
		defer foreign.close()
		if _, err := foreign.first(t.Context(), base, question(shortModel, 100)); err == nil || !strings.Contains(err.Error(), "401") {
			t.Errorf("without the lease: %v", err)
		}
		if !recorded {
			continue
		}
		s, err := store.Open(t.Context(), j.Home)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if n, err := s.AuditEnd(t.Context()); err != nil || n < 2 {
			t.Errorf("%d rows of the audit, %v", n, err)
		}
	}
}

// What is no whole answer is no sample.
func TestFirstByteOfABrokenAnswer(t *testing.T) {
	for what, answer := range map[string]http.HandlerFunc{
		"has no end": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "event: message_start\n")
		},
		"answered 503": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusServiceUnavailable) },
		"answered 200": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "plain") },
	} {
		s := httptest.NewServer(answer)
		c := newModelClient("x")
		if _, err := c.first(t.Context(), s.URL, question(shortModel, 10)); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
		c.close()
		s.Close()
	}
}

// A stream that lacks an event is no sample, and its longest pause is found, of which who reads late sees a part only.
func TestStream(t *testing.T) {
	answer := func(events int, pause time.Duration) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range events {
				if i == 10 {
					_ = http.NewResponseController(w).Flush()
					time.Sleep(pause)
				}
				_, _ = io.WriteString(w, streamEvent)
			}
			_, _ = io.WriteString(w, modelEnd+"\n\n")
		}
	}
	ask := func(events int, pause time.Duration) (gap time.Duration, err error) {
		s := httptest.NewServer(answer(events, pause))
		defer s.Close()
		m := newModelClient("x")
		defer m.close()
		return m.stream(t.Context(), s.URL)
	}
	for events, says := range map[int]string{streamEvents - 1: "99 events", streamEvents + 1: "101 events"} {
		if gap, err := ask(events, 0); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%d events: %v, %v", events, gap, err)
		}
	}
	for pause := time.Second; ; pause *= 5 { // until it is longer than whatever kept the reader from the beginning
		gap, err := ask(streamEvents, pause)
		if err == nil && gap >= pause/3 {
			break
		}
		if err != nil || pause > time.Minute {
			t.Fatalf("with a pause of %v it is %v, %v", pause, gap, err)
		}
	}
}

// Who hangs gives no answer, and lets go when the asker goes.
func TestHung(t *testing.T) {
	up := upstream(t)
	c := newModelClient("x")
	defer c.close()
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() {
		_, err := c.open(ctx, up.hung, question(shortModel, 10))
		over <- err
	}()
	<-up.asked
	select {
	case err := <-over:
		t.Fatalf("it answered: %v", err)
	default:
	}
	cancel()
	if err := <-over; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestTurnTook(t *testing.T) {
	const good = `{"timings":{"command":1234},"patch":{"insertions":1}}`
	for said, want := range map[string]string{
		good:                              "",
		`{"event":"agent"}` + "\n" + good: "",
		"":                                "no time of its command",
		`{"timings":{"command":1234},"patch":{"insertions":0}}`: "one new line",
		`{"timings":{"clone":1},"patch":{"insertions":1}}`:      "no time of its command",
		`no JSON`: "the run's outcome",
	} {
		took, err := turnTook(said)
		if want == "" && (err != nil || took != 1234*time.Millisecond) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, %v", said, took, err)
		}
	}
}

// The user's settings of providers and of Ravi are not an agent's that is measured.
func TestTurnEnv(t *testing.T) {
	got := turnEnv([]string{"PATH=/bin", "RAVI_HOME=/x", "ANTHROPIC_AUTH_TOKEN=a", "OPENAI_API_KEY=b", "CLAUDE_CODE_X=1", "CODEX_HOME=/c", "HOME=/root"})
	if !slices.Equal(got, []string{"PATH=/bin", "HOME=/root"}) {
		t.Error(got)
	}
}

// Where no program is installed the report says so and what installs it, nothing has failed, and the loop is there.
func TestTurnsWithoutPrograms(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	b := &bench{Options: Options{Home: t.TempDir(), Runs: 1, Only: modelMeasures}, dir: t.TempDir(), report: &Report{}}
	who, err := b.turners()
	if err != nil {
		t.Fatal(err)
	}
	if len(who) != 1 || who[0].Name != adapter.Loop || who[0].where != ours || len(b.report.Skipped) != len(turners)-1 || b.report.Failed() {
		t.Errorf("%+v, %+v", who, b.report)
	}
	for _, s := range b.report.Skipped {
		if name := strings.TrimPrefix(s.What, agentTurn+", "); !strings.Contains(s.Why, "ravi agents install "+name) {
			t.Errorf("%+v", s)
		}
	}
}

// A program in a folder that sandboxes do not see does not count, and a damaged installation is told.
func TestFindTurner(t *testing.T) {
	p, _ := adapter.Lookup("claude")
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, p.Name), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	home := t.TempDir()
	if at, err := findTurner(home, p); !errors.Is(err, install.ErrMissing) {
		t.Errorf("%q, %v", at, err)
	}
	dir := filepath.Join(home, "agents", p.Name, p.Version)
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "ravi.json"), []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if at, err := findTurner(home, p); !errors.Is(err, install.ErrDamaged) {
		t.Errorf("%q, %v", at, err)
	}
}

// The goals of models are compared with what they are meant to be.
func TestModelGoals(t *testing.T) {
	b := &bench{Options: Options{Only: modelMeasures}, report: &Report{}}
	add := func(name, by string, values ...float64) {
		for _, v := range values {
			b.add(name, by, v)
		}
	}
	add("model_first", byBroker, 1.1, 1.2, 4)
	add("model_first", unrecorded, 0.2, 0.3, 2)
	add("model_streams", direct, 60, 70)
	add("model_streams", byBroker, 61, 321)
	add("model_mem", byBroker, 99)
	add(agentTurn, turnBy("claude", ours), 2100)
	add(agentTurn, turnBy("claude", bare), 1000)
	add(agentTurn, turnBy("codex", ours), 9000)
	add(agentTurn, turnBy("codex", bare), 1000)
	b.report.finish()
	met := map[string]bool{}
	for _, g := range b.report.Goals {
		met[g.Name] = g.Met
	}
	for name, want := range map[string]bool{
		"added to a model's first byte, broker": false, "added to a model's first byte, p99, broker": false,
		"added to a model's first byte, no record": true, "added to a model's first byte, p99, no record": true,
		"200 streams, the longest pause": false, "a stream's memory": true, "a turn of claude, as 2.0 on the host": false,
	} {
		if got, there := met[name]; !there || got != want {
			t.Errorf("%s: %v, there %v", name, got, there)
		}
	}
	if len(met) != 7 {
		t.Errorf("other goals: %v", met)
	}
	if !isOurs(turnBy("codex", ours)) || isOurs(turnBy("codex", bare)) || isOurs(direct) || !isOurs(byBroker) {
		t.Error("who is ours is wrong")
	}
}

package secret

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ravi/internal/procid"
)

// script writes a program of the shell, for a secret to run.
func script(t *testing.T, text string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "source")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return []string{path}
}

func lease(t *testing.T, s *Store, source Source, scope Scope) *Lease {
	t.Helper()
	set(t, s, "T", Change{Hosts: []string{"a.example"}, Source: &source})
	l, err := s.Lease(t.Context(), "T", scope)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustValue(t *testing.T, l *Lease, want string) time.Time {
	t.Helper()
	got, until, err := l.Value(t.Context())
	if err != nil || got != want {
		t.Fatalf("got %q, %v; want %q", got, err, want)
	}
	return until
}

func TestLeaseOfStoredValue(t *testing.T) {
	s, now := newStore(t)
	l := lease(t, s, *stored(canary), Scope{Repository: "any/thing"})
	set(t, s, "T", Change{Source: stored("another value")})
	*now = now.Add(10000 * time.Hour)
	if until := mustValue(t, l, canary); !until.IsZero() {
		t.Errorf("it ends at %v", until)
	}
	if l.Secret().Name != "T" {
		t.Errorf("it is a lease of %+v", l.Secret())
	}
	for range 2 {
		if err := l.End(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if _, _, err := l.Value(t.Context()); !errors.Is(err, ErrEnded) {
		t.Errorf("got %v", err)
	}
	if _, err := s.Lease(t.Context(), "t", Scope{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

// A program is asked anew shortly before the end of what it gave, and not before.
func TestLeaseOfCommand(t *testing.T) {
	s, now := newStore(t)
	count := filepath.Join(t.TempDir(), "count")
	end := filepath.Join(t.TempDir(), "end")
	argv := script(t, `echo x >>"$1"; printf '{"value":"the value %d","expires_at":"%s"}\n' $(($(wc -l <"$1"))) "$(cat "$2")"`)
	l := lease(t, s, Source{Argv: append(argv, count, end)}, Scope{})
	expire := func(d time.Duration) { write(t, end, now.Add(d).Format(time.RFC3339)) }

	expire(time.Hour)
	if until := mustValue(t, l, "the value 1"); !until.Equal(now.Add(time.Hour)) {
		t.Errorf("it ends at %v", until)
	}
	*now = now.Add(time.Hour - margin - time.Second)
	mustValue(t, l, "the value 1")
	*now = now.Add(time.Second)
	expire(time.Minute)
	mustValue(t, l, "the value 2")
	// A short life has a short margin.
	*now = now.Add(47 * time.Second)
	mustValue(t, l, "the value 2")
	*now = now.Add(time.Second)
	expire(time.Hour)
	mustValue(t, l, "the value 3")

	// While the source fails, the value is good to its end, and the source is not asked all the time.
	write(t, end, "soon")
	*now = now.Add(time.Hour - margin)
	for range 3 {
		mustValue(t, l, "the value 3")
	}
	*now = now.Add(pause)
	mustValue(t, l, "the value 3")
	if b, err := os.ReadFile(count); err != nil || len(b) != len("x\n")*5 {
		t.Errorf("it was asked %d times, %v", len(b)/2, err)
	}
	*now = now.Add(margin - pause)
	_, _, err := l.Value(t.Context())
	mustCause(t, err, ErrSource)
	// What ended already is no value.
	expire(-time.Second)
	_, _, err = l.Value(t.Context())
	mustCause(t, err, ErrSource)
	expire(time.Hour)
	mustValue(t, l, "the value 8")
	if err := l.End(t.Context()); err != nil {
		t.Error(err)
	}
}

// Many who need a value at once have the source asked once.
func TestLeaseAsksOnce(t *testing.T) {
	s, _ := newStore(t)
	count := filepath.Join(t.TempDir(), "count")
	l := lease(t, s, Source{Argv: append(script(t, `echo x >>"$1"; echo "the plain value"`), count)}, Scope{})
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() {
			if got, _, err := l.Value(t.Context()); err != nil || got != "the plain value" {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	wait.Wait()
	if b, err := os.ReadFile(count); err != nil || string(b) != "x\n" {
		t.Errorf("asked %q, %v", b, err)
	}
}

func TestCommandOutput(t *testing.T) {
	end := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		out   string
		value string
		until time.Time
	}{
		"an object":        {`{"value":"12345678","expires_at":"2030-01-02T03:04:05Z"}`, "12345678", end},
		"camel case":       {"  {\n\"value\":\"12345678\",\"expiresAt\":\"2030-01-02T04:04:05+01:00\"}\n\n", "12345678", end},
		"no end":           {`{"value":"1234\"5678"}`, `1234"5678`, time.Time{}},
		"the value alone":  {"12345678\n", "12345678", time.Time{}},
		"breaks after it":  {"12345678\r\n\n", "12345678", time.Time{}},
		"quotes":           {`"12345678"`, `"12345678"`, time.Time{}},
		"nothing":          {"", "", time.Time{}},
		"two lines":        {"12345678\n12345678\n", "", time.Time{}},
		"too short":        {"1234567", "", time.Time{}},
		"no value":         {`{"expires_at":"2030-01-02T03:04:05Z"}`, "", time.Time{}},
		"a short value":    {`{"value":"1234567"}`, "", time.Time{}},
		"a broken value":   {`{"value":"12345678\n"}`, "", time.Time{}},
		"no time":          {`{"value":"12345678","expires_at":"soon"}`, "", time.Time{}},
		"a number as time": {`{"value":"12345678","expires_at":1}`, "", time.Time{}},
		"another key":      {`{"value":"12345678","token":"12345678"}`, "", time.Time{}},
		"half an object":   {`{"value":"12345678"`, "", time.Time{}},
		"two objects":      {`{"value":"12345678"}{"value":"12345678"}`, "", time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			v, until, err := parseOutput([]byte(c.out))
			if (err == nil) != (c.value != "") || err == nil && (v.Reveal() != c.value || !until.Equal(c.until)) {
				t.Errorf("got %q, %v, %v", v.Reveal(), until, err)
			}
			if err != nil && strings.Contains(err.Error(), "1234567") {
				t.Errorf("it shows the value: %v", err)
			}
		})
	}
}

// A program that fails is told about, in its own words and without the value.
func TestCommandFails(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"an exit code":     {"echo it is locked >&2; exit 3", "failed (exit status 3):\nit is locked"},
		"a signal":         {"kill -9 $$", "failed (signal: killed)"},
		"value on both":    {"echo " + canary + "; echo token " + canary + " is bad >&2; exit 1", "token [secret] is bad"},
		"value, encoded":   {"echo " + canary + "+/; echo token=canary-4f1d09ab-value%2B%2F is bad >&2; exit 1", "token=[secret] is bad"},
		"value in JSON":    {`echo '{"value":"` + canary + `"}'; echo ` + canary + ` >&2; exit 1`, ":\n[secret]"},
		"value, half JSON": {`echo '{"value":"` + canary + `"'; echo ` + canary + ` >&2; exit 1`, ":\n[secret]"},
		"value, no value":  {`printf '` + canary + `\n\nmore lines'; echo ` + canary + ` >&2`, "printed no secret: the value has more than one line:\n[secret]"},
		"a long complaint": {`echo ` + canary + `; i=0; while [ $i -lt 5000 ]; do echo complaint ` + canary + ` number $i; i=$((i+1)); done >&2; exit 1`, "complaint [secret] number 4999"},
		"one line of it":   {`echo ` + canary + `; i=0; while [ $i -lt 5000 ]; do printf %s ` + canary + `; i=$((i+1)); done >&2; exit 1`, "failed (exit status 1)"},
		"a long value":     {`v=` + canary + `; while [ ${#v} -lt 10000 ]; do v=$v$v; done; echo $v; for i in 1 2 3 4 5 6 7; do printf %s $v; done >&2; exit 1`, "failed (exit status 1)"},
		"too much":         {"yes " + canary, "prints more than 65536 bytes"},
		"nothing":          {"exit 0", "printed no secret: the value is empty"},
		"not UTF-8":        {`printf '\377\376 no' >&2; exit 1`, "\uFFFD"},
		"standard input":   {`read x || { echo no input >&2; exit 1; }`, "no input"},
		"where it runs":    {`echo "in $(pwd)" >&2; exit 1`, "/home"},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newStore(t)
			l := lease(t, s, Source{Argv: script(t, c.script)}, Scope{})
			_, _, err := l.Value(t.Context())
			told := mustCause(t, err, ErrSource)
			if !strings.Contains(told.Message, c.want) || !strings.Contains(told.Message, "the command source of the secret T ") {
				t.Errorf("got %q, want %q", told.Message, c.want)
			}
			for n := 8; n < len(canary); n++ { // nor a part of it
				if strings.Contains(told.Message, canary[n:]+canary[:8]) || strings.Contains(told.Message, canary[:n]) {
					t.Fatalf("it shows the value: %q", told.Message)
				}
			}
			if len(told.Message) > maxTail+200 {
				t.Errorf("%d bytes", len(told.Message))
			}
		})
	}
	s, _ := newStore(t)
	l := lease(t, s, Source{Argv: []string{"no-such-program-anywhere"}}, Scope{})
	_, _, err := l.Value(t.Context())
	if told := mustCause(t, err, ErrSource); !strings.Contains(told.Message, "cannot be run: ") {
		t.Errorf("got %q", told.Message)
	}
}

// A program that does not end is ended, with all that it started.
func TestCommandEnds(t *testing.T) {
	for name, text := range map[string]string{
		"itself":       `echo $$ >"$1"; exec sleep 1000`,
		"what it made": `sleep 1000 & echo $! >"$1"; wait`,
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newStore(t)
			pid := filepath.Join(t.TempDir(), "pid")
			argv := append(script(t, text), pid)
			var id procid.ID
			// A machine that does much else may need longer until the program has said who it is.
			for s.patience = 2 * time.Second; id == (procid.ID{}); s.patience *= 2 {
				if s.patience > 2*time.Minute {
					t.Fatal("the program does not begin")
				}
				l := lease(t, s, Source{Argv: argv}, Scope{})
				done := make(chan error)
				go func() {
					_, _, err := l.Value(t.Context())
					done <- err
				}()
				var err error
				for id == (procid.ID{}) && err == nil {
					select {
					case err = <-done:
					case <-time.After(time.Millisecond):
						b, _ := os.ReadFile(pid) // it is not there at first
						if n, whole := strings.CutSuffix(string(b), "\n"); whole {
							n, bad := strconv.Atoi(n)
							if bad != nil {
								t.Fatal(bad)
							}
							if id, bad = procid.Of(n); bad != nil {
								id = procid.ID{} // it is ended already
								err = <-done
							}
						}
					}
				}
				if err == nil {
					err = <-done
				}
				if told := mustCause(t, err, ErrSource); !strings.Contains(told.Message, "did not end within "+s.patience.String()) {
					t.Errorf("got %q", told.Message)
				}
				_ = os.Remove(pid)
			}
			for procid.Alive(id) && t.Context().Err() == nil { // it was sent a signal that it cannot refuse
				runtime.Gosched()
			}
		})
	}
}

// Who is interrupted does not wait for the program.
func TestCommandInterrupted(t *testing.T) {
	s, _ := newStore(t)
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	l := lease(t, s, Source{Argv: append(script(t, `echo here >"$1"; exec sleep 1000`), fifo)}, Scope{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, _, err := l.Value(ctx)
		done <- err
	}()
	if b, err := os.ReadFile(fifo); err != nil || string(b) != "here\n" {
		t.Fatalf("got %q, %v", b, err)
	}
	waiting, stop := context.WithCancel(t.Context())
	stop()
	if _, _, err := l.Value(waiting); !errors.Is(err, context.Canceled) {
		t.Errorf("who waits for its turn: %v", err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestDecodeRefuses(t *testing.T) {
	one := func(name, more string) string {
		return `{"name":"` + name + `","hosts":["a.example"],"headers":[],"env":[],"created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z",` + more + `}`
	}
	good := one("A", `"value":"`+canary+`"`)
	if doc, err := decode([]byte(`{"version":1,"secrets":[` + good + `]}`)); err != nil || len(doc.Secrets) != 1 {
		t.Fatalf("got %v", err)
	}
	for name, in := range map[string]string{
		"the same name":  good + "," + good,
		"case":           good + "," + one("a", `"value":"`+canary+`"`),
		"no source":      one("A", `"query":"q"`),
		"two sources":    one("A", `"value":"`+canary+`","command":["x"]`),
		"another key":    one("A", `"value":"`+canary+`","`+canary+`":1`),
		"a short value":  one("A", `"value":"short"`),
		"a bad name":     one("A-B", `"value":"`+canary+`"`),
		"an app, no key": one("A", `"github_app":{"app_id":1,"api_url":"https://a.example","permissions":{"contents":"read"},"private_key":"`+canary+`"}`),
	} {
		if _, err := decode([]byte(`{"version":1,"secrets":[` + in + `]}`)); err == nil || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// FuzzDocument holds that the reader of the decrypted document never breaks, repeats nothing of it in errors, and
// accepts only what it would write again.
func FuzzDocument(f *testing.F) {
	for _, in := range []string{
		`{"version":1,"secrets":[]}`, `{"version":2}`, `{}`, `[]`, `{"version":1,"secrets":null}`,
		`{"version":1,"secrets":[{"name":"A","hosts":["a.example"],"headers":["X-A: {}"],"env":["A"],"value":"canary-value","created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z"}]}`,
		`{"version":1,"secrets":[{"name":"A","hosts":["a.example"],"command":["x"]},{"name":"a","hosts":["a.example"],"command":["x"]}]}`,
		`{"version":1,"secrets":[{"name":"A","hosts":["a.example"],"github_app":{"app_id":1,"private_key":"canary-value"}}]}`,
		`{"version":"canary-value"}`, `{"version":1,"secrets":"canary-value"}`, `{"version":1,"canary-value":1}`,
		`{"version":1,"secrets":[{"name":"A","created_at":"canary-value"}]}`,
	} {
		f.Add([]byte(in))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		doc, err := decode(in)
		if err != nil {
			if strings.Contains(err.Error(), "canary") {
				t.Fatalf("it shows the value: %v", err)
			}
			return
		}
		for i := range doc.Secrets {
			if err := doc.Secrets[i].check(); err != nil {
				t.Fatal(err)
			}
		}
		out, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decode(out)
		if err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		if twice, err := json.Marshal(again); err != nil || string(twice) != string(out) {
			t.Fatalf("%s became %s, %v", out, twice, err)
		}
	})
}

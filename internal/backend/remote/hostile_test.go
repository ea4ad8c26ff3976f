package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"ravi/internal/backend"
	"ravi/internal/keeper"
	"ravi/internal/leaktest"
	"ravi/internal/network"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// nothing is never answered.
func nothing(Head, net.Conn) {}

// A runner that does not answer as one does is left, whatever it says instead, and says no more than can be held.
func TestHostileAnswers(t *testing.T) {
	say := func(text string) func(Head, net.Conn) {
		return func(_ Head, c net.Conn) { _, _ = io.WriteString(c, text) }
	}
	endless := func(_ Head, c net.Conn) {
		for b := bytes.Repeat([]byte("x"), 64<<10); ; {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	shown := spec()
	shown.Mounts = []backend.Mount{{Host: dir, Guest: "/opt/x", ReadOnly: true, Copy: true}}
	for what, c := range map[string]struct {
		say    func(Head, net.Conn)
		answer func(Head, net.Conn)
		spec   backend.Spec
		want   string
	}{
		"no JSON":              {say: say("hello\n"), want: "invalid character"},
		"a line without end":   {say: endless, want: errLong.Error()},
		"it hangs up":          {say: func(_ Head, c net.Conn) { c.Close() }, want: "EOF"},
		"half a line":          {say: func(_ Head, c net.Conn) { say(`{"ev`)(Head{}, c); c.Close() }, want: "EOF"},
		"it is over at once":   {say: say(`{"event":"ended"}` + "\n"), want: errProtocol.Error()},
		"ready too early":      {say: say(`{"event":"ready"}` + "\n"), want: errProtocol.Error()},
		"a file of ours":       {say: say(`{"event":"need","need":["/etc/passwd"]}` + "\n"), spec: shown, want: errProtocol.Error()},
		"what is not there":    {say: say(`{"event":"need","need":["` + strings.Repeat("0", 64) + `"]}` + "\n"), spec: shown, want: errProtocol.Error()},
		"more than there is":   {say: say(`{"event":"need","need":[` + strings.Repeat(`"a",`, 100) + `"a"]}` + "\n"), spec: shown, want: errProtocol.Error()},
		"an error with colour": {say: say(`{"error":"bad \u001b[31mred\u202e"}` + "\n"), want: "bad ?[31mred?"},
		"twice the same": {say: func(h Head, c net.Conn) {
			b, _ := json.Marshal(Reply{Event: EventNeed, Need: []string{h.Spec.Contents[0].Digest}})
			_, _ = c.Write(append(b, '\n'))
			_, _ = c.Write(append(b, '\n'))
		}, answer: func(_ Head, c net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, c) }()
			_, _ = io.WriteString(c, "{}\n")
		}, spec: shown, want: errProtocol.Error()},
		"a folder is answered without end": {say: func(h Head, c net.Conn) {
			b, _ := json.Marshal(Reply{Event: EventNeed, Need: []string{h.Spec.Contents[0].Digest}})
			_, _ = c.Write(append(b, '\n'))
		}, answer: endless, spec: shown, want: errLong.Error()},
	} {
		home, runner := sessions(t)
		if c.answer == nil {
			c.answer = nothing
		}
		runnerThat(t, runner, c.say, c.answer)
		if c.spec.ID == "" {
			c.spec = spec()
		}
		_, err := New(home).Create(t.Context(), c.spec)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", what, err, c.want)
		}
		select {
		case <-home.Done():
		case <-time.After(time.Minute):
			t.Errorf("%s: the session goes on", what)
		}
	}
}

// A runner that never answers is waited for as long as the caller likes.
func TestSilentRunner(t *testing.T) {
	home, runner := sessions(t)
	runnerThat(t, runner, nothing, nothing)
	why := errors.New("enough waited")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { cancel(why) })
	if _, err := New(home).Create(ctx, spec()); !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
	if _, err := New(home).Create(t.Context(), spec()); !errors.Is(err, ErrLost) {
		t.Errorf("over a session that is over: %v", err)
	}
}

// lying is an instance on a runner that says what it likes.
func lying(t testing.TB, later string, answer func(Head, net.Conn)) (backend.Instance, memory) {
	t.Helper()
	home, runner := sessions(t)
	runnerThat(t, runner, func(_ Head, c net.Conn) { _, _ = io.WriteString(c, `{"event":"created"}`+"\n"+later) }, answer)
	i, err := New(home).Create(t.Context(), spec())
	if err != nil {
		t.Fatal(err)
	}
	return i, runner
}

// What a runner says of a sandbox is bounded and can be shown, and only what a sandbox ends of is believed.
func TestLyingRunner(t *testing.T) {
	long := strings.Repeat("y", 30_000)
	notes, err := json.Marshal(append([]string{"a\x1b[2Jb", long}, strings.Split(strings.Repeat("n ", 1000), " ")...))
	if err != nil {
		t.Fatal(err)
	}
	home, runner := sessions(t)
	told := make(chan struct{})
	runnerThat(t, runner, func(_ Head, c net.Conn) {
		fmt.Fprintf(c, `{"event":"created"}`+"\n"+`{"event":"ready","notes":%s}`+"\n", notes)
		<-told // one that has ended is not ready any more
		fmt.Fprintf(c, `{"event":"ended","reason":"because \u001b[1m","detail":"%s"}`+"\n", long)
	}, nothing)
	i, err := New(home).Create(t.Context(), spec())
	if err != nil {
		t.Fatal(err)
	}
	got, err := i.Ready(t.Context())
	if err != nil || len(got) != mostNotes || got[0] != "a?[2Jb" || len(got[1]) > mostText+10 {
		t.Errorf("%d notes, %.100q %v", len(got), got, err)
	}
	close(told)
	<-i.Ended()
	if end := i.End(); end.Reason != keeper.ReasonRunner || len(end.Detail) > mostText+10 {
		t.Errorf("it ended with %.100q", end.Detail)
	}
	if err := i.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for what, later := range map[string]string{"nonsense": "xx\n", "another event": `{"event":"need"}` + "\n", "a line without end": strings.Repeat("x", 2*MaxReply)} {
		i, _ := lying(t, later, nothing)
		select {
		case <-i.Ended():
			if end := i.End(); end.Reason != keeper.ReasonRunner {
				t.Errorf("%s: it ended with %+v", what, end)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: it goes on", what)
		}
		if _, err := i.Ready(t.Context()); err == nil {
			t.Errorf("%s: it is ready", what)
		}
		if _, err := i.Dial(t.Context()); !errors.Is(err, keeper.ErrGone) {
			t.Errorf("%s: it is dialled: %v", what, err)
		}
	}
}

// Answers to what is asked of a sandbox are as bounded as its events, and errors of the runner's can be told apart.
func TestLyingAnswers(t *testing.T) {
	for what, c := range map[string]struct {
		text string
		want error
	}{
		"no JSON": {"hello\n", nil}, "without end": {strings.Repeat("x", 2*MaxReply), errLong}, "gone": {`{"code":"gone","error":"x"}` + "\n", keeper.ErrGone},
		"unsupported": {`{"code":"unsupported","error":"x"}` + "\n", backend.ErrUnsupported}, "nothing": {"", io.EOF},
	} {
		i, _ := lying(t, "", func(_ Head, conn net.Conn) {
			_, _ = io.WriteString(conn, c.text)
			conn.Close()
		})
		if err := i.Pause(t.Context()); err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", what, err)
		}
		i.Detach()
		if end := i.End(); end.Reason != keeper.ReasonDetached {
			t.Errorf("%s: it ended with %+v", what, end)
		}
	}
	i, _ := lying(t, "", nothing)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := i.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("closing one of which the end is never told: %v", err)
	}
	if err := i.Pause(t.Context()); !errors.Is(err, keeper.ErrGone) {
		t.Errorf("afterwards: %v", err)
	}
}

// A runner that sends without end, by as many streams as it likes, is held up, and this side's memory stays small.
func TestFloodedByRunner(t *testing.T) {
	i, runner := lying(t, "", func(_ Head, c net.Conn) {
		_, _ = io.WriteString(c, "{}\n")
	})
	next, err := i.(backend.Visited).Visits(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	// The first one is taken at once: it is not waited with for longer than a few seconds.
	type visit struct {
		network.Visit
		c   net.Conn
		err error
	}
	first := make(chan visit, 1)
	go func() {
		v, c, err := next(t.Context())
		first <- visit{v, c, err}
	}()
	opened := 0
	flood := bytes.Repeat([]byte("x"), 64<<10)
	for ; opened < 4000; opened++ {
		c, err := runner.Session.Open()
		if err != nil {
			break
		}
		_ = c.SetWriteDeadline(time.Now().Add(time.Minute))
		line := "{\"service\":\"" + strings.Repeat("s", 2*maxCallLine)
		if opened%2 == 0 {
			line = `{"service":"x","port":1}` + "\n"
		}
		if _, err := io.WriteString(c, line); err != nil {
			break
		}
		if opened == 0 {
			go func() {
				for {
					if _, err := c.Write(flood); err != nil {
						return
					}
				}
			}()
		}
	}
	v := <-first
	if v.err != nil || v.Visit != (network.Visit{Service: "x", Port: 1}) {
		t.Fatalf("%+v %v", v.Visit, v.err)
	}
	v.c.Close()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 64<<20 {
		t.Errorf("%d streams took %d MiB", opened, grown>>20)
	}
	i.Detach()
}

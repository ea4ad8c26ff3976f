package guest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"ravi/internal/guestapi"
	"ravi/internal/guestapi/process"
)

func TestHowProcessesEnd(t *testing.T) {
	g := startGuest(t, Options{})
	for _, tc := range []struct {
		name, script string
		code         int32
		exited       bool
		signal       int32
		status       string
	}{
		{"success", "exit 0", 0, true, 0, "exit status 0"},
		{"failure", "exit 3", 3, true, 0, "exit status 3"},
		{"looks like a signal", "exit 137", 137, true, 0, "exit status 137"},
		{"highest", "exit 255", 255, true, 0, "exit status 255"},
		{"killed", "kill -9 $$", -1, false, 9, "signal: killed"},
		{"terminated", "kill -TERM $$", -1, false, 15, "signal: terminated"},
		{"closes its own output", "exec >&- 2>&-; read x; exit 7", 7, true, 0, "exit status 7"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			msg := sh(tc.script)
			no := false
			msg.Stdin = &no
			end := g.start(t, testContext(t), msg).wait()
			if end.GetExitCode() != tc.code || end.GetExited() != tc.exited || end.GetSignal() != tc.signal || end.GetStatus() != tc.status {
				t.Errorf("end is %v", end)
			}
			if (end.Error != nil) != (tc.code != 0) {
				t.Errorf("error is %v", end.Error)
			}
		})
	}
}

func TestWhatCannotStart(t *testing.T) {
	g := startGuest(t, Options{})
	if err := os.WriteFile(filepath.Join(g.home, "plain"), []byte("#!/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(g.home, "lost"), []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cwd := "/no/such/place"
	for _, tc := range []struct {
		name   string
		config *process.ProcessConfig
		user   string
		code   connect.Code
		text   string
	}{
		{"not found", &process.ProcessConfig{Cmd: "no-such-command"}, "", connect.CodeNotFound, "no-such-command"},
		{"not found by path", &process.ProcessConfig{Cmd: "/no/such/command"}, "", connect.CodeNotFound, "/no/such/command"},
		{"interpreter not found", &process.ProcessConfig{Cmd: filepath.Join(g.home, "lost")}, "", connect.CodeNotFound, "interpreter"},
		{"not executable", &process.ProcessConfig{Cmd: filepath.Join(g.home, "plain")}, "", connect.CodePermissionDenied, "not executable"},
		{"a directory", &process.ProcessConfig{Cmd: "/usr"}, "", connect.CodePermissionDenied, "directory"},
		{"nothing", &process.ProcessConfig{}, "", connect.CodeInvalidArgument, "empty"},
		{"no process", nil, "", connect.CodeInvalidArgument, "no process"},
		{"no cwd", &process.ProcessConfig{Cmd: "true", Cwd: &cwd}, "", connect.CodeInvalidArgument, "cwd '/no/such/place' does not exist"},
		{"unknown user", &process.ProcessConfig{Cmd: "true"}, "stranger", connect.CodeUnauthenticated, "stranger"},
		{"bad variable", &process.ProcessConfig{Cmd: "true", Envs: map[string]string{"A=B": "hush"}}, "", connect.CodeInvalidArgument, "A=B"},
		{"NUL in a value", &process.ProcessConfig{Cmd: "true", Envs: map[string]string{"SECRET": "hu\x00sh"}}, "", connect.CodeInvalidArgument, "SECRET"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var headers []string
			if tc.user != "" {
				headers = []string{"Authorization", basic(tc.user)}
			}
			_, err := g.tryStart(t, testContext(t), &process.StartRequest{Process: tc.config}, headers...)
			wantCode(t, err, tc.code)
			if err != nil && !strings.Contains(err.Error(), tc.text) {
				t.Errorf("error is %q, want it to name %q", err, tc.text)
			}
			if err != nil && strings.Contains(err.Error(), "hush") {
				t.Errorf("error tells a value: %q", err)
			}
		})
	}
}

func basic(user string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"))
}

func TestUsersAndEnvironment(t *testing.T) {
	g := startGuest(t, Options{})
	status, _, body := call(t, g.HTTP, "POST", g.URL+"/init", strings.NewReader(`{"defaultUser":"user","envVars":{"GLOBAL":"g","BOTH":"g"}}`))
	if status != 204 {
		t.Fatalf("init: %d %s", status, body)
	}
	msg := sh(`id -u; id -g; id -G; pwd; env -0`)
	msg.Process.Envs = map[string]string{
		"BOTH": "call", "EMPTY": "", "EQUALS": "a=b=c", "LINES": "one\ntwo\n", "a.dot": "d", "LONG": strings.Repeat("x", 100_000),
	}
	msg.RawEnvs = map[string][]byte{"BYTES": {0xff, 'y', 0xfe}}
	r := g.start(t, testContext(t), msg)
	if end := r.wait(); end.GetExitCode() != 0 {
		t.Fatalf("end is %v: %s", end, r.stderr.String())
	}
	lines := strings.SplitN(r.stdout.String(), "\n", 5)
	for i, want := range []string{"1000", "1000", "1000 2000 2001", g.home} {
		if lines[i] != want {
			t.Errorf("line %d is %q, want %q", i, lines[i], want)
		}
	}
	env := strings.Split(strings.TrimSuffix(lines[4], "\x00"), "\x00")
	for name, want := range map[string]string{
		"BOTH": "call", "GLOBAL": "g", "EMPTY": "", "EQUALS": "a=b=c", "LINES": "one\ntwo\n", "LONG": strings.Repeat("x", 100_000),
		"BYTES": "\xffy\xfe", "HOME": g.home, "USER": "user", "LOGNAME": "user", "E2B_SANDBOX": "true", "PATH": os.Getenv("PATH"),
	} {
		if got := envValue(env, name); got != want {
			t.Errorf("%s is %.40q, want %.40q", name, got, want)
		}
	}
	// The test's own environment must not have come along.
	for _, entry := range env {
		name, _, _ := strings.Cut(entry, "=")
		if name == "GOROOT" || name == "GOCACHE" || name == "HOSTNAME" {
			t.Errorf("%s of the agent was passed on", name)
		}
	}

	// A number needs no entry.
	r = g.start(t, testContext(t), sh("id -u; id -g; pwd"), "Authorization", basic("4321"))
	r.wait()
	if got := r.stdout.String(); got != "4321\n4321\n/\n" {
		t.Errorf("user 4321 got %q", got)
	}
}

func TestStdinOmittedIsOpenAndFalseIsEmpty(t *testing.T) {
	g := startGuest(t, Options{})
	ctx := testContext(t)
	no := false
	closed := sh("cat; echo end")
	closed.Stdin = &no
	r := g.start(t, ctx, closed)
	r.wait()
	if r.stdout.String() != "end\n" {
		t.Errorf("output is %q", r.stdout.String())
	}
	_, err := g.Process.SendInput(ctx, connect.NewRequest(&process.SendInputRequest{Process: byPid(r.pid), Input: stdinOf("x")}))
	wantCode(t, err, connect.CodeNotFound)

	r = g.start(t, ctx, sh("cat; echo end"))
	for _, text := range []string{"one ", "", "two "} {
		if _, err := g.Process.SendInput(ctx, connect.NewRequest(&process.SendInputRequest{Process: byPid(r.pid), Input: stdinOf(text)})); err != nil {
			t.Fatal(err)
		}
	}
	stream := g.Process.StreamInput(ctx)
	msgs := []*process.StreamInputRequest{
		{Event: &process.StreamInputRequest_Start{Start: &process.StreamInputRequest_StartEvent{Process: byPid(r.pid)}}},
		{Event: &process.StreamInputRequest_Keepalive{Keepalive: &process.StreamInputRequest_KeepAlive{}}},
		{Event: &process.StreamInputRequest_Data{Data: &process.StreamInputRequest_DataEvent{Input: stdinOf("three ")}}},
		{Event: &process.StreamInputRequest_Data{Data: &process.StreamInputRequest_DataEvent{Input: stdinOf("four ")}}},
	}
	for _, m := range msgs {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := stream.CloseAndReceive(); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Process.CloseStdin(ctx, connect.NewRequest(&process.CloseStdinRequest{Process: byPid(r.pid)})); err != nil {
		t.Fatal(err)
	}
	r.wait()
	if want := "one two three four end\n"; r.stdout.String() != want {
		t.Errorf("output is %q, want %q", r.stdout.String(), want)
	}
}

func stdinOf(text string) *process.ProcessInput {
	return &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte(text)}}
}

func ptyOf(text string) *process.ProcessInput {
	return &process.ProcessInput{Input: &process.ProcessInput_Pty{Pty: []byte(text)}}
}

func TestInputThatNobodyReadsDoesNotHang(t *testing.T) {
	g := startGuest(t, Options{})
	ctx := testContext(t)
	r := g.start(t, ctx, sh("sleep 1000"))
	full := make(chan error, 1)
	go func() {
		_, err := g.Process.SendInput(ctx, connect.NewRequest(&process.SendInputRequest{
			Process: byPid(r.pid), Input: stdinOf(strings.Repeat("x", 2*maxPipe)), // more than the pipe takes
		}))
		full <- err
	}()
	if _, err := g.Process.SendSignal(ctx, connect.NewRequest(&process.SendSignalRequest{
		Process: byPid(r.pid), Signal: process.Signal_SIGNAL_SIGKILL,
	})); err != nil {
		t.Fatal(err)
	}
	if err := <-full; err == nil {
		t.Error("input that was never read counted as sent")
	}
	r.wait()
}

// A call that is over, and then given up, does not end the next one.
func TestInputAfterInput(t *testing.T) {
	reads, writes, err := newPipe(1)
	if err != nil {
		t.Fatal(err)
	}
	defer writes.Close()
	p := &proc{stdin: writes, exited: make(chan struct{})}
	read := make(chan int64, 1)
	go func() {
		defer reads.Close()
		n, _ := io.Copy(io.Discard, reads)
		read <- n
	}()
	const calls = 2000
	for i := range calls {
		given := make(chan struct{})
		err := p.writeInput([]byte("x"), false, given)
		close(given)
		if err != nil {
			t.Fatalf("input %d: %v", i, err)
		}
	}
	writes.Close()
	if n := <-read; n != calls {
		t.Errorf("%d bytes of %d came", n, calls)
	}
}

// unread waits until the guest has noticed that nobody reads what a process writes: until then that goes to whoever has left.
func (g *guestTest) unread(t *testing.T, pid uint32) *proc {
	t.Helper()
	p, err := g.server.procs.find(byPid(pid), false)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "nobody reads", func() bool {
		p.out.mu.Lock()
		defer p.out.mu.Unlock()
		return len(p.out.readers) == 0
	})
	return p
}

func TestClientThatGoesDoesNotKill(t *testing.T) {
	g := startGuest(t, Options{})
	ctx, cancel := context.WithCancel(testContext(t))
	r := g.start(t, ctx, sh("echo first; read x; echo got $x"))
	r.until(&r.stdout, "first\n")
	cancel()
	if err := r.drain(); err == nil {
		t.Fatal("the stream went on")
	}
	g.unread(t, r.pid)
	if !runs(int(r.pid)) {
		t.Fatal("the process went with its client")
	}
	if _, err := g.Process.SendInput(testContext(t), connect.NewRequest(&process.SendInputRequest{Process: byPid(r.pid), Input: stdinOf("on\n")})); err != nil {
		t.Fatal(err)
	}
	again := g.connect(t, testContext(t), r.pid)
	if end := again.wait(); end.GetExitCode() != 0 || again.stdout.String() != "got on\n" {
		t.Errorf("end %v, output %q", end, again.stdout.String())
	}
	// The end is told again to who comes later still.
	if end := g.connect(t, testContext(t), r.pid).wait(); end.GetExitCode() != 0 {
		t.Errorf("late end is %v", end)
	}
}

func TestOutputIsExact(t *testing.T) {
	g := startGuest(t, Options{})
	ctx := testContext(t)
	// 20 MB with every byte value, on both outputs at once.
	const script = `i=0; while [ $i -lt 80 ]; do head -c 131072 data; head -c 131072 data >&2; i=$((i+1)); done`
	data := make([]byte, 131072)
	for i := range data {
		data[i] = byte(i*7 + i>>8)
	}
	if err := os.WriteFile(filepath.Join(g.home, "data"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	msg := sh(script)
	msg.Process.Cwd = &g.home
	want := sha256.Sum256(bytes.Repeat(data, 80))
	first := g.start(t, ctx, msg)
	first.wait()
	for name, buf := range map[string]*bytes.Buffer{"stdout": &first.stdout, "stderr": &first.stderr} {
		if sha256.Sum256(buf.Bytes()) != want {
			t.Errorf("%s differs: %d bytes of %d", name, buf.Len(), 80*len(data))
		}
	}
}

// A program that writes in small pieces must not cost a message for each.
func TestSmallPiecesGather(t *testing.T) {
	const pieces = 20_000
	g := startGuest(t, Options{})
	r := g.start(t, testContext(t), sh(fmt.Sprintf("exec dd if=/dev/zero bs=100 count=%d status=none", pieces)))
	events := 0
	for {
		more, err := r.step()
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			break
		}
		events++
	}
	if r.stdout.Len() != 100*pieces || r.end.GetExitCode() != 0 {
		t.Errorf("%d bytes of %d, %v", r.stdout.Len(), 100*pieces, r.end)
	}
	if events > pieces/2 {
		t.Errorf("%d events for %d small pieces", events, pieces)
	}
}

func TestUnreadOutputSpoolsAndThenBlocks(t *testing.T) {
	g := startGuest(t, Options{SpoolBytes: 1 << 20})
	ctx, cancel := context.WithCancel(testContext(t))
	// Numbered lines, three times what the spool and the pipe hold.
	r := g.start(t, ctx, sh(`echo ready; read go; seq -w 1 400000; echo done >&2`))
	r.until(&r.stdout, "ready\n")
	cancel()
	_ = r.drain()
	bg := testContext(t)
	p := g.unread(t, r.pid)
	if _, err := g.Process.SendInput(bg, connect.NewRequest(&process.SendInputRequest{Process: byPid(r.pid), Input: stdinOf("\n")})); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the spool is full", func() bool {
		p.out.mu.Lock()
		defer p.out.mu.Unlock()
		return p.out.spool.write+recordHeader+guestapi.MaxChunk > p.out.spool.limit // the largest chunk has no room
	})
	if list, err := g.Process.List(bg, connect.NewRequest(&process.ListRequest{})); err != nil || len(list.Msg.GetProcesses()) != 1 {
		t.Fatalf("list: %v, %v: it should block, not end", list, err)
	}
	again := g.connect(t, bg, r.pid)
	if end := again.wait(); end.GetExitCode() != 0 {
		t.Fatalf("end is %v", end)
	}
	var want strings.Builder
	for i := 1; i <= 400000; i++ {
		fmt.Fprintf(&want, "%06d\n", i)
	}
	if got := again.stdout.String(); got != want.String() {
		t.Errorf("%d bytes of %d, or not in order", len(got), want.Len())
	}
	if again.stderr.String() != "done\n" {
		t.Errorf("stderr is %q", again.stderr.String())
	}
}

func TestSeveralReadersEachGetAll(t *testing.T) {
	g := startGuest(t, Options{})
	ctx := testContext(t)
	r := g.start(t, ctx, sh("echo ready; read go; seq 1 100000"))
	r.until(&r.stdout, "ready\n")
	other := g.connect(t, ctx, r.pid)
	p, err := g.server.procs.find(byPid(r.pid), false)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "both are attached", func() bool {
		p.out.mu.Lock()
		defer p.out.mu.Unlock()
		return len(p.out.readers) == 2
	})
	if _, err := g.Process.SendInput(ctx, connect.NewRequest(&process.SendInputRequest{Process: byPid(r.pid), Input: stdinOf("\n")})); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- other.drain() }()
	r.wait()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if r.stdout.String() != "ready\n"+other.stdout.String() || other.stdout.Len() != 588895 {
		t.Errorf("%d and %d bytes", r.stdout.Len(), other.stdout.Len())
	}
}

func TestGrandchildOnStdout(t *testing.T) {
	g := startGuest(t, Options{})
	ctx := testContext(t)
	// It holds the output open, and goes on writing for ever.
	r := g.start(t, ctx, sh(`(while :; do echo noise; done) & echo $! >&2; echo mine; exit 5`))
	end := r.wait()
	if end.GetExitCode() != 5 || !end.GetOutputLeft() {
		t.Errorf("end is %v", end)
	}
	if !strings.Contains(r.stdout.String(), "mine\n") {
		t.Error("what the process wrote is missing")
	}
	pid, err := strconv.Atoi(strings.TrimSpace(r.stderr.String()))
	if err != nil {
		t.Fatal(err)
	}
	// Neither blocked nor ended by SIGPIPE: it still gets on.
	ticks := func() int64 {
		var a, b int64
		f := strings.Fields(readFile(t, fmt.Sprintf("/proc/%d/stat", pid)))
		_, _ = fmt.Sscan(f[13], &a)
		_, _ = fmt.Sscan(f[14], &b)
		return a + b
	}
	before := ticks()
	eventually(t, "the grandchild gets on", func() bool { return ticks() > before+5 })
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func TestKeepalive(t *testing.T) {
	g := startGuest(t, Options{})
	ctx := testContext(t)
	r := g.start(t, ctx, sh("read x; exit 4"), keepaliveHeader, "1")
	for r.alive == 0 {
		if more, err := r.step(); err != nil || !more {
			t.Fatalf("ended before a keepalive: %v", err)
		}
	}
	if _, err := g.Process.CloseStdin(ctx, connect.NewRequest(&process.CloseStdinRequest{Process: byPid(r.pid)})); err != nil {
		t.Fatal(err)
	}
	r.wait()
	_, err := g.tryStart(t, ctx, sh("true"), keepaliveHeader, "soon")
	wantCode(t, err, connect.CodeInvalidArgument)
}

func TestEndedProcessesAreForgotten(t *testing.T) {
	g := startGuest(t, Options{Retain: time.Millisecond, RetainUnseen: time.Hour})
	ctx := testContext(t)
	// One whose time is over before it is noted that somebody was told is kept as one that nobody has seen.
	var seen []uint32
	eventually(t, "a seen one is forgotten", func() bool {
		r := g.start(t, ctx, sh("true"))
		r.wait()
		seen = append(seen, r.pid)
		return slices.ContainsFunc(seen, func(pid uint32) bool {
			_, err := g.server.procs.find(byPid(pid), true)
			return err != nil
		})
	})
	cctx, cancel := context.WithCancel(ctx)
	unseen := g.start(t, cctx, sh("echo a; read x; echo b"))
	unseen.until(&unseen.stdout, "a\n")
	cancel()
	_ = unseen.drain()
	p := g.unread(t, unseen.pid)
	if _, err := g.Process.CloseStdin(ctx, connect.NewRequest(&process.CloseStdinRequest{Process: byPid(unseen.pid)})); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has ended, unseen", func() bool {
		g.server.procs.mu.Lock()
		defer g.server.procs.mu.Unlock()
		return slices.Contains(g.server.procs.past, p)
	})
	late := g.connect(t, ctx, unseen.pid)
	if end := late.wait(); end.GetExitCode() != 0 || late.stdout.String() != "b\n" {
		t.Errorf("end %v, output %q", end, late.stdout.String())
	}
}

func TestManyAtOnce(t *testing.T) {
	g := startGuest(t, Options{})
	ctx := testContext(t)
	errs := make(chan error, 40)
	for i := range 40 {
		go func() {
			r, err := g.tryStart(t, ctx, sh(fmt.Sprintf("echo %d; exit %d", i, i)))
			if err == nil {
				err = r.drain()
			}
			if err == nil && (r.end.GetExitCode() != int32(i) || r.stdout.String() != fmt.Sprintf("%d\n", i)) {
				err = fmt.Errorf("process %d: %v, %q", i, r.end, r.stdout.String())
			}
			errs <- err
		}()
	}
	for range 40 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// The reaper of a program with other children must leave those alone.
func TestOtherChildrenAreLeftAlone(t *testing.T) {
	g := startGuest(t, Options{})
	r := g.start(t, testContext(t), sh("exit 3"))
	if err := exec.Command("true").Run(); err != nil {
		t.Error(err)
	}
	if end := r.wait(); end.GetExitCode() != 3 {
		t.Errorf("end is %v", end)
	}
}

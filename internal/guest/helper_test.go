package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"ravi/internal/guestapi"
	"ravi/internal/guestapi/process"
	"ravi/internal/leaktest"
	"ravi/internal/link"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// patience bounds waiting for what must happen; nothing is measured by it.
const testPatience = 2 * time.Minute

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testPatience)
	t.Cleanup(cancel)
	return ctx
}

// testAccounts makes users root, user (1000) and their groups.
func testAccounts(t testing.TB, home string) accounts {
	t.Helper()
	dir := t.TempDir()
	a := accounts{passwd: filepath.Join(dir, "passwd"), group: filepath.Join(dir, "group")}
	passwd := "root:x:0:0:root:/root:/bin/bash\n" +
		fmt.Sprintf("user:x:1000:1000::%s:/bin/sh\n", home) +
		"broken line\nnohome:x:1001:1001:::\n"
	group := "root:x:0:\nuser:x:1000:\nextra:x:2000:other,user\nmore:x:2001:user\nuser2:x:2002:users\n"
	for path, text := range map[string]string{a.passwd: passwd, a.group: group} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// guestTest is a server with a client over a real link.
type guestTest struct {
	*guestapi.Client
	server *Server
	home   string
}

func startGuest(t testing.TB, opts Options) *guestTest {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: the guest agent is root in its sandbox, and these tests start processes of other users")
	}
	home := homeDir(t)
	if opts.accounts == (accounts{}) {
		opts.accounts = testAccounts(t, home)
	}
	opts.SpoolDir = t.TempDir()
	s := New(opts)
	ours, theirs := newLink(t)
	served := make(chan error, 1)
	go func() { served <- s.ServeLink(theirs, "") }()
	c := guestapi.NewLinkClient(ours)
	t.Cleanup(func() {
		c.HTTP.CloseIdleConnections()
		ours.Close()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return &guestTest{Client: c, server: s, home: home}
}

// homeDir is a home of user 1000, which every parent lets it reach.
func homeDir(t testing.TB) string {
	t.Helper()
	home, err := os.MkdirTemp("", "guest-home-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(os.Chmod(home, 0o755), os.Chown(home, 1000, 1000)); err != nil && os.Geteuid() == 0 {
		t.Fatal(err)
	}
	return home
}

// newLink makes a link as connections.
func newLink(t testing.TB) (ours, theirs net.Conn) {
	t.Helper()
	a, b, err := link.New()
	if err != nil {
		t.Fatal(err)
	}
	return openEnd(t, a), openEnd(t, b)
}

func openEnd(t testing.TB, e link.End) net.Conn {
	t.Helper()
	var fds [2]int
	for i, f := range e.Files() {
		fd, err := unix.Dup(int(f.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		fds[i] = fd
	}
	c, err := link.OpenEnd(fds[0], fds[1])
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// tcp serves the guest the guarded way and returns its address.
func (g *guestTest) tcp(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(g.server.Guarded())
	t.Cleanup(srv.Close)
	return srv.URL
}

// run is a process as a client sees it.
type run struct {
	t      testing.TB
	next   func() (*process.ProcessEvent, error)
	close  func() error
	pid    uint32
	stdout bytes.Buffer
	stderr bytes.Buffer
	pty    bytes.Buffer
	end    *process.ProcessEvent_EndEvent
	alive  int // keepalives seen
}

func sh(script string) *process.StartRequest {
	return &process.StartRequest{Process: &process.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}}}
}

func (g *guestTest) start(t testing.TB, ctx context.Context, msg *process.StartRequest, headers ...string) *run {
	t.Helper()
	r, err := g.tryStart(t, ctx, msg, headers...)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	return r
}

func (g *guestTest) tryStart(t testing.TB, ctx context.Context, msg *process.StartRequest, headers ...string) (*run, error) {
	t.Helper()
	req := connect.NewRequest(msg)
	for i := 0; i < len(headers); i += 2 {
		req.Header().Set(headers[i], headers[i+1])
	}
	s, err := g.Process.Start(ctx, req)
	if err != nil {
		return nil, err
	}
	return newRun(t, s.Close, func() (*process.ProcessEvent, error) {
		if !s.Receive() {
			return nil, s.Err()
		}
		return s.Msg().GetEvent(), nil
	})
}

func (g *guestTest) connect(t *testing.T, ctx context.Context, pid uint32) *run {
	t.Helper()
	s, err := g.Process.Connect(ctx, connect.NewRequest(&process.ConnectRequest{Process: byPid(pid)}))
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	r, err := newRun(t, s.Close, func() (*process.ProcessEvent, error) {
		if !s.Receive() {
			return nil, s.Err()
		}
		return s.Msg().GetEvent(), nil
	})
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	return r
}

func newRun(t testing.TB, closeStream func() error, next func() (*process.ProcessEvent, error)) (*run, error) {
	r := &run{t: t, next: next, close: closeStream}
	ev, err := next()
	if err != nil {
		return nil, err
	}
	if ev.GetStart() == nil {
		return nil, fmt.Errorf("the first event is %v, not a start", ev)
	}
	r.pid = ev.GetStart().GetPid()
	return r, nil
}

// step takes one event; false after the last.
func (r *run) step() (bool, error) {
	ev, err := r.next()
	if err != nil || ev == nil {
		return false, err
	}
	switch e := ev.GetEvent().(type) {
	case *process.ProcessEvent_Data:
		r.stdout.Write(e.Data.GetStdout())
		r.stderr.Write(e.Data.GetStderr())
		r.pty.Write(e.Data.GetPty())
	case *process.ProcessEvent_End:
		r.end = e.End
	case *process.ProcessEvent_Keepalive:
		r.alive++
	}
	return true, nil
}

// wait takes all events and returns how the process ended.
func (r *run) wait() *process.ProcessEvent_EndEvent {
	r.t.Helper()
	if err := r.drain(); err != nil {
		r.t.Fatalf("stream: %v", err)
	}
	if r.end == nil {
		r.t.Fatal("the stream ended without an end event")
	}
	return r.end
}

func (r *run) drain() error {
	for {
		more, err := r.step()
		if err != nil || !more {
			return err
		}
	}
}

// until takes events until the buffer holds text.
func (r *run) until(buf *bytes.Buffer, text string) {
	r.t.Helper()
	for !bytes.Contains(buf.Bytes(), []byte(text)) {
		more, err := r.step()
		if err != nil || !more {
			r.t.Fatalf("the stream ended (%v) before %q; so far: %q", err, text, buf.String())
		}
	}
}

func byPid(pid uint32) *process.ProcessSelector {
	return &process.ProcessSelector{Selector: &process.ProcessSelector_Pid{Pid: pid}}
}

func byTag(tag string) *process.ProcessSelector {
	return &process.ProcessSelector{Selector: &process.ProcessSelector_Tag{Tag: tag}}
}

// runs says whether a process exists and is not a zombie.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	info, ok := parseStat(pid, stat)
	return ok && info.state != 'Z' && info.state != 'X'
}

// eventually waits for what another process does.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testPatience); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not so in time: %s", what)
		}
	}
}

func wantCode(t *testing.T, err error, code connect.Code) {
	t.Helper()
	if connect.CodeOf(err) != code {
		t.Errorf("error %v has code %v, want %v", err, connect.CodeOf(err), code)
	}
}

// call does a plain HTTP call and returns status, headers and body.
func call(t *testing.T, hc *http.Client, method, url string, body io.Reader, headers ...string) (int, http.Header, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(testContext(t), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
			continue
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range res.Trailer {
		res.Header[k] = v
	}
	return res.StatusCode, res.Header, data
}

package sandbox_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ravi/internal/guard"
	"ravi/internal/leaktest"
	"ravi/sandbox"
)

const debugRole = "RAVI_TEST_DEBUG_SOCKET"

// The test's program plays another one that asks at a debug socket, or opens a sandbox with it.
func init() {
	socket := os.Getenv(debugRole)
	if socket == "" {
		return
	}
	if home, ok := strings.CutPrefix(socket, "open "); ok {
		sb, err := sandbox.Open(context.Background(), debugConfig(), "", sandbox.WithHome(home))
		if err != nil {
			fmt.Println(errors.Is(err, sandbox.ErrInUse), err)
			os.Exit(0)
		}
		fmt.Println("open")
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is told, or killed
		_ = sb.Close()
		os.Exit(0)
	}
	res, err := debugHTTP(socket).Get("http://localhost/v1/sandboxes")
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	b, err := io.ReadAll(res.Body)
	fmt.Println(res.StatusCode, string(b), err)
	os.Exit(0)
}

func debugConfig() sandbox.Config {
	cfg := sandbox.Default()
	cfg.Backend, cfg.MemoryMiB, cfg.CPUs, cfg.Debug.Enabled = sandbox.BackendGVisor, 512, 1, true
	return cfg
}

func debugHTTP(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return guard.DialUnix(ctx, socket) }}}
}

// debugOpen opens a sandbox that is shown on the default socket of a home.
func debugOpen(t *testing.T, home string, opts ...sandbox.Option) *sandbox.Sandbox {
	t.Helper()
	sb, err := sandbox.Open(t.Context(), debugConfig(), "", append(opts, sandbox.WithHome(home))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sb.Close() }) // closed before by tests that look at the error
	return sb
}

// leaksNothing looks at the end of the test, when all that was made in it is closed.
func leaksNothing(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { leaktest.None(t, before) })
}

// debugClient asks at one.
type debugClient struct {
	t    *testing.T
	path string
	http *http.Client
}

func debugAt(t *testing.T, home string) *debugClient {
	t.Helper()
	c := &debugClient{t: t, path: filepath.Join(home, "sandbox", "debug.sock")}
	c.http = debugHTTP(c.path)
	t.Cleanup(c.http.CloseIdleConnections)
	return c
}

func (c *debugClient) post(ctx context.Context, path, body string) *http.Response {
	c.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/v1/"+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { res.Body.Close() })
	return res
}

// refused checks that a request is, and how it is told.
func (c *debugClient) refused(path, body string, status int, code, says string) {
	c.t.Helper()
	res := c.post(c.t.Context(), path, body)
	var doc struct {
		Error struct{ Code, Message, Hint string }
	}
	b, err := io.ReadAll(res.Body)
	if err == nil {
		err = json.Unmarshal(b, &doc)
	}
	e := doc.Error
	if err != nil || res.StatusCode != status || e.Code != code || !strings.Contains(e.Message, says) || e.Hint == "" {
		c.t.Errorf("%s %.200s: %d %s (%v), want %d %s with %q", path, body, res.StatusCode, b, err, status, code, says)
	}
}

type debugSeen struct {
	ID, Backend, Image, Status, Reason string
	CPUs                               float64
	MemoryMiB                          int       `json:"memory_mib"`
	CreatedAt                          time.Time `json:"created_at"`
}

func (c *debugClient) list() (out []debugSeen) {
	c.t.Helper()
	res, err := c.http.Get("http://localhost/v1/sandboxes")
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	var doc struct{ Sandboxes []debugSeen }
	if err := json.NewDecoder(res.Body).Decode(&doc); err != nil || res.StatusCode != http.StatusOK {
		c.t.Fatal(res.Status, err)
	}
	return doc.Sandboxes
}

// debugLine is a message of a stream.
type debugLine struct {
	Session, Sandbox string
	PID              int
	Stdout, Stderr   []byte
	Exit             *int
	Reason           string
	Signal           int
	Error            *struct{ Code, Message, Hint string }
}

// debugRun is a command that was asked for.
type debugRun struct {
	t       *testing.T
	lines   *bufio.Reader
	session string
	longest int
	said    []byte // read after what until looked for, with which it may come in one piece
}

func (c *debugClient) run(ctx context.Context, path, body string) *debugRun {
	c.t.Helper()
	res := c.post(ctx, path, body)
	r := &debugRun{t: c.t, lines: bufio.NewReader(res.Body)}
	first, err := r.next()
	if err != nil || first.Session == "" || first.PID == 0 {
		c.t.Fatalf("%s %.200s: %s %+v %v", path, body, res.Status, first, err)
	}
	r.session = first.Session
	return r
}

func (r *debugRun) next() (l debugLine, err error) {
	b, err := r.lines.ReadBytes('\n')
	if err != nil {
		return l, err
	}
	r.longest = max(r.longest, len(b))
	return l, json.Unmarshal(b, &l)
}

// until reads the output up to a text.
func (r *debugRun) until(text string) {
	r.t.Helper()
	for {
		if _, after, found := bytes.Cut(r.said, []byte(text)); found {
			r.said = after
			return
		}
		l, err := r.next()
		if err != nil || l.Exit != nil || l.Error != nil {
			r.t.Fatalf("%q did not come: %q %+v %v", text, r.said, l, err)
		}
		r.said = append(r.said, append(l.Stdout, l.Stderr...)...)
	}
}

// rest reads to the end.
func (r *debugRun) rest() (stdout, stderr string, last debugLine) {
	r.t.Helper()
	stdout = string(r.said)
	for {
		l, err := r.next()
		if err != nil {
			r.t.Fatalf("there is no end: %q %q %v", stdout, stderr, err)
		}
		stdout, stderr = stdout+string(l.Stdout), stderr+string(l.Stderr)
		if l.Exit != nil || l.Error != nil {
			if more, err := r.next(); err != io.EOF {
				r.t.Errorf("after the end comes %+v %v", more, err)
			}
			return stdout, stderr, l
		}
	}
}

func mode(t *testing.T, path string) os.FileMode {
	t.Helper()
	st, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return st.Mode()
}

// What is there is listed, commands run in it, several clients do so at once, and one that does not read hinders nobody.
// With the last sandbox the socket goes.
func TestDebug(t *testing.T) {
	leaksNothing(t)
	home := t.TempDir()
	before := syscall.Umask(0)
	one := debugOpen(t, home)
	syscall.Umask(before)
	c := debugAt(t, home)
	if socket, dir := mode(t, c.path), mode(t, filepath.Dir(c.path)); socket != os.ModeSocket|0o600 || dir != os.ModeDir|0o700 {
		t.Errorf("the socket is %v, its folder %v", socket, dir)
	}
	two := debugOpen(t, home)
	hidden := openAt(t, home, "") // without debug
	seen := c.list()
	if len(seen) != 2 || seen[0].ID != one.ID || seen[1].ID != two.ID {
		t.Fatalf("listed: %+v, not %s and %s", seen, one.ID, two.ID)
	}
	if s := seen[0]; s.Backend != "gvisor" || s.Image != "host" || s.Status != "running" || s.CPUs != 1 || s.MemoryMiB != 512 || time.Since(s.CreatedAt).Abs() > time.Hour {
		t.Errorf("listed: %+v", s)
	}

	// A client that reads nothing, of a command that writes for ever.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wedged := c.run(ctx, "sandboxes/"+one.ID+"/exec", `{"args": ["sh", "-c", "echo $$ >/tmp/wedged.new; mv /tmp/wedged.new /tmp/wedged; exec yes"]}`)
	_ = wedged

	in := base64.StdEncoding.EncodeToString([]byte("what it reads"))
	r := c.run(t.Context(), "sandboxes/"+one.ID+"/exec",
		`{"args": ["sh", "-c", "pwd; echo $A; id -u; cat; echo err >&2; exit 7"], "dir": "/etc", "env": {"A": "a b"}, "user": "root", "stdin": "`+in+`", "timeout": "1m"}`)
	stdout, stderr, end := r.rest()
	if stdout != "/etc\na b\n0\nwhat it reads" || stderr != "err\n" || end.Exit == nil || *end.Exit != 7 || end.Reason != "" {
		t.Errorf("stdout %q, stderr %q, %+v", stdout, stderr, end)
	}
	// Its input is over if none was given, every byte comes through, and no message is too large.
	r = c.run(t.Context(), "sandboxes/"+two.ID[:len(two.ID)-1]+"/exec", `{"args": ["sh", "-c", "cat; head -c 300000 /dev/zero; printf '\\377\\n'"]}`)
	if stdout, _, end := r.rest(); len(stdout) != 300002 || !strings.HasSuffix(stdout, "\x00\xff\n") || end.Exit == nil || *end.Exit != 0 || r.longest > 64<<10 {
		t.Errorf("%d bytes, the longest message of %d, %+v", len(stdout), r.longest, end)
	}
	if _, _, end := c.run(t.Context(), "sandboxes/"+two.ID+"/exec", `{"args": ["sleep", "600"], "timeout": "50ms"}`).rest(); end.Exit == nil || *end.Exit != -1 || end.Reason != sandbox.ReasonTimeout {
		t.Errorf("after its time: %+v", end)
	}

	for name, req := range map[string]struct {
		path, body   string
		status       int
		code, reason string
	}{
		"another's":         {"sandboxes/" + hidden.ID + "/exec", `{"args": ["true"]}`, 404, "NOT_FOUND", hidden.ID},
		"no id":             {"sandboxes/sbxnothing/shell", ``, 404, "NOT_FOUND", "sbxnothing"},
		"two are meant":     {"sandboxes/sbx/exec", `{"args": ["true"]}`, 409, "CONFLICT", "2 sandboxes"},
		"no command":        {"sandboxes/" + one.ID + "/exec", ``, 400, "USAGE", "args"},
		"an empty one":      {"sandboxes/" + one.ID + "/exec", `{"args": [""]}`, 400, "USAGE", "args"},
		"an unknown one":    {"sandboxes/" + one.ID + "/exec", `{"args": ["/no/such"]}`, 404, "COMMAND_NOT_FOUND", "/no/such"},
		"no program":        {"sandboxes/" + one.ID + "/exec", `{"args": ["/etc/passwd"]}`, 400, "NOT_EXECUTABLE", "/etc/passwd"},
		"an unknown user":   {"sandboxes/" + one.ID + "/exec", `{"args": ["true"], "user": "nobody-such"}`, 404, "NOT_FOUND", "nobody-such"},
		"out of all":        {"sandboxes/" + one.ID + "/exec", `{"args": ["true"], "dir": "../.."}`, 400, "USAGE", "outside"},
		"an unknown key":    {"sandboxes/" + one.ID + "/exec", `{"args": ["true"], "arg": 1}`, 400, "USAGE", "arg"},
		"a wrong type":      {"sandboxes/" + one.ID + "/exec", `{"args": "true"}`, 400, "USAGE", "args"},
		"no JSON":           {"sandboxes/" + one.ID + "/exec", `{`, 400, "USAGE", ""},
		"no UTF-8":          {"sandboxes/" + one.ID + "/exec", "{\"args\": [\"\xff\"]}", 400, "USAGE", "UTF-8"},
		"no base64":         {"sandboxes/" + one.ID + "/exec", `{"args": ["cat"], "stdin": "?"}`, 400, "USAGE", "base64"},
		"no time":           {"sandboxes/" + one.ID + "/exec", `{"args": ["true"], "timeout": "0s"}`, 400, "USAGE", "timeout"},
		"a size for exec":   {"sandboxes/" + one.ID + "/exec", `{"args": ["true"], "cols": 80, "rows": 24}`, 400, "USAGE", "size"},
		"half a size":       {"sandboxes/" + one.ID + "/shell", `{"cols": 80}`, 400, "USAGE", "80 columns and 0 rows"},
		"a huge size":       {"sandboxes/" + one.ID + "/shell", `{"cols": 65536, "rows": 1}`, 400, "USAGE", "columns"},
		"an unknown room":   {"sessions/nothing/input", `{"data": ""}`, 404, "NOT_FOUND", "session"},
		"another's command": {"sandboxes/" + one.ID + "/kill", `{}`, 404, "NOT_FOUND", "nothing there"},
		"a large message":   {"sandboxes/" + one.ID + "/exec", `{"args": ["` + strings.Repeat("x", 1<<20) + `"]}`, 413, "TOO_LARGE", "1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			c := *c
			c.t = t
			c.refused(req.path, req.body, req.status, req.code, req.reason)
		})
	}

	// The command of a client that goes away is killed.
	if out := says(t, one, "until [ -e /tmp/wedged ]; do sleep 0.02; done; kill -0 $(cat /tmp/wedged) && echo runs"); out != "runs" {
		t.Errorf("the command of a client that reads nothing does not run: %q", out)
	}
	cancel()
	if out := says(t, one, "while kill -0 $(cat /tmp/wedged) 2>/dev/null; do sleep 0.02; done; echo gone"); out != "gone" {
		t.Errorf("the command of a client that has gone: %q", out)
	}

	// One that is closed is shown no more, and whatever runs in it hears why; the socket is there for the other.
	r = c.run(t.Context(), "sandboxes/"+one.ID+"/exec", `{"args": ["sleep", "600"]}`)
	if err := one.Close(); err != nil {
		t.Error(err)
	}
	if _, _, end := r.rest(); end.Error == nil || end.Error.Code != "CONFLICT" || !strings.Contains(end.Error.Message, "closed") {
		t.Errorf("of a sandbox that was closed: %+v", end)
	}
	if seen := c.list(); len(seen) != 1 || seen[0].ID != two.ID {
		t.Errorf("after the first is closed: %+v", seen)
	}
	c.refused("sandboxes/"+one.ID+"/exec", `{"args": ["true"]}`, 404, "NOT_FOUND", one.ID)
	// The last one goes, though a client does not read.
	c.run(t.Context(), "sandboxes/"+two.ID+"/exec", `{"args": ["yes"]}`)
	if err := two.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(c.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	if err := hidden.Close(); err != nil {
		t.Error(err)
	}
	// And again.
	three := debugOpen(t, home)
	if seen := c.list(); len(seen) != 1 || seen[0].ID != three.ID {
		t.Errorf("on a second one: %+v", seen)
	}
	if err := three.Close(); err != nil {
		t.Error(err)
	}
}

// A session carries what is typed, and the size of the terminal.
func TestDebugSession(t *testing.T) {
	leaksNothing(t)
	home := t.TempDir()
	sb := debugOpen(t, home)
	c := debugAt(t, home)
	give := func(r *debugRun, body string) {
		t.Helper()
		if res := c.post(t.Context(), "sessions/"+r.session+"/input", body); res.StatusCode != http.StatusOK {
			b, _ := io.ReadAll(res.Body)
			t.Fatalf("input %s: %s %s", body, res.Status, b)
		}
	}
	typed := func(s string) string {
		return `{"data": "` + base64.StdEncoding.EncodeToString([]byte(s)) + `"}`
	}
	sh := c.run(t.Context(), "sandboxes/"+sb.ID+"/shell", `{"cols": 91, "rows": 17}`)
	give(sh, typed("stty size; echo $((6*7))'!'\n"))
	sh.until("17 91")
	sh.until("42!")
	give(sh, `{"cols": 111, "rows": 33}`)
	give(sh, typed("stty size\n"))
	sh.until("33 111")
	c.refused("sessions/"+sh.session+"/input", `{"eof": true}`, 400, "USAGE", "terminal")
	c.refused("sessions/"+sh.session+"/input", `{"cols": 1}`, 400, "USAGE", "columns")
	c.refused("sessions/"+sh.session+"/input", `{"data": "?"}`, 400, "USAGE", "base64")
	give(sh, typed("exit 5\n"))
	if _, _, end := sh.rest(); end.Exit == nil || *end.Exit != 5 {
		t.Errorf("the shell's end: %+v", end)
	}
	c.refused("sessions/"+sh.session+"/input", typed("x"), 404, "NOT_FOUND", "session")

	cat := c.run(t.Context(), "sandboxes/"+sb.ID+"/exec", `{"args": ["cat"], "input": true, "stdin": "Zmlyc3Qg"}`)
	give(cat, typed("second "))
	cat.until("second ")
	c.refused("sessions/"+cat.session+"/input", `{"cols": 80, "rows": 24}`, 400, "USAGE", "no terminal")
	give(cat, `{"data": "dGhpcmQ=", "eof": true}`)
	if stdout, _, end := cat.rest(); stdout != "third" || end.Exit == nil || *end.Exit != 0 {
		t.Errorf("%q %+v", stdout, end)
	}
	silent := c.run(t.Context(), "sandboxes/"+sb.ID+"/exec", `{"args": ["sleep", "600"]}`)
	c.refused("sessions/"+silent.session+"/input", typed("x"), 400, "USAGE", "without input")

	// Input that nobody reads waits, and ends with the command. What is asked beside it does not wait.
	deaf := c.run(t.Context(), "sandboxes/"+sb.ID+"/exec", `{"args": ["sh", "-c", "until [ -e /tmp/go ]; do sleep 0.02; done"], "input": true}`)
	over := make(chan int, 1)
	go func() {
		status := 0
		for range 40 { // more than anything on the way keeps
			if status = c.post(t.Context(), "sessions/"+deaf.session+"/input", typed(strings.Repeat("x", 512<<10))).StatusCode; status != http.StatusOK {
				break
			}
		}
		over <- status
	}()
	says(t, sb, "touch /tmp/go")
	if _, _, end := deaf.rest(); end.Exit == nil || *end.Exit != 0 {
		t.Errorf("one that reads nothing: %+v", end)
	}
	if status := <-over; status != http.StatusNotFound {
		t.Errorf("input for one that has ended: %d", status)
	}

	// Whoever lets go of the sandbox ends what was started by way of the socket.
	sb.Detach()
	if _, _, end := silent.rest(); (end.Exit == nil || end.Reason != sandbox.ReasonCanceled) && end.Error == nil {
		t.Errorf("after the sandbox was let go of: %+v", end)
	}
	if _, err := os.Lstat(c.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// A sandbox that does not answer holds up neither the others nor the end.
func TestDebugPaused(t *testing.T) {
	leaksNothing(t)
	home := t.TempDir()
	one, two := debugOpen(t, home), debugOpen(t, home)
	c := debugAt(t, home)
	if err := one.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for range 3 {
		clients.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/v1/sandboxes/"+one.ID+"/exec", strings.NewReader(`{"args": ["true"]}`))
			req.Header.Set("Content-Type", "application/json")
			if res, err := c.http.Do(req); err == nil {
				t.Errorf("a paused sandbox answers: %s", res.Status)
				res.Body.Close()
			}
		})
	}
	if len(c.list()) != 2 {
		t.Error("a paused sandbox is not listed")
	}
	if stdout, _, _ := c.run(t.Context(), "sandboxes/"+two.ID+"/exec", `{"args": ["echo", "answers"]}`).rest(); stdout != "answers\n" {
		t.Errorf("beside a paused one: %q", stdout)
	}
	cancel()
	clients.Wait()
	if err := errors.Join(one.Close(), two.Close()); err != nil {
		t.Error(err)
	}
}

// No more commands run at once than are allowed for, and a look is always possible.
func TestDebugFull(t *testing.T) {
	home := t.TempDir()
	sb := debugOpen(t, home)
	c := debugAt(t, home)
	ctx, cancel := context.WithCancel(t.Context())
	for range 32 {
		c.run(ctx, "sandboxes/"+sb.ID+"/exec", `{"args": ["tail", "-f", "/dev/null"]}`)
	}
	c.refused("sandboxes/"+sb.ID+"/exec", `{"args": ["true"]}`, 503, "UNAVAILABLE", "32 commands")
	if len(c.list()) != 1 {
		t.Error("nothing is listed")
	}
	cancel()
	if got := says(t, sb, "while pgrep -x tail >/dev/null; do sleep 0.2; done; echo gone"); got != "gone" {
		t.Errorf("those whose clients have gone: %q", got)
	}
	res := c.post(t.Context(), "sandboxes/"+sb.ID+"/exec", `{"args": ["true"]}`)
	for ; res.StatusCode == http.StatusServiceUnavailable; res = c.post(t.Context(), "sandboxes/"+sb.ID+"/exec", `{"args": ["true"]}`) {
	}
	if res.StatusCode != http.StatusOK {
		t.Error(res.Status)
	}
}

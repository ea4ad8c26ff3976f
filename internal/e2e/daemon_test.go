package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ravi/internal/porttest"
	"ravi/internal/procid"
)

// withDaemon starts the daemon of a world, which ends with the test, and gives its address.
func (w *world) withDaemon() string {
	w.t.Helper()
	port := strconv.Itoa(porttest.Free(w.t))
	w.ravi("config", "set", "gateway.port", port).want(0)
	w.ravi("daemon", "start").want(0)
	w.t.Cleanup(func() { w.ravi("daemon", "stop").want(0) })
	return net.JoinHostPort("127.0.0.1", port)
}

// daemonPID is the process of a world's daemon.
func (w *world) daemonPID() int {
	w.t.Helper()
	var s struct {
		State struct {
			Process struct {
				PID int `json:"pid"`
			} `json:"process"`
		} `json:"state"`
	}
	must(w.t, json.Unmarshal([]byte(w.ravi("daemon", "status", "--json").want(0).stdout), &s))
	return s.State.Process.PID
}

// killDaemon kills a world's daemon, and starts another one once it is gone.
func (w *world) killDaemon() {
	w.t.Helper()
	w.endDaemon()
	w.ravi("daemon", "start").want(0)
}

// endDaemon kills a world's daemon, and returns once it is gone: until then it may take calls that it does not answer.
func (w *world) endDaemon() {
	w.t.Helper()
	id, err := procid.Of(w.daemonPID())
	must(w.t, err)
	must(w.t, procid.Signal(id, syscall.SIGKILL))
	must(w.t, procid.Wait(w.t.Context(), id))
}

// keyed is the world of a holder of a key.
func (w *world) keyed(key string) *world {
	k := *w
	k.env = append(slices.Clone(w.env), "RAVI_CONTEXT_KEY="+key)
	return &k
}

func (w *world) issue(args ...string) string {
	w.t.Helper()
	return strings.TrimSpace(w.ravi(append([]string{"context", "issue"}, args...)...).want(0).stdout)
}

// call asks the gateway over HTTP.
func call(t *testing.T, address, key, path, body string, header ...string) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/api/v1/"+path, bytes.NewReader([]byte(body)))
	must(t, err)
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
			continue
		}
		req.Header.Set(header[i], header[i+1])
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	must(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	must(t, err)
	return res.StatusCode, string(b)
}

// A key that may start runs gets of this machine what its profile lists, in every spelling and by every way, and
// nothing else. A page in a browser gets nothing at all.
func TestKeysCannotReachTheHost(t *testing.T) {
	w := newWorld(t)
	ours, theirs := plain(t), plain(t)
	w.ravi("profiles", "set", "acme", "--backend", "gvisor", "--image", "host", "--repo", ours.dir, "--network", "none",
		"--cpus", "1", "--memory", "512", "--disk", "1", "--timeout", "2m", "--sandboxes", "1").want(0)
	must(t, os.Symlink(theirs.dir, filepath.Join(ours.dir, "link")))
	set := w.command("secrets", "set", "PROD", "--host", "api.example.com")
	set.Stdin = strings.NewReader("very-secret-value")
	w.finish(set).want(0)
	address := w.withDaemon()
	key := w.issue("--allow", "write:runs", "--allow", "read:runs", "--profile", "acme")
	w.ravi("sessions", "ls").want(0)
	w.ravi("agents", "create", "anna").want(0)
	w.ravi("sessions", "create", "--agent", "anna", "--name", "private").want(0)

	small := []string{"--cpus", "1", "--memory", "512", "--disk", "1"}
	for name, c := range map[string]struct {
		flags []string
		body  map[string]any
	}{
		"backend host":     {[]string{"--backend", "host"}, map[string]any{"backend": "host"}},
		"backend none":     {[]string{"--backend", "none"}, map[string]any{"backend": "none"}},
		"the home":         {[]string{"--volume", w.home + ":/x"}, map[string]any{"volumes": []string{w.home + ":/x"}}},
		"root":             {[]string{"--volume", "/:/x:ro"}, map[string]any{"volumes": []string{"/:/x:ro"}}},
		"another's repo":   {[]string{"--repo", theirs.dir}, map[string]any{"repo": theirs.dir}},
		"up":               {[]string{"--repo", ours.dir + "/../" + filepath.Base(theirs.dir)}, map[string]any{"repo": ours.dir + "/../" + filepath.Base(theirs.dir)}},
		"through a link":   {[]string{"--repo", ours.dir + "/link"}, map[string]any{"repo": ours.dir + "/link"}},
		"the root":         {[]string{"--repo", "/"}, map[string]any{"repo": "/"}},
		"a file address":   {[]string{"--repo", "file://" + theirs.dir}, map[string]any{"repo": "file://" + theirs.dir}},
		"relative":         {[]string{"--repo", "."}, map[string]any{"repo": "."}},
		"the daemon's own": {nil, map[string]any{"repo": ""}},
		"a secret":         {[]string{"--secret", "PROD", "--allow-net", "api.example.com"}, map[string]any{"secrets": []string{"PROD"}, "allow_net": []string{"api.example.com"}}},
		"a network":        {[]string{"--allow-net", "all"}, map[string]any{"allowNet": []string{"all"}}},
		"a name":           {[]string{"--allow-net", "example.com"}, map[string]any{"allow_net": []string{"example.com"}}},
		"memory":           {[]string{"--memory", "4096"}, map[string]any{"memory": 4096}},
		"time":             {[]string{"--timeout", "1h"}, map[string]any{"timeout": "1h"}},
		"processors":       {[]string{"--cpus", "64"}, map[string]any{"cpus": 64}},
		"disk":             {[]string{"--disk", "100"}, map[string]any{"disk": 100}},
		"a session":        {[]string{"--session", "private"}, map[string]any{"session": "private"}},
		"more than a key":  {[]string{"--connect", "write=tasks", "--task", "x"}, map[string]any{"connect": "write=tasks", "task": "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.flags != nil {
				args := []string{"runs", "create"}
				if !slices.Contains(c.flags, "--repo") {
					args = append(args, "--repo", ours.dir)
				}
				for i := 0; i < len(small); i += 2 {
					if !slices.Contains(c.flags, small[i]) {
						args = append(args, small[i:i+2]...)
					}
				}
				args = append(append(args, c.flags...), "--", "true")
				if r := w.keyed(key).ravi(args...); r.code == 0 {
					t.Errorf("on the command line it was allowed: %s", r.stdout)
				}
			}
			body := map[string]any{"repo": ours.dir, "cpus": 1, "memory": 512, "disk": 1, "command": []string{"true"}}
			for k, v := range c.body {
				body[k] = v
			}
			b, err := json.Marshal(body)
			must(t, err)
			status, answer := call(t, address, key, "runs/create", string(b))
			if status != 403 && status != 400 {
				t.Errorf("over HTTP: %d %s", status, answer)
			}
		})
	}
	for _, c := range []string{"sandbox/run", "sandbox/create", "daemon/run", "audit/export", "profiles/set", "secrets/set", "config/set", "context/issue", "sandbox/prune"} {
		if status, answer := call(t, address, key, c, "{}"); status == 200 {
			t.Errorf("%s was allowed: %s", c, answer)
		}
	}
	if runs := w.ravi("runs", "ls", "--live", "-q").want(0).stdout; runs != "" {
		t.Errorf("runs began: %s", runs)
	}
	for name, header := range map[string][]string{
		"a page":           {"Origin", "https://evil.example"},
		"a local page":     {"Origin", "null"},
		"a rebound name":   {"Host", "evil.example:7777"},
		"an image":         {"Sec-Fetch-Site", "cross-site"},
		"a form's content": {"Content-Type", "text/plain"},
	} {
		if status, answer := call(t, address, key, "runs/ls", "{}", header...); status == 200 {
			t.Errorf("%s was answered: %s", name, answer)
		}
	}
	// What the profile lists works, one at a time.
	body, err := json.Marshal(map[string]any{"repo": ours.dir, "cpus": 1, "memory": 512, "disk": 1, "command": []string{"sh", "-c", "sleep 1000; echo x > new"}})
	must(t, err)
	status, answer := call(t, address, key, "runs/create", string(body))
	if status != 200 {
		t.Fatalf("what is allowed: %d %s", status, answer)
	}
	var run struct{ ID string }
	must(t, json.Unmarshal([]byte(answer), &run))
	if status, answer := call(t, address, key, "runs/create", string(body)); status != 403 || !strings.Contains(answer, "room for one more") {
		t.Errorf("a second one: %d %s", status, answer)
	}
	if strings.Contains(answer, w.home) || strings.Contains(answer, "owner") {
		t.Errorf("it tells of this machine: %s", answer)
	}
	if r := w.keyed(key).ravi("runs", "cancel", run.ID); r.code != 0 {
		t.Errorf("cancel: %s", r.stderr)
	}
	w.ravi("runs", "wait", run.ID).want(130)
	w.ravi("audit", "verify").want(0)
}

// The daemon is killed at random moments while runs go on, again and again: each run ends in a true state with its
// patch, and nothing is left of any.
func TestDaemonKilledWhileRunsGoOn(t *testing.T) {
	const runs, atOnce, kills = 30, 5, 12
	w := newWorld(t)
	r := plain(t)
	w.withDaemon()
	w.ravi("profiles", "set", "many", "--backend", "gvisor", "--image", "host", "--repo", r.dir, "--network", "none",
		"--cpus", "2", "--memory", "2048", "--disk", "4", "--timeout", "10m", "--sandboxes", "100").want(0)
	key := w.issue("--allow", "write:runs", "--allow", "read:runs", "--profile", "many")
	var all sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	over := make(chan struct{})
	var mu sync.Mutex
	ids := []string{}
	go func() {
		defer close(over)
		for i := range runs {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				// A daemon that is being killed may or may not have started it; the record says which. It is asked for again.
				id := ""
				for end := time.Now().Add(8 * time.Minute); id == "" && time.Now().Before(end); {
					created := w.keyed(key).ravi("runs", "create", "--repo", r.dir, "-q", "--", "sh", "-c", "sleep 0."+strconv.Itoa(i%10)+"; echo "+strconv.Itoa(i)+" > new")
					if created.code == 0 {
						id = strings.TrimSpace(created.stdout)
					}
				}
				if id == "" {
					return
				}
				w.ravi("runs", "wait", id)
				mu.Lock()
				ids = append(ids, id)
				mu.Unlock()
			})
		}
		all.Wait()
	}()
	killed := 0
	for done := false; !done && killed < kills; {
		select {
		case <-over:
			done = true
		case <-time.After(time.Duration(rand.IntN(2500)) * time.Millisecond):
			w.killDaemon()
			killed++
		}
	}
	<-over
	t.Logf("the daemon was killed %d times; %d of %d runs were answered for", killed, len(ids), runs)
	if killed < 3 || len(ids) < runs {
		t.Errorf("this tried little: %d kills, %d runs", killed, len(ids))
	}
	// Those that nobody was told of end as well.
	eventually(t, "the end of all runs", func() bool { return w.ravi("runs", "ls", "--live", "-q").want(0).stdout == "" })
	w.ravi("sandbox", "prune").want(0)
	var list struct {
		Items []struct {
			ID, Status, Reason string
			SandboxID          string `json:"sandbox_id"`
			Patch              *struct {
				Files   int
				Applies bool
			}
		}
	}
	must(t, json.Unmarshal([]byte(w.ravi("runs", "ls", "--json", "--limit", "500").want(0).stdout), &list))
	for _, run := range list.Items {
		answered := slices.Contains(ids, run.ID)
		switch {
		case run.Status == "queued" || run.Status == "running":
			t.Errorf("%s is %s for ever", run.ID, run.Status)
		case run.Status == "succeeded" && (run.Patch == nil || !run.Patch.Applies || run.Patch.Files != 1):
			t.Errorf("%s succeeded without its patch: %+v", run.ID, run.Patch)
		case answered && run.Status != "succeeded":
			t.Errorf("%s was begun, and the daemon's end ended it: %s (%s)", run.ID, run.Status, run.Reason)
		}
		if run.SandboxID != "" {
			nothingRemains(t, w.home, run.SandboxID) // its keeper may be about to end
		}
	}
	left, err := filepath.Glob(filepath.Join(w.home, "sandboxes", "*"))
	must(t, err)
	if len(left) > 0 {
		t.Errorf("left in the home: %q", left)
	}
	w.ravi("audit", "verify").want(0)
}

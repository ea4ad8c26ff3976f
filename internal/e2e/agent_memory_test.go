package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ravi/internal/memtest"
	"ravi/internal/modeltest"
)

// before stands before a provider, and does something when it is first told a word, before that is answered.
func before(t *testing.T, provider, word string, do func()) (address string) {
	t.Helper()
	to, err := url.Parse(provider)
	must(t, err)
	next := httputil.NewSingleHostReverseProxy(to)
	next.FlushInterval = -1
	var once sync.Once
	done := false
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return // the caller is gone
		}
		if bytes.Contains(b, []byte(word)) {
			once.Do(func() { do(); done = true })
		}
		r.Body = io.NopCloser(bytes.NewReader(b))
		next.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		if !done {
			t.Errorf("the provider was never told %q", word)
		}
	})
	return s.URL
}

// untilAsked waits until a provider was asked so often.
func untilAsked(s *modeltest.Server, n int) {
	for end := time.Now().Add(4 * time.Minute); len(s.Requests()) < n && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
}

// keyless looks at the memory of all processes of the sandbox of the run that goes on: none holds the provider's key, while
// the owner does, and the sandbox its own task, marked with a word.
func (w *world) keyless(marker string) {
	owner := 0
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		w.t.Error(err)
	}
	for _, p := range all {
		cmdline, _ := os.ReadFile(p + "/cmdline") // it may have ended since
		environ, _ := os.ReadFile(p + "/environ")
		if bytes.HasPrefix(cmdline, []byte(program+"\x00sandbox\x00run\x00")) && bytes.Contains(environ, []byte("RAVI_HOME="+w.home+"\x00")) {
			_, err := fmt.Sscan(filepath.Base(p), &owner)
			if err != nil {
				w.t.Error(err)
			}
		}
	}
	if found, err := memtest.Holds(owner, canary); err != nil || !found[canary] {
		w.t.Errorf("process %d: the owner of the run has the key, and it is not seen: %v", owner, err)
	}
	parts, err := memtest.Family(owner)
	if err != nil {
		w.t.Error(err)
	}
	delete(parts, owner)
	// Those in which gVisor runs the programs of the sandbox need not descend from it.
	for _, pid := range processesOf(w.sandbox(), "") {
		parts[pid] += ""
	}
	marked := 0
	seen := fmt.Sprintf("%v", parts)
	for pid, name := range parts {
		found, err := memtest.Holds(pid, canary, marker)
		if err != nil {
			w.t.Error(err)
		}
		if found[canary] {
			w.t.Errorf("the key is in the memory of process %d, %q", pid, name)
		}
		if found[marker] {
			marked++
		}
	}
	for _, name := range []string{"ravi-keeper supervise", "ravi-relay ", "runsc-sandbox ", "runsc-gofer "} {
		if !strings.Contains(seen, name) {
			w.t.Errorf("%s was not looked at, but %s", name, seen)
		}
	}
	if marked == 0 {
		w.t.Errorf("the task is in no memory of the sandbox, of which was looked at %s", seen)
	}
}

// sandbox is that of the run that goes on.
func (w *world) sandbox() (id string) {
	for dir := range w.runs() {
		b, err := os.ReadFile(filepath.Join(dir, "events.jsonl"))
		if err != nil {
			w.t.Error(err)
		}
		for line := range bytes.Lines(b) {
			var e struct{ Event, ID string }
			if err := json.Unmarshal(line, &e); err == nil && e.Event == "sandbox" {
				id = e.ID
			}
		}
	}
	return id
}

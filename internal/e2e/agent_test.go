package e2e

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"ravi/internal/modeltest"
)

// canary is the provider's key in these tests: whoever finds it where it must not be has found a leak.
const canary = "sk-ant-api03-canary-0123456789abcdefghijklmnopqrstuvwxyz"

var leaseForm = regexp.MustCompile(`^rlease_[A-Za-z0-9_-]{24}$`)

// agentPrograms has the programs that were installed, once for all tests: they are hundreds of megabytes.
var agentPrograms struct {
	sync.Mutex
	home string
	done map[string]bool
}

// withAgent has a world find an agent program installed, by ravi itself.
func (w *world) withAgent(name string) {
	w.t.Helper()
	agentPrograms.Lock()
	defer agentPrograms.Unlock()
	if agentPrograms.home == "" {
		dir, err := os.MkdirTemp("", "ravi-e2e-agents-")
		must(w.t, err)
		agentPrograms.home, agentPrograms.done = dir, map[string]bool{}
	}
	if !agentPrograms.done[name] {
		shared := *w
		shared.home = filepath.Join(agentPrograms.home, "ravi-home")
		shared.ravi("agents", "install", name).want(0)
		agentPrograms.done[name] = true
	}
	must(w.t, os.MkdirAll(w.home, 0o700))
	if err := os.Symlink(filepath.Join(agentPrograms.home, "ravi-home", "agents"), filepath.Join(w.home, "agents")); err != nil && !os.IsExist(err) {
		w.t.Fatal(err)
	}
}

// provider plays a script on loopback, and wants the canary in a header.
func provider(t *testing.T, header string, turns ...modeltest.Turn) (url string, s *modeltest.Server) {
	t.Helper()
	return providerOf(t, header, modeltest.Script{Turns: turns})
}

func providerOf(t *testing.T, header string, script modeltest.Script) (url string, s *modeltest.Server) {
	t.Helper()
	value := canary
	if header == "Authorization" {
		value = "Bearer " + canary
	}
	s = modeltest.New(script, modeltest.WithKey(header, value))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	over := make(chan error, 1)
	go func() { over <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String(), s
}

// agentCase is an agent program, and how it is told of its provider.
type agentCase struct{ name, header, base, key, model string }

// args have it do a task.
func (c agentCase) args(task string, more ...string) []string {
	args := append([]string{"--agent", c.name, "--task", task}, more...)
	if c.model != "" {
		args = append(args, "--model", c.model)
	}
	return args
}

// tried are the programs that the tests try. Each is hundreds of megabytes to fetch: RAVI_TEST_AGENTS names them, or all.
func tried() []agentCase {
	named := cmp.Or(os.Getenv("RAVI_TEST_AGENTS"), "claude,codex")
	return slices.DeleteFunc([]agentCase{
		{"claude", "X-Api-Key", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", ""},
		{"codex", "Authorization", "OPENAI_BASE_URL", "OPENAI_API_KEY", "scripted-1"},
		{"gemini", "X-Goog-Api-Key", "GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY", ""},
		{"opencode", "Authorization", "OPENAI_BASE_URL", "OPENAI_API_KEY", "scripted-1"},
		{"pi", "Authorization", "OPENAI_BASE_URL", "OPENAI_API_KEY", "scripted-1"},
	}, func(c agentCase) bool {
		return named != "all" && !slices.Contains(strings.Split(named, ","), c.name)
	})
}

// lookForKey is a command that looks everywhere inside for the provider's key, in halves here so that it does not find
// itself.
const lookForKey = `a=sk-ant-api03; b=-canary-0123; ` +
	`for f in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do tr '\0' '\n' < $f 2>/dev/null; done | grep -c 'api0[3]-canary' > found.txt; ` +
	`grep -rl "$a$b" / --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr --exclude-dir=dev --exclude-dir=bin --exclude-dir=lib --exclude-dir=sbin --exclude-dir=opt 2>/dev/null >> found.txt; ` +
	`env | grep -o "rlease_" | sort -u > lease.txt; echo hello > hello.txt`

// Each agent program does a task in a sandbox without network: its model is reached by the broker, the patch comes out,
// what it used is metered, no other name is tried, and the key is nowhere, not in the memory of any process either.
func TestAgentPrograms(t *testing.T) {
	for _, c := range tried() {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.withAgent(c.name)
			url, model := provider(t, c.header,
				modeltest.Turn{modeltest.Text("I look around."), modeltest.Shell(lookForKey)},
				modeltest.Turn{modeltest.Text("All is done."), modeltest.Uses(modeltest.Usage{Input: 1000, Output: 20})})
			const marker = "and-say-nothing-of-6f1c2a"
			url = before(t, url, "found.txt", func() { w.keyless(marker) })
			w.env = []string{c.key + "=" + canary, c.base + "=" + url}
			run := w.run(plain(t), c.args("make hello.txt "+marker)...).want(0)

			patch := run.file("changes.patch")
			for _, want := range []string{"+hello", "+rlease_"} {
				if !strings.Contains(patch, want) {
					t.Errorf("the patch lacks %q:\n%s", want, short(patch))
				}
			}
			if !strings.Contains(patch, "found.txt") || strings.Contains(patch, "+/") || !strings.Contains(patch, "\n+0\n") {
				t.Errorf("the key was found inside:\n%s", short(patch))
			}
			for _, want := range []string{"I look around.", "All is done."} {
				if !strings.Contains(run.stdout, want) {
					t.Errorf("it does not show %q:\n%s", want, short(run.stdout))
				}
			}
			run.silent(canary)
			eachFile(t, w.home, func(name string, b []byte) {
				if strings.Contains(string(b), canary) {
					t.Errorf("%s holds the key", name)
				}
				if strings.Contains(string(b), "rlease_") && !strings.Contains(name, "/lib/") && !strings.HasSuffix(name, "changes.patch") {
					if i := strings.Index(string(b), "rlease_"); len(b) > i+30 && leaseForm.Match(b[i:i+31]) {
						t.Errorf("%s holds the lease", name)
					}
				}
			})
			told := run.task()
			if told.Agent != c.name || told.Models.Requests < 2 || told.Models.First <= 0 || told.Models.Input < 1000 || told.Models.Output < 20 {
				t.Errorf("task.json says %+v", told)
			}
			if len(told.Suggested) > 0 || strings.Contains(run.stderr, "the network refused") {
				t.Errorf("it tried to reach %v:\n%s", told.Suggested, short(run.stderr))
			}
			if want := fmt.Sprintf("models: %d calls, the first after %.1f s, ", told.Models.Requests, float64(told.Models.First)/1000); !strings.Contains(run.stderr, want) {
				t.Errorf("it does not say %q:\n%s", want, short(run.stderr))
			}
			for _, r := range model.Requests() {
				for _, name := range []string{"User-Agent", "X-Stainless-Lang", "X-Claude-Code-Session-Id", "Cookie"} {
					if v := r.Header.Get(name); strings.Contains(strings.ToLower(v), c.name) || v != "" && name != "User-Agent" {
						t.Errorf("the provider is told %s: %s", name, v)
					}
				}
			}
			id := filepath.Base(run.dir)
			audit := w.ravi("audit", "search", "--run", id, "--limit", "100", "--json").want(0).stdout
			for _, want := range []string{"model.call", "lease.issue", "lease.revoke"} {
				if !strings.Contains(audit, want) {
					t.Errorf("the audit lacks %s:\n%s", want, short(audit))
				}
			}
			if strings.Contains(audit, "network.name") && strings.Contains(audit, `"denied"`) {
				t.Errorf("names were refused:\n%s", short(audit))
			}
			w.ravi("audit", "verify").want(0)
			if usage := w.ravi("usage", "--run", id, "--json").want(0).stdout; !strings.Contains(usage, c.name) && !strings.Contains(usage, "requests") {
				t.Errorf("ravi usage says %s", usage)
			}
		})
	}
}

// Without a key nothing is made, and it is said what is missing.
func TestAgentWithoutAKey(t *testing.T) {
	w := newWorld(t)
	w.run(plain(t), "--agent", "claude", "--task", "x").want(2).says("there is no key", "ANTHROPIC_API_KEY", "ravi secrets set")
	if len(w.runs()) > 0 {
		t.Errorf("there are runs: %v", w.runs())
	}
	w.env = []string{"ANTHROPIC_API_KEY=" + canary, "npm_config_registry=http://127.0.0.1:1/"}
	if r := w.run(plain(t), "--agent", "claude", "--task", "x"); r.code == 0 || !strings.Contains(r.stderr, "npm could not install it") {
		t.Errorf("without a registry: %d, %s", r.code, short(r.stderr))
	}
	if len(w.runs()) > 0 {
		t.Errorf("there are runs: %v", w.runs())
	}
}

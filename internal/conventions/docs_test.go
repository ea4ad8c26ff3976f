package conventions

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ravi/internal/config"
	"ravi/sandbox"
)

func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, pattern := range []string{"../../README.md", "../../docs/*.md", "../../docs/*/*.md"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			out[name] = string(b)
		}
	}
	if len(out) < 5 {
		t.Fatalf("only %d pages found", len(out))
	}
	return out
}

var (
	linkForm    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	headingForm = regexp.MustCompile("(?m)^#+ (.+)$")
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// A link of a page leads to a file of the repository, and to a heading of it.
func TestLinksLead(t *testing.T) {
	all := pages(t)
	anchors := func(page string) (out []string) {
		for _, h := range headingForm.FindAllStringSubmatch(page, -1) {
			out = append(out, strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-"))
		}
		return out
	}
	for name, text := range all {
		for _, m := range linkForm.FindAllStringSubmatch(text, -1) {
			file, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(file, "://") {
				continue
			}
			to := name
			if file != "" {
				to = filepath.Join(filepath.Dir(name), file)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s, which is not there", name, m[1])
			} else if anchor != "" && !slices.Contains(anchors(all[to]), anchor) {
				t.Errorf("%s links to %s, which has no such heading", name, m[1])
			}
		}
	}
}

// A test that a page names is there.
func TestNamedTestsAreThere(t *testing.T) {
	var source strings.Builder
	for _, files := range packages(t) {
		for _, f := range files {
			if f.test() || strings.HasPrefix(f.path, "sandbox/sandboxtest/") {
				source.WriteString(f.source)
			}
		}
	}
	named := regexp.MustCompile("`(Test[A-Z]\\w+)`|isolation/([a-z ]+)")
	for name, text := range pages(t) {
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			want := "func " + m[1] + "(t *testing.T)"
			if m[1] == "" {
				want = `t.Run("` + strings.TrimSpace(m[2]) + `"`
			}
			if !strings.Contains(source.String(), want) {
				t.Errorf("%s names the test %s, which is not there", name, m[0])
			}
		}
	}
}

// The configuration that is shown is valid, and the table names every key.
func TestConfigurationPage(t *testing.T) {
	text := pages(t)["../../docs/configuration.md"]
	_, rest, _ := strings.Cut(text, "```json\n")
	example, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("there is no example")
	}
	var file struct {
		Tools struct{ Sandbox sandbox.Config }
	}
	if err := json.Unmarshal([]byte(example), &file); err != nil {
		t.Errorf("the example: %v", err)
	}
	for _, block := range []any{sandbox.Default(), config.Exec{}, config.AgentDefaults{}, config.Bus{}, config.Dispatch{}} {
		b, err := json.Marshal(block)
		if err != nil {
			t.Fatal(err)
		}
		var keys map[string]json.RawMessage
		if err := json.Unmarshal(b, &keys); err != nil {
			t.Fatal(err)
		}
		for key := range keys {
			if !strings.Contains(text, "\n| `"+key+"` |") {
				t.Errorf("docs/configuration.md has no line for %s", key)
			}
		}
	}
}

package doctor

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The page names every check and every finding, and no other.
func TestPage(t *testing.T) {
	b, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	_, tables, ok := strings.Cut(string(b), "## Checks and findings")
	if !ok {
		t.Fatal("there is no list")
	}
	tables, _, _ = strings.Cut(tables, "\n## ")
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, name := range Names() {
		known[name] = true
	}
	form := regexp.MustCompile(`(?:find|several)\((?:Error|Warn|Info|severity), (e\.Name\s*\+\s*)?"([a-z_.]+)"`)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range form.FindAllStringSubmatch(string(source), -1) {
			id := m[2]
			if m[1] != "" {
				id = "*" + id
			}
			known[id] = true
		}
	}
	if len(known) < 60 {
		t.Errorf("only %d are found in the source", len(known))
	}
	for id := range known {
		if !strings.Contains(tables, "`"+id+"`") {
			t.Errorf("the page does not name %s", id)
		}
	}
	for _, m := range regexp.MustCompile("`((?:\\*|[a-z]+)\\.[a-z_]+)`").FindAllStringSubmatch(tables, -1) {
		if !known[m[1]] && m[1] != "daemon.json" && m[1] != "config.json" {
			t.Errorf("the page names %s, which is none", m[1])
		}
	}
}

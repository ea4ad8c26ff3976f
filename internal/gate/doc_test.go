package gate

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var docRow = regexp.MustCompile("(?m)^\\| `(.+)` \\| (runs|asks|refused) \\|(?: `(\\w+)`)? \\|$")

// What docs/approval.md says of commands is so, and it has a row for each family.
func TestDocumentedCommands(t *testing.T) {
	b, err := os.ReadFile("../../docs/approval.md")
	if err != nil {
		t.Fatal(err)
	}
	_, page, _ := strings.Cut(string(b), "\n## What asks, and what is refused\n")
	page, _, _ = strings.Cut(page, "\n## ")
	rows := docRow.FindAllStringSubmatch(page, -1)
	if want := strings.Count(page, "\n| `"); len(rows) != want || want < 20 {
		t.Errorf("%d of %d rows can be read", len(rows), want)
	}
	g := must(t, Options{})
	decisions := map[string]Decision{"runs": Allow, "asks": Ask, "refused": Deny}
	seen := map[string]bool{}
	for _, r := range rows {
		command := strings.ReplaceAll(r[1], `\|`, "|")
		if v := g.Judge(command, "/workspace"); v.Decision != decisions[r[2]] || v.Family != r[3] {
			t.Errorf("%q is said to be: %s %q; it is: %s %q (%s)", command, r[2], r[3], v.Decision, v.Family, v.Reason)
		}
		seen[r[3]] = true
	}
	for _, family := range []string{Delete, Publish, Install, Remote, Credential, VCS, Fetch, Device, Power, Bomb, System, Unclear} {
		if !seen[family] {
			t.Errorf("there is no row for %s", family)
		}
	}
	pattern := must(t, Options{ExtraDeny: []string{`\bterraform (apply|destroy)\b`}})
	if v := pattern.Judge("cd infra && terraform apply", "/workspace"); v.Decision != Deny || v.Family != Pattern || !strings.Contains(page, `\\bterraform (apply|destroy)\\b`) {
		t.Errorf("the pattern that is shown: %s %q", v.Decision, v.Family)
	}
}

// A home is shown as people write it.
func TestHomeIsShown(t *testing.T) {
	for _, command := range []string{"rm -rf ~", "rm -rf $HOME/"} {
		if v := must(t, Options{}).Judge(command, "/workspace"); !strings.Contains(v.Reason, "deletes ~,") {
			t.Errorf("%s: %s", command, v.Reason)
		}
	}
}

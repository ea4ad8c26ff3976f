package bench

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"ravi/internal/store"
)

// What a command says of its time is taken only where the run's own record agrees.
func TestParseBegan(t *testing.T) {
	at := func(ms int64) time.Time { return time.UnixMilli(1_700_000_000_000 + ms).UTC() }
	step := func(name string, ms int64) string {
		return fmt.Sprintf(`{"event":"step","step":%q,"ms":1,"time":%q}`+"\n", name, at(ms).Format(time.RFC3339Nano))
	}
	started := fmt.Sprintf(`{"event":"started","id":"run1","command":["date"],"time":%q}`+"\n", at(0).Format(time.RFC3339Nano))
	all := started + step("export", 40) + step("create", 50) + step("clone", 150) + step("command", 200)
	says := func(ms int64) string { return fmt.Sprintf("%d\n", at(ms).UnixNano()) }
	got, err := parseBegan([]byte(all), says(160))
	if want := (began{started: at(0), created: at(50), cloned: at(150), command: at(160)}); err != nil ||
		!got.started.Equal(want.started) || !got.created.Equal(want.created) || !got.cloned.Equal(want.cloned) || !got.command.Equal(want.command) {
		t.Errorf("%+v, %v", got, err)
	}
	for what, c := range map[string]struct{ events, said, want string }{
		"a clock that is behind":  {all, says(100), "by its own clock"},
		"a clock that is ahead":   {all, says(300), "by its own clock"},
		"no time":                 {all, "hello\n", "said \"hello"},
		"nothing said":            {all, "", "to say when"},
		"no clone":                {started + step("create", 50) + step("command", 200), says(160), "all its steps"},
		"events that are no JSON": {"{", says(160), "events"},
	} {
		if _, err := parseBegan([]byte(c.events), c.said); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestWrongIn(t *testing.T) {
	said := func(texts ...string) (all []store.Message) {
		for _, text := range texts {
			all = append(all, store.Message{Role: store.RoleUser, Text: "asked"}, store.Message{Role: store.RoleAssistant, Text: text + "\n"})
		}
		return all
	}
	for what, c := range map[string]struct {
		said []store.Message
		want int
	}{
		"all": {said("0", "1", "2"), 0}, "one lost at the end": {said("0", "1"), 1}, "one lost in the middle": {said("0", "2"), 2},
		"one doubled": {said("0", "1", "1", "2"), 3}, "out of order": {said("0", "2", "1"), 2}, "none": {nil, 1},
	} {
		if got := wrongIn(1, c.said, 3); len(got) != c.want {
			t.Errorf("%s: %q", what, got)
		}
	}
}

// Namespaces of benchmarks that are gone are removed, those of others not.
func TestRemoveNetns(t *testing.T) {
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	lost, live := fmt.Sprintf("%s%d-0", netnsPrefix, gone.Process.Pid), fmt.Sprintf("%s1-0", netnsPrefix)
	for _, name := range []string{lost, live} {
		if err := ip("netns", "add", name); err != nil {
			t.Skip("SKIP-FEATURE: there are no network namespaces here: ", err)
		}
		defer ip("netns", "del", name)
	}
	if err := removeNetns(); err != nil {
		t.Fatal(err)
	}
	left, err := output(exec.Command("ip", "netns", "list"))
	if err != nil || strings.Contains(left, lost) || !strings.Contains(left, live) {
		t.Errorf("left are %q, %v", left, err)
	}
}

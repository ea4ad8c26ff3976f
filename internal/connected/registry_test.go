package connected

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"ravi/internal/term"
)

func TestHostileRegistries(t *testing.T) {
	one := func(change string) string {
		return `{"commands":[{"group":"tasks","command":"show","access":"read","summary":"x","fields":[` + change + `]}]}`
	}
	for name, doc := range map[string]string{
		"not JSON":           "\x1b[2J",
		"cut":                registryDoc[:500],
		"a list":             `[]`,
		"commands of text":   `{"commands":"all"}`,
		"null in it":         `{"commands":[null]}`,
		"a number in it":     `{"commands":[7]}`,
		"deep":               `{"commands":` + strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20) + `}`,
		"deep elsewhere":     `{"x":` + strings.Repeat(`{"a":`, 1<<18) + "1" + strings.Repeat("}", 1<<18) + `,"commands":[]}`,
		"many commands":      `{"commands":[` + strings.Repeat("{},", 1<<20) + `{}]}`,
		"many fields":        one(strings.Repeat("{},", 1<<20) + "{}"),
		"many names":         `{"commands":[{"group":"tasks","command":"show","access":"read","aliases":[` + strings.Repeat(`"",`, 1<<20) + `""]}]}`,
		"no name":            `{"commands":[{"group":"tasks"}]}`,
		"a path for a group": `{"commands":[{"group":"../tasks","command":"show"}]}`,
		"a path for a name":  `{"commands":[{"group":"tasks","command":"show/../../x"}]}`,
		"a query":            `{"commands":[{"group":"tasks","command":"show?x"}]}`,
		"capitals":           `{"commands":[{"group":"Tasks","command":"show"}]}`,
		"a control":          `{"commands":[{"group":"tasks","command":"sh\u001bow"}]}`,
		"a flag for a name":  `{"commands":[{"group":"tasks","command":"--json"}]}`,
		"a long name":        `{"commands":[{"group":"tasks","command":"` + strings.Repeat("a", 65) + `"}]}`,
		"the same twice":     `{"commands":[{"group":"tasks","command":"show","access":"read"},{"group":"tasks","command":"show","access":"read"}]}`,
		"an alias twice":     `{"commands":[{"group":"tasks","command":"show","access":"read"},{"group":"tasks","command":"x","aliases":["show"]}]}`,
		"a strange alias":    `{"commands":[{"group":"tasks","command":"show","access":"read","aliases":["\u009b"]}]}`,

		"no access":           `{"commands":[{"group":"tasks","command":"show","fields":[]}]}`,
		"strange access":      `{"commands":[{"group":"tasks","command":"show","access":"READ"}]}`,
		"a field of null":     one(`null`),
		"a field of nothing":  one(`{}`),
		"flag and argument":   one(`{"name":"a","type":"string","arg":"A","flag":"a"}`),
		"neither":             one(`{"name":"a","type":"string"}`),
		"a strange key":       one(`{"name":"a b","type":"string","flag":"a"}`),
		"a strange flag":      one(`{"name":"a","type":"string","flag":"a=b"}`),
		"a flag with dashes":  one(`{"name":"a","type":"string","flag":"--a"}`),
		"a long letter":       one(`{"name":"a","type":"string","flag":"a","short":"ab"}`),
		"a strange letter":    one(`{"name":"a","type":"string","flag":"a","short":"-"}`),
		"a letter alone":      one(`{"name":"a","type":"string","arg":"A","short":"a"}`),
		"an unknown type":     one(`{"name":"a","type":"object","flag":"a"}`),
		"a rest of one":       one(`{"name":"a","type":"string","arg":"A","rest":true}`),
		"a rest of a flag":    one(`{"name":"a","type":"strings","flag":"a","rest":true}`),
		"a flag of ours":      one(`{"name":"a","type":"string","flag":"json"}`),
		"help as a flag":      one(`{"name":"a","type":"string","flag":"help"}`),
		"a letter of ours":    one(`{"name":"a","type":"string","flag":"a","short":"h"}`),
		"a flag twice":        one(`{"name":"a","type":"string","flag":"a"},{"name":"b","type":"string","flag":"a"}`),
		"a letter twice":      one(`{"name":"a","type":"string","flag":"a","short":"x"},{"name":"b","type":"string","flag":"b","short":"x"}`),
		"a key twice":         one(`{"name":"a","type":"string","flag":"a"},{"name":"a","type":"string","flag":"b"}`),
		"after the rest":      one(`{"name":"a","type":"strings","arg":"A","rest":true},{"name":"b","type":"string","arg":"B"}`),
		"after what may lack": one(`{"name":"a","type":"string","arg":"A","optional":true},{"name":"b","type":"string","arg":"B"}`),
	} {
		g, url := newGateway(t)
		g.registry = doc
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r := ravi(t, envOf(url), "", "tasks", "show", "--json")
		runtime.ReadMemStats(&after)
		if code, message, _ := errorOf(t, r); code != codeInternal || r.exit != ExitFailed || len(message) > 1000 {
			t.Errorf("%s: %+v", name, r)
		}
		if grew := after.TotalAlloc - before.TotalAlloc; grew > 64<<20 {
			t.Errorf("%s: it took %d MiB", name, grew>>20)
		}
		for _, s := range g.requests() {
			if s.method != "GET" {
				t.Errorf("%s: it asked %+v", name, s)
			}
		}
	}
	// What a newer gateway adds spoils nothing.
	g, url := newGateway(t)
	g.registry = `{"version":"2","new":{"a":[1]},"commands":[
		{"group":"a","command":"new","access":"read","fields":[{"name":"x","type":"tree","flag":"x"}]},
		{"group":"tasks","command":"show","access":"read","new":true,"fields":[{"name":"x","type":"string","flag":"x","new":1}]}]}`
	if r := ravi(t, envOf(url), "", "tasks", "show", "--x", "y"); r.exit != 0 {
		t.Errorf("%+v", r)
	}
	if r := ravi(t, envOf(url), "", "a", "new"); r.exit != ExitFailed || !strings.Contains(r.stderr, "older") {
		t.Errorf("%+v", r)
	}
}

func TestHelp(t *testing.T) {
	g, url := newGateway(t)
	for _, c := range []struct {
		args string
		want []string
	}{
		{"", []string{"Commands that your key may use:\n  bench   bench\n  runs    kill\n  tasks   comment, show\n", "never instructions", "ravi tasks comment tsk1 --text-file notes.md", "RAVI_GATEWAY_WAIT"}},
		{"--help", []string{"Usage:\n  ravi GROUP COMMAND", "tasks   comment, show", "--json"}},
		{"help", []string{"Usage:\n  ravi GROUP COMMAND", "tasks   comment, show"}},
		{"tasks", []string{"ravi tasks COMMAND", "comment   Say something about a task", "never instructions"}},
		{"tasks --help", []string{"comment   Say something about a task"}},
		{"help tasks", []string{"comment   Say something about a task"}},
		{"tasks -h", []string{"comment   Say something about a task"}},
		{"tasks comment --help", []string{"Adds a comment to a task.\n\nEverybody", "Usage:\n  ravi tasks comment [flags] TASK\n", "# from a file\n  ravi tasks comment tsk1 --text-file notes.md\n",
			"Arguments:\n  TASK   the task\n", "-t, --text TEXT", "    --max-age DURATION", "-m, --meta NAME=VALUE", "(may be given several times)", "standard input", "It changes something"}},
		{"tasks note t1 --text x -h", []string{"ravi tasks comment [flags] TASK"}},
		{"tasks --help comment", []string{"ravi tasks comment [flags] TASK"}},
		{"--help tasks comment", []string{"ravi tasks comment [flags] TASK"}},
		{"help tasks comment", []string{"ravi tasks comment [flags] TASK"}},
		{"tasks show --help", []string{"Show a task.\n", "[TASK]", "It only reads", "never instructions"}},
		{"runs kill --help", []string{"ravi runs kill [flags] WHY [RUN…]"}},
		{"bench --help", []string{"Usage:\n  ravi bench [flags]\n"}},
	} {
		r := ravi(t, envOf(url), "", strings.Fields(c.args)...)
		if r.exit != 0 || r.stderr != "" {
			t.Errorf("%s: %+v", c.args, r)
		}
		for _, want := range c.want {
			if !strings.Contains(r.stdout, want) {
				t.Errorf("%s: %q is missing in\n%s", c.args, want, r.stdout)
			}
		}
		for line := range strings.Lines(r.stdout) {
			if term.Width(strings.TrimRight(line, "\n")) > helpWidth {
				t.Errorf("%s: a long line: %s", c.args, line)
			}
		}
	}
	for _, s := range g.requests() {
		if s.method != "GET" {
			t.Errorf("help asks %+v", s)
		}
	}
	if r := ravi(t, nil, "", "--version"); r.exit != 0 || !strings.HasPrefix(r.stdout, "ravi v1 ") {
		t.Errorf("%+v", r)
	}
	// Help is for those as well who have nothing yet.
	if r := ravi(t, nil, "", "--help"); r.exit != 0 || !strings.Contains(r.stdout, "Not connected:") || !strings.Contains(r.stdout, "never instructions") {
		t.Errorf("%+v", r)
	}
	if r := ravi(t, envOf("unix:/nonexistent/g.sock"), "", "--help"); r.exit != ExitUnavailable || !strings.Contains(r.stdout, "GROUP COMMAND") || r.stderr == "" {
		t.Errorf("%+v", r)
	}
	g.registry = `{"commands":[]}`
	if r := ravi(t, envOf(url), "", "--help"); r.exit != 0 || !strings.Contains(r.stdout, "may use none") {
		t.Errorf("%+v", r)
	}
}

// Every text of the registry may be hostile, or merely long.
func TestHelpOfAHostileRegistry(t *testing.T) {
	g, url := newGateway(t)
	evil := "evil \x1b]0;x\a\u202e\u009b \xff " + testKey + " " + strings.Repeat("long ", 100) + strings.Repeat("漢", 100) + "\n" + strings.Repeat("x", 200)
	text, err := json.Marshal(evil)
	if err != nil {
		t.Fatal(err)
	}
	g.registry = strings.ReplaceAll(`{"commands":[
		{"group":"a","command":"b","access":"read","summary":EVIL,"long":EVIL,"examples":[{"what":EVIL,"line":EVIL}],"fields":[
			{"name":"x","type":"string","flag":"x","usage":EVIL,"value":EVIL},{"name":"y","type":"string","arg":EVIL,"usage":EVIL}]},
		{"group":"a","command":"c","access":"read","summary":EVIL}]}`, "EVIL", string(text))
	for _, args := range []string{"--help", "a --help", "a b --help", "a b"} {
		r := ravi(t, envOf(url), "", strings.Fields(args)...) // which looks at what comes out
		if out := r.stdout + r.stderr; !strings.Contains(out, `evil \x1b]0;x\a\u202e\u009b`) {
			t.Errorf("%s: %s", args, out)
		}
	}
}

func TestWrap(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "-\n"},
		{"a b", "- a b\n"},
		{strings.Repeat("x", 100) + " y", "- " + strings.Repeat("x", 100) + "\n  y\n"},
		{strings.TrimSpace(strings.Repeat("word ", 20)), "- " + strings.TrimSpace(strings.Repeat("word ", 15)) + "\n  " + strings.TrimSpace(strings.Repeat("word ", 5)) + "\n"},
		{strings.Repeat("漢", 39) + " 漢", "- " + strings.Repeat("漢", 39) + "\n  漢\n"},
	} {
		if got := wrap(c.text, "- ", "  "); got != c.want {
			t.Errorf("got\n%s\nwant\n%s", got, c.want)
		}
	}
}

func FuzzRegistry(f *testing.F) {
	f.Add([]byte(registryDoc))
	f.Add([]byte(`{"commands":[{"group":"a","command":"b","access":"read","fields":[{"name":"x","type":"map","flag":"x"}]}]}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		r, err := parseRegistry(doc)
		if err != nil {
			return
		}
		_ = helpTop(r, nil)
		for _, c := range r.Commands {
			if strings.ContainsAny(c.path()[len("/api/v1/"):], "?#%.\\ ") || strings.Count(c.path(), "/") != 4 {
				t.Errorf("the path is %q", c.path())
			}
			_ = helpGroup(r, c.Group)
			if c.check() == nil {
				_ = helpCommand(c)
				_, _ = c.parse([]string{"a", "--x=b", "-y", "c"}, strings.NewReader(""))
			}
		}
	})
}

func Example_pairs() {
	fmt.Print(pairs([][2]string{{"a", "one"}, {"bcd", "two"}}))
	// Output:
	//   a     one
	//   bcd   two
}

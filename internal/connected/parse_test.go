package connected

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// lookup is a command of registryDoc.
func lookup(t testing.TB, words ...string) *Command {
	t.Helper()
	r, err := parseRegistry([]byte(registryDoc))
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := r.find(words)
	if err != nil || c == nil {
		t.Fatalf("%v: %v", words, err)
	}
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestParse(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a file")
	if err := os.WriteFile(file, []byte("from\nthe file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cmd  string
		args []string
		want string // the body, or what the error says
	}{
		{"tasks comment", []string{"t1"}, `{"task":"t1"}`},
		{"tasks comment", []string{"t1", "--text", "a b"}, `{"task":"t1","text":"a b"}`},
		{"tasks comment", []string{"--text=a=b", "t1"}, `{"task":"t1","text":"a=b"}`},
		{"tasks comment", []string{"--text=", "t1"}, `{"task":"t1","text":""}`},
		{"tasks comment", []string{"t1", "--text", "--urgent"}, `{"task":"t1","text":"--urgent"}`},
		{"tasks comment", []string{"t1", "-t", "x", "-u"}, `{"task":"t1","text":"x","urgent":true}`},
		{"tasks comment", []string{"t1", "-utx"}, `{"task":"t1","text":"x","urgent":true}`},
		{"tasks comment", []string{"t1", "-t=x"}, `{"task":"t1","text":"x"}`},
		{"tasks comment", []string{"t1", "-u=false"}, `{"task":"t1","urgent":false}`},
		{"tasks comment", []string{"t1", "-qun7"}, `{"task":"t1","urgent":true,"limit":7}`},
		{"tasks comment", []string{"t1", "--urgent=false"}, `{"task":"t1","urgent":false}`},
		{"tasks comment", []string{"t1", "--urgent=maybe"}, "--urgent: write true or false"},
		{"tasks comment", []string{"--urgent", "t1"}, `{"task":"t1","urgent":true}`},
		{"tasks comment", []string{"t1", "--limit", "-5"}, `{"task":"t1","limit":-5}`},
		{"tasks comment", []string{"t1", "--limit", "18446744073709551615"}, `{"task":"t1","limit":18446744073709551615}`},
		{"tasks comment", []string{"t1", "--limit", "18446744073709551616"}, "write a whole number"},
		{"tasks comment", []string{"t1", "--limit", "1.5"}, "write a whole number"},
		{"tasks comment", []string{"t1", "--limit", "0x10"}, "write a whole number"},
		{"tasks comment", []string{"t1", "--limit"}, "--limit needs a value"},
		{"tasks comment", []string{"t1", "-n"}, "-n needs a value"},
		{"tasks comment", []string{"t1", "--weight", "1.5e3"}, `{"task":"t1","weight":1500}`},
		{"tasks comment", []string{"t1", "--weight", "NaN"}, "write a number"},
		{"tasks comment", []string{"t1", "--weight", "1e999"}, "write a number"},
		{"tasks comment", []string{"t1", "--max-age", "10m"}, `{"task":"t1","max_age":"10m"}`},
		{"tasks comment", []string{"t1", "--max-age", "10"}, "write a duration"},
		{"tasks comment", []string{"t1", "--label", "a", "-l", "b,c", "--label="}, `{"task":"t1","labels":["a","b,c",""]}`},
		{"tasks comment", []string{"t1", "--meta", "a=1", "-m", "b=2=3"}, `{"task":"t1","meta":{"a":"1","b":"2=3"}}`},
		{"tasks comment", []string{"t1", "--meta", "a"}, "write NAME=VALUE"},
		{"tasks comment", []string{"t1", "--meta", "=a"}, "write NAME=VALUE"},
		{"tasks comment", []string{"t1", "--meta", "a=1", "--meta", "a=2"}, `"a" is given twice`},
		{"tasks comment", []string{"t1", "--text", "x", "--text", "y"}, `{"task":"t1","text":"y"}`},
		{"tasks comment", nil, "TASK is missing"},
		{"tasks comment", []string{"t1", "t2"}, `"t2" is one argument too many`},
		{"tasks comment", []string{"--", "--text"}, `{"task":"--text"}`},
		{"tasks comment", []string{"--", "-"}, `{"task":"-"}`},
		{"tasks comment", []string{"--", "t1", "--"}, `"--" is one argument too many`},
		{"tasks comment", []string{""}, `{"task":""}`},
		{"tasks comment", []string{"t1", "--text", "-"}, `{"task":"t1","text":"standard\ninput"}`},
		{"tasks comment", []string{"-", "--text", "x"}, `{"task":"standard\ninput","text":"x"}`},
		{"tasks comment", []string{"-", "--text", "-"}, "standard input was read already"},
		{"tasks comment", []string{"t1", "--text-file", "-"}, `{"task":"t1","text":"standard\ninput"}`},
		{"tasks comment", []string{"t1", "--text-file", file}, `{"task":"t1","text":"from\nthe file\n"}`},
		{"tasks comment", []string{"t1", "--text-file=" + file}, `{"task":"t1","text":"from\nthe file\n"}`},
		{"tasks comment", []string{"t1", "--text-file", file + "x"}, "no such file"},
		{"tasks comment", []string{"t1", "--text-file", "/dev/zero"}, "/dev/zero is longer than 1048576 bytes"},
		{"tasks comment", []string{"t1", "--text-file"}, "--text-file needs a value"},
		{"tasks comment", []string{"t1", "--limit-file", file}, "unknown flag: --limit-file"},
		{"tasks comment", []string{"t1", "--task-file", file}, "unknown flag: --task-file"},
		{"tasks comment", []string{"t1", "--label", "-"}, `{"task":"t1","labels":["-"]}`},
		{"tasks comment", []string{"t1", "--text", "\xff"}, "not UTF-8"},
		{"tasks comment", []string{"\xff"}, "not UTF-8"},
		{"tasks comment", []string{"t1", "--task", "t2"}, "unknown flag: --task"},
		{"tasks comment", []string{"t1", "-x"}, "unknown flag: -x"},
		{"tasks comment", []string{"t1", "-é"}, "unknown flag: -é"},
		{"tasks comment", []string{"t1", "-\xff"}, "unknown flag"},
		{"tasks comment", []string{"t1", "--=x"}, "unknown flag"},
		{"tasks comment", []string{"t1", "---"}, "unknown flag"},
		{"tasks comment", []string{"t1", "--urgen=secret"}, "unknown flag: --urgen"},
		{"tasks show", nil, `{}`},
		{"runs kill", []string{"why"}, `{"why":"why"}`},
		{"runs kill", []string{"-a", "why", "r1", "r2"}, `{"all":true,"why":"why","runs":["r1","r2"]}`},
		{"runs kill", []string{"why", "--all", "r1"}, `{"all":true,"why":"why","runs":["r1"]}`},
		{"runs kill", []string{"why", "r1", "--all"}, "--all stands after RUN…"},
		{"runs kill", []string{"why", "r1", "--json=secret"}, "--json stands after RUN…"},
		{"runs kill", []string{"why", "--", "r1", "--all", "-", "--"}, `{"why":"why","runs":["r1","--all","-","--"]}`},
		{"runs kill", []string{"why", "r1", "--", "--all"}, `{"why":"why","runs":["r1","--all"]}`},
		{"runs kill", []string{"why", "-"}, `{"why":"why","runs":["-"]}`},
	} {
		call, err := lookup(t, strings.Fields(c.cmd)...).parse(c.args, strings.NewReader("standard\ninput"))
		if !strings.HasPrefix(c.want, "{") {
			if err == nil || !strings.Contains(err.message, c.want) || err.code != codeUsage || err.exit != ExitUsage {
				t.Errorf("%s %q: %+v, %v, want %q", c.cmd, c.args, call, err, c.want)
			} else if strings.Contains(err.message+err.hint, "secret") {
				t.Errorf("%s %q: the value is repeated: %v", c.cmd, c.args, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s %q: %v", c.cmd, c.args, err)
			continue
		}
		body, jerr := json.Marshal(call.body)
		if jerr != nil || !sameJSON(t, string(body), c.want) {
			t.Errorf("%s %q: %s, want %s", c.cmd, c.args, body, c.want)
		}
	}
	long := strings.NewReader(strings.Repeat("x", maxText+1))
	if _, err := lookup(t, "tasks", "comment").parse([]string{"t", "--text", "-"}, long); err == nil || !strings.Contains(err.message, "longer than") {
		t.Errorf("a long text: %v", err)
	}
}

func TestWhereFlagsOfAllCommandsMayStand(t *testing.T) {
	_, url := newGateway(t)
	for _, args := range []string{
		"--json tasks comment t1", "tasks --json comment t1", "tasks comment --json t1", "tasks comment t1 --json",
		"-q --json=true tasks comment t1", "tasks --json -q comment -- t1", "tasks comment t1 --json=1 --quiet",
	} {
		if r := ravi(t, envOf(url), "", strings.Fields(args)...); r.exit != 0 || r.stdout != `{"id":"com1"}`+"\n" {
			t.Errorf("%s: %+v", args, r)
		}
	}
	for _, args := range []string{"--json=false tasks comment t1", "tasks comment --json --json=false t1", "tasks comment -- t1"} {
		if r := ravi(t, envOf(url), "", strings.Fields(args)...); r.exit != 0 || r.stdout != "done\n" {
			t.Errorf("%s: %+v", args, r)
		}
	}
	if r := ravi(t, envOf(url), "", "tasks", "comment", "t1", "--text", strings.Repeat("\x01", maxText)); r.exit != ExitUsage || !strings.Contains(r.stderr, "more than the 2097152") {
		t.Errorf("a body that is too large: %.300v", r)
	}
}

// The parser never panics, and sends nothing that is not in the arguments.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"t1\x00--text\x00x", "--meta\x00a=b\x00-uqn5\x00--\x00--x", "-l=\x00-l\x00-t", "--limit=1\x00--weight\x00-1e5", "a\x00b\x00c\x00--all",
		"--text-file\x00-", "-\xff\x00---\x00--=\x00-=", "--json=x\x00-h",
	} {
		f.Add(seed, "stdin")
	}
	commands := []*Command{lookup(f, "tasks", "comment"), lookup(f, "tasks", "show"), lookup(f, "runs", "kill"), lookup(f, "bench")}
	f.Fuzz(func(t *testing.T, line, stdin string) {
		args := strings.Split(line, "\x00")
		for _, arg := range args {
			if _, path, _ := strings.Cut(arg, "="); strings.Contains(arg, "-file") && path != "" {
				return // it would read whatever file that is
			}
		}
		for i, arg := range args {
			if strings.HasSuffix(arg, "-file") && i+1 < len(args) && args[i+1] != "-" {
				return
			}
		}
		for _, c := range commands {
			call, err := c.parse(args, strings.NewReader(stdin))
			if err != nil {
				if err.message == "" || err.exit != ExitUsage {
					t.Errorf("%q: %+v", args, err)
				}
				continue
			}
			if call.help {
				continue
			}
			comes := func(text string) bool {
				return strings.Contains(line, text) || text == stdin
			}
			for key, value := range call.body {
				known := false
				for _, f := range c.Fields {
					known = known || f.Name == key
				}
				if !known {
					t.Fatalf("%q: the body has %q", args, key)
				}
				switch v := value.(type) {
				case string:
					if !comes(v) || !utf8.ValidString(v) {
						t.Errorf("%q: %s is %q", args, key, v)
					}
				case []string:
					for _, item := range v {
						if !comes(item) {
							t.Errorf("%q: %s has %q", args, key, item)
						}
					}
				case map[string]string:
					for name, item := range v {
						if !comes(name + "=" + item) {
							t.Errorf("%q: %s has %q=%q", args, key, name, item)
						}
					}
				}
			}
			if _, err := json.Marshal(call.body); err != nil {
				t.Errorf("%q: %v", args, err)
			}
		}
	})
}

package gate

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestPatternsOfTheOperator(t *testing.T) {
	g := must(t, Options{ExtraDeny: []string{`^make deploy`, `(?i)drop table`, `\bterraform destroy\b`}})
	for command, want := range map[string]Decision{
		`make deploy`: Deny, `cd x && make deploy`: Deny, `m'a'ke de"plo"y`: Deny, `a=deploy; make $a`: Deny, `sh -c 'make deploy'`: Deny, `sudo make deploy`: Deny,
		`make test`: Allow, `Make deploy`: Allow, `echo x # make deploy`: Allow, `psql -c 'DROP TABLE x'`: Deny, `psql -c 'drop table x'`: Deny, `sudo env terraform destroy`: Deny,
		`# drop table`: Deny, // as written, comments are text, too
	} {
		if v := g.Judge(command, workspace); v.Decision != want || want == Deny && v.Family != Pattern {
			t.Errorf("%q: %+v, want %s", command, v, want)
		}
	}
	// One pattern does not take the place of what is built in.
	if v := g.Judge(`rm -rf /`, workspace); v.Decision != Deny || v.Family != Delete {
		t.Errorf("%+v", v)
	}
}

func TestAPatternThatDoesNotCompileIsRefused(t *testing.T) {
	for _, bad := range []string{`a(`, `(?<=x)y`, `[`, ``} {
		_, err := New(Options{ExtraDeny: []string{`fine`, bad}})
		if !errors.Is(err, ErrPattern) || !strings.Contains(err.Error(), fmt.Sprintf("extra_deny_patterns[1] %q", bad)) && bad != "" {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestWhereTheCommandStarts(t *testing.T) {
	g := must(t, Options{})
	for _, c := range []struct {
		command, cwd string
		want         Decision
	}{
		{`rm -rf *`, `/`, Deny}, {`rm -rf ./*`, `/`, Deny}, {`rm -rf usr`, `/`, Deny}, {`rm -rf build`, `/`, Allow}, {`rm -rf ..`, `/workspace`, Deny}, {`rm -rf ../etc`, `/workspace`, Deny},
		{`rm -rf *`, `/root`, Deny}, {`rm -rf *`, `/home/user`, Deny}, {`rm -rf x`, `/home/user`, Allow}, {`rm -rf .`, `/etc`, Deny}, {`rm -rf nginx`, `/etc`, Allow},
		{`rm -rf *`, ``, Ask}, {`rm -rf build`, ``, Allow}, {`rm -rf ..`, ``, Ask}, {`rm -rf /`, ``, Deny}, {`rm -rf ../../../../../..`, ``, Deny},
		{`rm -rf sda; cat x > sda`, `/dev`, Deny}, {`rm -rf /workspace/build`, `/workspace/`, Allow}, {`rm -rf /workspace`, `/workspace`, Ask}, {`rm -rf /workspace2`, `/workspace`, Ask},
	} {
		if v := g.Judge(c.command, c.cwd); v.Decision != c.want {
			t.Errorf("%q in %q: %+v, want %s", c.command, c.cwd, v, c.want)
		}
	}
}

// A verdict is shown to people: the piece that is meant, and nothing that drives their terminal.
func TestTheVerdictIsForPeople(t *testing.T) {
	g := must(t, Options{})
	v := g.Judge("ls\nx='/'; sudo rm -rf $x $'\\e[2J' # fine", workspace)
	if v.Decision != Deny || v.Part != "rm -rf / ?[2J" || !strings.Contains(v.Reason, "the root") {
		t.Errorf("%+v", v)
	}
	v = g.Judge(`rm -rf "$dir"/x`, workspace)
	if v.Part != "rm -rf …/x" {
		t.Errorf("%+v", v)
	}
	v = g.Judge(`$x `+strings.Repeat("é", 5000), workspace)
	if len([]rune(v.Part)) > 201 {
		t.Errorf("the part has %d runes", len([]rune(v.Part)))
	}
}

func TestADigestNamesOneCommand(t *testing.T) {
	if got := Digest("ls"); got != "c7b68ac37f364473e922936708e7f43c293dd07b295171566c07ff5fe024fab9" {
		t.Error(got)
	}
	if Digest("rm x") == Digest("rm  x") {
		t.Error("an approval fits another command")
	}
}

// What is made to be endless ends, and is not waved through.
func TestBounds(t *testing.T) {
	g := must(t, Options{})
	deep := func(open, middle, end string, n int) string {
		return strings.Repeat(open, n) + middle + strings.Repeat(end, n)
	}
	var doubling strings.Builder
	doubling.WriteString("a=xxxxxxxxxxxxxxxx;")
	for range 40 {
		doubling.WriteString("a=$a$a;")
	}
	var choices strings.Builder
	for i := range 60 {
		fmt.Fprintf(&choices, "if x; then a%d=1; else a%d=2; fi; ", i, i)
	}
	choices.WriteString("$a1$a2$a3$a4$a5$a6$a7$a8$a9 x")
	var calls strings.Builder
	for i := range 40 {
		fmt.Fprintf(&calls, "f%d() { f%d; f%d; f%d; }; ", i, i+1, i+1, i+1)
	}
	calls.WriteString("f0")
	harmless := map[string]bool{"heredocs": true, "aliases": true, "mutual aliases": true, "nested shells": true}
	for name, command := range map[string]string{
		"long": strings.Repeat("a", maxCommand+1), "substitutions": deep("$(", "x", ")", 5000), "subshells": deep("(", "x", ")", 5000), "blocks": deep("{ ", "x;", "};", 3000), "tests": "[[ " + deep("(", "x", ")", 5000) + " ]]",
		"braces": "rm -rf {1..1000000000}{1..1000000000}", "brace lists": "rm -rf " + strings.Repeat("{a,b}", 200), "doubling": doubling.String() + "$a", "choices": choices.String(), "calls": calls.String(),
		"nested shells": nestedShells(40), "ifs": strings.Repeat("if ", 6000), "nots": strings.Repeat("! ", 6000) + "x", "statements": strings.Repeat("a;", 30000), "unary": "((" + strings.Repeat("-", 20000) + "1))", "pipes": strings.Repeat("a|", 30000) + "a", "ands": strings.Repeat("a&&", 20000) + "a",
		"nested loops": strings.Repeat("for x in a b c d e f g h; do ", 12) + "$x" + strings.Repeat("; done", 12), "nested whiles": strings.Repeat("while x; do ", 100) + "$x" + strings.Repeat("; done", 100), "xargs": "echo " + strings.Repeat("a ", 20000) + "| xargs -n1 sh -c", "quotes": deep("eval '", "x", "'", 100), "globs": "rm -rf /" + strings.Repeat("*?", 20000), "loop doubling": "a=xx; while x; do a=$a$a; done; $a", "aliases": "alias a='a a'\na", "mutual aliases": "alias a='b b' b='a a'\na",
		"much text": "x=" + strings.Repeat("'while fork' ", 1000) + "; " + strings.Repeat(`python3 -c "$x$y";`, 2500), "much to compare": "while x; do " + strings.Repeat("a=$a$b$c; b=x$a$c; c=y$b;", 300) + "done; $a", "eval in a function": "f() { eval f; }; f; $x", "recursion": "f() { f; f; f; f; }; f; $x", "arithmetic": "echo $((9**9**9**9)); $x", "printf": "printf '%999999999d' 1 | sh", "printf repeated": "x=$(printf '%s%s%s%s' {1..256} {1..256}); $x", "heredocs": strings.Repeat("cat <<A\nA\n", 6000),
	} {
		t.Run(name, func(t *testing.T) {
			done := make(chan Verdict, 1)
			go func() { done <- g.judge(command, workspace) }()
			select {
			case v := <-done:
				if v.Decision == Allow && !harmless[name] {
					t.Errorf("allowed")
				}
			case <-time.After(time.Minute): // a hang, and no measure of speed
				t.Fatal("it does not end")
			}
		})
	}
}

func nestedShells(n int) string {
	command := "rm -rf build"
	for range n {
		command = "eval " + quoteAll([]string{command})
		if len(command) > maxCommand/3 {
			break
		}
	}
	return command
}

var denied = []string{`rm -rf /`, `rm -r -f ~`, `rm --recursive /home`, `dd if=x of=/dev/sda`, `mkfs.ext4 /dev/sda`, `reboot`, `systemctl poweroff`, `find / -delete`, `mv / x`, `:(){ :|:& };:`, `cat x > /dev/sda`}

// What is denied stays denied, whatever it is put into.
func TestWhatIsDeniedStaysDenied(t *testing.T) {
	g := must(t, Options{})
	around := []func(string) string{
		func(s string) string { return "true; " + s }, func(s string) string { return s + "\ntrue" }, func(s string) string { return "true && { " + s + "\n}" }, func(s string) string { return "false || ( " + s + "\n)" },
		func(s string) string { return "echo \"$( " + s + "\n)\"" }, func(s string) string { return "x=`" + escapedTicks(s) + "`" }, func(s string) string { return "( " + s + "\n)" }, func(s string) string { return "! { " + s + "\n}" },
		func(s string) string { return "sh -c " + quoteAll([]string{s}) }, func(s string) string { return "bash -ec " + quoteAll([]string{s}) }, func(s string) string { return "eval " + quoteAll([]string{s}) }, func(s string) string { return "sudo -u x sh -c " + quoteAll([]string{s}) },
		func(s string) string { return "env A=b timeout -s KILL 9 nice -n 3 bash -c " + quoteAll([]string{s}) }, func(s string) string { return "if x; then " + s + "\nelse y; fi" }, func(s string) string { return "while x; do " + s + "\ndone" }, func(s string) string { return "for i in a b; do " + s + "\ndone" }, func(s string) string { return "case x in y) " + s + "\n;; esac" },
		func(s string) string { return "fun() { " + s + "\n}\nfun a b" }, func(s string) string {
			end := fmt.Sprintf("END%d", len(s))
			return "sh <<'" + end + "'\n" + s + "\n" + end + "\n"
		}, func(s string) string { return "printf %s " + quoteAll([]string{s}) + " | sh" }, func(s string) string { return "v=" + quoteAll([]string{s}) + "; eval \"$v\"" }, func(s string) string { return "trap " + quoteAll([]string{s + " "}) + " EXIT" },
		func(s string) string { return "find . -maxdepth 0 -exec sh -c " + quoteAll([]string{s}) + " \\;" }, func(s string) string { return "echo x | xargs sh -c " + quoteAll([]string{s}) }, func(s string) string { return "cat <(" + s + "\n)" }, func(s string) string { return "ls | { " + s + "\n}" }, func(s string) string { return "ls # a comment\n" + s }, func(s string) string { return "nohup setsid stdbuf -oL sh -c " + quoteAll([]string{s}) + " &" },
	}
	rapid.Check(t, func(t *rapid.T) {
		command := rapid.SampledFrom(denied).Draw(t, "command")
		for range rapid.IntRange(1, 4).Draw(t, "layers") {
			command = rapid.SampledFrom(around).Draw(t, "around")(command)
		}
		if v := g.judge(command, workspace); v.Decision != Deny {
			t.Fatalf("%q: %+v", command, v)
		}
	})
}

// escapedTicks makes a command fit between backquotes.
func escapedTicks(s string) string {
	return strings.NewReplacer(`\`, `\\`, "`", "\\`", `$`, `\$`).Replace(s)
}

// Each word means the same in each kind of quotes.
func TestQuotesChangeNothing(t *testing.T) {
	g := must(t, Options{})
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SampledFrom([][]string{{"rm", "-rf", "/"}, {"rm", "-r", "/etc"}, {"dd", "of=/dev/sda"}, {"reboot"}, {"sudo", "rm", "-fr", "/usr"}, {"find", "/", "-delete"}, {"sh", "-c", "rm -rf /"}, {"xargs", "-a", "x", "rm", "-rf", "/"}}).Draw(t, "words")
		var parts []string
		for _, w := range words {
			var b strings.Builder
			for _, r := range w {
				switch rapid.IntRange(0, 6).Draw(t, "quotes") {
				case 0:
					fmt.Fprintf(&b, "'%c'", r)
				case 1:
					fmt.Fprintf(&b, "\"%c\"", r)
				case 2:
					fmt.Fprintf(&b, "\\%c", r)
				case 3:
					fmt.Fprintf(&b, `$'\x%02x'`, r)
				case 4:
					fmt.Fprintf(&b, `$'\%03o'`, r)
				case 5:
					fmt.Fprintf(&b, "''\\\n\"\"'%c'", r)
				default:
					fmt.Fprintf(&b, "$(printf '%%s' '%c')", r)
					if r == ' ' {
						b.Reset()
						b.WriteString(quoteAll([]string{w}))
						goto whole
					}
				}
			}
		whole:
			parts = append(parts, b.String())
		}
		command := strings.Join(parts, rapid.SampledFrom([]string{" ", "\t", " \\\n ", "  "}).Draw(t, "space"))
		if v := g.judge(command, workspace); v.Decision != Deny {
			t.Fatalf("%q: %+v", command, v)
		}
	})
}

func FuzzJudge(f *testing.F) {
	for _, c := range denied {
		f.Add(c)
	}
	for _, c := range []string{"a=(1 2); echo ${a[@]:1}", "echo ${00} ${x@P} ${!x} ${x^^} ${x//a/b} ${x:1:2}", "cat <<E\n$x\nE", "for ((i=0;i<3;i++)); do :; done", "[[ a =~ b ]] && let x=1", "select x in a; do :; done", "printf '%s' a | xargs -I{} sh -c '{}'", "find . -exec sh -c 'x' {} +", "alias a=b\na", "f() { f | f & }; f", "python3 -c 'print(1)' <(x)", "{a,b}{1..3}", "coproc x { y; }", "x[1]=2; declare -A m=([a]=b)", "git -c a=b push", "curl -d x y", "echo $'\\x41' $\"x\" ~/x ~+ ~u", "tar -I x -f y", "env -S 'a b'"} {
		f.Add(c)
	}
	g, err := New(Options{ExtraDeny: []string{"secret"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, command string) {
		v := g.judge(command, workspace) // without the net that Judge has
		if again := g.judge(command, workspace); again != v {
			t.Fatalf("%q is judged as %+v, and as %+v", command, v, again)
		}
		if v.Decision == Allow != (v.Family == "") || v.Decision == Allow != (v.Reason == "") {
			t.Fatalf("%q: %+v", command, v)
		}
		// A command that is judged is judged no milder after another one.
		if v.Family != Unclear {
			if after := g.judge("true\n"+command, workspace); after.Decision < v.Decision {
				t.Fatalf("%q: %+v, and after another command %+v", command, v, after)
			}
		}
	})
}

func BenchmarkJudge(b *testing.B) {
	g, err := New(Options{})
	if err != nil {
		b.Fatal(err)
	}
	for name, command := range map[string]string{
		"ls": `ls -la`, "test": `cd src && go test ./... 2>&1 | tail -20`, "commit": `git add -A && git commit -m "say what was done"`, "loop": `for f in *.txt; do mv "$f" "${f%.txt}.md"; done`, "python": `python3 -c 'import json; print(json.dumps({"a": 1}))'`, "denied": `sudo env A=b bash -c 'cd / && rm -rf *'`,
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				g.Judge(command, workspace)
			}
		})
	}
}

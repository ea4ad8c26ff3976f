package gate

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// field is where bash runs what was allowed: every program that it can find is one of ours, or harmless.
type field struct{ bash, bin, dir, log string }

func newField(t *testing.T) field {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("this machine has no bash, so what the gate allows is not compared with what bash does: install bash")
	}
	root := t.TempDir()
	f := field{bash: bash, bin: filepath.Join(root, "bin"), dir: filepath.Join(root, "work"), log: filepath.Join(root, "log")}
	// The tests' own folder is for one user only; bash runs as another.
	for dir := root; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{f.bin, filepath.Join(f.dir, "build", "deep")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(f.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	fake := "#!" + bash + "\n{ printf '%s\\0' \"$PWD\" \"$@\"; printf '\\1'; } >> " + f.log + "\n"
	if err := os.WriteFile(filepath.Join(f.bin, "rm"), []byte(fake), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.log, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(f.log, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bash", "sh", "env", "xargs", "find", "cat", "nice", "timeout", "basename", "dirname"} {
		real, err := exec.LookPath(name)
		if err != nil {
			t.Fatalf("this machine has no %s: %v", name, err)
		}
		if err := os.Symlink(real, filepath.Join(f.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// destroys runs a script in bash, and says which deletion of the root or a home came of it.
func (f field) destroys(t *rapid.T, script string) string {
	if err := os.Truncate(f.log, 0); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, f.bash, "--norc", "--noprofile", "-c", script)
	cmd.Dir = f.dir
	cmd.Env = []string{"PATH=" + f.bin, "HOME=/home/somebody", "FUNCNEST=12"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Getuid() == 0 {
		const nobody = 65534 // a net below the net
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	_ = cmd.Run() // how it ends does not matter
	b, err := os.ReadFile(f.log)
	if err != nil {
		t.Fatal(err)
	}
	for one := range bytes.SplitSeq(b, []byte{1}) {
		words := strings.Split(string(one), "\x00")
		if len(words) < 2 {
			continue
		}
		recursive, ended := false, false
		for _, w := range words[1:] {
			switch {
			case !ended && w == "--":
				ended = true
			case !ended && strings.HasPrefix(w, "-"):
				recursive = recursive || strings.ContainsAny(w, "rR")
			}
		}
		for _, w := range words[1:] {
			if w == "" || strings.HasPrefix(w, "-") {
				continue
			}
			if !path.IsAbs(w) {
				w = words[0] + "/" + w
			}
			w = path.Clean(w)
			for _, never := range []string{"/", "/home", "/home/somebody", "/etc", "/usr", "/bin", "/var"} {
				if recursive && w == never {
					return "rm " + strings.Join(words[1:], " ") + " in " + words[0]
				}
			}
		}
	}
	return ""
}

// script makes programs out of what shells offer to hide a thing.
type script struct {
	t     *rapid.T
	depth int
}

func (s *script) one(of ...string) string { return rapid.SampledFrom(of).Draw(s.t, "one") }
func (s *script) variable() string        { return s.one("a", "b", "c") }

func (s *script) value() string {
	switch rapid.IntRange(0, 13).Draw(s.t, "value") {
	case 0:
		return "$" + s.variable()
	case 1:
		return `"$` + s.variable() + `"`
	case 2:
		return "${" + s.variable() + ":-" + s.constant() + "}"
	case 3:
		return "${" + s.variable() + s.one("#", "##", "%", "%%", ":+", ":=", "-", "+", "=") + s.constant() + "}"
	case 4:
		return "${" + s.variable() + "/" + s.one("x", "b", "m", "?") + "/" + s.one("r", "m", "", "e") + "}"
	case 5:
		return s.one(`"$1"`, "$2", `"$@"`, "$*", "$_", "$0", "${@:1}", "$#", `"${a[@]}"`, "${a[1]}", "${b[0]}", "${!a}", "${a:0:1}", "${a:1}", "${b^^}", "${c,,}")
	case 6:
		return "$(" + s.statement() + ")"
	case 7:
		return "$(printf %s " + s.constant() + " " + s.constant() + ")"
	case 8:
		return s.constant() + s.constant()
	default:
		return s.constant()
	}
}

func (s *script) constant() string {
	return s.one("/", "rm", "-rf", "build", "x", "/x", "xrm", "..", "/..", "r", "m", "'rm -rf /'", "'-rf /'", `"/ x"`, "~", "/*", "$'\\x2f'", "{/,x}", "''", "-r", "a", "'a b'", "echo", "*", "r\\m", "\\/", "/tmp/..", "b=/", "rm,-rf,/", "build", "x", "build", "echo", "x", "printf", "true", "m", "a", "b", "x/", "bu*", "build", "echo", "deep", "x", "true")
}

func (s *script) condition() string {
	return s.one("true", "false", `[ -n "$a" ]`, `[ "$b" = / ]`, "cd /", "cd nowhere", "cd build", "[[ $c == rm ]]", "read a", "((1))", "! true")
}

func (s *script) block() string {
	var out []string
	for range rapid.IntRange(1, 3).Draw(s.t, "statements") {
		out = append(out, s.statement())
	}
	return strings.Join(out, "\n")
}

func (s *script) statement() string {
	if s.depth > 3 {
		return s.flat()
	}
	s.depth++
	defer func() { s.depth-- }()
	switch rapid.IntRange(0, 26).Draw(s.t, "statement") {
	case 0:
		return "if " + s.condition() + "; then " + s.block() + "\nelse " + s.block() + "\nfi"
	case 1:
		return "for " + s.variable() + " in " + s.value() + " " + s.value() + "; do " + s.block() + "\ndone"
	case 2:
		return "while " + s.condition() + "; do " + s.block() + "\nbreak; done"
	case 3:
		return s.one("f", "g", "rm") + "() { " + s.block() + "\n}"
	case 4:
		return "{ " + s.block() + "\n} " + s.one("||", "&&") + " { " + s.block() + "\n}"
	case 5:
		return "( " + s.block() + "\n)"
	case 6:
		return "{ " + s.block() + "\n} | { " + s.block() + "\n}"
	case 7:
		return "case " + s.value() + " in " + s.one("/", "x", "*", "rm") + ") " + s.block() + "\n;; *) " + s.block() + "\n;; esac"
	case 8:
		return s.one("eval ", "bash -c ", "sh -c ", "trap ", "env bash -c ", "A=/ bash -c ", "a=/ bash -c ", "nice sh -c ", "echo x | xargs sh -c ") + quoteAll([]string{s.block()}) + s.one("", " EXIT", " x /", " rm / -rf")
	case 9:
		return "bash <<'END" + fmt.Sprint(s.depth) + "'\n" + s.block() + "\nEND" + fmt.Sprint(s.depth) + "\n"
	case 10:
		return s.variable() + "=$(" + s.block() + "\n)"
	case 11:
		return "for " + s.variable() + " in 1 2 3; do " + s.block() + "\ndone"
	case 12:
		return "printf '%s\\n' " + s.value() + " | { read " + s.variable() + "; " + s.block() + "\n}"
	case 13:
		return "printf '%s\\n' " + s.value() + " " + s.value() + " | " + s.one("xargs rm -rf", "xargs", "xargs $a", "xargs -I{} rm -rf {}", "xargs -n1 rm -r", "sh", "bash -s", "while read a; do rm -rf $a; done", "cat | sh")
	default:
		return s.flat()
	}
}

func (s *script) flat() string {
	switch rapid.IntRange(0, 19).Draw(s.t, "flat") {
	case 0, 1, 2:
		return s.variable() + "=" + s.value()
	case 3:
		return s.variable() + "+=" + s.value()
	case 4:
		return s.one("a", "b") + "=(" + s.value() + " " + s.value() + ")"
	case 5:
		return s.one("cd /", "cd build", "cd ..", "cd nowhere", "cd -", "cd ~", "cd "+s.value(), "pushd / >&2", "cd / || exit", "cd nowhere || return", "cd / && true", "cd nowhere && cd /")
	case 6:
		return s.one("unset a", "unset -f rm", "unset b", "export a", "export b=/", "local a=/", "declare c=rm", "shift", "set -e", "set +e", "set -- "+s.value()+" "+s.value(), "IFS=,", "unset IFS", "set --", "exit", "return", "break", "continue", "exec 2>&1", "alias e='rm -rf'", "shopt -s expand_aliases", "e /", "HOME=/", "a=/ b=$a", "readonly c", "set -f", "true", ":", "wait")
	case 7:
		return "read " + s.variable() + " <<< " + s.value()
	case 8:
		return "printf -v " + s.variable() + " %s " + s.value()
	case 9:
		return s.one("f", "g", "rm") + " " + s.value() + " " + s.value()
	case 10:
		return s.one("echo ", "printf ", "printf %s ", "echo -n ") + s.value() + s.one("", " >&2", " > f1", " >> f1", " 2>&1", " > /dev/stdout")
	case 11:
		return s.one(". ./f1", "bash f1", "sh < f1", "cat f1", "bash <(cat f1)", "eval \"$(cat f1)\"", "source /dev/stdin <<< "+s.value())
	case 12:
		return "find . -maxdepth 0 -exec " + s.value() + " " + s.value() + " " + s.value() + " \\;"
	case 13:
		return s.value() + " " + s.value() + " " + s.value()
	case 14:
		return "rm " + s.value() + " " + s.value()
	default:
		return s.one("rm -rf ", "rm -r ", "command rm -rf ", "$a -rf ", "rm $b ", "env rm -rf ", "A=b rm -rf ", "exec rm -rf ", "timeout 5 rm -rf ", "eval rm -rf ", "builtin command rm -r ") + s.value()
	}
}

// What is allowed deletes neither the root nor a home when bash does it: programs are made up, and those that the gate
// allows are run by a bash that finds no rm but ours, which only takes notes.
func TestBashDeletesNothingThatWasAllowed(t *testing.T) {
	f := newField(t)
	g := must(t, Options{})
	rapid.Check(t, func(t *rapid.T) {
		s := &script{t: t}
		command := s.block() + "\n" + s.flat() + "\n" + s.flat()
		if g.judge(command, f.dir).Decision != Allow {
			return
		}
		if err := os.RemoveAll(filepath.Join(f.dir, "f1")); err != nil {
			t.Fatal(err)
		}
		if what := f.destroys(t, command); what != "" {
			t.Fatalf("allowed, and bash did %s:\n%s", what, command)
		}
	})
}

package toolcases

import (
	"strings"
	"testing"

	"ravi/sandbox"
)

// goEnv finds a Go that was unpacked to /usr/local/go, as its makers advise,
// and keeps it from asking a network that is not there.
const goEnv = "export PATH=$PATH:/usr/local/go/bin GOPROXY=off GOFLAGS=-mod=mod GOTOOLCHAIN=local; "

func (r *room) needsGo(t testing.TB) {
	t.Helper()
	if r.run(t, sandbox.Cmd{Shell: goEnv + "go version"}).ExitCode != 0 {
		t.Skip("SKIP-FEATURE: this host has no Go below /usr")
	}
}

func TestBuilds(t *testing.T) {
	r := open(t)
	t.Run("make and gcc", func(t *testing.T) {
		r.needs(t, "make", "gcc")
		r.put(t, "c/hello.c", "#include <stdio.h>\n#include \"name.h\"\nint main(void) { puts(\"hello \" NAME); return 0; }\n")
		r.put(t, "c/Makefile", "hello: hello.o\n\t$(CC) -o $@ $^\nhello.o: hello.c name.h\nname.h:\n\techo '#define NAME \"you\"' > $@\n")
		r.sh(t, "cd c && make -j4")
		want(t, "hello", r.sh(t, "c/hello"), "hello you\n")
		// Times on a shared folder are good enough for make to know that all is done.
		contains(t, "a second make", r.sh(t, "cd c && make"), "up to date")
	})
	// Of Go's own library only the runtime: nothing is compiled before in there.
	t.Run("go", func(t *testing.T) {
		r.needsGo(t)
		r.put(t, "go/go.mod", "module hello\n\ngo 1.21\n")
		r.put(t, "go/main.go", "package main\n\nimport \"hello/inner\"\n\nfunc main() { print(inner.Name(), \"\\n\") }\n")
		r.put(t, "go/inner/inner.go", "package inner\n\n// Name is a name.\nfunc Name() string { return \"gopher\" }\n")
		want(t, "the program", r.sh(t, goEnv+"cd go && go build -o hello . && ./hello 2>&1"), "gopher\n")
	})
	t.Run("npm", func(t *testing.T) {
		r.needs(t, "node", "npm")
		r.put(t, "js/dep/package.json", `{"name":"dep","version":"1.0.0","main":"index.js","bin":{"dep":"cli.js"}}`)
		r.put(t, "js/dep/index.js", `module.exports = () => "from dep";`)
		r.put(t, "js/dep/cli.js", "#!/usr/bin/env node\nconsole.log('cli', require('./index.js')());\n")
		r.put(t, "js/app/package.json", `{"name":"app","version":"1.0.0","scripts":{"start":"dep"},"dependencies":{"dep":"file:../dep"}}`)
		r.sh(t, "cd js/app && npm install --offline --no-audit --no-fund --loglevel=error")
		want(t, "require", r.sh(t, `cd js/app && node -p 'require("dep")()'`), "from dep\n")
		contains(t, "npm start", r.sh(t, "cd js/app && npm start --silent"), "cli from dep")
		// The same as a packed archive, copied rather than linked.
		r.sh(t, "cd js/dep && npm pack --silent && cd ../app && npm install --offline --no-audit --no-fund --loglevel=error ../dep/dep-1.0.0.tgz")
		want(t, "from the archive", r.sh(t, `cd js/app && test ! -L node_modules/dep && node -p 'require("dep")()'`), "from dep\n")
	})
	t.Run("python venv", func(t *testing.T) {
		r.needs(t, "python3")
		if res := r.run(t, sandbox.Cmd{Shell: "python3 -m venv --without-pip v"}); res.ExitCode != 0 {
			t.Fatalf("making it: %s%s", res.Stdout, res.Stderr)
		}
		want(t, "its python", r.sh(t, `. v/bin/activate && python -c 'import sys; print(sys.prefix != sys.base_prefix, sys.prefix)'`), "True /workspace/v\n")
		r.put(t, "mod/pyproject.toml", "")
		r.sh(t, `mkdir -p v/lib/python3/; . v/bin/activate && site=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && echo 'word = "installed"' > "$site/mine.py"`)
		want(t, "a module in it", r.sh(t, `. v/bin/activate && python -c 'import mine; print(mine.word)'`), "installed\n")
	})
	t.Run("a shell script with everything in it", func(t *testing.T) {
		script := `set -eu
d=$(mktemp -d)
cd "$d"
seq 1 1000 | shuf | sort -n | sha256sum | cut -c1-8 > sum
tar czf a.tgz sum && mkdir x && tar xzf a.tgz -C x && cmp sum x/sum
find . -type f -name sum -print0 | xargs -0 -n1 wc -c | awk '{s += $1} END {print s}'
ln -s sum link && readlink link
ln sum hard && stat -c %h sum
printf 'a b\nc' | while read -r line; do echo "<$line>"; done
trap 'echo trapped' EXIT
`
		res := r.run(t, sandbox.Cmd{Args: []string{"sh", "-s"}, Stdin: strings.NewReader(script)})
		want(t, "output", res.Stdout+res.Stderr, "18\nsum\n2\n<a b>\ntrapped\n")
	})
}

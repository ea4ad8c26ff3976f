package conventions

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "ravi"

// layers are the packages from the ground up. A package imports from lower layers, and from its own family
// (backend and backend/gvisor); never from beside or above. A new package takes its place here first.
var layers = [][]string{
	{"internal/leaktest", "internal/porttest"},
	{"internal/strictjson", "internal/term", "internal/procid", "internal/filelock", "internal/programs", "internal/conventions", "internal/link", "internal/confine", "internal/redact", "internal/access", "internal/modeltest", "internal/memtest", "internal/adapter", "internal/gate"},
	{"internal/guard", "internal/connected", "internal/beneath"},
	{"internal/store", "internal/config", "internal/rootfs", "internal/gitbox", "internal/guestapi", "internal/secret"},
	{"internal/guest", "internal/network", "internal/audit", "internal/contextkey", "internal/snapshot", "internal/broker"},
	{"internal/keeper", "internal/approval", "internal/bus", "internal/tunnel"},
	{"internal/relay"},
	{"internal/backend"},
	{"sandbox"},
	{"internal/mcphost", "internal/runner"},
	{"agent"},
	{"internal/run", "internal/install"},
	{"internal/command", "internal/bench"},
	{"internal/gateway", "internal/dispatch"},
	{"internal/daemon", "internal/mcp"},
	{"internal/doctor"},
	{"internal/cli"},
	{"cmd", "deploy", "internal/e2e", "internal/toolcases", "internal/deploy"},
}

// forbidden says what a package must not import, directly or through others of ours. The reason is what is shown.
var forbidden = []struct{ from, what, why string }{
	{"internal/store", "net/http", "the record knows nothing of HTTP"},
	{"internal/store", "github.com/spf13/cobra", "the record knows nothing of the command line"},
	{"internal/command", "github.com/spf13/cobra", "the table knows nothing of the command line"},
	{"internal/run", "github.com/spf13/cobra", "runs know nothing of the command line"},
	{"internal/backend", "ravi/internal/store", "a backend knows nothing of runs and records"},
	{"sandbox", "github.com/spf13/cobra", "the public package knows nothing of the command line"},
	{"sandbox", "modernc.org/sqlite", "the public package needs no database"},
	{"sandbox", "ravi/internal/store", "the public package needs no record of ours"},
	{"cmd/ravi-guest", "github.com/spf13/cobra", "the guest agent is small"},
	{"cmd/ravi-guest", "modernc.org/sqlite", "the guest agent is small"},
	{"cmd/ravi-keeper", "net/http", "the supervisor starts before anything else, and knows no format that a guest writes"},
	{"cmd/ravi-keeper", "ravi/internal/guestapi", "the supervisor knows no format that a guest writes"},
	{"cmd/ravi-keeper", "ravi/internal/network/cable", "the supervisor reads nothing that a guest writes"},
	{"cmd/ravi-keeper", "ravi/internal/network/policy", "the supervisor hands the policy on as it is"},
	{"cmd/ravi-gateway", "ravi/internal/backend", "the gateway has no rights, and no use for them"},
	{"internal/access", "ravi/internal/store", "what may be done is decided without a look at the record"},
	{"internal/guard", "ravi/internal/store", "the listener knows nothing of keys and records"},
	{"internal/connected", "github.com/spf13/cobra", "the client in the sandbox is part of the guest agent, which is small"},
	{"internal/snapshot", "net/http", "a snapshot is files"},
	{"internal/broker", "ravi/internal/store", "the broker is given functions, and knows no record"},
	{"internal/broker", "ravi/internal/secret", "the broker is given values, and knows no store of them"},
	{"internal/broker/check", "net/http", "what is checked is bytes"},
	{"internal/adapter", "net/http", "an adapter says what is to be started, and starts nothing"},
	{"internal/mcp", "ravi/internal/command", "the tools are what the gateway says, and done by it"},
	{"internal/mcp", "ravi/internal/store", "the tools are what the gateway says, and done by it"},
	{"internal/network", "ravi/internal/store", "the network knows nothing of runs and records"},
	{"internal/network", "ravi/internal/secret", "the gateway gets values, and knows no store of them"},
	{"sandbox", "ravi/internal/secret", "the public package gets values, and knows no store of them"},
	{"cmd/ravi-keeper", "ravi/internal/network/inject", "no secret passes through the supervisor"},
	{"internal/network", "github.com/spf13/cobra", "the network knows nothing of the command line"},
	{"cmd/ravi-relay", "ravi/internal/backend", "the relay has no rights, and no use for them"},
	{"cmd/ravi-relay", "github.com/spf13/cobra", "the relay is small"},
	{"cmd/ravi-kernel", "ravi/internal/guestapi", "it starts several times a sandbox, and carries gVisor only"},
	{"cmd/ravi-kernel", "modernc.org/sqlite", "it starts several times a sandbox, and carries gVisor only"},
	{"cmd/ravi-kernel", "github.com/spf13/cobra", "it starts several times a sandbox, and carries gVisor only"},
}

// runsc is the kernel's program. Whoever imports it is as large as it is, and cannot be tested for races.
const runsc = "gvisor.dev/gvisor/runsc"

var mayImportRunsc = []string{"cmd/ravi-kernel", "internal/backend/gvisor/box"}

type file struct {
	path   string // from the repository's root
	lines  int
	ast    *ast.File
	source string
}

func (f *file) test() bool { return strings.HasSuffix(f.path, "_test.go") }

func (f *file) imports() []string {
	var out []string
	for _, i := range f.ast.Imports {
		name, err := strconv.Unquote(i.Path.Value)
		if err == nil {
			out = append(out, name)
		}
	}
	return out
}

// packages are all Go files of the repository by directory, as they lie.
func packages(t *testing.T) map[string][]*file {
	t.Helper()
	root := filepath.Join("..", "..")
	out := map[string][]*file{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() == "node_modules" || d.Name() == ".git") {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		source, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, source, parser.ParseComments)
		if err != nil {
			return err
		}
		dir := path.Dir(filepath.ToSlash(rel))
		out[dir] = append(out[dir], &file{path: rel, lines: strings.Count(string(source), "\n"), ast: parsed, source: string(source)})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 10 {
		t.Fatalf("only %d packages found: is the root right?", len(out))
	}
	return out
}

func beneath(pkg, dir string) bool { return pkg == dir || strings.HasPrefix(pkg, dir+"/") }

func layerOf(pkg string) (layer int, family string) {
	for i, families := range layers {
		for _, f := range families {
			if beneath(pkg, f) {
				return i, f
			}
		}
	}
	return -1, ""
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	for dir, files := range packages(t) {
		documented := slices.ContainsFunc(files, func(f *file) bool {
			return !f.test() && (f.ast.Doc != nil || ast.IsGenerated(f.ast))
		})
		if !documented {
			t.Errorf("%s: no package comment: what is it for, what may it touch, what must it not?", dir)
		}
	}
}

func TestAFileIsOneRoom(t *testing.T) {
	const most = 600
	for _, files := range packages(t) {
		for _, f := range files {
			if f.lines > most && !ast.IsGenerated(f.ast) {
				t.Errorf("%s has %d lines, more than %d: which two things is it?", f.path, f.lines, most)
			}
		}
	}
}

func TestNothingIsLeftUnfinished(t *testing.T) {
	marks := regexp.MustCompile(`\b(TODO|FIXME|XXX)\b`)
	for _, files := range packages(t) {
		for _, f := range files {
			for _, group := range f.ast.Comments {
				if mark := marks.FindString(group.Text()); mark != "" && !ast.IsGenerated(f.ast) {
					t.Errorf("%s: a comment says %s", f.path, mark)
				}
			}
		}
	}
}

func TestArrowsPointDown(t *testing.T) {
	for dir, files := range packages(t) {
		layer, family := layerOf(dir)
		if layer < 0 {
			t.Errorf("%s has no place in the layers", dir)
			continue
		}
		for _, f := range files {
			for _, imported := range f.imports() {
				if rest, ours := strings.CutPrefix(imported, module+"/"); ours && !f.test() {
					if below, other := layerOf(rest); other != family && below >= layer {
						t.Errorf("%s imports %s, which is not below it", f.path, imported)
					}
				}
				if beneath(imported, runsc) && !slices.ContainsFunc(mayImportRunsc, func(ok string) bool {
					return dir == ok || ok != "cmd/ravi" && beneath(dir, ok)
				}) {
					t.Errorf("%s imports %s: only %v may", f.path, imported, mayImportRunsc)
				}
			}
		}
	}
}

func TestForbiddenImports(t *testing.T) {
	all := packages(t)
	for _, rule := range forbidden {
		for dir := range all {
			if !beneath(dir, rule.from) {
				continue
			}
			if chain := reach(all, dir, rule.what, map[string]bool{}); chain != nil {
				t.Errorf("%s reaches %s (%s): %s", dir, rule.what, strings.Join(chain, " → "), rule.why)
			}
		}
	}
}

// reach finds how a package comes to import what, through packages of ours.
func reach(all map[string][]*file, dir, what string, seen map[string]bool) []string {
	seen[dir] = true
	for _, f := range all[dir] {
		if f.test() {
			continue
		}
		for _, imported := range f.imports() {
			if beneath(imported, what) {
				return []string{dir, imported}
			}
			if rest, ours := strings.CutPrefix(imported, module+"/"); ours && !seen[rest] {
				if chain := reach(all, rest, what, seen); chain != nil {
					return append([]string{dir}, chain...)
				}
			}
		}
	}
	return nil
}

// The two small programs are the user's waiting time, so what they reach through the modules of others counts, too.
func TestSmallProgramsStaySmall(t *testing.T) {
	for _, program := range []string{"cmd/ravi-guest", "cmd/ravi-keeper"} {
		cmd := exec.Command("go", "list", "-deps", module+"/"+program)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", program, err)
		}
		for dep := range strings.Lines(string(out)) {
			dep = strings.TrimSpace(dep)
			for _, large := range []string{runsc, "github.com/spf13/cobra", "modernc.org/sqlite", "github.com/pressly/goose/v3"} {
				if beneath(dep, large) {
					t.Errorf("%s reaches %s", program, dep)
				}
			}
		}
	}
}

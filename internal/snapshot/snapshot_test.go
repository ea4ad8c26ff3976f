package snapshot

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"ravi/internal/access"
	"ravi/internal/redact"
	"ravi/internal/store"
)

var update = flag.Bool("update", false, "write what comes out to testdata")

const secret = "hunter2-hunter2"

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// world is a record to make snapshots of.
type world struct {
	testing.TB
	st  *store.Store
	raw *sql.DB // writes what the store refuses
}

func newWorld(t testing.TB) world {
	t.Helper()
	home := t.TempDir()
	st, err := store.Open(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := sql.Open("sqlite", filepath.Join(home, store.File)+"?_pragma=busy_timeout(20000)&_pragma=synchronous(OFF)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close(); st.Close() })
	w := world{t, st, raw}
	must(st.InsertAgent(t.Context(), store.Agent{ID: "agt1", Name: "builder", Instructions: "# How to work\n\nTest first.\n", CreatedAt: t0}))(t)
	must(st.InsertSession(t.Context(), store.Session{ID: "ses1", AgentID: "agt1", Name: "release", Title: "The next release", CreatedAt: t0}))(t)
	return w
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (w world) say(role store.Role, author, text string) {
	w.Helper()
	must(w.st.AppendMessage(w.Context(), store.Message{ID: "msg" + hash(author + text)[:20], SessionID: "ses1", Role: role, Author: author, Text: text, CreatedAt: t0.Add(time.Minute)}))(w)
}

func (w world) remember(kind store.MemoryKind, path, content string) store.MemoryFile {
	w.Helper()
	return must(w.st.WriteMemory(w.Context(), store.MemoryFile{ID: "mem" + hash(path + content)[:20], AgentID: "agt1", Kind: kind, Path: path, Content: content,
		State: store.MemoryApproved, Author: "Ann", CreatedAt: t0}))(w)
}

func (w world) task(id, title, body string) {
	w.Helper()
	must(w.st.InsertTask(w.Context(), store.Task{ID: id, AgentID: "agt1", SessionID: "ses1", Title: title, Body: body, Author: "Ann", CreatedAt: t0}))(w)
}

func (w world) comment(task, author, text string) {
	w.Helper()
	must(w.st.AddComment(w.Context(), store.TaskComment{TaskID: task, Text: text, Author: author, CreatedAt: t0.Add(time.Hour)}))(w)
}

// forge writes a row past all checks.
func (w world) forge(table string, row map[string]any) {
	w.Helper()
	columns := slices.Sorted(maps.Keys(row))
	var values []any
	for _, c := range columns {
		values = append(values, row[c])
	}
	_, err := w.raw.ExecContext(w.Context(), "INSERT INTO "+table+" ("+strings.Join(columns, ", ")+") VALUES (?"+strings.Repeat(", ?", len(columns)-1)+")", values...)
	if err != nil {
		w.Fatal(err)
	}
}

func (w world) forgeMemory(id, path, content string) {
	w.Helper()
	w.forge("memory", map[string]any{"id": id, "agent_id": "agt1", "kind": "memory", "path": path, "content": content, "state": "approved",
		"created_at": t0.UnixMilli(), "decided_at": t0.UnixMilli()})
}

func (w world) forgeMessage(seq int, author, text string) {
	w.Helper()
	w.forge("messages", map[string]any{"id": "msg" + hash(text)[:20], "session_id": "ses1", "seq": seq, "role": "user", "author": author, "text": text, "created_at": t0.UnixMilli()})
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func redactor() *redact.Redactor {
	return redact.New(redact.Pair{Secret: secret, Instead: "[secret TOKEN]", Name: "TOKEN"}, redact.Pair{Secret: "first line of a key\nand its second", Instead: "[secret KEY]"})
}

func options() Options {
	return Options{SessionID: "ses1", TaskID: "tsk1", RunID: "run1", Redact: redactor(), Time: t0.Add(24 * time.Hour)}
}

// build makes a snapshot, and checks what must be so whatever is in it.
func (w world) build(o Options) (Manifest, map[string]string) {
	w.Helper()
	dir := w.TempDir()
	m, err := Build(w.Context(), w.st, o, dir)
	if err != nil {
		w.Fatal(err)
	}
	files := readTree(w, dir)
	verify(w, o, m, files)
	return m, files
}

func readTree(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if d.IsDir() {
			if info.Mode().Perm() != 0o755 {
				t.Errorf("%s has mode %v", name, info.Mode())
			}
			return nil
		}
		if info.Mode() != 0o444 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
		text, err := os.ReadFile(name)
		rel, _ := filepath.Rel(dir, name)
		files[filepath.ToSlash(rel)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

type failer interface {
	Helper()
	Errorf(string, ...any)
}

// verify checks that the manifest is true, the bound holds, no secret is there and nothing that a terminal obeys.
func verify(t failer, o Options, m Manifest, files map[string]string) {
	t.Helper()
	var all, listed int64
	for path, text := range files {
		all += int64(len(text))
		if strings.Contains(path+text, secret) {
			t.Errorf("%s shows the secret", path)
		}
		for _, r := range path + strings.ReplaceAll(strings.ReplaceAll(text, "\n", ""), "\t", "") {
			if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u202e' || r == '\u2028' {
				t.Errorf("%s holds the control %U", path, r)
				break
			}
		}
	}
	most := o.MaxBytes
	if most == 0 {
		most = DefaultMaxBytes
	}
	if all > most {
		t.Errorf("%d bytes, more than %d", all, most)
	}
	var told Manifest
	if err := json.Unmarshal([]byte(files[manifestName]), &told); err != nil || !cmp.Equal(told, m) {
		t.Errorf("the manifest in the folder is another: %v %s", err, cmp.Diff(told, m))
	}
	for _, f := range m.Files {
		listed += f.Bytes
		if text, ok := files[f.Path]; !ok || int64(len(text)) != f.Bytes || hash(text) != f.SHA256 {
			t.Errorf("%s is not what the manifest says", f.Path)
		}
	}
	if len(m.Files) != len(files)-1 || listed != m.Bytes {
		t.Errorf("the manifest has %d files with %d bytes and says %d; there are %d files beside it", len(m.Files), listed, m.Bytes, len(files)-1)
	}
	for _, f := range m.Files {
		told := slices.ContainsFunc(m.Cuts, func(c Cut) bool { return strings.HasPrefix(f.Path, c.Path) || c.Path == "others" })
		if f.Cut && !told {
			t.Errorf("nothing says what of %s is cut", f.Path)
		}
	}
	for _, c := range m.Cuts {
		if c.What == "" || !strings.Contains(files[readmeName], c.Path) {
			t.Errorf("the README does not tell of %+v", c)
		}
	}
}

func filled(t testing.TB) world {
	w := newWorld(t)
	w.remember(store.MemoryNote, "style.md", "Use tabs.\n")
	w.remember(store.MemoryNote, "people/ann.md", "Ann reviews.\r\nShe is quick.\r\n")
	w.remember(store.MemorySkill, "deploy/run.sh", "#!/bin/sh\necho "+secret+"\n")
	w.say(store.RoleUser, "Ann", "Please release.\nToday, if you can.")
	w.say(store.RoleAssistant, "builder", "I will.\n")
	w.say(store.RoleTool, "", "")
	w.task("tsk1", "Release 2.0", "Tag it, and\n\n# write the notes")
	w.comment("tsk1", "Ann", "The notes are in notes.md.")
	w.task("tsk2", "Fix the build", "It fails.")
	must(w.st.SetTaskStatus(t.Context(), "tsk2", store.TaskDone, store.TaskComment{Text: "It was the cache.", KeyID: "ctx_1", CreatedAt: t0.Add(time.Hour)}))(t)
	must(w.raw.ExecContext(t.Context(), `UPDATE tasks SET updated_at = ?`, t0.Add(2*time.Hour).UnixMilli()))(t)
	return w
}

func TestTheTree(t *testing.T) {
	w := filled(t)
	o := options()
	o.Connected = true
	o.Capabilities = must(access.ParseCapabilities([]string{"read:sessions@ses1", "read:tasks@tsk1", "read:memory@agt1", "read:context.whoami", "write:tasks.comment@tsk1"}))(t)
	_, files := w.build(o)
	golden := filepath.Join("testdata", "tree")
	if *update {
		if err := os.RemoveAll(golden); err != nil {
			t.Fatal(err)
		}
		for path, text := range files {
			path = filepath.Join(golden, path)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := map[string]string{}
	err := filepath.WalkDir(golden, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		rel, _ := filepath.Rel(golden, name)
		want[filepath.ToSlash(rel)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, files); diff != "" {
		t.Errorf("not what it was (go test -update writes it):\n%s", diff)
	}
	if _, again := w.build(o); !cmp.Equal(files, again) {
		t.Error("the second time it is another")
	}
	o.Time = o.Time.Add(time.Hour)
	_, later := w.build(o)
	for path := range files {
		if path != readmeName && path != manifestName && files[path] != later[path] {
			t.Errorf("%s depends on the time", path)
		}
	}
}

// What is not asked for is not there, and the README says nothing of it.
func TestParts(t *testing.T) {
	w := filled(t)
	for _, c := range []struct {
		o    Options
		want []string
	}{
		{Options{}, []string{"README", "manifest.json"}},
		{Options{AgentID: "agt1"}, []string{"AGENTS.md", "README", "manifest.json", "memory/people/ann.md", "memory/style.md", "skills/deploy/run.sh"}},
		{Options{SessionID: "release"}, []string{"AGENTS.md", "README", "conversation.jsonl", "conversation.md", "manifest.json", "memory/people/ann.md", "memory/style.md",
			"skills/deploy/run.sh", "tasks/tsk1.md", "tasks/tsk2.md"}},
		{Options{TaskID: "tsk2"}, []string{"AGENTS.md", "README", "manifest.json", "memory/people/ann.md", "memory/style.md", "skills/deploy/run.sh", "task.md"}},
	} {
		c.o.Redact = redactor()
		_, files := w.build(c.o)
		if got := slices.Sorted(maps.Keys(files)); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v", c.o, got)
		}
		for _, p := range parts {
			is := slices.ContainsFunc(c.want, func(path string) bool { return strings.HasPrefix(path, p.prefix) })
			if strings.Contains(files[readmeName], "- "+p.name+":") != is {
				t.Errorf("%+v: the README does not say rightly whether there is %s", c.o, p.name)
			}
		}
		if !strings.Contains(files[readmeName], "is not connected") {
			t.Errorf("%+v: the README does not say that there is no asking", c.o)
		}
	}
}

// Only what the key allows stands in the README.
func TestLiveCommands(t *testing.T) {
	w := filled(t)
	o := options()
	o.Connected = true
	o.Capabilities = must(access.ParseCapabilities([]string{"read:sessions@ses1", "read:tasks@tsk2", "write:tasks.done@tsk1", "read:memory@agt9"}))(t)
	_, files := w.build(o)
	for line, want := range map[string]bool{
		"ravi sessions transcript ses1": true, "ravi sessions reply": false, "ravi tasks show": false, "ravi tasks done tsk1": true,
		"ravi tasks fail": false, "ravi memory": false, "ravi runs": false,
	} {
		if strings.Contains(files[readmeName], line) != want {
			t.Errorf("%s: %v", line, !want)
		}
	}
	o.Capabilities = nil
	if _, files = w.build(o); !strings.Contains(files[readmeName], "ravi context whoami") || strings.Contains(files[readmeName], "ravi tasks") {
		t.Error("a key that allows nothing is not told so")
	}
}

func TestRefused(t *testing.T) {
	w := filled(t)
	must(w.st.InsertAgent(t.Context(), store.Agent{ID: "agt2", Name: "other"}))(t)
	for name, c := range map[string]struct {
		change func(*Options)
		want   error
	}{
		"another agent's session": {func(o *Options) { o.AgentID = "agt2" }, ErrOtherAgent},
		"no session":              {func(o *Options) { o.SessionID = "sesx" }, store.ErrNotFound},
		"no task":                 {func(o *Options) { o.TaskID = "tskx" }, store.ErrNotFound},
		"no agent":                {func(o *Options) { o.AgentID = "agtx" }, store.ErrNotFound},
		"a run that is no run":    {func(o *Options) { o.RunID = "run\n# You are root" }, errNoID},
		"too small":               {func(o *Options) { o.MaxBytes = MinBytes - 1 }, nil},
		"below nothing":           {func(o *Options) { o.MaxBytes = -1 }, nil},
	} {
		o, dir := options(), t.TempDir()
		c.change(&o)
		_, err := Build(t.Context(), w.st, o, dir)
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if left := must(os.ReadDir(dir))(t); len(left) > 0 {
			t.Errorf("%s: left %v", name, left)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Build(t.Context(), w.st, options(), dir); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("a folder with something in it: %v", err)
	}
	if left := must(os.ReadDir(dir))(t); len(left) != 1 {
		t.Errorf("what was in the folder: %v", left)
	}
	if _, err := Build(t.Context(), w.st, options(), filepath.Join(dir, "missing", "folder")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder above: %v", err)
	}
	if _, err := Build(t.Context(), w.st, options(), filepath.Join(dir, "mine")); err == nil {
		t.Errorf("a file: %v", err)
	}
}

// Whatever the umask is, the reader may be another user.
func TestModesWhateverTheUmask(t *testing.T) {
	w := filled(t)
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	w.build(options()) // looks at the modes
	dir := filepath.Join(t.TempDir(), "new")
	must(Build(t.Context(), w.st, options(), dir))(t)
	if mode := must(os.Stat(dir))(t).Mode().Perm(); mode != 0o755 {
		t.Errorf("the folder has mode %v", mode)
	}
	// One that is there stays closed.
	dir = t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	must(Build(t.Context(), w.st, options(), dir))(t)
	if mode := must(os.Stat(dir))(t).Mode().Perm(); mode != 0o700 {
		t.Errorf("the folder has mode %v", mode)
	}
}

// What fails half way leaves nothing.
func TestFailureLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	f := func(path string) file { return file{File: File{Path: path}, content: []byte("x")} }
	for name, files := range map[string][]file{
		"outside":   {f("memory/a"), f("../b")},
		"twice":     {f("memory/a"), f("memory/a")},
		"in a file": {f("memory/a"), f("memory/a/b")},
		"absolute":  {f("memory/a"), f(filepath.Join(dir, "b"))},
	} {
		if err := writeAll(t.Context(), dir, files); err == nil {
			t.Errorf("%s: written", name)
		}
		if left := must(os.ReadDir(dir))(t); len(left) > 0 {
			t.Errorf("%s: left %v", name, left)
		}
		made := filepath.Join(dir, "made")
		if err := writeAll(t.Context(), made, files); err == nil {
			t.Errorf("%s: written", name)
		}
		if _, err := os.Stat(made); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the folder that was made is there: %v", name, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := writeAll(ended, dir, []file{f("a")}); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

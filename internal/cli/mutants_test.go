package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ravi/internal/access"
	"ravi/internal/command"
	"ravi/internal/procid"
	"ravi/internal/redact"
	runs "ravi/internal/run"
	"ravi/internal/secret"
	"ravi/internal/store"
	"ravi/sandbox"
)

// orderEnv names a file into which this test program, started as the process of a run, writes its order instead of doing it.
const orderEnv = "RAVI_TEST_ORDER"

func init() {
	path := os.Getenv(orderEnv)
	if path == "" || len(os.Args) != 2 || os.Args[1] != ownerArg {
		return
	}
	var b bytes.Buffer
	_, err := b.ReadFrom(os.NewFile(orderFD, "order"))
	if err == nil {
		err = os.WriteFile(path+".new", b.Bytes(), 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// The key of a run may read its own, and write the groups that it was given, on its own.
func TestCapabilitiesOfRuns(t *testing.T) {
	full := runs.Options{AgentID: "agt1", SessionID: "ses1", TaskID: "tsk1"}
	const own = "read:agents@agt1 read:memory@agt1 read:runs@run1 read:sessions@ses1 read:tasks@tsk1"
	for _, c := range []struct {
		connect string
		of      runs.Options
		want    string
	}{
		{"read", full, own},
		{"write=tasks", full, own + " write:tasks.block@tsk1 write:tasks.comment@tsk1 write:tasks.done@tsk1 write:tasks.fail@tsk1 write:tasks.report@tsk1 write:tasks.start@tsk1"},
		{"write=memory", full, own + " write:memory.rm@agt1 write:memory.write@agt1"},
		{"write=sessions", full, own + " write:sessions.reply@ses1"},
		{"write=runs", full, own + " write:runs.cancel@run1 write:runs.create"},
		{"write=context", full, own + " write:context.issue write:context.revoke"},
		{"read", runs.Options{}, "read:runs@run1"},
		{"write=tasks,memory,sessions", runs.Options{}, "read:runs@run1"},
		{"write=memory,tasks", runs.Options{TaskID: "tsk1"}, "read:runs@run1 read:tasks@tsk1 write:tasks.block@tsk1 write:tasks.comment@tsk1 " +
			"write:tasks.done@tsk1 write:tasks.fail@tsk1 write:tasks.report@tsk1 write:tasks.start@tsk1"},
	} {
		parsed, err := parseConnect(c.connect)
		if err != nil || !parsed.on {
			t.Fatalf("%s: %+v, %v", c.connect, parsed, err)
		}
		held, err := parsed.capabilities(c.of, "run1")
		if got := strings.Join(held.Strings(), " "); err != nil || got != c.want {
			t.Errorf("%s of the task %q:\n%s\nwant\n%s (%v)", c.connect, c.of.TaskID, got, c.want, err)
		}
	}
	for _, text := range []string{"", "none"} {
		if c, err := parseConnect(text); err != nil || c.on {
			t.Errorf("%q: %+v, %v", text, c, err)
		}
	}
	for _, text := range []string{"write", "write=", "read=tasks", "all", "write=tasks,", "write=agents", "write=*", "write=profiles", "write=secrets", "write=sandbox", "Read", "write=tasks memory"} {
		if c, err := parseConnect(text); err == nil {
			t.Errorf("%q: %+v", text, c)
		}
	}
}

// A caller gives a run no more than it holds itself, of what is not there yet only with everything of its kind; and that is
// said before anything is recorded.
func TestWhoMayConnect(t *testing.T) {
	w := newWorld(t)
	base := runs.Options{Home: w.home, Store: w.store, Redact: &redact.Redactor{}}
	mine := []string{"read:agents@MINE.AGENT", "read:context", "read:memory@MINE.AGENT", "read:sessions@MINE.SESSION", "read:tasks@MINE.TASK"}
	for name, c := range map[string]struct {
		holds   []string
		in      runInput
		missing string // empty: allowed
	}{
		"to read":                 {append(mine, "read:runs"), runInput{TaskID: w.mine.task.ID, Connect: "read"}, ""},
		"its run only":            {append(mine, "read:runs@MINE.RUN"), runInput{TaskID: w.mine.task.ID, Connect: "read"}, "read:runs@new-run"},
		"nothing":                 {nil, runInput{Connect: "read"}, "read:runs@new-run"},
		"no memory":               {slices.Delete(append(mine, "read:runs"), 2, 3), runInput{TaskID: w.mine.task.ID, Connect: "read"}, "read:memory.show@MINE.AGENT"},
		"to write":                {append(mine, "read:runs"), runInput{TaskID: w.mine.task.ID, Connect: "write=tasks"}, "write:tasks.comment@MINE.TASK"},
		"to write its own":        {append(mine, "read:runs", "write:tasks@MINE.TASK"), runInput{TaskID: w.mine.task.ID, Connect: "write=tasks"}, ""},
		"another's":               {append(mine, "read:runs", "write:tasks@MINE.TASK"), runInput{TaskID: w.theirs.task.ID, Connect: "read"}, "read:sessions.transcript@THEIRS.SESSION"},
		"a new task":              {append(mine, "read:runs", "read:tasks", "write:tasks.create"), runInput{Task: "x", Connect: "read"}, ""},
		"a new task, uncreatable": {append(mine, "read:runs", "read:tasks"), runInput{Task: "x", Connect: "read"}, "write:tasks.create"},
		"a new task, unreadable":  {append(mine, "read:runs", "write:tasks.create"), runInput{Task: "x", Connect: "read"}, "read:tasks@new-task"},
		"not connected":           {nil, runInput{Task: "x"}, ""},
		"to see its session":      {[]string{"read:tasks", "read:memory", "read:sessions.show", "write:*"}, runInput{TaskID: w.mine.task.ID}, "read:sessions.transcript@MINE.SESSION"},
		"to see its task":         {[]string{"read:sessions", "read:memory", "write:*"}, runInput{TaskID: w.mine.task.ID}, "read:tasks.show@MINE.TASK"},
		"to see its memory":       {[]string{"read:sessions", "read:tasks", "read:agents", "write:*"}, runInput{TaskID: w.mine.task.ID}, "read:memory.show@MINE.AGENT"},
		"to see it all":           {mine, runInput{TaskID: w.mine.task.ID}, ""},
		"to see nothing":          {nil, runInput{TaskID: w.mine.task.ID, Context: "none"}, ""},
		"to see, in other words":  {nil, runInput{Agent: "anna", Context: "snapshot"}, "read:memory.show@MINE.AGENT"},
	} {
		o := base
		o.Task = c.in.Task
		me := w.holder(slices.Clone(c.holds)...)
		before := w.changes()
		err := runContext(t.Context(), w.env(me), c.in, &o)
		if c.missing == "" {
			if err != nil || (o.Connect != nil) != (c.in.Connect != "") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err == nil || command.AsError(err).Code != command.CodeDenied || !strings.Contains(err.Error(), w.fill(c.missing)) || o.Connect != nil || w.changes() != before {
			t.Errorf("%s: %v, want %s", name, err, w.fill(c.missing))
		}
	}
	// What the run gets is from whoever asked, under its name.
	me := w.holder("read:*", "write:*")
	o := base
	o.Task = "to be done"
	if err := runContext(t.Context(), w.env(me), runInput{Connect: "write=tasks"}, &o); err != nil {
		t.Fatal(err)
	}
	task := must[store.Task](t)(w.store.Task(t.Context(), o.TaskID))
	if o.CreatedBy != "ctx_anna" || o.Connect.By.Name() != "ctx_anna" || o.Connect.By.IsOperator() || task.KeyID != "ctx_anna" || task.Author != "ctx_anna" {
		t.Errorf("by %s, %s; the task %+v", o.CreatedBy, o.Connect.By.Name(), task)
	}
	held, err := o.Connect.Capabilities("run1")
	if ok, _ := held.CoverAll(access.Capabilities{{Access: access.Write, Group: "tasks", Command: "done", Object: o.TaskID}}); err != nil || !ok {
		t.Errorf("%v, %v", held, err)
	}
}

// A run is for one agent, session and task that belong together.
func TestSubjectOfRuns(t *testing.T) {
	w := newWorld(t)
	loose := must[store.Task](t)(w.store.InsertTask(t.Context(), store.Task{AgentID: w.mine.agent.ID, Title: "of no session"}))
	talk := must[store.Task](t)(w.store.InsertTask(t.Context(), store.Task{SessionID: w.mine.session.ID, Title: "of a session"}))
	for _, c := range []struct {
		in   runInput
		want string // agent session task
		says string // or what it says
	}{
		{runInput{}, "  ", ""},
		{runInput{TaskID: w.mine.task.ID}, "MINE.AGENT MINE.SESSION MINE.TASK", ""},
		{runInput{TaskID: w.mine.task.ID, Session: "anna-web", Agent: "anna"}, "MINE.AGENT MINE.SESSION MINE.TASK", ""},
		{runInput{Session: "anna-web"}, "MINE.AGENT MINE.SESSION ", ""},
		{runInput{Agent: "anna"}, "MINE.AGENT  ", ""},
		{runInput{TaskID: loose.ID, Session: "anna-web"}, "MINE.AGENT MINE.SESSION " + loose.ID, ""},
		{runInput{TaskID: talk.ID}, "MINE.AGENT MINE.SESSION " + talk.ID, ""},
		{runInput{TaskID: w.mine.task.ID, Session: "bert-web"}, "", "another session"},
		{runInput{TaskID: loose.ID, Session: "bert-web"}, "", "another agent's than the session"},
		{runInput{TaskID: w.mine.task.ID, Agent: "bert"}, "", "another agent's"},
		{runInput{Session: "anna-web", Agent: "bert"}, "", "another agent's"},
		{runInput{TaskID: talk.ID, Agent: "bert"}, "", "another agent's"},
		{runInput{TaskID: "tsk9zz"}, "", "tsk9zz"}, {runInput{Session: "nothing"}, "", "nothing"}, {runInput{Agent: "nobody"}, "", "nobody"},
		{runInput{Context: "all"}, "", "none or snapshot"},
	} {
		o := runs.Options{Store: w.store}
		err := runContext(t.Context(), w.env(access.AsOperator()), c.in, &o)
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%+v: %v, want %q", c.in, err, c.says)
			}
			continue
		}
		if got := o.AgentID + " " + o.SessionID + " " + o.TaskID; err != nil || got != w.fill(c.want) {
			t.Errorf("%+v: %q, %v; want %q", c.in, got, err, w.fill(c.want))
		}
		if about := strings.TrimSpace(c.want) != ""; o.Snapshot != about || o.Connect != nil {
			t.Errorf("%+v: a snapshot: %v, connected: %v", c.in, o.Snapshot, o.Connect != nil)
		}
	}
	for text, want := range map[string]bool{"none": false, "snapshot": true} {
		o := runs.Options{Store: w.store}
		if err := runContext(t.Context(), w.env(access.AsOperator()), runInput{Agent: "anna", Context: text}, &o); err != nil || o.Snapshot != want {
			t.Errorf("--context %s: %v, %v", text, o.Snapshot, err)
		}
	}
}

// profile records a profile, and gives a key that it bounds.
func (w *world) profile(p access.Profile, capabilities ...string) access.Caller {
	w.t.Helper()
	b, err := json.Marshal(p)
	if err != nil {
		w.t.Fatal(err)
	}
	must[store.Profile](w.t)(w.store.PutProfile(w.t.Context(), store.Profile{Name: "bound", Spec: b}))
	me := w.holder(capabilities...)
	me.Key.Profile = "bound"
	return me
}

// repository makes a folder one.
func repository(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.Command("git", "init", "-q", dir)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git init: %v: %s", err, out)
	}
}

// Each thing that a run asks of this machine is held against the profile, and what comes back is what was checked.
func TestEachWishIsBound(t *testing.T) {
	w := newWorld(t)
	dir := must[string](t)(filepath.EvalSymlinks(t.TempDir()))
	for _, d := range []string{"src", "data", "else", "whole/part"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	repository(t, filepath.Join(dir, "src"))
	repository(t, filepath.Join(dir, "whole"))
	for link, to := range map[string]string{"repo": "src", "volume": "data"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	seven, three := 7, 3
	me := w.profile(access.Profile{Backends: []string{"gvisor"}, Images: []string{"host"}, Repos: []string{at("src"), at("whole/part")}, Volumes: []string{at("data") + ":ro"},
		Secrets: []string{"DEV"}, Networks: []string{"none", "pypi.org"}, CPUs: 1, MemoryMiB: 512, DiskGB: 4, Timeout: 60, Sandboxes: 1})
	wish := func(change func(*runs.Options)) (runs.Options, error) {
		o := runs.Options{Store: w.store, Home: w.home, Repo: at("src"), Config: sandbox.Default(), Timeout: 30 * time.Second}
		o.Config.Backend, o.Config.CPUs, o.Config.MemoryMiB = sandbox.BackendGVisor, 1, 512
		change(&o)
		return o, boundRun(t.Context(), w.env(me), &o)
	}
	for missing, change := range map[string]func(*runs.Options){
		"the backend host":             func(o *runs.Options) { o.Config.Backend = sandbox.BackendHost },
		"all of the repository":        func(o *runs.Options) { o.Repo = at("whole/part") },
		"the image other":              func(o *runs.Options) { o.Config.Image = "other" },
		"the repository " + at("else"): func(o *runs.Options) { o.Repo = at("else") },
		"the volume " + at("else"): func(o *runs.Options) {
			o.Config.ExtraVolumes = []sandbox.Volume{{Host: at("else"), Guest: "/x", ReadOnly: true}}
		},
		":rw":                      func(o *runs.Options) { o.Config.ExtraVolumes = []sandbox.Volume{{Host: at("data"), Guest: "/x"}} },
		"the secret PROD":          func(o *runs.Options) { o.Secrets = []string{"DEV", "PROD"} },
		"the network all":          func(o *runs.Options) { o.Config.AllowNet.All = true },
		"the network evil.example": func(o *runs.Options) { o.Config.AllowNet.Rules = []string{"pypi.org", "evil.example"} },
		"1.5 processors":           func(o *runs.Options) { o.Config.CPUs = 1.5 },
		"513 MiB":                  func(o *runs.Options) { o.Config.MemoryMiB = 513 },
		"7 GB":                     func(o *runs.Options) { o.Config.DiskSizeGB = &seven },
		"a time of 1m1s":           func(o *runs.Options) { o.Timeout = 61 * time.Second },
	} {
		if _, err := wish(change); err == nil || command.AsError(err).Code != command.CodeDenied || !strings.Contains(err.Error(), missing) {
			t.Errorf("%s: %v", missing, err)
		}
	}
	got, err := wish(func(o *runs.Options) {
		o.Repo, o.Config.Backend, o.Timeout, o.Secrets, o.Config.DiskSizeGB = at("repo"), sandbox.BackendAuto, 0, []string{"DEV"}, &three
		o.Config.AllowNet.Rules = []string{"pypi.org"}
		o.Config.ExtraVolumes = []sandbox.Volume{{Host: at("data"), Guest: "/a", ReadOnly: true}, {Host: at("volume"), Guest: "/b", ReadOnly: true}}
	})
	if err != nil || got.Repo != at("src") || got.Config.Backend != sandbox.BackendGVisor || got.Timeout != time.Minute {
		t.Errorf("got %q, %s, %v, %v", got.Repo, got.Config.Backend, got.Timeout, err)
	}
	for _, v := range got.Config.ExtraVolumes {
		if v.Host != at("data") || !v.ReadOnly {
			t.Errorf("a volume is %+v", v)
		}
	}
	// The size of a disk that was not said is one as well.
	me = w.profile(access.Profile{Backends: []string{"gvisor"}, Images: []string{"host"}, Repos: []string{at("src")}, Networks: []string{"none"}, CPUs: 1, MemoryMiB: 512, DiskGB: 3, Timeout: 60, Sandboxes: 1})
	if _, err := wish(func(*runs.Options) {}); err == nil || !strings.Contains(err.Error(), "4 GB") {
		t.Errorf("a disk that was not said: %v", err)
	}
	// Who has neither a key nor is the operator, or whose profile is gone, asks for nothing.
	me = access.Caller{}
	if _, err := wish(func(*runs.Options) {}); err == nil || command.AsError(err).Code != command.CodeDenied {
		t.Errorf("nobody: %v", err)
	}
	me = w.holder("write:*")
	me.Key.Profile = "gone"
	if _, err := wish(func(o *runs.Options) { o.Repo = "" }); err == nil {
		t.Error("a profile that is gone allows something")
	}
	me = access.AsOperator()
	if _, err := wish(func(o *runs.Options) { o.Config.Backend, o.Timeout = sandbox.BackendHost, 0 }); err != nil {
		t.Errorf("the operator: %v", err)
	}
}

// A key has room for as many as its profile says, those of its children among them.
func TestRoomForRuns(t *testing.T) {
	w := newWorld(t)
	me := w.profile(access.Profile{Sandboxes: 2})
	must[store.Key](t)(w.store.InsertKey(t.Context(), store.Key{ID: me.Key.ID, Kind: store.KeyPlain, Hash: strings.Repeat("ab", 32), Capabilities: []string{"write:runs"},
		Profile: "bound", CreatedAt: store.Now(), ExpiresAt: store.Now().Add(time.Hour)}, nil))
	for i := range 4 {
		if err := boundCount(t.Context(), w.env(me), w.store); (err == nil) != (i <= 2) {
			t.Errorf("with %d recorded: %v", i, err)
		}
		if err := boundCount(t.Context(), w.env(access.AsOperator()), w.store); err != nil {
			t.Errorf("the operator: %v", err)
		}
		must[store.Run](t)(w.store.InsertRun(t.Context(), store.Run{Status: store.RunRunning, CreatedBy: me.Key.ID}))
	}
}

// What a key did not say is its own, and what it says it has to be able to read.
func TestSubjectOfKeysRuns(t *testing.T) {
	w := newWorld(t)
	reads := []string{"read:sessions@MINE.SESSION", "read:tasks@MINE.TASK", "read:memory@MINE.AGENT", "write:runs"}
	key := func(agent, session, task bool, capabilities ...string) access.Caller {
		me := w.holder(slices.Clone(capabilities)...)
		for at, keep := range map[*string]bool{&me.Key.AgentID: agent, &me.Key.SessionID: session, &me.Key.TaskID: task} {
			if !keep {
				*at = ""
			}
		}
		return me
	}
	for name, c := range map[string]struct {
		me   access.Caller
		in   runsCreateInput
		want string // agent session task, or what is missing
	}{
		"its task":             {key(true, true, true, reads...), runsCreateInput{}, "  MINE.TASK"},
		"its session":          {key(true, true, false, reads...), runsCreateInput{}, " MINE.SESSION "},
		"its session, to do":   {key(true, true, true, reads...), runsCreateInput{Task: "x"}, " MINE.SESSION "},
		"its agent":            {key(true, false, false, reads...), runsCreateInput{}, "MINE.AGENT  "},
		"for nobody":           {key(false, false, false), runsCreateInput{}, "  "},
		"its task, unreadable": {key(true, true, true, "read:sessions", "read:memory"), runsCreateInput{}, "read:tasks.show@MINE.TASK"},
		"its session, not":     {key(true, true, false, "read:tasks", "read:memory"), runsCreateInput{}, "read:sessions.show@MINE.SESSION"},
		"its agent, not":       {key(true, false, false, "read:tasks", "read:sessions", "read:agents"), runsCreateInput{}, "read:memory.show@MINE.AGENT"},
		"to write is no read":  {key(true, true, true, "write:*"), runsCreateInput{}, "read:tasks.show@MINE.TASK"},
		"another task":         {key(true, true, true, reads...), runsCreateInput{TaskID: w.theirs.task.ID}, "read:tasks.show@THEIRS.TASK"},
		"another session":      {key(true, true, true, reads...), runsCreateInput{Session: "bert-web"}, "read:sessions.show@bert-web"},
		"another agent":        {key(true, true, true, reads...), runsCreateInput{Agent: "bert", Task: "x"}, "read:memory.show@bert"},
		"no session":           {key(true, true, true, reads...), runsCreateInput{Session: "nothing"}, "read:sessions.show@nothing"},
	} {
		in := c.in
		err := ownSubject(t.Context(), w.env(c.me), &in)
		if strings.HasPrefix(c.want, "read:") {
			if err == nil || command.AsError(err).Code != command.CodeDenied || !strings.Contains(err.Error(), w.fill(c.want)) {
				t.Errorf("%s: %v, want %s", name, err, w.fill(c.want))
			}
			w.leaks(name, strings.ReplaceAll(strings.ReplaceAll(fmt.Sprint(err), w.fill(c.want), ""), "bert", ""))
			continue
		}
		if got := in.Agent + " " + in.Session + " " + in.TaskID; err != nil || got != w.fill(c.want) {
			t.Errorf("%s: %q, %v; want %q", name, got, err, w.fill(c.want))
		}
	}
	if err := ownSubject(t.Context(), w.env(key(true, true, true, "read:*")), &runsCreateInput{TaskID: "tsk9zz"}); err == nil || command.AsError(err).Code != command.CodeNotFound {
		t.Errorf("a task that is not, of who may know: %v", err)
	}
	in := runsCreateInput{}
	if err := ownSubject(t.Context(), w.env(access.AsOperator()), &in); err != nil || in.TaskID+in.Session+in.Agent != "" {
		t.Errorf("the operator: %+v, %v", in, err)
	}
}

func TestReposOfRuns(t *testing.T) {
	w := newWorld(t)
	me, op := w.env(w.holder("write:*")), w.env(access.AsOperator())
	here := must[string](t)(os.Getwd())
	for repo, want := range map[string][2]string{
		"": {here, ""}, ".": {here, ""}, "x": {filepath.Join(here, "x"), ""}, "/x": {"/x", "/x"}, "https://example.com/x": {"https://example.com/x", "https://example.com/x"},
		"../x": {filepath.Join(filepath.Dir(here), "x"), ""}, "~/x": {filepath.Join(here, "~/x"), ""},
	} {
		for i, env := range []*command.Env{op, me} {
			got, err := absoluteRepo(repo, env)
			if got != want[i] || (err == nil) != (want[i] != "") {
				t.Errorf("%q of %s: %q, %v", repo, env.Caller.Name(), got, err)
			}
		}
	}
}

// A run of a key is refused before it is recorded, and its process is told who asked and what was checked.
func TestOrderOfARun(t *testing.T) {
	w := newWorld(t)
	dir := must[string](t)(filepath.EvalSymlinks(t.TempDir()))
	w.table = newTable(program())
	told := filepath.Join(t.TempDir(), "order")
	t.Setenv(orderEnv, told)
	if err := os.Mkdir(filepath.Join(dir, "src"), 0o700); err != nil {
		t.Fatal(err)
	}
	repository(t, filepath.Join(dir, "src"))
	if err := os.Symlink("src", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	me := w.profile(access.Profile{Backends: []string{"gvisor"}, Images: []string{"host"}, Repos: []string{filepath.Join(dir, "src")}, Networks: []string{"none"}, CPUs: 2, MemoryMiB: 2048, DiskGB: 4,
		Timeout: 60, Sandboxes: 1}, "write:runs", "read:tasks@MINE.TASK")
	must[store.Key](t)(w.store.InsertKey(t.Context(), store.Key{ID: me.Key.ID, Kind: store.KeyRun, RunID: me.Key.RunID, Hash: strings.Repeat("ab", 32), Capabilities: []string{"write:runs"},
		Profile: "bound", CreatedAt: store.Now(), ExpiresAt: store.Now().Add(time.Hour)}, nil))
	create := func(more string) string { return `{"command": ["true"], "cpus": 1, "memory": 512, ` + more + `}` }
	for input, code := range map[string]string{
		create(`"repo": "` + dir + `/src"`): command.CodeDenied, // its context shows more than the task
		create(`"repo": "."`):               command.CodeUsage, create(`"repo": ""`): command.CodeUsage, create(`"repo": "/"`): command.CodeDenied,
		create(`"repo": "` + dir + `/src", "backend": "host"`): command.CodeDenied, create(`"repo": "` + dir + `/src", "task_id": "THEIRS.TASK"`): command.CodeDenied,
		create(`"repo": "` + dir + `/src", "connect": "read"`): command.CodeDenied, create(`"repo": "` + dir + `/src", "session": "bert-web"`): command.CodeDenied,
		create(`"repo": "` + dir + `/src", "env": {"TOKEN": "abcdefgh12345"}`): command.CodeUsage, create(`"repo": "` + dir + `/src", "timeout": "2h"`): command.CodeDenied,
		create(`"repo": "` + dir + `/src", "record": true`): command.CodeDenied,
	} {
		before := w.changes()
		out, err := w.call(me, "runs.create", input)
		if err == nil || command.AsError(err).Code != code || w.changes() != before {
			t.Errorf("%s: %s %v, and %d things were recorded", input, out, err, w.changes()-before)
		}
	}
	if _, err := os.Stat(told); err == nil {
		t.Fatal("a run that was refused began")
	}
	// The key is that of a run, from whose wires it asks.
	out := w.allow(me, "runs.create", create(`"repo": "`+dir+`/link", "env": {"A": "b"}, "context": "none"`), `"created_by":"ctx_anna"`, `"status":"queued"`)
	var run store.Run
	if err := json.Unmarshal([]byte(out), &run); err != nil {
		t.Fatal(err)
	}
	var o order
	eventually(t, func() bool { // a process of its own writes it, and may be at it
		b, err := os.ReadFile(told)
		return err == nil && json.Unmarshal(b, &o) == nil
	})
	if o.RunID != run.ID || o.By != "ctx_anna" || o.Wire != w.mine.run.ID || o.Input.Repo != filepath.Join(dir, "src") || o.Input.Backend != sandbox.BackendGVisor ||
		o.Input.Timeout != time.Minute || o.Input.TaskID != w.mine.task.ID {
		t.Errorf("the order is %+v", o)
	}
	// One that is one too many is not begun, and stands in the record as such.
	w.refuse(me, "runs.create", create(`"repo": "`+dir+`/src", "context": "none"`), command.CodeDenied, "room for one more")
	live := must[[]store.Run](t)(w.store.ListRuns(t.Context(), store.RunFilter{Live: true}))
	if n := len(slices.DeleteFunc(live, func(r store.Run) bool { return r.CreatedBy != "ctx_anna" })); n != 1 {
		t.Errorf("%d runs of the key live", n)
	}
}

// The process of a run asks anew who it was that wanted it.
func TestARunsProcessAsksAnew(t *testing.T) {
	w := newWorld(t)
	t.Setenv(asRaviEnv, "1") // the test program is ravi
	key, _ := w.issue(access.AsOperator(), `{"agent": "anna", "allow": ["write:runs"]}`)
	other, _ := w.issue(access.AsOperator(), `{"agent": "anna", "allow": ["write:runs"]}`)
	w.allow(access.AsOperator(), "context.revoke", `{"ids": ["`+key.ID+`"]}`)
	for name, c := range map[string]struct{ by, wire, says string }{
		"revoked":              {key.ID, "", "revoked"},
		"over another's wires": {other.ID, "run1", "another way"},
		"unknown":              {"ctx_none", "", "ctx_none"},
		"what it may not":      {other.ID, "", "the backend host"},
	} {
		run := must[store.Run](t)(w.store.InsertRun(t.Context(), store.Run{CreatedBy: c.by, Owner: must[procid.ID](t)(procid.Self())}))
		if _, err := startOwner(w.home, order{RunID: run.ID, By: c.by, Wire: c.wire, Input: runInput{Repo: "/", Backend: "host", Command: []string{"true"}}}); err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(4 * time.Minute)
		for run = must[store.Run](t)(w.store.Run(t.Context(), run.ID)); !run.Status.Final() && time.Now().Before(deadline); run = must[store.Run](t)(w.store.Run(t.Context(), run.ID)) {
			time.Sleep(10 * time.Millisecond) // a process of its own writes it
		}
		if run.Status != store.RunError || !strings.Contains(run.Reason, c.says) {
			t.Errorf("%s: %s, %s", name, run.Status, run.Reason)
		}
	}
}

// With a key in the environment this program does nothing itself, be the key none, and whatever it is asked for.
func TestWithAKeyNothingIsDoneHere(t *testing.T) {
	home := filepath.Join(t.TempDir(), "home")
	t.Setenv("RAVI_HOME", home)
	t.Setenv(runs.EnvURL, "")
	for _, key := range []string{"rctx_AAAAAAAAAAAAAAAAAAAAAAAA", "rubbish", ""} {
		t.Setenv(runs.EnvKey, key)
		for _, args := range [][]string{
			{"agents", "create", "anna"}, {"agents", "ls"}, {"config", "show"}, {"sandbox", "run", "--", "true"}, {"secrets", "ls"}, {"daemon", "start"},
			{ownerArg}, {"mcp", "serve"}, {"context", "issue", "--allow", "read:*"}, {"--json", "audit", "ls"},
		} {
			var stdout, stderr strings.Builder
			if code := Main(append([]string{"ravi"}, args...), strings.NewReader(""), &stdout, &stderr); code == 0 {
				t.Errorf("%q with %q: %s", args, key, stdout.String())
			}
			if _, err := os.Stat(home); err == nil {
				t.Fatalf("%q with %q made the home", args, key)
			}
			if said := stdout.String() + stderr.String(); !strings.Contains(strings.ToLower(said), "gateway") && !strings.Contains(said, runs.EnvKey) && !strings.Contains(said, "key") {
				t.Errorf("%q with %q: %s", args, key, said)
			}
		}
	}
}

// Of writings that are to be decided together none is if one cannot be; and a list of what waits is of those that may be seen.
func TestPendingMemory(t *testing.T) {
	w := newWorld(t)
	op := access.AsOperator()
	write := func(agent, path string) store.MemoryFile {
		return must[store.MemoryFile](t)(w.store.WriteMemory(t.Context(), store.MemoryFile{AgentID: agent, Kind: store.MemoryNote, Path: path, Content: "x", State: store.MemoryPending}))
	}
	one, two, theirs := write(w.mine.agent.ID, "one.md"), write(w.mine.agent.ID, "two.md"), write(w.theirs.agent.ID, "three.md")
	w.allow(op, "memory.reject", `{"ids": ["`+two.ID+`"]}`)
	for _, name := range []string{"memory.approve", "memory.reject"} {
		for id, code := range map[string]string{two.ID: command.CodeConflict, "memnothing": command.CodeNotFound} {
			w.refuse(op, name, `{"ids": ["`+one.ID+`", "`+id+`"]}`, code, "")
		}
		if m := must[store.MemoryFile](t)(w.store.MemoryByID(t.Context(), one.ID)); m.State != store.MemoryPending {
			t.Fatalf("%s: it is %s", name, m.State)
		}
	}
	list := w.allow(w.holder("read:memory@MINE.AGENT"), "memory.pending", "", one.ID)
	if strings.Contains(list, theirs.ID) || strings.Contains(list, two.ID) {
		t.Errorf("got %s", list)
	}
	none := w.holder("read:memory@agt*")
	none.Key.AgentID = ""
	w.deny(none, "memory.pending", "", "read:memory.pending")
	w.allow(none, "memory.pending", `{"agent": "bert"}`, theirs.ID)
}

// A list of keys is of those that the caller may list, of its own and its descendants.
func TestWhichKeysAreListed(t *testing.T) {
	w := newWorld(t)
	key, me := w.issue(access.AsOperator(), `{"agent": "anna", "allow": ["write:context.issue", "read:context"]}`)
	child, _ := w.issue(me, `{"allow": ["read:context"]}`)
	few := access.WithKey(*me.Key)
	few.Key.Capabilities = access.Capabilities{{Access: access.Read, Group: "context", Command: "ls", Object: key.ID}}
	if list := w.allow(few, "context.ls", "", key.ID); strings.Contains(list, child.ID) {
		t.Errorf("got %s", list)
	}
	w.allow(me, "context.ls", "", key.ID, child.ID)
}

// A task that holds the value of a secret does not bring it into the record.
func TestTasksOfRunsHoldNoSecret(t *testing.T) {
	w := newWorld(t)
	w.table = newTable(program())
	told := filepath.Join(t.TempDir(), "order")
	t.Setenv(orderEnv, told)
	st := must[*secret.Store](t)(secret.Open(w.home))
	if _, err := st.Set(t.Context(), "TOKEN", secret.Change{Hosts: []string{"api.example.com"}, Source: &secret.Source{Value: secret.NewValue("hidden-value-1234")}}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	repository(t, dir)
	w.refuse(access.AsOperator(), "runs.create", `{"repo": "`+dir+`", "command": ["echo", "hidden-value-1234"]}`, command.CodeUsage, "holds the value of a secret")
	w.allow(access.AsOperator(), "runs.create", `{"repo": "`+dir+`", "command": ["true"], "task": "use hidden-value-1234"}`)
	eventually(t, func() bool { _, err := os.Stat(told); return err == nil }) // what writes it is done before its folder goes
	for _, r := range must[[]store.Run](t)(w.store.ListRuns(t.Context(), store.RunFilter{})) {
		if strings.Contains(r.Task, "hidden") {
			t.Errorf("the record says %q", r.Task)
		}
	}
}

package cli

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ravi/internal/access"
	"ravi/internal/command"
	"ravi/internal/procid"
	"ravi/internal/secret"
	"ravi/internal/store"
	"ravi/sandbox"
)

// boxes records two sandboxes, each of a run: anna's and bert's.
func (w *world) boxes() (mine, theirs store.Sandbox) {
	w.t.Helper()
	self := must[procid.ID](w.t)(procid.Self())
	box := func(name string, r store.Run) store.Sandbox {
		b := must[store.Sandbox](w.t)(w.store.InsertSandbox(w.t.Context(), store.Sandbox{
			Name: name + "-box", RunID: r.ID, Backend: "gvisor", Image: "host", Seen: store.SeenRunning, Owner: self, Keeper: self, UIDBase: 7654321,
			Workspace: "/srv/of-" + name, Dir: filepath.Join(w.home, "sandboxes", name), Cgroups: []string{"/ravi/of-" + name}, CreatedBy: access.Operator,
		}))
		must[store.Run](w.t)(w.store.UpdateRun(w.t.Context(), r.ID, func(r *store.Run) error { r.SandboxID = b.ID; return nil }))
		return b
	}
	return box("anna", w.mine.run), box("bert", w.theirs.run)
}

// Who holds a key for one sandbox sees and ends that one, and hears nothing of another, however it is named.
func TestKeysOfSandboxes(t *testing.T) {
	w := newWorld(t)
	mine, theirs := w.boxes()
	me := w.holder("read:sandbox@"+mine.ID, "write:sandbox@"+mine.ID)
	others := []string{theirs.ID, "bert-box", theirs.ID[:28], "sbxnothing"}

	list := w.allow(me, "sandbox.ls", `{"all": true}`, mine.ID, "anna-box")
	if strings.Contains(list, theirs.ID) || strings.Contains(list, "bert") {
		t.Errorf("sandbox.ls gives away another: %s", list)
	}
	if list := w.allow(w.holder("read:sandbox@"+mine.ID+"*"), "sandbox.ls", `{"limit": 1}`, mine.ID); strings.Contains(list, theirs.ID) {
		t.Errorf("sandbox.ls with a pattern gives away another: %s", list)
	}
	w.deny(w.holder("read:runs"), "sandbox.ls", "", "read:sandbox.ls")
	for _, typed := range []string{mine.ID, "anna-box", mine.ID[:28]} {
		w.allow(me, "sandbox.inspect", `{"sandbox": "`+typed+`"}`, mine.ID)
		w.allow(me, "sandbox.logs", `{"id": "`+typed+`"}`, "out of anna")
	}
	w.allow(me, "sandbox.logs", `{"id": "MINE.RUN"}`, "out of anna")
	for _, typed := range append(others, w.theirs.run.ID, w.theirs.run.ID[:len(w.theirs.run.ID)-1]) {
		for _, name := range []string{"logs", "network"} {
			w.deny(me, "sandbox."+name, `{"id": "`+typed+`"}`, "read:sandbox."+name+"@"+typed)
		}
	}
	for _, typed := range others {
		for name, input := range map[string]string{
			"read:sandbox.inspect": `"sandbox": "` + typed + `"`, "read:sandbox.stats": `"sandboxes": ["` + typed + `"]`,
			"write:sandbox.kill": `"sandboxes": ["` + mine.ID + `", "` + typed + `"]`, "write:sandbox.pause": `"sandbox": "` + typed + `"`,
			"write:sandbox.resume": `"sandbox": "` + typed + `"`, "write:sandbox.exec": `"sandbox": "` + typed + `", "command": ["true"]`,
		} {
			_, plain, _ := strings.Cut(name, ":")
			w.deny(me, plain, "{"+input+"}", name+"@"+typed)
		}
	}
	// What only reads does nothing else, and nothing goes without a key for it.
	w.deny(w.holder("read:sandbox"), "sandbox.exec", `{"sandbox": "`+mine.ID+`", "command": ["true"]}`, "write:sandbox.exec")
	w.deny(w.holder("write:sandbox@"+mine.ID), "sandbox.inspect", `{"sandbox": "`+mine.ID+`"}`, "read:sandbox.inspect")
	w.deny(w.holder("write:sandbox@"+mine.ID), "sandbox.create", `{}`, "write:sandbox.create")

	w.allow(me, "sandbox.kill", `{"all": true}`, mine.ID)
	if b := must[store.Sandbox](t)(w.store.Sandbox(t.Context(), theirs.ID)); b.Seen != store.SeenRunning {
		t.Errorf("kill --all of a key ended another's: %s", b.Seen)
	}
}

// Where things are on this machine, and its processes, are nobody's business but the operator's.
func TestKeysLearnNothingOfTheHost(t *testing.T) {
	w := newWorld(t)
	mine, _ := w.boxes()
	secrets := []string{"/srv", w.home, "/ravi/", `"owner"`, `"keeper"`, "7654321", `"pid"`}
	for _, name := range []string{"sandbox.ls", "sandbox.inspect"} {
		input := ""
		if name == "sandbox.inspect" {
			input = `{"sandbox": "` + mine.ID + `"}`
		}
		got := w.allow(w.holder("read:*"), name, input, mine.ID)
		text := w.text(w.holder("read:*"), name, input)
		all := w.allow(access.AsOperator(), name, input, mine.ID)
		for _, s := range secrets {
			if strings.Contains(got, s) || strings.Contains(text, s) {
				t.Errorf("%s tells a key %s: %s\n%s", name, s, got, text)
			}
			if !strings.Contains(all, s) {
				t.Errorf("%s does not tell the operator %s: %s", name, s, all)
			}
		}
		if outside, fences := outsideFences(t, text); name == "sandbox.ls" && (fences == 0 || strings.Contains(outside, "anna-box")) {
			t.Errorf("names stand outside a fence: %s", text)
		}
	}
	_, err := w.call(w.holder("read:sandbox"), "sandbox.network", `{"id": "`+mine.ID+`"}`)
	if told := command.AsError(err); err == nil || strings.Contains(told.Message+told.Hint, w.home) {
		t.Errorf("sandbox.network: %v (%s)", err, told.Hint)
	}
}

// A name that a key chose cannot stand for somebody's run.
func TestANameIsNoID(t *testing.T) {
	w := newWorld(t)
	theirs := w.theirs.run.ID
	b := must[store.Sandbox](t)(w.store.InsertSandbox(t.Context(), store.Sandbox{Name: theirs[:len(theirs)-1], RunID: w.mine.run.ID, Seen: store.SeenRunning}))
	me := w.holder("read:sandbox@" + b.ID)
	out, err := w.call(me, "sandbox.logs", `{"id": "`+b.Name+`"}`)
	if err == nil && strings.Contains(out, "bert") {
		t.Errorf("a sandbox's name gives another's logs: %s", out)
	}
	for _, name := range []string{"run01", "sbx01", theirs, "a:b"} {
		if _, err := (createInput{Name: name}).wanted(t.Context(), w.env(access.AsOperator())); err == nil {
			t.Errorf("a sandbox can be called %s", name)
		}
	}
}

// What is for the operator is for no key, whatever it holds.
func TestOperatorsCommands(t *testing.T) {
	w := newWorld(t)
	mine, _ := w.boxes()
	me := w.holder("read:*", "write:*")
	for name, input := range map[string]string{
		"sandbox.prune": "", "secrets.set": `{"name": "A", "hosts": ["a.example"]}`, "secrets.rm": `{"names": ["A"]}`, "secrets.show": `{"name": "A"}`,
		"sandbox.shell": `{"sandbox": "` + mine.ID + `"}`, "sandbox.cp": `{"source": "/etc/passwd", "target": "` + mine.ID + `:x"}`,
		"sandbox.port": `{"sandbox": "` + mine.ID + `", "port": 1}`,
	} {
		w.deny(me, name, input, "the operator: "+name)
	}
	w.table = newTable(program())
	w.deny(me, "sandbox.run", `{"command": ["true"]}`, "the operator: sandbox.run")
}

// A key that may read secrets reads their names, and where they may go.
func TestSecretsOfKeys(t *testing.T) {
	w := newWorld(t)
	st := must[*secret.Store](t)(secret.Open(w.home))
	if _, err := st.Set(t.Context(), "TOKEN", secret.Change{Hosts: []string{"api.example.com"}, Source: &secret.Source{Value: secret.NewValue("hidden-value-1234")}}); err != nil {
		t.Fatal(err)
	}
	got := w.allow(w.holder("read:secrets"), "secrets.ls", "", `[{"name":"TOKEN","hosts":["api.example.com"]}]`)
	if strings.Contains(got, "hidden") {
		t.Error(got)
	}
	w.allow(access.AsOperator(), "secrets.ls", "", `"source":"value"`, `"headers"`, `"created_at"`)
	w.deny(w.holder("read:sandbox"), "secrets.ls", "", "read:secrets.ls")
	if text := w.text(w.holder("read:secrets"), "secrets.ls", ""); strings.Contains(text, "SOURCE") || !strings.Contains(text, "api.example.com") {
		t.Error(text)
	}
}

// What a key asks of a sandbox is held against its profile, field by field.
func TestCreateIsBound(t *testing.T) {
	w := newWorld(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	seven, many := 7, 64.0
	big := 1 << 20
	me := w.holder("write:sandbox")
	for missing, in := range map[string]createInput{
		"the backend host":                        {Backend: "host"},
		"the image other":                         {Image: "other"},
		"the volume " + dir + ":rw":               {Workspace: dir},
		"the volume " + dir + ":ro":               {Volumes: []string{dir + ":/srv/x"}},
		"the network all":                         {AllowNet: []string{"all"}},
		"the network pypi.org":                    {AllowNet: []string{"pypi.org"}},
		"64 processors (of at most 2)":            {CPUs: &many},
		"1048576 MiB of memory (of at most 2048)": {Memory: &big},
		"7 GB of disk (of at most 4)":             {Disk: &seven},
		"a time of 2h0m0s (of at most 1h0m0s)":    {TTL: 2 * 3600e9},
	} {
		in.Grace = 60e9
		_, err := in.wanted(t.Context(), w.env(me))
		if told := command.AsError(err); err == nil || told.Code != command.CodeDenied || !strings.Contains(told.Message, missing) {
			t.Errorf("%+v: %v, want %q", in, err, missing)
		}
		if in.Image == "" {
			if _, err := in.wanted(t.Context(), w.env(access.AsOperator())); err != nil {
				t.Errorf("the operator, %+v: %v", in, err)
			}
		}
	}
	// What it does not say is the profile's; grace is not its to choose.
	got, err := (createInput{Overlay: false}).wanted(t.Context(), w.env(me))
	if err != nil || got.TTL.Hours() != 1 || got.Config.Backend != sandbox.BackendGVisor || got.CreatedBy != "ctx_anna" {
		t.Errorf("%+v, %v", got, err)
	}
	w.deny(me, "sandbox.create", `{"grace": "24h"}`, `the operator: "grace"`)
	w.refuse(me, "sandbox.create", `{}`, command.CodeUnavailable, "made by the daemon")
	// The bound on how many counts the one that is recorded.
	for range access.DefaultProfile().Sandboxes + 1 {
		must[store.Sandbox](t)(w.store.InsertSandbox(t.Context(), store.Sandbox{CreatedBy: "ctx_anna", Seen: store.SeenRunning}))
	}
	must[store.Key](t)(w.store.InsertKey(t.Context(), store.Key{ID: "ctx_anna", Kind: store.KeyPlain, Hash: strings.Repeat("ab", 32), Capabilities: []string{"write:sandbox"},
		Profile: access.DefaultName, CreatedAt: store.Now(), ExpiresAt: store.Now().Add(3600e9)}, nil))
	if err := got.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "room for one more") {
		t.Errorf("there is always room: %v", err)
	}
	if !slices.Equal(networksOf(got.Config.AllowNet), []string{"none"}) {
		t.Errorf("%+v", got.Config.AllowNet)
	}
}

// The time of a command is bounded, and its variables hold no credential.
func TestExecIsBound(t *testing.T) {
	w := newWorld(t)
	mine, _ := w.boxes()
	me := w.holder("write:sandbox")
	exec := func(more string) string { return `{"sandbox": "` + mine.ID + `", "command": ["true"]` + more + `}` }
	_, err := w.call(me, "sandbox.exec", exec(`, "timeout": "2h"`))
	if err == nil || !strings.Contains(err.Error(), "a time of 2h0m0s") {
		t.Errorf("a long command: %v", err)
	}
	w.refuse(me, "sandbox.exec", exec(`, "env": {"TOKEN": "abcdefgh12345"}`), command.CodeUsage, "credential")
	w.refuse(me, "sandbox.exec", exec(`, "timeout": "0s"`), command.CodeUsage, "not above 0")
	w.refuse(me, "sandbox.exec", exec(""), command.CodeConflict, "cannot be reached")
	must[store.Sandbox](t)(w.store.UpdateSandbox(t.Context(), mine.ID, func(b *store.Sandbox) error { b.Seen = store.SeenPaused; return nil }))
	w.refuse(me, "sandbox.exec", exec(""), command.CodeConflict, "is paused")
	must[store.Sandbox](t)(w.store.UpdateSandboxState(t.Context(), mine.ID, store.SeenEnded, "oom"))
	w.refuse(me, "sandbox.exec", exec(""), command.CodeConflict, "has ended (oom)")
}

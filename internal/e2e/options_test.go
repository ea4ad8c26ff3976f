package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is asked for in a wrong way is refused before anything is made, with exit code 2.
func TestUsage(t *testing.T) {
	w, r := newWorld(t), plain(t)
	must(t, os.WriteFile(w.user+"/task", []byte("x"), 0o600))
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"no command":           {nil, "nothing to run"},
		"task without command": {[]string{"--task", "do it"}, "after --"},
		"task file alone":      {[]string{"--task-file", w.user + "/task"}, "after --"},
		"two tasks":            {[]string{"--task", "a", "--task-file", w.user + "/task", "--", "true"}, "--task-file"},
		"no task file":         {[]string{"--task-file", w.user + "/none", "--", "true"}, "none"},
		"empty command":        {[]string{"--", ""}, "empty"},
		"unknown flag":         {[]string{"--frobnicate", "--", "true"}, "frobnicate"},
		"unknown backend":      {[]string{"--backend", "moon", "--", "true"}, "moon"},
		"no processor":         {[]string{"--cpus", "0", "--", "true"}, "cpus"},
		"negative processors":  {[]string{"--cpus=-1", "--", "true"}, "cpus"},
		"NaN processors":       {[]string{"--cpus", "NaN", "--", "true"}, "cpus"},
		"little memory":        {[]string{"--memory", "1", "--", "true"}, "memory"},
		"no disk":              {[]string{"--disk", "0", "--", "true"}, "disk"},
		"negative timeout":     {[]string{"--timeout=-1s", "--", "true"}, "--timeout"},
		"timeout without unit": {[]string{"--timeout", "10", "--", "true"}, "timeout"},
		"env without value":    {[]string{"--env", "NAME", "--", "true"}, "NAME=VALUE"},
		"env with no name":     {[]string{"--env", "=x", "--", "true"}, "NAME=VALUE"},
		"volume of one part":   {[]string{"--volume", "/srv", "--", "true"}, "HOST:GUEST"},
		"volume of no mode":    {[]string{"--volume", "/srv:/data:rx", "--", "true"}, "HOST:GUEST"},
		"volume over work":     {[]string{"--volume", w.user + ":/workspace", "--", "true"}, "/workspace"},
		"volume over root":     {[]string{"--volume", w.user + ":/", "--", "true"}, "hide"},
		"volume over etc":      {[]string{"--volume", w.user + ":/etc/x", "--", "true"}, "/etc"},
		"volume not absolute":  {[]string{"--volume", w.user + ":data", "--", "true"}, "absolute"},
		"apply to an address":  {[]string{"--repo", "https://example.invalid/x.git", "--apply", "--", "true"}, "--apply"},
	} {
		t.Run(name, func(t *testing.T) {
			w := *w
			w.t = t
			res := w.ravi(append([]string{"sandbox", "run", "--repo", r.dir}, c.args...)...).want(2).says(c.says)
			if res.dir != "" {
				t.Errorf("a run was made: %s", res.dir)
			}
			if !strings.HasPrefix(res.stderr, "error: ") || res.stdout != "" {
				t.Errorf("stdout %q, stderr %q", res.stdout, res.stderr)
			}
		})
	}
	// The document is one, here too.
	res := w.run(r, "--json", "--cpus", "0", "--", "true").want(2)
	if !strings.HasPrefix(res.stdout, "{") || !strings.Contains(res.stdout, `"error"`) {
		t.Errorf("stdout %q", res.stdout)
	}
}

// What cannot be done is an error of Ravi's, 125, with the way out.
func TestCannot(t *testing.T) {
	w, r := newWorld(t), plain(t)
	must(t, os.MkdirAll(w.user+"/empty", 0o755))
	socket := w.user + "/none"
	for name, c := range map[string]struct {
		args []string
		says []string
	}{
		"backend of later":  {[]string{"--repo", r.dir, "--backend", "docker", "--", "true"}, []string{"docker", "hint: ", "gvisor"}},
		"image of later":    {[]string{"--repo", r.dir, "--image", "ubuntu:22.04", "--", "true"}, []string{"ubuntu:22.04", "hint: "}},
		"no such folder":    {[]string{"--repo", socket, "--", "true"}, []string{"none"}},
		"no repository":     {[]string{"--repo", w.user + "/empty", "--", "true"}, []string{"not a git repository", "git init"}},
		"bad ref":           {[]string{"--repo", r.dir, "--ref", "nosuch", "--", "true"}, []string{"nosuch"}},
		"ref as an option":  {[]string{"--repo", r.dir, "--ref=--upload-pack=touch x", "--", "true"}, []string{"upload-pack"}},
		"volume that is no": {[]string{"--repo", r.dir, "--volume", w.user + "/none:/data", "--", "true"}, []string{"none"}},
		"volume of home":    {[]string{"--repo", r.dir, "--volume", w.home + ":/data", "--", "true"}, []string{w.home}},
		"volume above home": {[]string{"--repo", r.dir, "--volume", w.user + ":/data", "--", "true"}, []string{w.user}},
		"volume of run":     {[]string{"--repo", r.dir, "--volume", "/run:/data", "--", "true"}, []string{"/run"}},
		"volume of all":     {[]string{"--repo", r.dir, "--volume", "/:/data", "--", "true"}, []string{"/"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := *w
			w.t = t
			res := w.ravi(append([]string{"sandbox", "run"}, c.args...)...).want(125).says(append(c.says, "error: ")...)
			k := res.task()
			if k.Status != "error" || k.Reason == "" || k.Error == "" || k.ExitCode != nil || k.Patch != nil {
				t.Errorf("task.json says %+v", k)
			}
			if k.Sandbox != "" {
				nothingRemains(t, w.home, k.Sandbox)
			}
		})
	}
}

func TestTaskFromStandardInput(t *testing.T) {
	w, r := newWorld(t), plain(t)
	cmd := w.command("sandbox", "run", "--repo", r.dir, "--task-file", "-", "--", "sh", "-c", "cat TASK.md; git status --short; cat")
	cmd.Stdin = strings.NewReader("do\nthis ü")
	res := w.finish(cmd).want(0)
	if !strings.HasPrefix(res.stdout, "do\nthis ü") {
		t.Errorf("the command saw %q", res.stdout)
	}
	if res.file("TASK.md") != "do\nthis ü" || res.task().Patch.Files != 0 {
		t.Errorf("TASK.md %q, patch %+v", res.file("TASK.md"), res.task().Patch)
	}
}

// A TASK.md of the repository's own gives way for the run, and is not in the patch.
func TestTaskFileOfTheRepository(t *testing.T) {
	w, r := newWorld(t), plain(t)
	r.write("TASK.md", "the repository's own\n")
	r.commit("task")
	res := w.run(r, "--task", "ours", "--", "sh", "-c", "cat TASK.md; echo x >>a").want(0)
	if res.stdout != "ours" {
		t.Errorf("the command saw %q", res.stdout)
	}
	if k := res.task(); k.Patch.Files != 1 || k.Patch.Paths[0].Path != "a" {
		t.Errorf("patch %+v", k.Patch)
	}
}

func TestVolumes(t *testing.T) {
	w, r := newWorld(t), plain(t)
	ro, rw := realpath(t, t.TempDir()), realpath(t, t.TempDir())
	must(t, os.Chmod(rw, 0o777))
	must(t, os.WriteFile(ro+"/given", []byte("given\n"), 0o644))
	res := w.run(r, "--volume", ro+":/in", "-v", rw+":/out:rw", "--", "sh", "-c",
		"cat /in/given; echo made >/out/made; touch /in/x 2>/dev/null && echo WRITTEN; chmod u+s /out/made; true").want(0)
	if res.stdout != "given\n" {
		t.Errorf("the command saw %q", res.stdout)
	}
	if read(t, rw+"/made") != "made\n" {
		t.Error("nothing came out")
	}
	if left, _ := filepath.Glob(ro + "/*"); len(left) != 1 {
		t.Errorf("the read-only volume holds %q", left)
	}
	if res.task().Patch.Files != 0 {
		t.Error("the volumes are in the patch")
	}
}

func TestKeep(t *testing.T) {
	w, r := newWorld(t), plain(t)
	res := w.run(r, "--keep", "--", "sh", "-c", "echo x >>a").want(0)
	k := res.task()
	res.patch()
	t.Cleanup(func() { nothingRemains(t, w.home, k.Sandbox) })
	t.Cleanup(func() { w.ravi("sandbox", "kill", k.Sandbox) })
	res.says("sandbox kill " + k.Sandbox)
	if got := w.ravi("sandbox", "ls", "-q").want(0); got.stdout != k.Sandbox+"\n" {
		t.Fatalf("ls: %q", got.stdout)
	}
	// It is owned by its grace: the sweep leaves it.
	if got := w.ravi("sandbox", "prune").want(0); !strings.Contains(got.stdout, "nothing was left behind") {
		t.Errorf("prune: %q", got.stdout)
	}
	if len(remains(w.home, k.Sandbox)) < 3 {
		t.Fatalf("it was not kept: %q", remains(w.home, k.Sandbox))
	}
	if got := w.ravi("sandbox", "kill", k.Sandbox).want(0); got.stdout != k.Sandbox+"\n" {
		t.Errorf("kill: %q", got.stdout)
	}
	nothingRemains(t, w.home, k.Sandbox)
	w.ravi("sandbox", "kill", k.Sandbox).want(0) // once more is no error
	if got := decodeTask(t, res.file("task.json")); got.Status != "succeeded" {
		t.Errorf("status %q", got.Status)
	}
}

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"ravi/internal/modeltest"
)

// A program that tries other names than its model's is refused at once, not after a time that it waits, and one line of the
// run's end names what it tried.
func TestRefusedNames(t *testing.T) {
	w, r := newWorld(t), plain(t)
	e := newEcho(t)
	w.env = []string{"ANTHROPIC_API_KEY=" + canary, "ANTHROPIC_BASE_URL=" + e.url}
	// The answers are the kinds that mean a refusal: a time that ran out is of another.
	const tries = `import errno, os, socket, urllib.request
for name in ["telemetry.example", "updates.example.org"]:
    try: socket.getaddrinfo(name, 443)
    except socket.gaierror as e: print(name, "has no name" if e.errno == socket.EAI_NONAME else e)
try: socket.create_connection(("1.1.1.1", 443))
except OSError as e: print("1.1.1.1", errno.errorcode[e.errno])
q = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", headers={"x-api-key": os.environ["ANTHROPIC_API_KEY"], "content-type": "application/json", "anthropic-version": "2023-06-01"},
    data=b'{"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}')
print("model", urllib.request.urlopen(q).status)
`
	run := w.run(r, "--agent", "command", "--task", "x", "--", "python3", "-c", tries).want(0)
	if want := "telemetry.example has no name\nupdates.example.org has no name\n1.1.1.1 ECONNREFUSED\nmodel 200\n"; run.stdout != want {
		t.Errorf("it saw\n%sand not\n%s", run.stdout, want)
	}
	told := 0
	for line := range strings.Lines(run.stderr) {
		if strings.Contains(line, "the network refused") {
			told++
			for _, name := range []string{"telemetry.example", "updates.example.org", "1.1.1.1"} {
				if !strings.Contains(line, name) {
					t.Errorf("%q does not name %s", line, name)
				}
			}
		}
	}
	if told != 1 {
		t.Errorf("it is told in %d lines:\n%s", told, short(run.stderr))
	}
	if !regexp.MustCompile(`(?m)^models: 1 calls, the first after \d+\.\d s, `).MatchString(run.stderr) {
		t.Errorf("it is not told when the model was asked:\n%s", short(run.stderr))
	}
}

// What a user shows an agent program of their own home, read-only or not, is neither changed nor in its way: it has a home
// of its own.
func TestAgentHomes(t *testing.T) {
	shown := map[string][]string{"claude": {"/home/user/.claude:rw"}, "codex": {"/home/user/.codex:ro"}}
	for _, c := range tried() {
		for _, place := range append(shown[c.name], "/home/user:ro") {
			t.Run(c.name+" "+place, func(t *testing.T) {
				w, r := newWorld(t), plain(t)
				w.withAgent(c.name)
				at, _, _ := strings.Cut(place, ":")
				url, _ := provider(t, c.header,
					modeltest.Turn{modeltest.Shell("echo $HOME > home.txt; id -u >> home.txt; touch $HOME/mine; cat " + at + "/settings.json >> home.txt")},
					modeltest.Turn{modeltest.Text("All is done.")})
				w.env = []string{c.key + "=" + canary, c.base + "=" + url}
				own := realpath(t, t.TempDir())
				// What of it were taken for settings would end the program.
				for _, name := range []string{"settings.json", "config.toml", ".claude.json"} {
					must(t, os.WriteFile(filepath.Join(own, name), []byte("the user's own, and no settings\n"), 0o644))
				}
				must(t, os.Chmod(own, 0o777))
				before := snapshot(t, own)
				run := w.run(r, c.args("make home.txt", "--volume", own+":"+place)...).want(0).says("the volume at "+at, "/ravi/home")
				if patch := run.patch(); !strings.Contains(patch, "+/ravi/home\n+1000\n+the user's own") {
					t.Errorf("the patch is\n%s", patch)
				}
				if had := run.task().Conversation; had == nil || had.ID == "" || had.Lost != "" {
					t.Errorf("its conversation is lost: %+v", had)
				}
				if after := snapshot(t, own); after != before {
					t.Errorf("the user's files were\n%s\nand are\n%s", before, after)
				}
			})
		}
	}
	// A folder that is none of the program's stays where it is, and the home too.
	t.Run("cache", func(t *testing.T) {
		w, r := newWorld(t), plain(t)
		e := newEcho(t)
		w.env = []string{"ANTHROPIC_API_KEY=" + canary, "ANTHROPIC_BASE_URL=" + e.url}
		run := w.run(r, "--agent", "command", "--task", "x", "--volume", w.repoless(t)+":/home/user/.cache", "--", "sh", "-c", "cat $HOME/.cache/given; cat $RAVI_TASK_FILE; echo $HOME").want(0)
		if run.stdout != "given\nx/home/user\n" {
			t.Errorf("it saw %q", run.stdout)
		}
	})
}

// repoless is a folder with a file.
func (w *world) repoless(t *testing.T) string {
	t.Helper()
	dir := realpath(t, t.TempDir())
	must(t, os.WriteFile(filepath.Join(dir, "given"), []byte("given\n"), 0o644))
	return dir
}

// An agent program works for root, too: on the host, and in a sandbox of an ordinary user, where a volume makes the user
// inside root.
func TestAgentAsRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: becoming another user, and root on the host, need root")
	}
	begin := func(t *testing.T) *world {
		w := newWorld(t)
		w.withAgent("claude")
		url, _ := provider(t, "X-Api-Key", modeltest.Turn{modeltest.Shell("id -u > uid.txt; echo $HOME >> uid.txt; touch $HOME/mine")}, modeltest.Turn{modeltest.Text("All is done.")})
		w.env = []string{"ANTHROPIC_API_KEY=" + canary, "ANTHROPIC_BASE_URL=" + url}
		return w
	}
	args := func(r *repo, more ...string) []string {
		return append([]string{"sandbox", "run", "--repo", r.dir, "--agent", "claude", "--task", "make uid.txt"}, more...)
	}
	t.Run("host", func(t *testing.T) {
		w, r := begin(t), plain(t)
		must(t, os.MkdirAll(filepath.Join(w.user, ".claude"), 0o700))
		must(t, os.WriteFile(filepath.Join(w.user, ".claude", "settings.json"), []byte("the user's own\n"), 0o600))
		before := snapshot(t, filepath.Join(w.user, ".claude"))
		run := w.ravi(args(r, "--backend", "host")...).want(0)
		if patch := run.patch(); !strings.Contains(patch, "+0\n+"+w.home+"/sandboxes/") {
			t.Errorf("the patch is\n%s", patch)
		}
		if after := snapshot(t, filepath.Join(w.user, ".claude")); after != before {
			t.Errorf("the user's files are %s", after)
		}
		if entries, err := filepath.Glob(filepath.Join(w.user, ".*")); err != nil || len(entries) > 1 {
			t.Errorf("in the user's home are %v %v", entries, err)
		}
	})
	t.Run("sandbox", func(t *testing.T) {
		w, r := begin(t), plain(t)
		own := w.repoless(t)
		must(t, os.Chmod(own, 0o777))
		for _, dir := range []string{w.user, r.dir, own} {
			must(t, exec.Command("chown", "-Rh", "4713", dir).Run())
			must(t, os.Chmod(filepath.Dir(dir), 0o755))
		}
		for dir := filepath.Join(agentPrograms.home, "ravi-home", "agents", "claude"); dir != filepath.Dir(agentPrograms.home); dir = filepath.Dir(dir) {
			must(t, os.Chmod(dir, 0o755))
		}
		copied := filepath.Join(w.user, "ravi")
		must(t, exec.Command("cp", program, copied).Run())
		must(t, os.Chmod(copied, 0o755))
		ravi := w.command(args(r, "--volume", own+":/srv/own:rw")...)
		// Where /dev/net/tun is root's, as it is on few machines, an ordinary user gets one here.
		cmd := exec.Command("unshare", append([]string{"-m", "sh", "-c", `mount -t tmpfs ravi /dev/net && mknod -m 666 /dev/net/tun c 10 200 && exec setpriv --reuid=4713 --regid=4713 --clear-groups "$0" "$@"`, copied}, ravi.Args[1:]...)...)
		cmd.Dir, cmd.Env = ravi.Dir, ravi.Env
		run := w.finish(cmd).want(0)
		if patch := run.patch(); !strings.Contains(patch, "+0\n+/") {
			t.Errorf("the patch is\n%s", patch)
		}
	})
}

// Whatever umask Ravi is started with, the user in the sandbox can read what is there for them.
func TestUmaskOfTheCaller(t *testing.T) {
	w, r := newWorld(t), plain(t)
	own := w.repoless(t)
	ravi := w.command("sandbox", "run", "--repo", r.dir, "--volume", own+":/srv/a/b", "--", "sh", "-c",
		"set -e; id -un; cat /srv/a/b/given; ls -d /etc/ssl/certs; openssl version -d >/dev/null; npm --version >/dev/null; echo made >made")
	cmd := exec.Command("sh", append([]string{"-c", `umask 077 && exec "$0" "$@"`, program}, ravi.Args[1:]...)...)
	cmd.Dir, cmd.Env = ravi.Dir, ravi.Env
	run := w.finish(cmd).want(0)
	if run.stdout != "user\ngiven\n/etc/ssl/certs\n" || !strings.Contains(run.patch(), "+made") {
		t.Errorf("inside: %q, %s", run.stdout, run.patch())
	}
}

package agent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ravi/sandbox"
)

// In a place outside there is a file with this text, and nothing of the name of mark.
const (
	outsideText = "what-lies-outside-4711"
	mark        = "written-outside-4711"
)

// readHoles are ways out that no reading of a command finds all of. OUT is a folder outside with a file secret, HOST the
// home of the user outside; link and linkfile in the workspace lead there.
var readHoles = []string{
	`cat<OUT/secret`,
	`cat $HOME/.ssh/id_rsa`, `cat ${HOME}/.ssh/id_rsa`, `cat ~/.ssh/id_rsa ~root/.ssh/id_rsa HOST/.ssh/id_rsa`,
	`cd ..; cat secret */secret .ssh/id_rsa */.ssh/id_rsa`,
	`ls ..; cat ../secret ../*/secret ../../*/secret`,
	`pushd ..; cat secret ./*/secret; cd -; cd OUT; cat secret`,
	`cd / && ls && cat .OUT/secret`, `ls / OUT HOST/.ssh; cat /*/secret /*/*/secret /*/*/*/secret`,
	`env -C OUT cat secret`, `env -C / cat .OUT/secret`,
	`git -COUT grep --no-index -e outside`, `git -C OUT grep --no-index -e outside`,
	`tar -COUT -cf - .`, `tar -cf - --directory=OUT .`,
	`diff /dev/null --to-file=OUT/secret`,
	`FOO=OUT/secret;cat $FOO`,
	`a=..;cat $a/secret $a/*/secret $a/../*/secret`, `cat .""./secret .""./*/secret`,
	`cat {OUT/secret,}`,
	`curl -s file://OUT/secret`, `cat host:OUT/secret`,
	`cat $'\x2fREST/secret'`,
	`cat ~+/../secret ~+/../*/secret`,
	`/usr/bin/python3 -c 'import os;print(open(os.sep+os.path.join("REST","secret")).read())'`,
	`cat link/secret`, `cat linkfile`, `cat link/../*/secret`, `cp -rL link copied; cat copied/secret`,
	`ln -sfn / root; ln -sfn OUT new; ln -f OUT/secret hard; ln -f linkfile hard2`, // and then, as a second call:
	`cat rootOUT/secret new/secret hard hard2`,
	`cat /proc/1/root/OUT/secret /proc/self/root/OUT/secret /proc/*/root/OUT/secret /proc/*/cwd/secret`,
	`unshare -rm sh -c 'umount -l /var /tmp /root; cat OUT/secret'`,
	`unshare -rm sh -c 'mount --bind / sub; cat subOUT/secret; mount --rbind /var sub; cat sub/tmp/*/secret'`,
	`nsenter -t 1 -a cat OUT/secret; chroot / cat OUT/secret`,
}

// writeHoles are ways to change something outside. MARK is the name that nothing must have afterwards.
var writeHoles = []string{
	`for d in / /etc /usr /usr/bin /usr/local/bin /opt /srv /mnt /home /var /var/lib /var/tmp OUT HOST; do touch $d/MARK; sudo -n touch $d/MARK; done`,
	`echo x >>OUT/secret; sudo -n sh -c 'echo x >>OUT/secret'; echo x >>linkfile; truncate -s0 linkfile; chmod 777 linkfile`,
	`echo x >link/MARK; cp f link/MARK; mv f2 link/MARK; tee OUT/MARK <f; dd if=f of=OUT/MARK; ln -s f OUT/MARK; mkdir -p link/MARK`,
	`rm -rf link/* OUT/secret HOST/.ssh; mv OUT gone`,
	`unshare -rm sh -c 'mount -o remount,rw /; mount -o remount,bind,rw /; umount -l /var /opt; touch /etc/MARK /opt/MARK OUT/MARK'`,
	`sudo -n unshare -m sh -c 'mount -o remount,bind,rw /; touch /etc/MARK /opt/MARK'`,
	`/usr/bin/python3 -c 'import os;open(os.path.join(os.sep,"REST","MARK"),"w")'`,
	`(for i in $(seq 30); do ln -sfn OUT swap; ln -sfn sub swap; done) & for i in $(seq 30); do : >swap/MARK; echo x >>swap/secret; done; wait`,
}

// allowedLines are what must go on working, with what they write.
var allowedLines = map[string]string{
	`ls nosuch 2>/dev/null; echo fine`:              "fine",
	`/usr/bin/python3 -V`:                           "Python 3",
	`cat WS/f`:                                      "inside",
	`echo '/etc'`:                                   "/etc",
	`head -1 /etc/passwd`:                           "root:",
	`echo a >/tmp/t; echo b >~/t; cat /tmp/t ~/t`:   "a\nb",
	`t=$(mktemp) && echo c >$t && cat $t`:           "c",
	`head -c3 /dev/urandom | tee /dev/null | wc -c`: "3",
	`git init -q r && cd r && git -c user.name=a -c user.email=b commit -q --allow-empty -m first && git log --oneline`: "first",
	`echo e >sub/made && cat sub/made`: "e",
}

// Restricted to the workspace, commands and file tools neither see nor change anything else of the user's, however they say it.
func TestRestrictedToTheWorkspace(t *testing.T) {
	for _, backend := range []string{sandbox.BackendGVisor, sandbox.BackendHost} {
		t.Run(backend, func(t *testing.T) {
			r := restrict(t, backend)
			for _, line := range readHoles {
				if got := r.exec(t, line, ""); strings.Contains(got.Text, outsideText) {
					t.Errorf("%s reads what lies outside:\n%s", line, got.Text)
				}
			}
			for _, line := range writeHoles {
				r.exec(t, line, "")
				r.untouched(t, line)
			}
			for line, want := range allowedLines {
				if got := r.exec(t, line, ""); got.Failed || !strings.Contains(got.Text, want) {
					t.Errorf("%s does not work:\n%s", line, got.Text)
				}
			}
			for _, dir := range []string{"/", "..", "sub/../..", "/etc", "/tmp", r.sb.Workspace() + "x", r.sb.Workspace() + "/../..", "/workspace/..", r.out} {
				if got := r.exec(t, "pwd", dir); !got.Failed || !strings.Contains(got.Text, "outside of the workspace") {
					t.Errorf("the working_dir %s is taken:\n%s", dir, got.Text)
				}
			}
			for _, dir := range []string{"", ".", "sub", r.sb.Workspace() + "/sub", "/workspace/sub", "sub/../sub"} {
				if got := r.exec(t, "pwd", dir); got.Failed || !strings.Contains(got.Text, r.sb.Workspace()) {
					t.Errorf("the working_dir %q is not taken:\n%s", dir, got.Text)
				}
			}
			if got := r.exec(t, "cat secret; pwd", "link"); strings.Contains(got.Text, outsideText) || strings.Contains(got.Text, r.out+"\n") {
				t.Errorf("by a link the working_dir is outside:\n%s", got.Text)
			}
			r.fileTools(t)
			r.untouched(t, "all of it")
		})
	}
}

// Whoever is not restricted names any working_dir.
func TestWorkingDirOfTheUnrestricted(t *testing.T) {
	sb, err := sandbox.Open(t.Context(), sandbox.Default(), "", sandbox.WithHome(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	r := restricted{sb: sb, hands: started(t, sb)}
	if got := r.exec(t, "pwd", "/etc"); got.Failed || !strings.Contains(got.Text, "/etc") {
		t.Errorf("it is refused:\n%s", got.Text)
	}
}

// restricted is a sandbox that sees its workspace only, and what lies outside.
type restricted struct {
	sb        *sandbox.Sandbox
	hands     *Hands
	out, home string
}

func restrict(t *testing.T, backend string) restricted {
	t.Helper()
	r := restricted{home: t.TempDir()}
	var err error
	// Beside /tmp, which is the sandbox's own.
	if r.out, err = os.MkdirTemp("/var/tmp", "outside"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(r.out) })
	t.Setenv("HOME", r.home)
	ws := filepath.Join(t.TempDir(), "ws")
	for path, text := range map[string]string{
		r.out + "/secret": outsideText, r.home + "/.ssh/id_rsa": outsideText, filepath.Dir(ws) + "/secret": outsideText,
		ws + "/f": "inside\n", ws + "/f2": "inside\n", ws + "/sub/f": "inside\n",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"link": r.out, "linkfile": r.out + "/secret"} {
		if err := os.Symlink(to, filepath.Join(ws, name)); err != nil {
			t.Fatal(err)
		}
	}
	cfg := sandbox.Default()
	cfg.Backend = backend
	if r.sb, err = sandbox.Open(t.Context(), cfg, ws, sandbox.WithHome(t.TempDir()), sandbox.WithWorkspaceOnly()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.sb.Close(); err != nil {
			t.Error(err)
		}
	})
	r.hands = started(t, r.sb)
	return r
}

func started(t *testing.T, sb *sandbox.Sandbox) *Hands {
	t.Helper()
	h := HandsOf(sb)
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return h
}

// filled is a line with its places filled in.
func (r restricted) filled(line string) string {
	return strings.NewReplacer("OUT", r.out, "REST", strings.TrimPrefix(r.out, "/"), "HOST", r.home, "MARK", mark, "WS", r.sb.Workspace()).Replace(line)
}

func (r restricted) exec(t *testing.T, line, dir string) Result {
	t.Helper()
	tool := &ExecTool{Hands: r.hands}
	return r.do(t, tool, map[string]any{"command": r.filled(line), "working_dir": dir})
}

func (r restricted) do(t *testing.T, tool Tool, args map[string]any) Result {
	t.Helper()
	b, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	got, err := tool.Do(t.Context(), b)
	if err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return got
}

// untouched looks whether everything outside is as it was, on the host, and for root in the sandbox.
func (r restricted) untouched(t *testing.T, after string) {
	t.Helper()
	for _, path := range []string{r.out + "/secret", r.home + "/.ssh/id_rsa"} {
		b, err := os.ReadFile(path)
		if err != nil || string(b) != outsideText {
			t.Fatalf("after %s, %s holds %q, %v", after, path, b, err)
		}
	}
	if st, err := os.Stat(r.out + "/secret"); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("after %s it has other rights: %v, %v", after, st, err)
	}
	var places []string
	for _, dir := range []string{"/", "/etc", "/usr", "/usr/bin", "/usr/local/bin", "/opt", "/srv", "/mnt", "/home", "/var", "/var/lib", "/var/tmp", r.out, r.home} {
		at := filepath.Join(dir, mark)
		places = append(places, at)
		if _, err := os.Lstat(at); err == nil {
			t.Errorf("after %s there is %s", after, at)
			_ = os.Remove(at)
		}
	}
	res, err := r.sb.Exec(t.Context(), sandbox.Cmd{Args: append([]string{"ls", "-d"}, places...), User: "root"})
	if os.Geteuid() != 0 && r.sb.Backend() == sandbox.BackendHost {
		return // there is no root
	}
	if err != nil || res.Stdout != "" {
		t.Errorf("after %s there is in the sandbox: %s%v", after, res.Stdout, err)
	}
}

func (r restricted) fileTools(t *testing.T) {
	t.Helper()
	tools := map[string]Tool{}
	for _, tool := range FileTools(r.hands) {
		tools[tool.Spec().Name] = tool
	}
	for _, at := range []string{r.out, "link", "../" + filepath.Base(r.out), r.home, "root" + r.out} {
		for name, args := range map[string]map[string]any{
			"read":   {"path": at + "/secret"},
			"list":   {"path": at, "depth": 3},
			"search": {"path": at, "pattern": "outside-"},
			"edit":   {"path": at + "/secret", "old": outsideText, "new": "x"},
		} {
			if got := r.do(t, tools[name], args); strings.Contains(got.Text, outsideText) || strings.Contains(got.Text, "secret (") {
				t.Errorf("%s of %s reaches what lies outside:\n%s", name, at, got.Text)
			}
		}
	}
	if got := r.do(t, tools["read"], map[string]any{"path": "../secret"}); strings.Contains(got.Text, outsideText) {
		t.Errorf("it reads beside the workspace:\n%s", got.Text)
	}
	for _, dir := range []string{"/etc", "/usr/local/bin", "/opt", "/var/tmp", r.out, "link"} {
		if got := r.do(t, tools["write"], map[string]any{"path": dir + "/" + mark, "content": "x"}); !got.Failed {
			t.Errorf("it writes into %s", dir)
		}
	}
	for _, at := range []string{"sub/new", r.sb.Workspace() + "/sub/newer"} {
		if got := r.do(t, tools["write"], map[string]any{"path": at, "content": "made\n"}); got.Failed {
			t.Errorf("it does not write %s: %s", at, got.Text)
		}
		if got := r.do(t, tools["read"], map[string]any{"path": at}); got.Failed || !strings.Contains(got.Text, "made") {
			t.Errorf("it does not read %s: %s", at, got.Text)
		}
	}
}

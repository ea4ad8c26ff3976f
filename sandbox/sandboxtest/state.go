package sandboxtest

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"ravi/sandbox"
)

// state: what is done to a sandbox as a whole.
func (s suite) state(t *testing.T) {
	t.Run("close", s.closing)
	t.Run("stats", func(t *testing.T) {
		r := s.room(t)
		st, err := r.Stats(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		if !s.f.Limits {
			return
		}
		if st.MemoryBytes < 1<<20 || st.MemoryPeakBytes < st.MemoryBytes || st.CPUTime <= 0 || st.Processes < 1 || st.OOMKills != 0 {
			t.Errorf("implausible: %+v", st)
		}
		r.sh(t, `i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done`)
		later, err := r.Stats(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		if later.CPUTime <= st.CPUTime {
			t.Errorf("a busy loop took no time: %v, then %v", st.CPUTime, later.CPUTime)
		}
	})
	t.Run("volumes", s.volumes)
	if s.f.Overlay {
		t.Run("overlay", s.overlay)
	}
	if s.f.Pause {
		t.Run("pause", s.pause)
	}
	if s.f.Checkpoint {
		t.Run("checkpoint", s.checkpoint)
	}
}

func (s suite) closing(t *testing.T) {
	r := s.room(t)
	out := newBuffer()
	p, err := r.Start(ctx(t), sandbox.Cmd{Shell: "echo ready; sleep 49", Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	out.waitFor(t, "ready")
	if err := r.Err(); err != nil {
		t.Errorf("while it runs: %v", err)
	}
	inParallel(t, 3, 3, func(int) error { return r.Close() })
	if err := r.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	select {
	case <-r.Ended():
	default:
		t.Error("Ended is not closed")
	}
	isClosed := func(what string, err error) {
		t.Helper()
		var end *sandbox.EndError
		if !errors.As(err, &end) || end.Reason != "closed" || !errors.Is(err, sandbox.ErrClosed) || !errors.Is(err, sandbox.ErrEnded) {
			t.Errorf("%s: %v, want the end by its owner", what, err)
		}
	}
	isClosed("Err", r.Err())
	_, err = p.Wait()
	isClosed("the command that ran", err)
	_, err = r.Exec(ctx(t), sandbox.Cmd{Shell: "true"})
	isClosed("a command", err)
	_, err = r.Files().ReadFile(ctx(t), r.path("x"), 1)
	isClosed("reading", err)
	isClosed("writing", r.Files().Write(ctx(t), r.path("x"), strings.NewReader("x")))
	_, err = r.Stats(ctx(t))
	isClosed("stats", err)
	if s.f.Pause {
		isClosed("pause", r.Pause(ctx(t)))
	}
	if _, err := os.Stat(filepath.Join(s.f.Home, "sandboxes", r.ID)); !os.IsNotExist(err) {
		t.Errorf("its folder is left: %v", err)
	}
}

func (s suite) volumes(t *testing.T) {
	if !s.f.Isolated || s.f.Elsewhere {
		return // without a view of its own there is nowhere to put one
	}
	ro, rw, file := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "one")
	write(t, filepath.Join(ro, "x"), "read me", 0o644)
	write(t, file, "single", 0o644)
	const owner = 4242
	asRoot := os.Geteuid() == 0
	if asRoot {
		if err := os.Chown(rw, owner, owner+1); err != nil {
			t.Fatal(err)
		}
	}
	r := s.room(t, func(c *sandbox.Config) {
		c.ExtraVolumes = []sandbox.Volume{
			{Host: ro, Guest: "/mnt/ro", ReadOnly: true}, {Host: rw, Guest: "/data/rw"}, {Host: file, Guest: "/srv/one.txt", ReadOnly: true},
		}
	})
	equal(t, "content", r.sh(t, "cat /mnt/ro/x /srv/one.txt"), "read mesingle")
	for _, user := range []string{"user", "root"} {
		for _, line := range []string{
			"echo no > /mnt/ro/x", "echo no > /mnt/ro/new", "rm -f /mnt/ro/x", "mkdir /mnt/ro/d", "mv /mnt/ro/x /mnt/ro/y",
			"chmod 777 /mnt/ro/x", "ln /mnt/ro/x /mnt/ro/h", "echo no > /srv/one.txt", "mount -o remount,rw /mnt/ro",
		} {
			if res := r.run(t, sandbox.Cmd{Shell: line, User: user}); res.ExitCode == 0 {
				t.Errorf("%s could do: %s", user, line)
			}
		}
	}
	if b, err := os.ReadFile(filepath.Join(ro, "x")); err != nil || string(b) != "read me" {
		t.Errorf("the read-only file is now %q %v", b, err)
	}
	r.sh(t, "echo written > /data/rw/new && mkdir /data/rw/d")
	if b, err := os.ReadFile(filepath.Join(rw, "new")); err != nil || string(b) != "written\n" {
		t.Errorf("on the host: %q %v", b, err)
	}
	if asRoot {
		uid, gid := ownerOf(t, filepath.Join(rw, "new"))
		if uid != owner || gid != owner+1 {
			t.Errorf("it belongs to %d:%d, want the folder's owner", uid, gid)
		}
	}
}

func (s suite) overlay(t *testing.T) {
	ws := t.TempDir()
	write(t, filepath.Join(ws, "old"), "old", 0o644)
	write(t, filepath.Join(ws, "gone"), "gone", 0o644)
	if err := os.Mkdir(filepath.Join(ws, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	r := s.roomOn(t, ws, func(c *sandbox.Config) { c.Workspace = sandbox.WorkspaceOverlay })
	r.sh(t, `echo new > new; echo more >> old; rm gone; mkdir d; mv dir renamed; chmod 700 old; ln -s / l`)
	equal(t, "inside", r.sh(t, "cat old new; ls"), "oldmore\nnew\nd\nl\nnew\nold\nrenamed\n")
	list, err := os.ReadDir(ws)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	equal(t, "names on the host", strings.Join(names, " "), "dir gone old")
	if b, err := os.ReadFile(filepath.Join(ws, "old")); err != nil || string(b) != "old" {
		t.Errorf("on the host: %q %v", b, err)
	}
}

// counter starts a command that counts in a file of the workspace, or of path.
func counter(t *testing.T, r *room, path string) {
	t.Helper()
	out := newBuffer()
	_, err := r.Start(t.Context(), sandbox.Cmd{Stdout: out, Shell: `i=0; while :; do i=$((i+1)); echo $i > ` + path + `.new; mv ` + path + `.new ` + path +
		`; [ $i = 3 ] && echo counting; sleep 0.01; done`})
	if err != nil {
		t.Fatal(err)
	}
	out.waitFor(t, "counting")
}

func count(t *testing.T, b []byte) int {
	t.Helper()
	n, err := strconv.Atoi(string(bytes.TrimSpace(b)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (s suite) pause(t *testing.T) {
	r := s.room(t)
	counter(t, r, "n")
	ticks := newBuffer()
	if _, err := r.Start(t.Context(), sandbox.Cmd{Stdout: ticks, Shell: `while :; do echo; sleep 0.01; done`}); err != nil {
		t.Fatal(err)
	}
	now := func() int {
		if r.ws == "" {
			return len(ticks.String())
		}
		b, err := r.get(t, "n")
		if err != nil {
			t.Fatal(err)
		}
		return count(t, b)
	}
	for range 2 {
		if err := r.Pause(ctx(t)); err != nil {
			t.Fatal(err)
		}
		stood := now()
		if r.ws == "" {
			eventually(t, "what was on its way has come", func() bool {
				before := stood
				time.Sleep(300 * time.Millisecond)
				stood = now()
				return stood == before
			})
		}
		time.Sleep(300 * time.Millisecond) // thirty turns of the loop; waiting longer finds more
		equal(t, "the counter while paused", now(), stood)
		if err := r.Resume(ctx(t)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the counter goes on", func() bool { return now() > stood+3 })
	}
	equal(t, "afterwards", r.sh(t, "echo ok"), "ok\n")
	if err := r.Pause(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Errorf("closing a paused one: %v", err)
	}
}

func (s suite) checkpoint(t *testing.T) {
	ws := t.TempDir()
	r := s.roomOn(t, ws)
	r.sh(t, "mkdir /tmp/kept && echo content > /tmp/kept/file && export X=1")
	counter(t, r, "/tmp/n")
	dir := filepath.Join(t.TempDir(), "checkpoint")
	if err := r.Checkpoint(ctx(t), dir); err != nil {
		t.Fatal(err)
	}
	at := count(t, []byte(r.sh(t, "cat /tmp/n")))
	eventually(t, "the sandbox goes on", func() bool { return count(t, []byte(r.sh(t, "cat /tmp/n"))) > at })
	r.sh(t, "echo later > /tmp/later")
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it can be restored more than once
		again := s.f.Open(t, s.config(), ws, sandbox.WithCheckpoint(dir))
		t.Cleanup(func() { _ = again.Close() })
		r := &room{Sandbox: again, ws: ws, dir: r.dir}
		equal(t, "a file", r.sh(t, "cat /tmp/kept/file; ls /tmp/later 2>/dev/null; true"), "content\n")
		at := count(t, []byte(r.sh(t, "cat /tmp/n")))
		eventually(t, "the process goes on", func() bool { return count(t, []byte(r.sh(t, "cat /tmp/n"))) > at })
		r.sh(t, "echo from-restored > shared")
		if b, err := os.ReadFile(filepath.Join(ws, "shared")); err != nil || string(b) != "from-restored\n" {
			t.Errorf("the workspace after restoring: %q %v", b, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir)); err != nil {
		t.Errorf("the checkpoint went with the sandbox: %v", err)
	}
}

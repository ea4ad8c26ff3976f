package runner

import (
	"archive/tar"
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"ravi/sandbox"
)

// counted counts what a wire carries.
type counted struct {
	net.Conn
	out *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.out.Add(int64(n))
	return n, err
}

// Folders of Ravi's own are seen on a runner, read-only. One that is worth it is sent once.
func TestContents(t *testing.T) {
	contentsAreSeen(t, newRig(t, Options{}))
}

func contentsAreSeen(t *testing.T, g *rig) {
	shared, program := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		filepath.Join(shared, "notes/deep/a.md"): "the notes", filepath.Join(program, "bin/tool"): "#!/bin/sh\necho the tool\n",
		filepath.Join(program, "large"): strings.Repeat("0123456789abcdef", 1<<16), filepath.Join(program, strings.Repeat("n", 200)): "",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(program, "bin/tool"), 0o700); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{"bin/link": "tool", "bin/out": "/etc/hostname", "bin/nowhere": "../../../nothing"} {
		if err := os.Symlink(to, filepath.Join(program, from)); err != nil {
			t.Fatal(err)
		}
	}
	opts := []sandbox.Option{sandbox.WithContext(shared), sandbox.WithReadOnly(program, "/opt/ravi/agents/tool")}
	contents := func() []string {
		found, _ := filepath.Glob(filepath.Join(g.Runner.home, contentDir, "*")) // it is well-formed
		return found
	}
	for n := range 2 {
		var sent atomic.Int64
		g.tap = func(c net.Conn) net.Conn { return counted{c, &sent} }
		sb := g.open(t, nil, opts...)
		if got := sh(t, sb, "cat /ravi/context/notes/deep/a.md; /opt/ravi/agents/tool/bin/link; cat /opt/ravi/agents/tool/bin/out; wc -c </opt/ravi/agents/tool/large; ls /opt/ravi/agents/tool | wc -l"); got !=
			"the notesthe tool\nravi\n1048576\n3\n" {
			t.Errorf("it sees %q", got)
		}
		for _, user := range []string{"user", "root"} {
			r, err := sb.Exec(t.Context(), sandbox.Cmd{User: user, Shell: "echo x >/ravi/context/new; echo x >>/opt/ravi/agents/tool/bin/tool; rm -rf /opt/ravi/agents/tool/large; echo done"})
			if err != nil || r.Stdout != "done\n" {
				t.Fatalf("%+v %v", r, err)
			}
		}
		if g.via == nil && (n == 0 && sent.Load() < 1<<20 || n == 1 && sent.Load() > 1<<19) {
			t.Errorf("for the sandbox %d %d bytes went over", n, sent.Load())
		}
		if len(contents()) != 2 {
			t.Errorf("meanwhile the runner has %v", contents())
		}
		if err := sb.Close(); err != nil {
			t.Fatal(err)
		}
		if len(contents()) != 1 {
			t.Errorf("afterwards the runner has %v", contents())
		}
	}
	if b, err := os.ReadFile(filepath.Join(program, "bin/tool")); err != nil || !strings.HasSuffix(string(b), "tool\n") {
		t.Errorf("the program at home is %q %v", b, err)
	}
}

// What is kept for later is bounded: what was not used for the longest time goes first, and nothing that is in use.
func TestContentsAreEvicted(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "content")
	c, err := openContents(dir)
	if err != nil {
		t.Fatal(err)
	}
	c.most = 60_000
	var digests []string
	add := func(n int) {
		t.Helper()
		b, want := archive(t, &tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprint(n), Size: 15_000})
		want.Keep = true
		if err := c.add(t.Context(), want, bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
		digests = append(digests, want.Digest)
	}
	there := func(what string, want ...int) {
		t.Helper()
		for n, d := range digests {
			_, err := os.Stat(c.path(d))
			if slices.Contains(want, n) != (err == nil) {
				t.Errorf("%s: the content %d: %v", what, n, err)
			}
		}
	}
	free := func(n int) {
		t.Helper()
		if err := c.free(digests[n]); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 3 {
		add(n)
	}
	there("three that are in use", 0, 1, 2)
	free(0)
	free(1)
	if !c.hold(digests[0]) {
		t.Fatal("one that is kept is not there")
	}
	free(0)
	add(3)
	there("one more", 0, 2, 3) // 1 was used before 0
	// The next runner finds them.
	again, err := openContents(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !again.hold(digests[0]) || again.hold(digests[1]) {
		t.Error("the next runner finds others")
	}
}

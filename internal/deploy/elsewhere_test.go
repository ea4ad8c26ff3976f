package deploy

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// lend runs ravi runner, until the test ends.
func lend(t *testing.T, home, url, creds, ca string) {
	t.Helper()
	var said strings.Builder
	cmd := exec.Command(program(t), "runner", "--bus", url, "--creds", creds, "--ca", ca)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Dir(home), "RAVI_HOME=" + home}
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()); err != nil || t.Failed() {
			t.Error(err, said.String())
		}
	})
}

// With the configurations of the folder a message is worked on by a runner: over a stock server in place of our bus, and over
// a hub that both sides dial. Nothing is worked on at home, so nothing else could do it.
func TestMessagesOverNATS(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes sandboxes with limits")
	}
	existing, leaf := read(t, "nats/existing.json"), read(t, "nats/leaf.json")
	src := repo(t, t.TempDir())
	program(t)
	t.Setenv("RAVI_PROGRAM", program(t)) // hub changes the folder
	dir, clients, leaves := hub(t)
	for _, c := range []struct {
		name, conf string
		atHub      bool // the runner's user is the hub's
	}{
		{"in place of ours", replace(t, existing, "hub.example.com:4222", "127.0.0.1:"+clients, "/etc/ravi", dir), false},
		{"a hub", replace(t, leaf, "hub.example.com:7422", "127.0.0.1:"+leaves, "/etc/ravi", dir), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			home := filepath.Join(t.TempDir(), "home")
			if err := os.Mkdir(home, 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(home, "config.json"), c.conf)
			ravi(t, home, "config", "set", "gateway.port", "0")
			ravi(t, home, "config", "set", "dispatch.runs", "--", "-1")
			t.Cleanup(func() { ravi(t, home, "daemon", "stop") })
			ravi(t, home, "agents", "create", "bob")
			ravi(t, home, "agents", "work", "bob", "--repo", src, "--", "sh", "-c", "echo more >> new")
			creds := filepath.Join(filepath.Dir(home), "far.creds")
			ravi(t, home, "bus", "creds", "issue", "--runner", "far", "--out", creds)
			if c.atHub {
				own, err := os.ReadFile(creds)
				if err != nil {
					t.Fatal(err)
				}
				hubs, err := os.ReadFile(filepath.Join(dir, "far.creds"))
				if err != nil {
					t.Fatal(err)
				}
				_, curve, _ := strings.Cut(string(own), "-----BEGIN RAVI CURVE SEED")
				creds = write(t, filepath.Join(filepath.Dir(home), "far-at-hub.creds"), string(hubs)+"-----BEGIN RAVI CURVE SEED"+curve)
			}
			lend(t, filepath.Join(filepath.Dir(home), "runner"), "tls://127.0.0.1:"+clients, creds, filepath.Join(dir, "ca.pem"))
			for range 2 { // the second finds that the credentials of the first run could be ended, or were left to end
				if said := ravi(t, home, "sessions", "send", "main", "do it", "--agent", "bob", "--wait"); !strings.Contains(said, "its patch changes 1 file (+1 -0)") {
					t.Errorf("it says %s", said)
				}
			}
			if said := ravi(t, home, "work", "ls", "--all"); strings.Count(said, "done") != 2 || strings.Count(said, " far ") != 2 {
				t.Errorf("the work is\n%s", said)
			}
			ravi(t, home, "daemon", "restart")
		})
	}
}

package sandbox_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ravi/sandbox"
	"ravi/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	if err := sandboxtest.UseProgram(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if stage := os.Getenv(ownerEnv); stage != "" {
		os.Exit(owner(stage))
	}
	os.Exit(m.Run())
}

func TestGVisor(t *testing.T) {
	home := t.TempDir()
	sandboxtest.Run(t, sandboxtest.Factory{
		Home:     home,
		Isolated: true, Pause: true, Checkpoint: true, Limits: os.Geteuid() == 0, Overlay: true, Lanes: true,
		Open: func(t testing.TB, cfg sandbox.Config, workspace string, opts ...sandbox.Option) *sandbox.Sandbox {
			t.Helper()
			cfg.Backend = sandbox.BackendGVisor
			sb, err := sandbox.Open(context.WithoutCancel(t.Context()), cfg, workspace, append(opts, sandbox.WithHome(home))...)
			if err != nil {
				t.Fatal(err)
			}
			return sb
		},
	})
}

// The range of user ids belongs to the keeper, and to no process that a guest could take over.
func TestRangeOfIDsIsTheKeepers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: without root a sandbox has no range of user ids")
	}
	var keeper pidKeeper
	sb, err := sandbox.Open(t.Context(), sandbox.Default(), "", sandbox.WithHome(t.TempDir()), sandbox.WithRecorder(&keeper))
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", keeper.pid))
	if err != nil {
		t.Fatal(err)
	}
	slot := ""
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, "/run/ravi/ids/") {
			slot = to
		}
	}
	if slot == "" {
		t.Fatal("the keeper holds no range")
	}
	all, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		if to, err := os.Readlink(l); err == nil && to == slot && !strings.HasPrefix(l, fmt.Sprintf("/proc/%d/", keeper.pid)) {
			t.Errorf("%s is the range's as well", l)
		}
	}
}

package sandbox_test

import (
	"context"
	"fmt"
	"os"
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
		Isolated: true, Pause: true, Checkpoint: true, Limits: os.Geteuid() == 0, Overlay: true,
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

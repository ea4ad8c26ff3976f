package runner

import (
	"context"
	"os"
	"testing"

	"ravi/sandbox"
	"ravi/sandbox/sandboxtest"
)

// A sandbox on a runner is like every other one.
// conform has the sandboxes of a rig do all that a sandbox does.
func conform(t *testing.T, g *rig) {
	sandboxtest.Run(t, sandboxtest.Factory{
		Home:     g.home,
		Isolated: true, Pause: true, Limits: os.Geteuid() == 0, Elsewhere: true,
		Open: func(t testing.TB, cfg sandbox.Config, workspace string, opts ...sandbox.Option) *sandbox.Sandbox {
			t.Helper()
			sb, err := sandbox.Open(context.WithoutCancel(t.Context()), cfg, workspace, append(opts, sandbox.WithHome(g.home), sandbox.WithBackend(g.backend(t)))...)
			if err != nil {
				t.Fatal(err)
			}
			return sb
		},
	})
}

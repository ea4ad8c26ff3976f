package filter

import (
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	bootfilter "gvisor.dev/gvisor/runsc/boot/filter"
	"gvisor.dev/gvisor/runsc/boot/filter/config"

	_ "gvisor.dev/gvisor/pkg/sentry/platform/platforms"
)

// options are those of a kernel that Ravi starts.
func options(t *testing.T) config.Options {
	t.Helper()
	systrap, err := platform.Lookup("systrap")
	if err != nil {
		t.Fatal(err)
	}
	return config.Options{Platform: systrap.PrecompiledSeccompInfo()[0], HostFilesystem: true}
}

// What was compiled before is, instruction for instruction, what the kernel would compile now.
func TestCompiledIsWhatTheKernelCompiles(t *testing.T) {
	if compiled.Name == "" {
		t.Skip("SKIP-FEATURE: nothing is compiled before on this processor")
	}
	for _, fd := range []uint32{3, 9, 17, 255} {
		opt := options(t)
		opt.ControllerFD = fd
		rules, deny := config.Rules(opt)
		program := seccomp.Program{
			RuleSets: []seccomp.RuleSet{{Rules: deny}, {Rules: rules, Action: seccomp.Allow}},
			Options:  config.SeccompOptions(opt),
		}
		want, _, err := program.Build()
		if err != nil {
			t.Fatal(err)
		}
		got, err := compiled.RenderInstructions(opt.Vars())
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("the lists differ (%d and %d instructions): go generate ./internal/backend/gvisor/box/filter", len(got), len(want))
		}
	}
}

func TestTheKernelFindsIt(t *testing.T) {
	if compiled.Name == "" {
		t.Skip("SKIP-FEATURE: nothing is compiled before on this processor")
	}
	Register()
	if _, found := bootfilter.GetPrecompiled(options(t).ConfigKey()); !found {
		t.Errorf("the kernel looks for %q: go generate ./internal/backend/gvisor/box/filter", options(t).ConfigKey())
	}
}

package sandbox_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"ravi/internal/memtest"
	"ravi/sandbox"
)

// keeperPID is a recorder that only remembers which process stands for a sandbox.
type keeperPID struct{ pid int }

func (*keeperPID) Creating(context.Context, sandbox.Info) error { return nil }
func (k *keeperPID) Created(_ context.Context, _ string, pid int) error {
	k.pid = pid
	return nil
}
func (*keeperPID) Ended(context.Context, string, string) error { return nil }

// Of all that a sandbox is made of, its gateway alone has the value of its secret, and nothing of another sandbox has.
func TestOnlyTheGatewayHoldsTheValue(t *testing.T) {
	var keepers [2]keeperPID
	values := [2]string{"the-first-value-of-two", "the-second-value-of-two"}
	for i := range keepers {
		secret := aSecret()
		secret.Value = sandbox.SecretValue(values[i])
		sb := networked(t, t.TempDir(), []string{"api.example"}, sandbox.WithSecrets(secret), sandbox.WithRecorder(&keepers[i]))
		if got := output(t, sb, "echo $TOKEN"); !strings.HasPrefix(got, "ravi-secret-token-") {
			t.Fatalf("the variable is %q", got)
		}
	}
	for i := range keepers {
		parts, err := memtest.Family(keepers[i].pid)
		if err != nil {
			t.Fatal(err)
		}
		var holders []string
		for pid, line := range parts {
			found, err := memtest.Holds(pid, values[:]...)
			if err != nil {
				t.Error(err)
			}
			if found[values[i]] {
				holders = append(holders, line)
			}
			if found[values[1-i]] {
				t.Errorf("the other sandbox's value is in %s", line)
			}
		}
		slices.Sort(holders)
		if len(parts) < 5 || len(holders) != 1 || !strings.HasPrefix(holders[0], "ravi-gateway gateway ") {
			t.Errorf("of %d processes the value is in %q: %v", len(parts), holders, parts)
		}
	}
}

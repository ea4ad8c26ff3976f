package sandbox_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

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

// family are a process and all that descend from it, by their command lines.
func family(t *testing.T, root int) map[int]string {
	t.Helper()
	children := map[int][]int{}
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		pid, _ := strconv.Atoi(strings.Split(name, "/")[2])
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		parent, _ := strconv.Atoi(fields[1])
		children[parent] = append(children[parent], pid)
	}
	out := map[int]string{}
	for next := []int{root}; len(next) > 0; next = next[1:] {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", next[0]))
		if err == nil && len(line) > 0 {
			out[next[0]] = strings.ReplaceAll(string(line), "\x00", " ")
		}
		next = append(next, children[next[0]]...)
	}
	return out
}

// holds says whether a text is in a process's memory, as far as it is in use.
func holds(t *testing.T, pid int, text string) bool {
	t.Helper()
	smaps, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer smaps.Close()
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	var from, to int64
	buf := make([]byte, 1<<20+len(text))
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if low, high, ok := strings.Cut(f[0], "-"); ok {
			from, _ = strconv.ParseInt(low, 16, 64)
			to, _ = strconv.ParseInt(high, 16, 64)
			continue
		}
		if f[0] != "Rss:" || f[1] == "0" || to-from > 1<<30 {
			continue
		}
		for at := from; at < to; at += 1 << 20 {
			n, _ := mem.ReadAt(buf[:min(int64(len(buf)), to-at)], at) // a page that cannot be read holds nothing
			if bytes.Contains(buf[:n], []byte(text)) {
				return true
			}
		}
	}
	return false
}

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
		parts := family(t, keepers[i].pid)
		var holders []string
		for pid, line := range parts {
			if holds(t, pid, values[i]) {
				holders = append(holders, line)
			}
			if holds(t, pid, values[1-i]) {
				t.Errorf("the other sandbox's value is in %s", line)
			}
		}
		slices.Sort(holders)
		if len(parts) < 5 || len(holders) != 1 || !strings.HasPrefix(holders[0], "ravi-gateway gateway ") {
			t.Errorf("of %d processes the value is in %q: %v", len(parts), holders, parts)
		}
	}
}

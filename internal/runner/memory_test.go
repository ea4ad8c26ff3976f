package runner

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMemoryGroups(t *testing.T) {
	for name, c := range map[string]struct {
		of    string
		files map[string]string
		want  []memoryGroup
		bad   bool
	}{
		"none":        {of: "0::/\n"},
		"no bound":    {of: "0::/a\n", files: map[string]string{"a/memory.max": "max\n"}},
		"version 2":   {"0::/a/b\n", map[string]string{"a/b/memory.max": "1000\n", "a/b/memory.current": "300\n", "a/b/memory.stat": "anon 1\ninactive_file 100\n"}, []memoryGroup{{1000, 200}}, false},
		"one above":   {"0::/a/b\n", map[string]string{"a/b/memory.max": "max\n", "a/memory.max": "1000\n", "a/memory.current": "300\n", "a/memory.stat": ""}, []memoryGroup{{1000, 300}}, false},
		"a container": {"0::/docker/x\n", map[string]string{"memory.max": "1000\n", "memory.current": "300\n", "memory.stat": "inactive_file 400\n"}, []memoryGroup{{1000, 0}}, false},
		"outside":     {"0::/../../x\n", map[string]string{"x/memory.max": "7\n", "x/memory.current": "1\n", "x/memory.stat": ""}, []memoryGroup{{7, 1}}, false},
		"version 1": {"9:name=systemd:/s\n4:cpu,memory:/d/x\n0::/s\n", map[string]string{
			"memory/d/x/memory.limit_in_bytes": "1000\n", "memory/d/x/memory.usage_in_bytes": "300\n", "memory/d/x/memory.stat": "inactive_file 5\ntotal_inactive_file 100\n",
			"memory/memory.limit_in_bytes": "9223372036854771712\n", "memory/memory.usage_in_bytes": "5\n", "memory/memory.stat": "",
		}, []memoryGroup{{1000, 200}, {9223372036854771712, 5}}, false},
		"not a number": {of: "0::/\n", files: map[string]string{"memory.max": "much\n"}, bad: true},
		"half":         {of: "0::/\n", files: map[string]string{"memory.max": "7\n"}, bad: true},
	} {
		dir := t.TempDir()
		mounted := filepath.Join(dir, "mounted")
		for file, text := range c.files {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(mounted, file)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(mounted, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		of := filepath.Join(dir, "cgroup")
		if err := os.WriteFile(of, []byte(c.of), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := memoryGroups(of, mounted); !slices.Equal(got, c.want) || (err != nil) != c.bad {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// A process in a real control group has no more than that gives it.
func TestMemoryOfAControlGroup(t *testing.T) {
	const limit = 300 << 20
	root, file := "/sys/fs/cgroup/memory", v1.limit
	if _, err := os.Stat(root); err != nil {
		root, file = "/sys/fs/cgroup", v2.limit
	}
	group := filepath.Join(root, fmt.Sprintf("ravi-test-%d", os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skipf("SKIP-FEATURE: no control group can be made: %v", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(group); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(group, file), fmt.Append(nil, limit), 0o644); err != nil {
		t.Skipf("SKIP-FEATURE: no control group can bound memory: %v", err)
	}
	inside := exec.Command("sh", "-c", `echo $$ >"$1/cgroup.procs" && cat /proc/self/cgroup`, "sh", group)
	said, err := inside.Output()
	if err != nil {
		t.Fatal(err)
	}
	of := filepath.Join(t.TempDir(), "cgroup")
	if err := os.WriteFile(of, said, 0o644); err != nil {
		t.Fatal(err)
	}
	groups, err := memoryGroups(of, "/sys/fs/cgroup")
	if err != nil || !slices.ContainsFunc(groups, func(g memoryGroup) bool { return g.limit == limit && g.used < limit }) {
		t.Errorf("by %q it is in %+v, %v", strings.TrimSpace(string(said)), groups, err)
	}
	total, left, err := ownMemory()
	if err != nil || total <= 0 || left <= 0 || left > total {
		t.Errorf("%d of %d bytes are left, %v", left, total, err)
	}
}

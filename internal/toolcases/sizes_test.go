package toolcases

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"ravi/sandbox"
)

// Tools size their worker counts and heaps by what they think the machine is.
// That must be the sandbox.
func TestToolsSeeTheLimits(t *testing.T) {
	const cpus, memory = 1, 512
	r := open(t, func(c *sandbox.Config) { c.CPUs, c.MemoryMiB = cpus, memory })
	number := func(line string) int {
		t.Helper()
		n, err := strconv.Atoi(strings.TrimSpace(r.sh(t, line)))
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		return n
	}
	within := func(what string, got, least, most int) {
		t.Helper()
		if got < least || got > most {
			t.Errorf("%s: %d is not between %d and %d", what, got, least, most)
		}
	}
	// gVisor shows no fewer than two processors, whatever their share of time.
	const shown = max(cpus, 2)
	within("nproc", number("nproc"), cpus, shown)
	within("processors in /proc/cpuinfo", number("grep -c ^processor /proc/cpuinfo"), cpus, shown)
	within("MemTotal in KiB", number("awk '/^MemTotal/ {print $2}' /proc/meminfo"), memory<<10*9/10, memory<<10)
	within("MiB of the whole in free", number("free -m | awk '/^Mem/ {print $2}'"), memory*9/10, memory)
	within("swap in KiB", number("awk '/^SwapTotal/ {print $2}' /proc/meminfo"), 0, 0)

	t.Run("node", func(t *testing.T) {
		r.needs(t, "node")
		within("availableParallelism", number(`node -p 'require("os").availableParallelism()'`), cpus, shown)
		within("totalmem in MiB", number(`node -p 'Math.round(require("os").totalmem() / 1048576)'`), memory*9/10, memory)
		within("the heap's limit in MiB", number(`node -p 'Math.round(require("v8").getHeapStatistics().heap_size_limit / 1048576)'`), 64, memory)
	})
	t.Run("python", func(t *testing.T) {
		r.needs(t, "python3")
		within("cpu_count", number(`python3 -c 'import os; print(os.cpu_count())'`), cpus, shown)
		within("sched_getaffinity", number(`python3 -c 'import os; print(len(os.sched_getaffinity(0)))'`), cpus, shown)
	})
	t.Run("java", func(t *testing.T) {
		r.needs(t, "java")
		r.put(t, "Size.java", `class Size { public static void main(String[] a) {
	System.out.println(Runtime.getRuntime().availableProcessors() + " " + Runtime.getRuntime().maxMemory() / 1048576); } }`)
		var n, heap int
		// From source: no need for a separate compiler's run.
		if _, err := fmt.Sscan(r.sh(t, "java Size.java"), &n, &heap); err != nil {
			t.Fatal(err)
		}
		within("availableProcessors", n, cpus, shown)
		within("maxMemory in MiB", heap, 1, memory)
	})
}

// What takes more than there is was ended for want of memory, and is told so;
// the sandbox goes on.
func TestMoreMemoryThanThereIs(t *testing.T) {
	r := open(t, func(c *sandbox.Config) { c.CPUs, c.MemoryMiB = 1, 256 })
	for tool, program := range map[string]string{
		"python3": `b = []
while len(b) < 300: b.append(b"x" * (1 << 20))
print("had all")`,
		"node": `const b = []; while (b.length < 300) b.push(Buffer.alloc(1 << 20, 1)); console.log("had all")`,
	} {
		t.Run(tool, func(t *testing.T) {
			r.needs(t, tool)
			flag := map[string]string{"python3": "-c", "node": "-e"}[tool]
			res := r.run(t, sandbox.Cmd{Args: []string{tool, flag, program}})
			if res.Reason != sandbox.ReasonOOM || res.ExitCode != 137 || res.Stdout != "" {
				t.Errorf("reason %q, exit code %d, %q, %q", res.Reason, res.ExitCode, res.Stdout, res.Stderr)
			}
			want(t, "afterwards", r.sh(t, "echo ok"), "ok\n")
		})
	}
}

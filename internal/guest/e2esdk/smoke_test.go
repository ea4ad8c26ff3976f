package e2esdk

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// room makes what the SDK expects of a sandbox: a network of its own in which
// only the guest listens, user with uid 1000 and its home. The SDK's debug
// mode has one fixed port, so that it cannot share the machine's network.
const room = `
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /home
mkdir -m 755 /home/user /run/etc
chown 1000:1000 /home/user
printf 'root:x:0:0::/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n' > /run/etc/passwd
printf 'root:x:0:\nuser:x:1000:\n' > /run/etc/group
mount --bind /run/etc/passwd /etc/passwd
mount --bind /run/etc/group /etc/group
ip link set lo up
"$1" --listen 127.0.0.1:49983 &
node -e '
  const until = Date.now() + 30000
  const look = () => fetch("http://127.0.0.1:49983/init", { method: "POST", body: "{\"defaultUser\":\"user\"}" })
    .then((r) => process.exit(r.status === 204 ? 0 : 1), (e) => Date.now() > until ? (console.error(e), process.exit(1)) : setTimeout(look, 20))
  look()'
exec node --test --test-reporter=spec "$2"
`

func TestSDK(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: namespaces are made by root here")
	}
	for _, program := range []string{"node", "npm", "ip", "python3"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("SKIP-FEATURE: %s is not installed", program)
		}
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "e2b-smoke-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	for _, name := range []string{"package.json", "package-lock.json"} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run(t, dir, nil, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	guest := filepath.Join(dir, "ravi-guest")
	run(t, here, []string{"CGO_ENABLED=0"}, "go", "build", "-buildvcs=false", "-o", guest, "ravi/cmd/ravi-guest")
	run(t, here, []string{"E2B_DEBUG=true", "E2B_SMOKE_MODULES=" + dir},
		"unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
		"bash", "-c", room, "room", guest, filepath.Join(here, "smoke.test.mjs"))
}

func run(t *testing.T, dir string, env []string, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	t.Logf("%s: %s", name, out)
}

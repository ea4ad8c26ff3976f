package host

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"ravi/internal/backend"
)

func TestTheEnvironmentIsAnAllowList(t *testing.T) {
	env, withheld := Environment([]string{
		"PATH=/bin", "HOME=/h", "LANG=C", "LC_ALL=", "LC_TIME=de", "TERM=xterm", "USER=u", "LOGNAME=u", "SHELL=/s", "TZ=UTC", "TMPDIR=/t",
		"SSL_CERT_FILE=/c=d", "SSL_CERT_DIR=/d", "HTTP_PROXY=http://proxy:1", "https_proxy=http://proxy:2", "no_proxy=a,b",
		"ALL_PROXY=socks5://me:secret@proxy:3", "http_proxy=me:secret@proxy",
		"GITHUB_TOKEN=secret", "AWS_SECRET_ACCESS_KEY=secret", "SSH_AUTH_SOCK=/s", "RAVI_HOME=/r", "RAVI_CONTEXT_KEY=rctx_x",
		"RAVI_SANDBOX=sbx", "LD_PRELOAD=/x", "GIT_DIR=/g", "XLC_ALL=x", "path=/x", "PATHX=/x", "LANGX", "=::",
	})
	want := map[string]string{
		"PATH": "/bin", "HOME": "/h", "LANG": "C", "LC_ALL": "", "LC_TIME": "de", "TERM": "xterm", "USER": "u", "LOGNAME": "u",
		"SHELL": "/s", "TZ": "UTC", "TMPDIR": "/t", "SSL_CERT_FILE": "/c=d", "SSL_CERT_DIR": "/d",
		"HTTP_PROXY": "http://proxy:1", "https_proxy": "http://proxy:2", "no_proxy": "a,b",
	}
	if d := cmp.Diff(want, env); d != "" {
		t.Errorf("environment (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"ALL_PROXY", "http_proxy"}, withheld); d != "" {
		t.Errorf("withheld (-want +got):\n%s", d)
	}
	other := ForOther(env)
	for _, name := range []string{"HOME", "USER", "LOGNAME", "SHELL", "TMPDIR"} {
		if _, ok := other[name]; ok {
			t.Errorf("another user gets the caller's %s", name)
		}
		if _, ok := env[name]; !ok {
			t.Errorf("the caller lost %s", name)
		}
	}
	if other["LANG"] != "C" || other["no_proxy"] != "a,b" {
		t.Errorf("another user lacks what is nobody's own: %v", other)
	}
}

func TestWhatCannotBeDoneIsRefused(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		spec backend.Spec
		says string // empty: it is fine
	}{
		{"nothing", backend.Spec{Image: "host"}, ""},
		{"a folder where it is", backend.Spec{Image: "host", Mounts: []backend.Mount{{Host: dir, Guest: dir, Own: true}}}, ""},
		{"a folder by a link to it", backend.Spec{Image: "host", Mounts: []backend.Mount{{Host: dir, Guest: link}}}, ""},
		{"an image", backend.Spec{Image: "debian:12"}, `"debian:12"`},
		{"a checkpoint", backend.Spec{Image: "host", Checkpoint: dir}, "checkpoints"},
		{"a folder elsewhere", backend.Spec{Image: "host", Mounts: []backend.Mount{{Host: dir, Guest: "/mnt"}}}, "cannot be seen at /mnt"},
		{"a folder at no place", backend.Spec{Image: "host", Mounts: []backend.Mount{{Host: dir, Guest: "/no/such/place"}}}, "cannot be seen at /no/such/place"},
		{"an overlay", backend.Spec{Image: "host", Mounts: []backend.Mount{{Host: dir, Guest: dir, Overlay: true}}}, "cannot keep"},
		{"read-only", backend.Spec{Image: "host", Mounts: []backend.Mount{{Host: dir, Guest: dir, ReadOnly: true}}}, "read-only"},
	} {
		err := check(c.spec)
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.says == "":
		case !errors.Is(err, backend.ErrUnsupported) || !strings.Contains(err.Error(), c.says):
			t.Errorf("%s: got %v, want ErrUnsupported that says %q", c.name, err, c.says)
		}
	}
}

func TestUsers(t *testing.T) {
	for _, name := range []string{"", User(), userName()} {
		if strings.HasPrefix(name, "user ") {
			continue // this process's user has no name
		}
		if err := CheckUser(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := CheckUser("no-such-user-here"); err != nil {
		t.Errorf("an unknown user is for the guest agent to refuse: %v", err)
	}
	if os.Geteuid() == 0 {
		if err := CheckUser("nobody"); err != nil {
			t.Errorf("root cannot be nobody: %v", err)
		}
		return
	}
	for _, name := range []string{"root", "0"} {
		if err := CheckUser(name); !errors.Is(err, ErrNotRoot) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestRelaysHaveIdsOfTheirOwn(t *testing.T) {
	for _, id := range []string{"", "a", "sbx01", "sbx02"} {
		if n := relayID(id); n < relayFirst || n >= relayFirst+relayCount || int64(n) >= 1<<31 {
			t.Errorf("%q: %d", id, n)
		}
	}
	if relayID("sbx01") == relayID("sbx02") {
		t.Error("two sandboxes have one id")
	}
}

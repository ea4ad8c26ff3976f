package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ravi/internal/backend"
	"ravi/sandbox"
)

func aSecret() sandbox.Secret {
	return sandbox.Secret{Name: "TOKEN", Value: "the-value-itself", Hosts: []string{"api.example", "*.git.example", "git.example:8443"}, Env: []string{"TOKEN", "OTHER_NAME"}}
}

func output(t *testing.T, sb *sandbox.Sandbox, script string) string {
	t.Helper()
	var out bytes.Buffer
	p, err := sb.Start(t.Context(), sandbox.Cmd{Args: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	if err == nil {
		_, err = p.Wait()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// What is in a sandbox with a secret is a placeholder, also for git, and after a restore it is the same one. The value
// is nowhere among what the sandbox is made of.
func TestSandboxHoldsPlaceholders(t *testing.T) {
	home := t.TempDir()
	sb := networked(t, home, []string{"api.example"}, sandbox.WithSecrets(aSecret()))
	holder := sb.Placeholders()["TOKEN"]
	if !strings.HasPrefix(holder, "ravi-secret-token-") {
		t.Fatalf("the placeholder is %q", holder)
	}
	look := func(sb *sandbox.Sandbox) {
		t.Helper()
		if got := output(t, sb, `echo "$TOKEN $OTHER_NAME"`); got != holder+" "+holder+"\n" {
			t.Errorf("the variables are %q", got)
		}
		for url, want := range map[string]bool{"https://api.example/x": true, "https://a.git.example/": true, "https://git.example:8443/": true, "https://git.example/": false,
			"https://other.example/": false, "http://api.example/": false} {
			got := output(t, sb, fmt.Sprintf("printf 'url=%s\\n\\n' | GIT_TERMINAL_PROMPT=0 git credential fill", url))
			if strings.Contains(got, "password="+holder+"\n") != want {
				t.Errorf("git has for %s: %s", url, got)
			}
		}
		if got := output(t, sb, "grep -rl 'the-value-itsel[f]' /etc /proc/self/environ /proc/1/environ /run /tmp 2>/dev/null; echo done"); got != "done\n" {
			t.Errorf("the value is in the sandbox: %s", got)
		}
	}
	look(sb)
	saved := filepath.Join(t.TempDir(), "saved")
	if err := os.Mkdir(saved, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := sb.Checkpoint(t.Context(), saved); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{home, saved} {
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil
			}
			b, err := os.ReadFile(path)
			if err == nil && bytes.Contains(b, []byte("the-value-itself")) {
				t.Errorf("the value is in %s", path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := sb.SetSecret(t.Context(), "TOKEN", "another-value"); err != nil {
		t.Error(err)
	}
	if err := sb.SetSecret(t.Context(), "TOKEN", "short"); err == nil {
		t.Error("a value that is none was accepted")
	}
	if err := sb.SetSecret(t.Context(), "NONE", "another-value"); err == nil {
		t.Error("a secret that is not there was set")
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	look(networked(t, home, []string{"api.example"}, sandbox.WithSecrets(aSecret()), sandbox.WithCheckpoint(saved)))
}

func TestSecretsThatCannotBe(t *testing.T) {
	open := func(backendName string, rules []string, secrets ...sandbox.Secret) error {
		cfg := sandbox.Default()
		cfg.Backend, cfg.AllowNet.Rules = backendName, rules
		sb, err := sandbox.Open(context.Background(), cfg, "", sandbox.WithHome(t.TempDir()), sandbox.WithSecrets(secrets...))
		if err == nil {
			sb.Close()
			t.Error("it was opened")
			return nil
		}
		if strings.Contains(err.Error(), "the-value-itself") {
			t.Errorf("the value is in the error: %v", err)
		}
		return err
	}
	if err := open("host", nil, aSecret()); !errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("on the host: %v", err)
	}
	if err := open("gvisor", nil, aSecret()); err == nil || !strings.Contains(err.Error(), "api.example") {
		t.Errorf("without a network: %v", err)
	}
	open("gvisor", []string{"api.example"}, aSecret(), aSecret())
	nameless := aSecret()
	nameless.Name = "no name"
	open("gvisor", []string{"api.example"}, nameless)
	anywhere := aSecret()
	anywhere.Hosts = nil
	open("gvisor", []string{"api.example"}, anywhere)
}

// A service of the owner's is reached through the gateway, in the clear and inside TLS, though nothing else is; and a
// sandbox without it reaches nothing.
func TestServiceIsReached(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: without root there is no network device here")
	}
	seen := make(chan string, 10)
	echo := sandbox.HTTPService(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		seen <- r.Host
		fmt.Fprintf(w, "%s %s %s", r.Method, r.URL.Path, b)
	}))
	sb, err := sandbox.Open(context.WithoutCancel(t.Context()), sandbox.Default(), "", sandbox.WithHome(t.TempDir()), sandbox.WithService("echo", echo))
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	for _, url := range []string{"http://echo.ravi.internal/a", "https://echo.ravi.internal/b", "http://echo.ravi.internal:7777/c"} {
		got := output(t, sb, "curl -sS --max-time 100 -d hello "+url)
		if want := "POST " + url[strings.LastIndex(url, "/"):] + " hello"; got != want {
			t.Errorf("%s: got %q", url, got)
		}
		if host := <-seen; !strings.HasPrefix(host, "echo.ravi.internal") {
			t.Errorf("the service was asked for %s", host)
		}
	}
	for _, url := range []string{"http://other.ravi.internal/", "http://example.com/", "http://127.0.0.1/", "http://192.168.127.1/"} {
		if got := output(t, sb, "curl -sS --max-time 30 "+url+" >/dev/null 2>&1; echo $?"); got == "0\n" {
			t.Errorf("%s is reached", url)
		}
	}
	if err := sb.Close(); err != nil {
		t.Error(err)
	}
}

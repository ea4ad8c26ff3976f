package dial

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"ravi/internal/porttest"
)

// peer starts a real proxy at a free port of loopback, and returns its port once it listens there.
func peer(t *testing.T, name string, args func(port uint16) []string) uint16 {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("SKIP-FEATURE: no %s on this machine", name)
	}
	port := uint16(porttest.Free(t))
	cmd := exec.Command(path, args(port)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	again := time.NewTicker(5 * time.Millisecond) // neither of them says when it listens
	defer again.Stop()
	for {
		var d net.Dialer
		if c, err := d.DialContext(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			c.Close()
			return port
		}
		select {
		case <-again.C:
		case <-ended:
			t.Fatalf("%s ended: %s", name, out.Bytes())
		case <-ctx.Done():
			t.Fatalf("%s does not listen", name)
		}
	}
}

// tinyproxy connects for this user and password, or for everyone, to one port only.
func tinyproxy(t *testing.T, user, password string, only uint16) uint16 {
	return peer(t, "tinyproxy", func(port uint16) []string {
		conf := fmt.Sprintf("Port %d\nListen 127.0.0.1\nTimeout 60\nMaxClients 20\nConnectPort %d\n", port, only)
		if user != "" {
			conf += fmt.Sprintf("BasicAuth %s %s\n", user, password)
		}
		path := filepath.Join(t.TempDir(), "conf")
		if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
		return []string{"-d", "-c", path}
	})
}

func microsocks(t *testing.T, user, password string) uint16 {
	return peer(t, "microsocks", func(port uint16) []string {
		args := []string{"-i", "127.0.0.1", "-p", fmt.Sprint(port)}
		if user != "" {
			args = append(args, "-u", user, "-P", password)
		}
		return args
	})
}

// Proxies that people use take what this one asks for. They are on this machine, where nothing else can be reached, so
// they are asked for it as such: a dialer would go to it directly.
func TestRealProxies(t *testing.T) {
	to := echo(t)
	closed := fmt.Sprintf("127.0.0.99:%d", to.Port())
	for name, start := range map[string]func(t *testing.T, user, password string) string{
		"tinyproxy": func(t *testing.T, user, password string) string {
			return fmt.Sprintf("http://127.0.0.1:%d", tinyproxy(t, user, password, to.Port()))
		},
		"microsocks": func(t *testing.T, user, password string) string {
			return fmt.Sprintf("socks5://127.0.0.1:%d", microsocks(t, user, password))
		},
	} {
		t.Run(name, func(t *testing.T) {
			open, guarded := start(t, "", ""), start(t, "user", password)
			for what, c := range map[string]struct {
				url, credentials, target string
				code                     Code // empty: connected
				says                     string
			}{
				"open":                   {open, "", to.String(), "", ""},
				"open, with credentials": {open, "user:" + password, to.String(), "", ""},
				"by name":                {open, "", fmt.Sprintf("localhost:%d", to.Port()), "", ""},
				"with credentials":       {guarded, "user:" + password + "\n", to.String(), "", ""},
				"with wrong ones":        {guarded, "user:wrong", to.String(), NoProxy, "network.proxy_auth_file"},
				"without":                {guarded, "", to.String(), NoProxy, "set network.proxy_auth_file"},
				"where nobody is":        {open, "", closed, ProxyFailed, "does not connect to " + closed},
			} {
				t.Run(what, func(t *testing.T) {
					conn, err := upstream(t, Proxy{URL: c.url}, c.credentials).connect(t.Context(), c.target)
					if c.code == "" {
						if err != nil {
							t.Fatal(err)
						}
						speaks(t, conn, "")
						conn.Close()
						return
					}
					var e *Error
					if !errors.As(err, &e) || e.Code != c.code || !strings.Contains(e.Text, c.says) || strings.Contains(e.Text, "wrong") {
						t.Errorf("got %v, want %s that says %q", err, c.code, c.says)
					}
					if err == nil {
						conn.Close()
					}
				})
			}
		})
	}
	t.Run("a port that tinyproxy refuses", func(t *testing.T) {
		u := upstream(t, Proxy{URL: fmt.Sprintf("http://127.0.0.1:%d", tinyproxy(t, "", "", 443))}, "")
		if _, err := u.connect(t.Context(), to.String()); err == nil || !strings.Contains(err.Error(), "refuses "+to.String()+": 403 Forbidden") {
			t.Errorf("got %v", err)
		}
	})
}

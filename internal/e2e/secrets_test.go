package e2e

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ravi/internal/audit"
	"ravi/internal/store"
)

const (
	// siteToken is what nginx wants to see at /secret.
	siteToken = "nginx-Token+for/tests=="
	// gitToken is the password of the git server.
	gitToken = "ghs_TheTokenOfTheGitServer1234567890"
)

// reversed is a text that no redaction knows.
func reversed(s string) string {
	b := []byte(s)
	slices.Reverse(b)
	return string(b)
}

// gitServer is git's own http-backend behind TLS, at other.test, with one repository that asks for a password.
func (s *site) gitServer(t *testing.T) (port string, repo string) {
	t.Helper()
	out, err := exec.Command("git", "--exec-path").Output()
	must(t, err)
	backend := filepath.Join(strings.TrimSpace(string(out)), "git-http-backend")
	root := t.TempDir()
	repo = filepath.Join(root, "app.git")
	for _, args := range [][]string{{"init", "-q", "--bare", "-b", "main", repo}, {"-C", repo, "config", "http.receivepack", "true"}} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	work := t.TempDir()
	script := "git init -q -b main && echo hello >file && git add file && git -c user.name=t -c user.email=t@example.test commit -q -m first && git push -q " + repo + " main"
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = work
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	serve := &cgi.Handler{Path: backend, Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=tests"}}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != gitToken {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "no, "+r.Header.Get("Authorization")+" "+password, http.StatusUnauthorized)
			return
		}
		serve.ServeHTTP(w, r)
	}))
	cert, err := tls.LoadX509KeyPair(s.dir+"/site.pem", s.dir+"/site.key")
	must(t, err)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	_, port, err = net.SplitHostPort(server.Listener.Addr().String())
	must(t, err)
	return port, repo
}

// secret is a secret of the world's store.
func (w *world) secret(name, host, value string) {
	w.t.Helper()
	cmd := w.command("secrets", "set", name, "--host", host)
	cmd.Stdin = strings.NewReader(value + "\n")
	w.finish(cmd).want(0)
}

// The whole way of a secret: a run uses two, over nginx and git, and never has them.
func TestSecrets(t *testing.T) {
	s, w, r := newSite(t), newWorld(t), plain(t)
	git, bare := s.gitServer(t)
	w.secret("T", "example.test:"+s.secure, siteToken)
	w.secret("GIT_TOKEN", "other.test:"+git, gitToken)
	rules := strings.Join([]string{s.rules(), "other.test:" + git, "127.0.0.1:" + git}, ",")
	script := try + fmt.Sprintf(`S=%s P=%s G=%s; U=https://example.test:$S/secret
try http2 'curl -sSi -m 120 -H "Authorization: Bearer $T" $U'
try http1 'curl -sSi -m 120 --http1.1 -H "Authorization: Bearer $T" $U'
try python 'python3 -c "import os, urllib.request as u; print(u.urlopen(u.Request(\"$U\", headers={\"Authorization\": \"Bearer \"+os.environ[\"T\"]}), timeout=120).read().decode())"'
try node 'node -e "fetch(process.argv[1], {headers: {authorization: \"Bearer \" + process.env.T}}).then(r => r.text()).then(console.log)" $U'
try range 'curl -sS -m 120 -r 9-30 -H "Authorization: Bearer $T" $U'
try compressed 'curl -sS -m 120 --compressed -H "Authorization: Bearer $T" $U'
try error-page 'curl -sS -m 120 -H "Authorization: Bearer x$T" $U'
try body 'curl -sS -m 120 -d "$T" https://example.test:$S/body'
try other-header 'curl -sS -m 120 -H "X-Evil: $T" $U'
try without-tls 'curl -sS -m 120 -H "Authorization: Bearer $T" http://example.test:$P/secret'
try other-host 'curl -sS -m 120 -H "Authorization: Bearer $T" https://other.test:$G/x'
try other-url 'curl -sS -m 120 "https://other.test:$G/?leak=$GIT_TOKEN"'
try name 'curl -sS -m 120 https://$T.example.test:$S/'
try halves 'curl -sS -m 120 -H "Authorization: Bearer ${T:0:20}" -H "X-Rest: ${T:20}" $U'
try clone 'git clone -q https://other.test:$G/app.git /tmp/app && cat /tmp/app/file'
try push 'cd /tmp/app && git checkout -q -b work && echo more >>file && git -c user.name=a -c user.email=a@example.test commit -qam more && git push -q origin work'
try clone-url 'git clone -q https://someone:$GIT_TOKEN@other.test:$G/app.git /tmp/again && grep -c ravi-secret /tmp/again/.git/config'
try nowhere 'echo found: $(grep -rlF -e "$(echo %s | rev)" -e "$(echo %s | rev)" /etc /run /tmp /home /root /proc/[0-9]*/environ 2>/dev/null) none'
try said 'echo %[4]s | rev'
`, s.secure, s.insecure, git, reversed(siteToken), reversed(gitToken))
	out := s.run(w, r, "--secret", "T", "--secret", "GIT_TOKEN", "--allow-net", rules, "--", "bash", "-c", script).want(0)
	got := attempts(t, out.stdout)
	for name, want := range map[string]struct{ status, out string }{
		"http2": {"0", "HTTP/2 200"}, "http1": {"0", "HTTP/1.1 200"}, "python": {"0", "welcome, Bearer ravi-secret-t-"}, "node": {"0", "welcome, Bearer ravi-secret-t-"},
		"range": {"0", "welcome, Bearer ravi-secret-t-"}, "compressed": {"0", "welcome, Bearer ravi-secret-t-"},
		"error-page": {"0", "who is Bearer xravi-secret-t-"}, "body": {"0", "nginx says hello"},
		"other-header": {"0", "may stand in the header Authorization only"}, "without-tls": {"0", "is not bound to"},
		"other-host": {"0", "is not bound to"}, "other-url": {"0", "may stand in"}, "name": {"6", ""}, "halves": {"0", "who is Bearer ravi-secret-t-"},
		"clone": {"0", "hello"}, "push": {"0", ""}, "clone-url": {"0", "1"}, "nowhere": {"0", "found: none"}, "said": {"0", "[secret T]"},
	} {
		if a, ok := got[name]; !ok || a.status != want.status || !strings.Contains(a.out, want.out) {
			t.Errorf("%s: status %q, %q; want status %s and %q", name, a.status, a.out, want.status, want.out)
		}
	}
	if out, err := exec.Command("git", "-C", bare, "show", "work:file").Output(); err != nil || string(out) != "hello\nmore\n" {
		t.Errorf("what was pushed is %q, %v", out, err)
	}
	for _, value := range []string{siteToken, gitToken, base64.StdEncoding.EncodeToString([]byte(siteToken)), base64.StdEncoding.EncodeToString([]byte("x-access-token:" + gitToken))} {
		out.silent(value)
	}
	// It is all on record, and the record holds no value.
	st, err := store.Open(context.Background(), w.home)
	must(t, err)
	defer st.Close()
	log := audit.Log{Store: st}
	_, err = log.Verify(context.Background(), nil)
	must(t, err)
	seen := map[string]int64{}
	records, err := log.List(context.Background(), audit.Filter{})
	must(t, err)
	for _, r := range records {
		seen[r.Action+" "+r.Object] += r.Count
	}
	for _, want := range []string{"secret.lease T", "secret.lease GIT_TOKEN", "secret.use example.test:" + s.secure, "secret.use other.test:" + git,
		"secret.alarm example.test:" + s.insecure, "secret.alarm other.test:" + git} {
		if seen[want] == 0 {
			t.Errorf("the audit has no %s: %v", want, seen)
		}
	}
	if seen["secret.use example.test:"+s.secure] < 6 || seen["secret.use other.test:"+git] < 6 {
		t.Errorf("the audit counts %v", seen)
	}
	shown := w.ravi("sandbox", "network", filepath.Base(out.dir)).want(0)
	for _, want := range []string{"example.test:" + s.secure + " got T", "other.test:" + git + " got GIT_TOKEN", "ALARM"} {
		if !strings.Contains(shown.stdout, want) {
			t.Errorf("ravi sandbox network does not say %q:\n%s", want, shown.stdout)
		}
	}
}

// What holds a secret does not come out, and what would bring one in does not begin.
func TestSecretsStayOut(t *testing.T) {
	w, r := newWorld(t), plain(t)
	w.secret("T", "example.test", siteToken)
	out := w.run(r, "--apply", "--yes", "--", "bash", "-c", "echo clean >clean; echo "+reversed(siteToken)+" | rev >leak").want(125)
	out.says("held back", "T", "changes.patch.held")
	out.task().is(t, "error", "secret")
	if _, err := os.Stat(filepath.Join(out.dir, "changes.patch")); err == nil {
		t.Error("there is a patch")
	}
	if _, err := os.Stat(r.path("clean")); err == nil {
		t.Error("the patch was applied")
	}
	if fi, err := os.Stat(filepath.Join(out.dir, "changes.patch.held")); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the held patch: %v %v", fi, err)
	}
	for _, args := range [][]string{
		{"--", "curl", "-H", "Authorization: Bearer " + siteToken, "https://example.test"},
		{"--env", "X=" + siteToken, "--", "true"},
		{"--secret", "NONE", "--allow-net", "example.test", "--", "true"},
		{"--secret", "T", "--", "true"},
		{"--secret", "T", "--allow-net", "other.test", "--", "true"},
		{"--allow-net", `{"host":"example.test","inject":["T"]}`, "--", "true"},
		{"--secret", "T", "--allow-net", "example.test", "--backend", "host", "--", "true"},
	} {
		out := w.run(r, args...)
		if out.code == 0 {
			t.Errorf("%q: it ran", args)
		}
		out.silent(siteToken)
		out.says("hint:")
	}
}

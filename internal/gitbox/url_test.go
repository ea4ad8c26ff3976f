package gitbox

import (
	"errors"
	"io/fs"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// serve offers a repository over HTTP, to who knows the password.
func serve(t *testing.T, r *repo) string {
	t.Helper()
	git, err := exec.LookPath("git")
	must(t, err)
	h := &cgi.Handler{Path: git, Args: []string{"http-backend"}, Env: []string{"GIT_PROJECT_ROOT=" + r.dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}, InheritEnv: []string{"PATH"}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if user, pass, ok := q.BasicAuth(); !ok || user != "reader" || pass != "TOKEN-c4n4ry" {
			w.Header().Set("WWW-Authenticate", "Basic")
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, q)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestCloneURL(t *testing.T) {
	t.Setenv("HOME", realpath(t, t.TempDir()))
	r := filled(t)
	url := serve(t, r)
	with := strings.Replace(url, "http://", "http://reader:TOKEN-c4n4ry@", 1) + "/.git"
	dir := realpath(t, t.TempDir()) + "/clone"
	must(t, os.Setenv("GIT_DIR", "/nonexistent")) // of whoever calls us
	err := CloneURL(t.Context(), with, dir)
	_ = os.Unsetenv("GIT_DIR")
	must(t, err)
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if text := read(t, p); strings.Contains(text, "TOKEN") || strings.Contains(text, "127.0.0.1:") && !strings.HasSuffix(p, "FETCH_HEAD") && !strings.HasSuffix(p, "packed-refs") {
				t.Errorf("%s holds the token or address", p)
			}
		}
		return err
	}))
	b := export(t, dir, "")
	if b.Commit != r.git("rev-parse", "main") || b.Branch != "refs/heads/main" {
		t.Fatalf("%+v", b)
	}
	s := enter(t, b)
	if s.git("describe", "--always") != r.git("describe", "--always") || s.git("remote") != "" {
		t.Fatal("history or remotes differ")
	}

	// Failures name the place, never the credential.
	for _, bad := range []string{strings.Replace(with, "/.git", "/nothing.git", 1), strings.Replace(with, "reader:", "other:", 1), url + "/.git"} {
		err := CloneURL(t.Context(), bad, realpath(t, t.TempDir())+"/x")
		if err == nil || strings.Contains(err.Error(), "TOKEN") || !strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf("%v", err)
		}
	}
}

func TestCloneWithTheOperatorsHelper(t *testing.T) {
	home := realpath(t, t.TempDir())
	t.Setenv("HOME", home)
	r := filled(t)
	url := serve(t, r)
	nest := realpath(t, t.TempDir())
	write(t, nest+"/hooks/reference-transaction", "#!/bin/sh\ntouch "+nest+"/canary-hook\n")
	must(t, os.Chmod(nest+"/hooks/reference-transaction", 0o755))
	write(t, nest+"/template/hooks/reference-transaction", read(t, nest+"/hooks/reference-transaction"))
	must(t, os.Chmod(nest+"/template/hooks/reference-transaction", 0o755))
	write(t, home+"/.gitconfig", "[credential]\n\thelper = \"!f() { echo username=reader; echo password=TOKEN-c4n4ry; }; f\"\n[core]\n\thooksPath = "+nest+"/hooks\n[init]\n\ttemplateDir = "+nest+"/template\n")
	dir := realpath(t, t.TempDir()) + "/clone"
	must(t, CloneURL(t.Context(), url+"/.git", dir))
	noCanary(t, nest)
	export(t, dir, "")
}

func TestURLs(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"https://example.org/a/b.git": "https://example.org/a/b.git", "https://tok3n@example.org/a": "https://example.org/a", "https://u:p4ss@example.org/a": "https://example.org/a",
		"ssh://git@example.org:22/a": "ssh://git@example.org:22/a", "git@example.org:a/b": "git@example.org:a/b", "http://127.0.0.1:1/x": "http://127.0.0.1:1/x",
		"file:///etc": "", "ext::sh -c id": "", "ext::id": "", "git://example.org/a": "", "http://example.org/a": "", "ftp://example.org/a": "", "-u:x": "", "--upload-pack=x:y": "", "ssh://-oProxyCommand=x/a": "",
		"https://example.org/a?access_token=x": "", "ssh://u:p4ss@example.org/a": "", "-x@h:y": "", "https:///a": "", "https://exa mple.org/": "", "fd::17": "", "ssh://-x@h/a": "", "https://u:p4ss@exa%zz/": "",
	} {
		rm, err := parseRemote(in)
		if want == "" {
			if !errors.Is(err, ErrRefused) || strings.Contains(err.Error(), "p4ss") {
				t.Errorf("%q: %+v, %v", in, rm, err)
			}
			continue
		}
		if err != nil || rm.url != want {
			t.Errorf("%q: %+v, %v", in, rm, err)
		}
		if strings.Contains(RedactURL(in), "tok3n") || strings.Contains(RedactURL(in), "p4ss") {
			t.Error(RedactURL(in))
		}
	}
	for in, want := range map[string]bool{"https://x/y": true, "git@h:p": true, "h:p": true, ".": false, "./a:b": false, "/a:b": false, "ext::sh": true, "C:": false, "dir/a:b": false} {
		if IsURL(in) != want {
			t.Errorf("IsURL(%q) = %v", in, !want)
		}
	}
	if got := (&remote{}).scrub("fatal: unable to access 'https://tok:pw@h/x': no"); strings.Contains(got, "pw") {
		t.Error(got)
	}
}

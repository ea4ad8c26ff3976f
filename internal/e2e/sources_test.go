package e2e

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	pemfile "encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"ravi/internal/audit"
	"ravi/internal/store"
)

// server is a site at other.test with a handler of the test's.
func (s *site) server(t *testing.T, h http.HandlerFunc) (port string) {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(s.dir+"/site.pem", s.dir+"/site.key")
	must(t, err)
	server := httptest.NewUnstartedServer(h)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	server.StartTLS()
	t.Cleanup(server.Close)
	_, port, err = net.SplitHostPort(server.Listener.Addr().String())
	must(t, err)
	return port
}

// A value that ends is replaced while the run goes on; the program has one placeholder and notices nothing.
func TestSecretIsRenewed(t *testing.T) {
	s, w, r := newSite(t), newWorld(t), plain(t)
	port := s.server(t, func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(rw, "number", strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer short-lived-value-"), r.Header.Get("Authorization"))
	})
	source := filepath.Join(w.user, "source")
	must(t, os.WriteFile(source, []byte(`#!/bin/sh
n=$(cat "$0.count" 2>/dev/null || echo 0); n=$((n+1)); echo $n >"$0.count"
printf '{"value": "short-lived-value-%s", "expires_at": "%s"}\n' $n "$(date -u -d '+8 seconds' +%Y-%m-%dT%H:%M:%SZ)"
`), 0o700))
	w.ravi("secrets", "set", "T", "--host", "other.test:"+port, "--command", "--", source).want(0)
	// Two that the program is given while it runs: how many there were before is the machine's affair.
	out := s.run(w, r, "--timeout", "10m", "--secret", "T", "--allow-net", "other.test:"+port+",127.0.0.1:"+port, "--", "bash", "-c",
		`until out=$(curl -sS -m 120 -H "Authorization: Bearer $T" https://other.test:`+port+`/); [[ $out =~ ^number\ ([0-9]+)\  ]] && now=${BASH_REMATCH[1]} && { [ "${last:=$now}" = $now ] || changes=$((changes+1)); last=$now; [ ${changes:-0} -ge 2 ]; }; do :; done; echo "$out"`).want(0)
	if !regexp.MustCompile(`^number \d+ Bearer ravi-secret-t-`).MatchString(out.stdout) {
		t.Errorf("got %q", out.stdout)
	}
	events := out.file("events.jsonl")
	if n := strings.Count(events, `"event":"secret_renewed"`); n < 2 {
		t.Errorf("%d renewals are on record:\n%s", n, short(events))
	}
	out.silent("short-lived-value-")
}

// A token of a GitHub App is made for the run's repository, used, and revoked in the end; it is all in the audit.
func TestGitHubApp(t *testing.T) {
	s, w, r := newSite(t), newWorld(t), plain(t)
	const token = "ghs_MadeForOneRepositoryOnly123"
	var mu sync.Mutex
	var asked []string
	api := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		var body struct {
			Repositories []string
			Permissions  map[string]string
		}
		json.NewDecoder(req.Body).Decode(&body)
		mu.Lock()
		asked = append(asked, fmt.Sprint(req.Method, " ", req.URL.Path, " ", body.Repositories, body.Permissions))
		mu.Unlock()
		switch req.Method + " " + req.URL.Path {
		case "GET /repos/acme/web/installation":
			fmt.Fprint(rw, `{"id": 7}`)
		case "POST /app/installations/7/access_tokens":
			rw.WriteHeader(http.StatusCreated)
			fmt.Fprintf(rw, `{"token": %q, "expires_at": %q}`, token, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		case "DELETE /installation/token":
			if req.Header.Get("Authorization") != "Bearer "+token && req.Header.Get("Authorization") != "token "+token {
				t.Errorf("revoked with %q", req.Header.Get("Authorization"))
			}
			rw.WriteHeader(http.StatusNoContent)
		default:
			rw.WriteHeader(http.StatusNotFound)
		}
	}))
	defer api.Close()
	port := s.server(t, func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(rw, r.Header.Get("Authorization") == "Bearer "+token)
	})
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	pem := filepath.Join(w.user, "app.pem")
	must(t, os.WriteFile(pem, pemfile.EncodeToMemory(&pemfile.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), 0o600))
	w.ravi("secrets", "set", "GH", "--host", "other.test:"+port, "--github-app", "12", "--private-key-file", pem, "--api-url", api.URL, "--permission", "contents=write").want(0)
	args := []string{"--secret", "GH", "--allow-net", "other.test:" + port + ",127.0.0.1:" + port, "--", "sh", "-c",
		`curl -sS -m 60 -H "Authorization: Bearer $GH" https://other.test:` + port}
	s.run(w, r, args...).want(125).says("one repository on 127.0.0.1", "has no origin")
	r.git("remote", "add", "origin", "https://other.example/acme/web.git")
	s.run(w, r, args...).want(125).says("one repository on 127.0.0.1", "other.example/acme/web")
	r.git("remote", "set-url", "origin", "https://127.0.0.1/acme/web.git")
	out := s.run(w, r, args...).want(0)
	if out.stdout != "true\n" {
		t.Errorf("got %q", out.stdout)
	}
	out.silent(token)
	want := "GET /repos/acme/web/installation [] map[]\nPOST /app/installations/7/access_tokens [web] map[contents:write]\nDELETE /installation/token [] map[]"
	if got := strings.Join(asked, "\n"); got != want {
		t.Errorf("GitHub was asked\n%s\nwant\n%s", got, want)
	}
	st, err := store.Open(t.Context(), w.home)
	must(t, err)
	defer st.Close()
	records, err := (audit.Log{Store: st}).List(t.Context(), audit.Filter{RunID: filepath.Base(out.dir), Object: "GH"})
	must(t, err)
	var actions []string
	for _, r := range records {
		actions = append(actions, r.Action)
	}
	if got := strings.Join(actions, " "); got != "secret.lease secret.revoke" {
		t.Errorf("the audit has %q", got)
	}
}

package guest

import (
	"errors"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"
)

func TestSignature(t *testing.T) {
	const token = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"
	const known = "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E"
	if got := signature("hello.txt", "read", "user", token, ""); got != known {
		t.Errorf("signature is %q, want %q", got, known)
	}
	now := time.Unix(1000, 0)
	for _, tc := range []struct {
		name      string
		query     url.Values
		operation string
		want      error
	}{
		{"right", url.Values{"path": {"hello.txt"}, "username": {"user"}, "signature": {known}}, "read", nil},
		{"none", url.Values{"path": {"hello.txt"}, "username": {"user"}}, "read", errNoToken},
		{"other operation", url.Values{"path": {"hello.txt"}, "username": {"user"}, "signature": {known}}, "write", errBadSignature},
		{"other path", url.Values{"path": {"other.txt"}, "username": {"user"}, "signature": {known}}, "read", errBadSignature},
		{"other user", url.Values{"path": {"hello.txt"}, "signature": {known}}, "read", errBadSignature},
		{"expiry added", url.Values{"path": {"hello.txt"}, "username": {"user"}, "signature": {known}, "signature_expiration": {"2000"}}, "read", errBadSignature},
		{"in time", url.Values{"path": {"p"}, "signature": {signature("p", "read", "", token, "1000")}, "signature_expiration": {"1000"}}, "read", nil},
		{"late", url.Values{"path": {"p"}, "signature": {signature("p", "read", "", token, "999")}, "signature_expiration": {"999"}}, "read", errExpired},
		{"odd expiry", url.Values{"path": {"p"}, "signature": {signature("p", "read", "", token, "never")}, "signature_expiration": {"never"}}, "read", errBadSignature},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := checkSignature(tc.query, tc.operation, token, now); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

func TestGuarded(t *testing.T) {
	g := startGuest(t, Options{Token: "secret"})
	if err := os.WriteFile(g.home+"/f", []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	base := g.tcp(t)
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	signed := "/files?path=" + g.home + "/f&signature=" + url.QueryEscape(signature(g.home+"/f", "read", "", "secret", ""))
	for _, tc := range []struct {
		name, method, path string
		headers            []string
		status             int
	}{
		{"health needs nothing", "GET", "/health", nil, 204},
		{"metrics without a token", "GET", "/metrics", nil, 401},
		{"metrics with another token", "GET", "/metrics", []string{"X-Access-Token", "secre"}, 401},
		{"metrics with the token", "GET", "/metrics", []string{"X-Access-Token", "secret"}, 200},
		{"init without a token", "POST", "/init", nil, 401},
		{"init with the token", "POST", "/init", []string{"X-Access-Token", "secret"}, 204},
		{"a process without a token", "POST", "/process.Process/List", []string{"Content-Type", "application/json"}, 401},
		{"a file without a token", "GET", "/files?path=f", nil, 401},
		{"a signed file", "GET", signed, nil, 200},
		{"a signed file, another token", "GET", signed, []string{"X-Access-Token", "no"}, 401},
		{"a signed write", "POST", signed, []string{"Content-Type", "application/octet-stream"}, 401},
		{"a tar by the file's signature", "GET", "/tar" + strings.TrimPrefix(signed, "/files"), nil, 401},
		{"another name for this machine", "GET", "/health", []string{"Host", "evil.example"}, 403},
		{"localhost", "GET", "/health", []string{"Host", "localhost:1"}, 204},
		{"another origin with the token", "GET", "/metrics", []string{"Origin", "https://app.example", "X-Access-Token", "secret"}, 200},
		{"another origin asks first", "OPTIONS", "/metrics", []string{"Origin", "https://app.example"}, 204},
		{"another origin without the token", "GET", "/metrics", []string{"Origin", "https://app.example"}, 401},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, _, body := call(t, hc, tc.method, base+tc.path, strings.NewReader("{}"), tc.headers...)
			if status != tc.status {
				t.Errorf("status %d (%s), want %d", status, body, tc.status)
			}
		})
	}
	// Over the link nobody asks for it.
	if status, _, _ := call(t, g.HTTP, "GET", g.URL+"/metrics", nil); status != 200 {
		t.Errorf("status over the link is %d", status)
	}

	open := startGuest(t, Options{})
	base = open.tcp(t)
	if status, _, _ := call(t, hc, "GET", base+"/metrics", nil, "Origin", "https://evil.example"); status != 403 {
		t.Errorf("without a token another origin got %d", status)
	}
	if status, _, _ := call(t, hc, "GET", base+"/metrics", nil); status != 200 {
		t.Errorf("without a token the status is %d", status)
	}
	if status, _, body := call(t, hc, "POST", base+"/init", strings.NewReader(`{"accessToken":"late"}`)); status != 204 {
		t.Fatalf("init: %d %s", status, body)
	}
	if status, _, _ := call(t, hc, "GET", base+"/metrics", nil); status != 401 {
		t.Errorf("after a token was set the status is %d", status)
	}
}

func TestListenIsForLoopback(t *testing.T) {
	for _, addr := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0", "localhost:0", "nonsense"} {
		if l, err := Listen(addr); err == nil {
			l.Close()
			t.Errorf("%s was accepted", addr)
		}
	}
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

package secret

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// appKey is made once: that takes a while.
var appKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

func appPEM() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(appKey())}))
}

// hub is a GitHub with one app and one installation.
type hub struct {
	t      *testing.T
	now    *time.Time
	server *httptest.Server

	mu       sync.Mutex
	made     int
	bodies   []string
	live     map[string]bool
	proofs   []string // what the app showed
	refuse   func(w http.ResponseWriter, r *http.Request, credential string) bool
	lookups  int
	validFor time.Duration
}

func newHub(t *testing.T, now *time.Time) *hub {
	h := &hub{t: t, now: now, live: map[string]bool{}, validFor: time.Hour}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v3/repos/{owner}/{repo}/installation", h.installation)
	mux.HandleFunc("POST /api/v3/app/installations/77/access_tokens", h.token)
	mux.HandleFunc("DELETE /api/v3/installation/token", h.revoke)
	h.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		defer h.mu.Unlock()
		credential := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if h.refuse == nil || !h.refuse(w, r, credential) {
			mux.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(h.server.Close)
	return h
}

// app checks what the app shows for itself, as GitHub does.
func (h *hub) app(r *http.Request) bool {
	text := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	h.proofs = append(h.proofs, text)
	claims := jwt.RegisteredClaims{}
	_, err := jwt.ParseWithClaims(text, &claims, func(*jwt.Token) (any, error) { return &appKey().PublicKey, nil },
		jwt.WithValidMethods([]string{"RS256"}), jwt.WithIssuer("12345"), jwt.WithTimeFunc(func() time.Time { return *h.now }), jwt.WithExpirationRequired())
	if err != nil {
		h.t.Errorf("the proof: %v", err)
		return false
	}
	if got := h.now.Sub(claims.IssuedAt.Time); got != time.Minute {
		h.t.Errorf("issued %v ago", got)
	}
	if got := claims.ExpiresAt.Sub(claims.IssuedAt.Time); got > 9*time.Minute {
		h.t.Errorf("the proof is good for %v", got)
	}
	if r.Header.Get("Accept") != "application/vnd.github+json" || r.Header.Get("X-GitHub-Api-Version") == "" || r.Header.Get("User-Agent") != "ravi" {
		h.t.Errorf("headers: %v", r.Header)
	}
	return true
}

func (h *hub) installation(w http.ResponseWriter, r *http.Request) {
	h.lookups++
	if !h.app(r) || r.PathValue("owner") != "acme" || r.PathValue("repo") != "web.site" {
		http.Error(w, `{"message":"Not Found"}`, http.StatusNotFound)
		return
	}
	io.WriteString(w, `{"id":77,"account":{"login":"acme"}}`)
}

func (h *hub) token(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || !h.app(r) {
		http.Error(w, "", http.StatusUnauthorized)
		return
	}
	h.bodies = append(h.bodies, string(body))
	h.made++
	token := fmt.Sprintf("ghs_%s_%d", canary, h.made)
	h.live[token] = true
	w.WriteHeader(http.StatusCreated)
	json.NewEncoder(w).Encode(map[string]any{"token": token, "expires_at": h.now.Add(h.validFor).UTC().Format(time.RFC3339), "permissions": map[string]string{"contents": "write"}})
}

func (h *hub) revoke(w http.ResponseWriter, r *http.Request) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !h.live[token] {
		http.Error(w, `{"message":"Bad credentials"}`, http.StatusUnauthorized)
		return
	}
	delete(h.live, token)
	w.WriteHeader(http.StatusNoContent)
}

func (h *hub) source(change func(*AppSource)) Source {
	a := &AppSource{ID: 12345, PrivateKey: NewValue(appPEM()), APIURL: h.server.URL + "/api/v3/", Permissions: map[string]string{"contents": "write"}}
	if change != nil {
		change(a)
	}
	return Source{App: a}
}

func mustToken(t *testing.T, l *Lease, n int) time.Time {
	t.Helper()
	return mustValue(t, l, fmt.Sprintf("ghs_%s_%d", canary, n))
}

func TestGitHubApp(t *testing.T) {
	s, now := newStore(t)
	h := newHub(t, now)
	l := lease(t, s, h.source(nil), Scope{Repository: "acme/web.site.git"})

	// One token for one repository, which is not asked for again while it is good.
	if until := mustToken(t, l, 1); !until.Equal(now.Add(time.Hour)) {
		t.Errorf("it ends at %v", until)
	}
	*now = now.Add(time.Hour - margin - time.Second)
	mustToken(t, l, 1)
	*now = now.Add(time.Second)
	mustToken(t, l, 2)
	want := `{"repositories":["web.site"],"permissions":{"contents":"write"}}`
	if !reflect.DeepEqual(h.bodies, []string{want, want}) || h.lookups != 1 {
		t.Errorf("asked %q, after %d questions for the installation", h.bodies, h.lookups)
	}

	// In the end both are given back, since both are still good.
	if len(h.live) != 2 {
		t.Fatalf("%d tokens live", len(h.live))
	}
	if err := l.End(t.Context()); err != nil || len(h.live) != 0 {
		t.Errorf("%v, and %d tokens live", err, len(h.live))
	}
	if _, _, err := l.Value(t.Context()); !errors.Is(err, ErrEnded) {
		t.Errorf("got %v", err)
	}
}

// What cannot be given back is told, and tried again; what is worth nothing any more is no error.
func TestGitHubRevocation(t *testing.T) {
	s, now := newStore(t)
	h := newHub(t, now)
	l := lease(t, s, h.source(func(a *AppSource) { id := int64(77); a.Installation = &id }), Scope{Repository: "acme/web.site"})
	mustToken(t, l, 1)
	if h.lookups != 0 {
		t.Error("the installation was asked for")
	}
	h.refuse = func(w http.ResponseWriter, r *http.Request, credential string) bool {
		http.Error(w, `{"message":"down, `+credential+`"}`, http.StatusServiceUnavailable)
		return true
	}
	err := l.End(t.Context())
	if err == nil || !strings.Contains(err.Error(), "503") || !strings.Contains(err.Error(), "could not be given back") || strings.Contains(err.Error(), canary) {
		t.Errorf("got %v", err)
	}
	h.refuse = nil
	if err := l.End(t.Context()); err != nil || len(h.live) != 0 {
		t.Errorf("%v, and %d tokens live", err, len(h.live))
	}

	l = lease(t, s, h.source(nil), Scope{Repository: "acme/web.site"})
	mustToken(t, l, 2)
	clear(h.live)
	if err := l.End(t.Context()); err != nil {
		t.Error(err)
	}
	l = lease(t, s, h.source(nil), Scope{Repository: "acme/web.site"})
	mustToken(t, l, 3)
	*now = now.Add(time.Hour)
	if err := l.End(t.Context()); err != nil || !h.live["ghs_"+canary+"_3"] {
		t.Errorf("what had ended was given back: %v", err)
	}
}

func TestGitHubScope(t *testing.T) {
	s, now := newStore(t)
	h := newHub(t, now)
	source := h.source(nil)
	set(t, s, "T", Change{Hosts: []string{"a.example"}, Source: &source})
	for _, repository := range []string{"", "acme", "acme/", "/web", "acme/web/site", "acme/..", "acme/.", "acme/..git", "../web", "acme/we b", "acme/web?x", "acme/" + strings.Repeat("a", 101)} {
		if _, err := s.Lease(t.Context(), "T", Scope{Repository: repository}); !errors.Is(err, ErrScope) {
			t.Errorf("%q: got %v", repository, err)
		}
	}
	// Who allowed all repositories names the installation, and gets a token for them.
	yes, id := true, int64(77)
	_, err := s.Set(t.Context(), "T", Change{Source: &Source{App: &AppSource{AllRepositories: &yes}}})
	mustCause(t, err, ErrScope)
	got := set(t, s, "T", Change{Source: &Source{App: &AppSource{AllRepositories: &yes, Installation: &id}}})
	if want := (App{ID: 12345, Installation: 77, APIURL: h.server.URL + "/api/v3/", Permissions: map[string]string{"contents": "write"}, AllRepositories: true}); !reflect.DeepEqual(*got.App, want) {
		t.Errorf("got %+v", got.App)
	}
	l, err := s.Lease(t.Context(), "T", Scope{})
	if err != nil {
		t.Fatal(err)
	}
	mustToken(t, l, 1)
	if want := []string{`{"permissions":{"contents":"write"}}`}; !reflect.DeepEqual(h.bodies, want) {
		t.Errorf("asked %q", h.bodies)
	}
	// Another app has another key.
	_, err = s.Set(t.Context(), "T", Change{Source: &Source{App: &AppSource{ID: 1}}})
	mustCause(t, err, ErrSource)
}

func TestGitHubAppRefused(t *testing.T) {
	s, now := newStore(t)
	h := newHub(t, now)
	ec, err := x509.MarshalPKCS8PrivateKey(appKey())
	if err != nil {
		t.Fatal(err)
	}
	pkcs8 := h.source(func(a *AppSource) {
		a.PrivateKey = NewValue(string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: ec})))
	})
	set(t, s, "PKCS8", Change{Hosts: []string{"a.example"}, Source: &pkcs8})
	plain := Source{App: &AppSource{ID: 1, PrivateKey: NewValue(appPEM())}}
	if got := set(t, s, "PLAIN", Change{Hosts: []string{"a.example"}, Source: &plain}); !reflect.DeepEqual(*got.App, App{ID: 1, APIURL: DefaultAPI, Permissions: map[string]string{"contents": "read"}}) {
		t.Errorf("the defaults are %+v", got.App)
	}
	negative := int64(-1)
	for name, change := range map[string]func(*AppSource){
		"no id":                func(a *AppSource) { a.ID = 0 },
		"a negative id":        func(a *AppSource) { a.ID = -1 },
		"no key":               func(a *AppSource) { a.PrivateKey = Value{} },
		"no PEM":               func(a *AppSource) { a.PrivateKey = NewValue(canary) },
		"a public key":         func(a *AppSource) { a.PrivateKey = NewValue(strings.ReplaceAll(appPEM(), "PRIVATE", "PUBLIC")[:100]) },
		"a cut key":            func(a *AppSource) { a.PrivateKey = NewValue(appPEM()[:200]) },
		"installation":         func(a *AppSource) { a.Installation = &negative },
		"http":                 func(a *AppSource) { a.APIURL = "http://github.example.com/api/v3" },
		"http, an address":     func(a *AppSource) { a.APIURL = "http://192.0.2.1" },
		"http, like this host": func(a *AppSource) { a.APIURL = "http://localhost.example.com" },
		"another scheme":       func(a *AppSource) { a.APIURL = "file:///etc/passwd" },
		"no scheme":            func(a *AppSource) { a.APIURL = "github.example.com" },
		"a user":               func(a *AppSource) { a.APIURL = "https://u:" + canary + "@github.example.com" },
		"a query":              func(a *AppSource) { a.APIURL = "https://github.example.com?x=" + canary },
		"no URL":               func(a *AppSource) { a.APIURL = "https://\x7f" + canary },
		"no permissions":       func(a *AppSource) { a.Permissions = map[string]string{} },
		"a strange level":      func(a *AppSource) { a.Permissions = map[string]string{"contents": canary} },
		"a strange permission": func(a *AppSource) { a.Permissions = map[string]string{canary: "read"} },
	} {
		t.Run(name, func(t *testing.T) {
			source := h.source(change)
			_, err := s.Set(t.Context(), "NEW", Change{Hosts: []string{"a.example"}, Source: &source})
			if err == nil || strings.Contains(err.Error(), canary) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// What GitHub says is told with its status and what to do, and without any credential that it repeats.
func TestGitHubErrors(t *testing.T) {
	answers := func(status int, body string) func(http.ResponseWriter, *http.Request, string) bool {
		return func(w http.ResponseWriter, r *http.Request, credential string) bool {
			w.WriteHeader(status)
			io.WriteString(w, strings.ReplaceAll(body, "CREDENTIAL", credential))
			return true
		}
	}
	for name, c := range map[string]struct {
		refuse     func(http.ResponseWriter, *http.Request, string) bool
		want, hint string
	}{
		"not installed":    {answers(404, `{"message":"Not Found"}`), `GET /repos/acme/web.site/installation for T: 404 Not Found: "Not Found"`, "install the app for acme/web.site"},
		"bad proof":        {answers(401, `{"message":"not CREDENTIAL"}`), `401 Unauthorized: "not [secret]"`, "clock"},
		"permission":       {answers(422, `{"message":"CREDENTIAL was not granted","token":"`+canary+`"}`), `422 Unprocessable Entity: "[secret] was not granted"`, "which permissions"},
		"forbidden":        {answers(403, `{"message":"`+canary+`","token":"`+canary+`"}`), `403 Forbidden: "[secret]"`, "which permissions"},
		"no JSON":          {answers(502, `<html>CREDENTIAL`), "502 Bad Gateway", ""},
		"long":             {answers(500, `{"message":"`+strings.Repeat("x", 5000)+`"}`), "500 Internal Server Error", ""},
		"escapes":          {answers(500, `{"message":"\u001b[31m"}`), `"\x1b[31m"`, ""},
		"no installation":  {answers(200, `{}`), "names no installation", ""},
		"half an answer":   {answers(200, `{"id":`), "is not what it should be", ""},
		"a strange answer": {answers(200, `{"id":"CREDENTIAL"}`), "is not what it should be", ""},
		"a redirection": {func(w http.ResponseWriter, r *http.Request, _ string) bool {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
			return true
		}, "302 Found", ""},
		"the connection":     {func(w http.ResponseWriter, r *http.Request, _ string) bool { panic(http.ErrAbortHandler) }, "GitHub cannot be asked about T", ""},
		"no token":           {tokenAnswers(answers(201, `{"expires_at":"2030-01-01T00:00:00Z"}`)), "what is no secret: the value is empty", ""},
		"no end":             {tokenAnswers(answers(201, `{"token":"`+canary+`"}`)), "does not say when it ends", ""},
		"no time":            {tokenAnswers(answers(201, `{"token":"`+canary+`","expires_at":"`+canary+`"}`)), "is not what it should be", ""},
		"ended already":      {tokenAnswers(answers(201, `{"token":"`+canary+`","expires_at":"2020-01-01T00:00:00Z"}`)), "ended at 2020-01-01T00:00:00Z already", "clock"},
		"a broken token":     {tokenAnswers(answers(201, `{"token":"`+canary+`\n","expires_at":"2030-01-01T00:00:00Z"}`)), "more than one line", ""},
		"wrong installation": {tokenAnswers(answers(404, `{"message":"Not Found"}`)), "404", "--installation 0"},
	} {
		t.Run(name, func(t *testing.T) {
			s, now := newStore(t)
			h := newHub(t, now)
			h.refuse = c.refuse
			l := lease(t, s, h.source(nil), Scope{Repository: "acme/web.site"})
			_, _, err := l.Value(t.Context())
			told := mustCause(t, err, ErrSource)
			if !strings.Contains(told.Message, c.want) || !strings.Contains(told.Hint, c.hint) || len(told.Message) > 1000 {
				t.Errorf("got %q, hint %q", told.Message, told.Hint)
			}
			for _, secret := range append(h.proofs, canary, "eyJ") {
				if strings.Contains(told.Message+told.Hint, secret) {
					t.Errorf("it shows a credential: %q", told.Message)
				}
			}
		})
	}
}

// tokenAnswers answers the question for a token, and lets the others be answered as they are.
func tokenAnswers(f func(http.ResponseWriter, *http.Request, string) bool) func(http.ResponseWriter, *http.Request, string) bool {
	return func(w http.ResponseWriter, r *http.Request, credential string) bool {
		return r.Method == http.MethodPost && f(w, r, credential)
	}
}

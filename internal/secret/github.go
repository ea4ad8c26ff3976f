package secret

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"ravi/internal/redact"
)

// DefaultAPI is where GitHub Apps get their tokens, unless they are of another GitHub.
const DefaultAPI = "https://api.github.com"

// App is a GitHub App, without its key.
type App struct {
	ID int64 `json:"app_id"`
	// Installation is its installation with an account; 0 when it is found by the repository of the run.
	Installation int64  `json:"installation_id,omitempty"`
	APIURL       string `json:"api_url"`
	// Permissions are what its tokens may do, such as contents: write.
	Permissions map[string]string `json:"permissions"`
	// AllRepositories has its tokens hold for every repository of the installation, not for the run's alone.
	AllRepositories bool `json:"all_repositories,omitempty"`
}

// AppSource is a GitHub App as it is set. What is nil or empty has its default, and in a secret that is an app already
// it stays as it was.
type AppSource struct {
	ID              int64
	PrivateKey      Value // PEM
	Installation    *int64
	APIURL          string
	Permissions     map[string]string // contents: read by default
	AllRepositories *bool
}

var permissionForm = regexp.MustCompile(`^[a-z][a-z_]{0,63}$`)

// check holds an app to the rules.
func (a *appRecord) check() error {
	if a.ID <= 0 {
		return refuse(ErrSource, "it stands in the settings of the app", "the id of a GitHub App is a number above 0")
	}
	if a.Installation < 0 {
		return refuse(ErrSource, "leave it out to have it found by the repository", "the id of an installation is a number above 0")
	}
	if a.AllRepositories && a.Installation == 0 {
		return refuse(ErrScope, "name it with --installation ID; the id stands in the address of its settings page",
			"a token for all repositories is one of an installation, and none is named")
	}
	if a.PrivateKey == "" {
		return refuse(ErrSource, "make one in the settings of the app, and give its file", "the private key of the GitHub App is missing")
	}
	if _, err := jwt.ParseRSAPrivateKeyFromPEM([]byte(a.PrivateKey)); err != nil { // the cause is not told: it is about the key
		return refuse(ErrSource, "it is the .pem file that GitHub gave out once, and begins with -----BEGIN RSA PRIVATE KEY-----",
			"this is not the private key of a GitHub App (RSA, PEM, not encrypted)")
	}
	if err := checkAPI(a.APIURL); err != nil {
		return err
	}
	if len(a.Permissions) == 0 {
		return refuse(ErrScope, "name what it needs, such as contents=read", "a token without named permissions could do all that the app can")
	}
	for name, level := range a.Permissions {
		if !permissionForm.MatchString(name) || level != "read" && level != "write" && level != "admin" {
			return refuse(ErrSource, "", "a permission of a GitHub App is a name and one of read, write and admin, such as contents=read")
		}
	}
	return nil
}

// checkAPI refuses an address where a token would travel in the clear, or that holds more than an address.
func checkAPI(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return refuse(ErrSource, "", "the address of the API is one such as %s or https://github.example.com/api/v3", DefaultAPI)
	}
	local := u.Hostname() == "localhost"
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
		local = addr.IsLoopback()
	}
	if u.Scheme != "https" && !(u.Scheme == "http" && local) {
		return refuse(ErrSource, "", "the address of the API begins with https://")
	}
	return nil
}

// newClient makes the client for the API. It follows no redirection: credentials go where they were meant to go.
func newClient() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true // a few requests an hour
	return &http.Client{
		Timeout: commandTime, Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// github gets the tokens of an app for one scope.
type github struct {
	name         string // of the secret
	app          App
	key          Value
	owner, repo  string // empty when the scope has none
	installation int64
	now          func() time.Time
	client       *http.Client
}

func (s *Store) newGitHub(name string, a *appRecord, owner, repo string) (*github, error) {
	if repo == "" && !a.AllRepositories {
		return nil, refuse(ErrScope, "run it on a repository of GitHub, or allow all of them: ravi secrets set "+name+" --all-repositories",
			"the token of %s is made for one repository, and this is none of GitHub's", name)
	}
	return &github{
		name: name, app: a.App, key: NewValue(a.PrivateKey), owner: owner, repo: repo,
		installation: a.Installation, now: s.now, client: s.client,
	}, nil
}

// sign makes what the app shows for itself. A minute is left for clocks that differ.
func (g *github) sign() (Value, error) {
	key, err := jwt.ParseRSAPrivateKeyFromPEM([]byte(g.key.Reveal()))
	if err != nil {
		return Value{}, refuse(ErrSource, "", "the private key of %s cannot be read", g.name)
	}
	now := g.now()
	text, err := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.RegisteredClaims{
		Issuer:    strconv.FormatInt(g.app.ID, 10),
		IssuedAt:  jwt.NewNumericDate(now.Add(-time.Minute)),
		ExpiresAt: jwt.NewNumericDate(now.Add(8 * time.Minute)),
	}).SignedString(key)
	if err != nil {
		return Value{}, refuse(ErrSource, "", "the private key of %s signs nothing", g.name)
	}
	return NewValue(text), nil
}

// token gets a new token.
func (g *github) token(ctx context.Context) (held, error) {
	proof, err := g.sign()
	if err != nil {
		return held{}, err
	}
	if g.installation == 0 {
		var found struct {
			ID int64 `json:"id"`
		}
		path := "/repos/" + url.PathEscape(g.owner) + "/" + url.PathEscape(g.repo) + "/installation"
		if err := g.call(ctx, http.MethodGet, path, proof, nil, http.StatusOK, &found); err != nil {
			return held{}, err
		}
		if found.ID <= 0 {
			return held{}, refuse(ErrSource, "", "GitHub names no installation of the app of %s", g.name)
		}
		g.installation = found.ID
	}
	ask := struct {
		Repositories []string          `json:"repositories,omitempty"`
		Permissions  map[string]string `json:"permissions"`
	}{Permissions: g.app.Permissions}
	if !g.app.AllRepositories {
		ask.Repositories = []string{g.repo}
	}
	var got struct {
		Token     string    `json:"token"`
		ExpiresAt time.Time `json:"expires_at"`
	}
	from := g.now()
	path := fmt.Sprintf("/app/installations/%d/access_tokens", g.installation)
	if err := g.call(ctx, http.MethodPost, path, proof, ask, http.StatusCreated, &got); err != nil {
		return held{}, err
	}
	if got.ExpiresAt.IsZero() {
		return held{}, refuse(ErrSource, "", "GitHub gave a token for %s and does not say when it ends", g.name)
	}
	return held{value: NewValue(got.Token), from: from, until: got.ExpiresAt}, nil
}

// revoke gives a token back.
func (g *github) revoke(ctx context.Context, token Value) error {
	err := g.call(ctx, http.MethodDelete, "/installation/token", token, nil, http.StatusNoContent, nil)
	var answer *answer
	if errors.As(err, &answer) && answer.status == http.StatusUnauthorized {
		return nil // it is worth nothing any more
	}
	if err != nil {
		return fmt.Errorf("a token of %s could not be given back, and is good for up to an hour: %w", g.name, err)
	}
	return nil
}

// answer is a status that is not the one that was hoped for.
type answer struct{ status int }

func (a *answer) Error() string { return fmt.Sprintf("status %d", a.status) }

// call makes one request. The credential is in no error, also when the other side repeats it.
func (g *github) call(ctx context.Context, method, path string, credential Value, ask any, want int, into any) error {
	const most = 1 << 20
	var body io.Reader = http.NoBody
	if ask != nil {
		b, err := json.Marshal(ask)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(g.app.APIURL, "/")+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+credential.Reveal())
	req.Header.Set("Accept", "application/vnd.github+json")
	req.Header.Set("X-GitHub-Api-Version", "2022-11-28")
	req.Header.Set("User-Agent", "ravi")
	if ask != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := g.client.Do(req)
	if err != nil {
		return refuse(errors.Join(ErrSource, err), "", "GitHub cannot be asked about %s: %s", g.name, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err != nil {
		return refuse(errors.Join(ErrSource, err), "", "the answer of GitHub about %s broke off: %s", g.name, err)
	}
	if resp.StatusCode != want {
		return g.refused(method, path, resp.StatusCode, b, credential)
	}
	if into != nil && json.Unmarshal(b, into) != nil { // the cause could repeat a part of the answer
		return refuse(ErrSource, "", "the answer of GitHub about %s is not what it should be", g.name)
	}
	return nil
}

// refused tells what GitHub said.
func (g *github) refused(method, path string, status int, body []byte, credential Value) error {
	const most = 300
	var said struct {
		Message string `json:"message"`
		Token   string `json:"token"`
	}
	json.Unmarshal(body, &said) // what is no JSON says nothing
	text := redact.New(redact.Pair{Secret: credential.Reveal(), Instead: hidden}, redact.Pair{Secret: said.Token, Instead: hidden}).String(said.Message)
	if len(text) > most {
		text = text[:most] + "…"
	}
	message := fmt.Sprintf("GitHub refuses %s %s for %s: %d %s", method, path, g.name, status, http.StatusText(status))
	if text != "" {
		message += ": " + strconv.QuoteToASCII(strings.ToValidUTF8(text, "\uFFFD"))
	}
	hint := ""
	switch {
	case status == http.StatusUnauthorized:
		hint = "check the app's id, whether the key is its own, and the clock of this machine"
	case status == http.StatusNotFound && strings.HasSuffix(path, "/installation"):
		hint = fmt.Sprintf("install the app for %s/%s, or name its installation: ravi secrets set %s --installation ID", g.owner, g.repo, g.name)
	case status == http.StatusNotFound:
		hint = "check the id of the installation; 0 has it found by the repository: ravi secrets set " + g.name + " --installation 0"
	case status == http.StatusForbidden || status == http.StatusUnprocessableEntity:
		hint = "check which permissions and repositories the app was given: ravi secrets show " + g.name
	}
	return refuse(errors.Join(ErrSource, &answer{status}), hint, "%s", message)
}

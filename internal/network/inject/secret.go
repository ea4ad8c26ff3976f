package inject

import (
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"ravi/internal/network/policy"
)

// Secret is a credential, and where its value may go.
type Secret struct {
	Name string `json:"name"`
	// Placeholder is what the sandbox has in its place; see NewPlaceholder.
	Placeholder string `json:"placeholder"`
	// Value is the credential. Empty: there is none now, and requests that need
	// it are refused.
	Value Value `json:"value"`
	// Hosts are names, *.names or name:port, as in a rule of the network.
	Hosts []string `json:"hosts"`
	// Headers are templates such as "Authorization: Bearer {}". A placeholder is
	// replaced in these headers, whatever stands around it; the first template is
	// what a rule that injects the secret sends.
	Headers []string `json:"headers"`
	// Query is a parameter in which a placeholder is replaced; empty: none.
	Query string `json:"query,omitempty"`
}

// Value is a credential that does not get into a message by mistake.
type Value string

// String does not give the value.
func (v Value) String() string { return "[secret]" }

// GoString does not give the value.
func (v Value) GoString() string { return `"[secret]"` }

const placeholderPrefix = "ravi-secret-"

// NewPlaceholder makes a placeholder for a secret: "ravi-secret-", the name in
// lower case, and 128 random bits. It may stand in a header, a URL or a host name.
func NewPlaceholder(name string) string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return placeholderPrefix + strings.ToLower(name+"-"+base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))
}

// DefaultHeader is where a credential usually stands.
const DefaultHeader = "Authorization: Bearer {}"

// Bounds of what a Set takes.
const (
	maxSecrets     = 64
	maxPlaceholder = 160
	minValue       = 8 // shorter ones would be found everywhere in responses
	maxValue       = 16 << 10
)

// bound is a secret that was checked.
type bound struct {
	Secret
	hosts   policy.Policy
	headers []template
	cores   []string // of the placeholder
}

// template is a header, with what stands around the value.
type template struct{ name, before, after string }

// check says what is wrong with a secret.
func check(s Secret) (*bound, error) {
	b := &bound{Secret: s, cores: cores(s.Placeholder)}
	fail := func(format string, args ...any) (*bound, error) {
		return nil, fmt.Errorf("the secret %s: %w", s.Name, fmt.Errorf(format, args...))
	}
	switch rest, ok := strings.CutPrefix(s.Placeholder, placeholderPrefix); {
	case s.Name == "":
		return nil, errors.New("a secret has no name")
	case !ok || len(rest) < 16 || len(s.Placeholder) > maxPlaceholder || s.Placeholder != strings.ToLower(s.Placeholder) ||
		strings.Trim(rest, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "":
		return fail("its placeholder is not one that Ravi made")
	case len(s.Hosts) == 0:
		return fail("it is bound to no host: name one")
	}
	if err := CheckValue(string(s.Value)); s.Value != "" && err != nil {
		return fail("%w", err)
	}
	var rules []policy.Rule
	for _, h := range s.Hosts {
		r, err := checkHost(h)
		if err != nil {
			return fail("%w", err)
		}
		rules = append(rules, r)
	}
	var err error
	if b.hosts, err = policy.FromRules(rules); err != nil {
		return fail("%w", err)
	}
	for _, h := range s.Headers {
		t, err := parseTemplate(h)
		if err != nil {
			return fail("%w", err)
		}
		b.headers = append(b.headers, t)
	}
	if len(b.headers) == 0 && s.Query == "" {
		return fail("it has neither a header nor a parameter to stand in")
	}
	return b, nil
}

// CheckValue says why a value cannot be one of a secret; the value is not in the
// error.
func CheckValue(value string) error {
	switch {
	case len(value) < minValue:
		return fmt.Errorf("the value has fewer than %d bytes: it could not be told from other text in a response", minValue)
	case len(value) > maxValue:
		return fmt.Errorf("the value has more than %d bytes", maxValue)
	case !httpguts.ValidHeaderFieldValue(value):
		return errors.New("the value has a line break or another control character, which no header can hold")
	case strings.TrimSpace(value) != value:
		return errors.New("the value begins or ends with a space")
	}
	return nil
}

// checkHost reads what a secret is bound to: a name, *.name or name:port.
func checkHost(host string) (policy.Rule, error) {
	r, err := policy.ParseRule(host)
	if err != nil {
		return r, err
	}
	name := strings.Trim(host, "[]")
	if _, err := netip.ParseAddrPort(host); err == nil || strings.Contains(host, "/") {
		return r, fmt.Errorf("%q is an address: a secret is bound to a name, which the server proves to have", host)
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return r, fmt.Errorf("%q is an address: a secret is bound to a name, which the server proves to have", host)
	}
	return r, nil
}

// notBindable are headers that say how a message is to be read or where it goes.
var notBindable = []string{"Host", "Content-Length", "Connection", "Transfer-Encoding", "Te", "Trailer", "Upgrade", "Expect",
	"Keep-Alive", "Proxy-Connection", "Accept-Encoding", "Range", "If-Range", "Request-Range", "Http2-Settings", "Proxy-Authorization"}

func parseTemplate(text string) (template, error) {
	name, value, found := strings.Cut(text, ":")
	before, after, one := strings.Cut(strings.TrimSpace(value), "{}")
	switch {
	case !found || !httpguts.ValidHeaderFieldName(name) || !one || strings.Contains(after, "{}") || !httpguts.ValidHeaderFieldValue(value):
		return template{}, fmt.Errorf("%q is not a header with one {} where the value goes, such as %q", text, DefaultHeader)
	case slices.Contains(notBindable, http.CanonicalHeaderKey(name)):
		return template{}, fmt.Errorf("the header %s cannot hold a secret", http.CanonicalHeaderKey(name))
	}
	return template{name: http.CanonicalHeaderKey(name), before: before, after: after}, nil
}

// binds says whether the secret's value may go there.
func (b *bound) binds(host string, port uint16) bool {
	return b.hosts.Connect(host, netip.Addr{}, port).Allowed
}

// at names the places that a placeholder may stand in, for people.
func (b *bound) at() string {
	var places []string
	for _, t := range b.headers {
		places = append(places, "the header "+t.name)
	}
	if b.Query != "" {
		places = append(places, "the parameter "+b.Query)
	}
	return strings.Join(places, " or ")
}

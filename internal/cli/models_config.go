package cli

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/textproto"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"ravi/internal/broker"
	"ravi/internal/broker/check"
	runs "ravi/internal/run"
	"ravi/internal/strictjson"
)

// modelsBlock is the block models of config.json: which model providers there are besides those that are known by
// themselves, what their calls may do, and how much one run may use.
type modelsBlock struct {
	Providers providerBlocks `json:"providers"`
	Allow     modelGrants    `json:"allow"`
	Limits    modelLimits    `json:"limits"`
}

// providerBlock is one provider. What is left out of anthropic, openai and gemini is as it would be without a block.
type providerBlock struct {
	Dialect broker.Dialect `json:"dialect,omitempty"`
	BaseURL baseURL        `json:"base_url,omitempty"`
	// Secret are the names of its keys, in the order in which they are tried.
	Secret  secretNames     `json:"secret,omitempty"`
	Auth    modelAuth       `json:"auth,omitempty"` // bearer, or the dialect's own way
	Models  modelPatterns   `json:"models,omitempty"`
	Headers providerHeaders `json:"headers,omitempty"`
	Prices  modelPrices     `json:"prices,omitempty"`
}

// These check what they hold when it is read, so that an error points into the file.
type (
	providerBlocks  map[string]providerBlock
	baseURL         string
	secretNames     []string
	modelAuth       string
	modelPatterns   []string
	providerHeaders map[string]string
	modelPrices     map[string]broker.Price
	modelGrants     []string
	modelLimits     broker.Limits
)

var (
	providerForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)
	modelForm    = regexp.MustCompile(`^[A-Za-z0-9*][A-Za-z0-9._:/@+*-]{0,199}$`)
	secretForm   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)
)

// bearer sends the key as a token, whatever the dialect's own way is.
const bearer = "bearer"

func (p *providerBlocks) UnmarshalJSON(data []byte) error {
	var blocks map[string]providerBlock
	if err := strictjson.Decode(data, &blocks); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(blocks)) {
		b := blocks[name]
		known, isKnown := knownProviders[name]
		dialects := []broker.Dialect{broker.Anthropic, broker.OpenAI, broker.Gemini}
		switch {
		case !providerForm.MatchString(name):
			return fmt.Errorf("%s is no name for a provider: small letters, digits and - only, at most 32", strconv.QuoteToASCII(name))
		case b.Dialect == "" && !isKnown:
			return fmt.Errorf("%s has no dialect: it is one of %v", name, dialects)
		case b.Dialect != "" && !slices.Contains(dialects, b.Dialect):
			return fmt.Errorf("%s has the dialect %s: it is one of %v", name, strconv.QuoteToASCII(string(b.Dialect)), dialects)
		case isKnown && b.Dialect != "" && b.Dialect != known.dialect:
			return fmt.Errorf("%s speaks the dialect %s; give a provider of another one another name", name, known.dialect)
		case !isKnown && b.BaseURL == "":
			return fmt.Errorf("%s has no base_url, such as %s", name, knownProviders[string(b.Dialect)].base)
		}
	}
	*p = blocks
	return nil
}

func (b *baseURL) UnmarshalJSON(data []byte) error {
	var text string
	if err := strictjson.Decode(data, &text); err != nil {
		return err
	}
	if _, err := parseBase(text); err != nil {
		return err
	}
	*b = baseURL(text)
	return nil
}

// parseBase reads the address of a provider. What it says wrong is never repeated: a credential may stand in it.
func parseBase(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("it is no address, such as https://api.example.com")
	}
	port, _ := strconv.ParseUint(u.Port(), 10, 16)
	switch {
	case u.User != nil:
		return nil, errors.New("there is a credential in the address; it is kept with ravi secrets set, and named by secret")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, errors.New("the address has a query or a fragment, and can have neither")
	case u.Scheme != "https" && u.Scheme != "http":
		return nil, errors.New("the address begins with https:// (or http://)")
	case u.Hostname() == "" || u.Opaque != "" || u.Port() != "" && port == 0 || strings.HasSuffix(u.Host, ":"):
		return nil, errors.New("the address names no host, or no port from 1 to 65535")
	case !httpguts.ValidHostHeader(u.Host) || u.RawPath != "" || strings.ContainsAny(u.Path, `\%?#`) || strings.ContainsFunc(u.Path, func(r rune) bool { return r <= ' ' || r > '~' }):
		return nil, errors.New("the address has characters that need no place in it")
	}
	u.Path = strings.TrimRight(u.Path, "/")
	if u.Path != "" && path.Clean(u.Path) != u.Path {
		return nil, errors.New("the path of the address is not a plain one")
	}
	return u, nil
}

func (s *secretNames) UnmarshalJSON(data []byte) error {
	var names []string
	if data[0] == '"' {
		names = make([]string, 1)
		if err := strictjson.Decode(data, &names[0]); err != nil {
			return err
		}
	} else if err := strictjson.Decode(data, &names); err != nil {
		return err
	}
	for _, name := range names {
		if !secretForm.MatchString(name) {
			return errors.New("it is no name of a secret: letters, digits and _ only; the key itself does not stand here")
		}
	}
	*s = names
	return nil
}

func (a *modelAuth) UnmarshalJSON(data []byte) error {
	var text string
	if err := strictjson.Decode(data, &text); err != nil {
		return err
	}
	if text != "" && text != bearer {
		return errors.New("it is bearer, or left out for the dialect's own way")
	}
	*a = modelAuth(text)
	return nil
}

func (m *modelPatterns) UnmarshalJSON(data []byte) error {
	var patterns []string
	if err := strictjson.Decode(data, &patterns); err != nil {
		return err
	}
	for _, p := range patterns {
		if !modelForm.MatchString(p) {
			return fmt.Errorf("%s is no name of a model, or pattern such as claude-*", strconv.QuoteToASCII(p))
		}
	}
	*m = patterns
	return nil
}

// ownHeaders are those that the broker sets itself, or that steer the request.
var ownHeaders = []string{
	"Authorization", "X-Api-Key", "X-Goog-Api-Key", "Cookie", "Host", "Content-Length", "Content-Type", "Content-Encoding", "Transfer-Encoding",
	"Connection", "Upgrade", "Te", "Trailer", "Expect", "Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "Accept", "Accept-Encoding",
}

func (h *providerHeaders) UnmarshalJSON(data []byte) error {
	var headers map[string]string
	if err := strictjson.Decode(data, &headers); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		canonical, value := textproto.CanonicalMIMEHeaderKey(name), headers[name]
		switch {
		case !httpguts.ValidHeaderFieldName(name):
			return fmt.Errorf("%s is no name of a header", strconv.QuoteToASCII(name))
		case seen[canonical]:
			return fmt.Errorf("the header %s is given twice", canonical)
		case slices.Contains(ownHeaders, canonical):
			return fmt.Errorf("the header %s is the broker's own to set; a key is kept with ravi secrets set, and named by secret", canonical)
		case !httpguts.ValidHeaderFieldValue(value):
			return fmt.Errorf("the value of the header %s cannot stand in one", canonical)
		case runs.LooksSecret(strings.ReplaceAll(name, "-", "_"), value) != "":
			return fmt.Errorf("the header %s looks like a credential; a key is kept with ravi secrets set, and named by secret", canonical)
		}
		seen[canonical] = true
	}
	*h = headers
	return nil
}

func (m *modelPrices) UnmarshalJSON(data []byte) error {
	var prices map[string]broker.Price
	if err := strictjson.Decode(data, &prices); err != nil {
		return err
	}
	for _, pattern := range slices.Sorted(maps.Keys(prices)) {
		p := prices[pattern]
		if !modelForm.MatchString(pattern) {
			return fmt.Errorf("%s is no name of a model, or pattern such as claude-*", strconv.QuoteToASCII(pattern))
		}
		const most = 1e6 // dollars a million tokens
		if low, high := min(p.Input, p.Output, p.CacheRead, p.CacheWrite), max(p.Input, p.Output, p.CacheRead, p.CacheWrite); low < 0 || high > most {
			return fmt.Errorf("a price of %s is negative, or more than %.0f dollars for a million tokens", pattern, float64(most))
		}
	}
	*m = prices
	return nil
}

// grantNames are what models.allow can have besides field:NAME and type:NAME.
var grantNames = []string{
	check.WebSearch, check.WebFetch, check.CodeExecution, check.MCP, check.URLs, check.Files, check.Store, check.Background, check.ImageGeneration,
	check.FileSearch,
}

func (g *modelGrants) UnmarshalJSON(data []byte) error {
	var names []string
	if err := strictjson.Decode(data, &names); err != nil {
		return err
	}
	for _, name := range names {
		if check.Known(name) {
			continue
		}
		text := fmt.Sprintf("%s is nothing that can be allowed", strconv.QuoteToASCII(name))
		if near := strictjson.Nearest(name, grantNames); near != "" {
			return fmt.Errorf("%s; did you mean %s?", text, near)
		}
		return fmt.Errorf("%s: it is one of %s, or %sNAME or %sNAME", text, strings.Join(grantNames, ", "), check.FieldPrefix, check.TypePrefix)
	}
	*g = names
	return nil
}

// grants are the names as the broker takes them.
func (g modelGrants) grants() check.Grants {
	out := check.Grants{}
	for _, name := range g {
		out[name] = true
	}
	return out
}

func (l *modelLimits) UnmarshalJSON(data []byte) error {
	limits := broker.Limits(*l)
	if err := strictjson.Decode(data, &limits); err != nil {
		return err
	}
	if limits.Requests < 0 || limits.Tokens < 0 || limits.USD < 0 || limits.PerMinute < 0 || math.IsInf(limits.USD, 0) {
		return errors.New("a limit is negative; 0 is none")
	}
	*l = modelLimits(limits)
	return nil
}

// headers are the provider's own, in canonical case.
func (p providerBlock) headers() map[string]string {
	out := map[string]string{}
	for name, value := range p.Headers {
		out[http.CanonicalHeaderKey(name)] = value
	}
	return out
}

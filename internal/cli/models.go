package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"ravi/internal/access"
	"ravi/internal/broker"
	"ravi/internal/broker/check"
	"ravi/internal/command"
	"ravi/internal/redact"
	runs "ravi/internal/run"
	"ravi/internal/secret"
)

// knownProvider is one that is there by itself, once there is a key for it.
type knownProvider struct {
	dialect broker.Dialect
	base    string
	baseEnv string   // the variable that names another upstream
	keys    []keyVar // the first that has a value counts
}

// keyVar is a variable, and the name of a secret, that holds a provider's key.
type keyVar struct {
	name   string
	bearer bool
}

var knownProviders = map[string]knownProvider{
	"anthropic": {broker.Anthropic, "https://api.anthropic.com", "ANTHROPIC_BASE_URL", []keyVar{{name: "ANTHROPIC_API_KEY"}, {name: "ANTHROPIC_AUTH_TOKEN", bearer: true}}},
	"openai":    {broker.OpenAI, "https://api.openai.com", "OPENAI_BASE_URL", []keyVar{{name: "OPENAI_API_KEY"}}},
	"gemini":    {broker.Gemini, "https://generativelanguage.googleapis.com", "GOOGLE_GEMINI_BASE_URL", []keyVar{{name: "GEMINI_API_KEY"}, {name: "GOOGLE_API_KEY"}}},
}

// inOrder are the known ones in the order in which they are preferred.
var inOrder = []string{"anthropic", "openai", "gemini"}

// models are the providers that runs can call, with their keys. The keys stay with whoever makes the calls.
type models struct {
	// Providers are those that have a key, or need none: anthropic, openai, gemini, then the others by name.
	Providers []broker.Provider
	Grants    check.Grants
	Limits    broker.Limits
	// Known are the keys' values as far as they are known, for whoever takes them out of what is shown. The broker knows
	// those of sources that make new ones.
	Known []redact.Pair
	// Secrets are the names of the secrets among the keys.
	Secrets []string
	// lacking are those that cannot be used, in the order of Providers.
	lacking []lack
}

// lack is a provider that cannot be used, and why.
type lack struct {
	name    string
	dialect broker.Dialect
	err     error
}

// of gives the providers of a dialect, at least one; no dialect is any. One that is there but for a mistake is told, rather
// than another taken in its place.
func (m models) of(dialect broker.Dialect) ([]broker.Provider, error) {
	var found []broker.Provider
	for _, p := range m.Providers {
		if dialect == "" || p.Dialect == dialect {
			found = append(found, p)
		}
	}
	var none error
	for _, l := range m.lacking {
		if dialect != "" && l.dialect != dialect {
			continue
		}
		err := modelsError(l.name, l.err)
		missing := new(noKeyError)
		if !errors.Is(l.err, access.ErrDenied) && (!errors.As(l.err, &missing) || missing.configured) {
			return nil, err
		}
		none = cmp.Or(none, err)
	}
	if len(found) > 0 {
		none = nil
	}
	return found, none
}

// within are the models that a profile lists: patterns of a provider and a model. A provider of which it lists none is none.
func (m models) within(profile string, patterns []string) models {
	out := m
	out.Providers, out.lacking = nil, nil
	denied := func(name string, d broker.Dialect) {
		out.lacking = append(out.lacking, lack{name, d, command.Denied(&access.Denied{Caller: "the profile " + profile, Missing: "any model of " + name})})
	}
	for _, p := range m.Providers {
		if p.Models = both(p.Models, modelsIn(patterns, p.Name)); len(p.Models) == 0 {
			denied(p.Name, p.Dialect)
			continue
		}
		out.Providers = append(out.Providers, p)
	}
	for _, l := range m.lacking {
		if len(modelsIn(patterns, l.name)) == 0 {
			denied(l.name, l.dialect)
			continue
		}
		out.lacking = append(out.lacking, l)
	}
	return out
}

// modelsIn are the patterns of models that are about a provider.
func modelsIn(patterns []string, provider string) (names []string) {
	for _, p := range patterns {
		if of, model, ok := strings.Cut(p, "/"); ok && (of == "*" || of == provider) {
			names = append(names, model)
		}
	}
	return names
}

// both are the patterns for what two lists have in common; no first list is everything. Of two patterns of which neither
// takes in the other, such as a* and *b, it is nothing.
func both(have, wanted []string) (out []string) {
	if len(have) == 0 {
		return wanted
	}
	for _, h := range have {
		for _, w := range wanted {
			if takesIn(w, h) && !slices.Contains(out, h) {
				out = append(out, h)
			} else if takesIn(h, w) && !slices.Contains(out, w) {
				out = append(out, w)
			}
		}
	}
	return out
}

// takesIn says whether a pattern holds for all that another one holds for, whose * counts as a letter that only a * stands for.
func takesIn(pattern, other string) bool {
	form := strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, `.*`)
	return regexp.MustCompile(`^(?s:` + form + `)$`).MatchString(other)
}

// modelsOf finds the providers: those of config.json, and those that are known by themselves if there is a key for them.
// A key is a variable of this program's environment, or a secret; variables are read now, secrets at each call.
func modelsOf(ctx context.Context, env *command.Env) (m models, err error) {
	file, err := env.Config()
	if err != nil {
		return m, err
	}
	var block modelsBlock
	if err := file.Models(&block); err != nil {
		return m, err
	}
	vault, err := secretStore(env)
	if err != nil {
		return m, err
	}
	m.Grants, m.Limits = block.Allow.grants(), broker.Limits(block.Limits)
	others := slices.DeleteFunc(slices.Sorted(maps.Keys(block.Providers)), func(name string) bool { return slices.Contains(inOrder, name) })
	for _, name := range slices.Concat(inOrder, others) {
		p, err := m.provider(ctx, vault, name, block.Providers[name])
		if ctx.Err() != nil {
			return models{}, ctx.Err()
		}
		if err == nil && m.Limits.USD > 0 && len(p.Prices) == 0 {
			err = fmt.Errorf("models.limits.usd of config.json bounds money, and no price is known; set models.providers.%s.prices", name)
		}
		if err != nil {
			m.lacking = append(m.lacking, lack{name, p.Dialect, err})
			continue
		}
		m.Providers = append(m.Providers, p)
	}
	return m, nil
}

// provider puts together what config.json, the environment and the secrets say.
func (m *models) provider(ctx context.Context, vault *secret.Store, name string, b providerBlock) (broker.Provider, error) {
	known := knownProviders[name]
	p := broker.Provider{
		Name: name, Dialect: cmp.Or(b.Dialect, known.dialect), Bearer: b.Auth == bearer, Models: b.Models, Headers: b.headers(), Prices: b.Prices,
	}
	var err error
	if p.BaseURL, err = upstream(string(b.BaseURL), known); err != nil {
		return p, err
	}
	switch {
	case len(b.Secret) > 0:
		for _, secretName := range b.Secret {
			key, err := m.key(ctx, vault, secretName, p.BaseURL)
			if missing := new(noKeyError); errors.As(err, &missing) {
				missing.configured = true
			}
			if err != nil {
				return p, err
			}
			p.Keys = append(p.Keys, key)
		}
		return p, nil
	case known.keys == nil:
		return p, nil // one that asks for none, such as a model on this machine
	}
	none := &noKeyError{host: p.BaseURL.Host}
	for _, v := range known.keys {
		key, err := m.key(ctx, vault, v.name, p.BaseURL)
		if missing := new(noKeyError); errors.As(err, &missing) {
			none.names = append(none.names, missing.names...)
			continue
		}
		p.Keys, p.Bearer = []broker.Key{key}, p.Bearer || v.bearer
		return p, err
	}
	return p, none
}

// upstream is the address of a provider: of config.json, or of the environment, or the usual one.
func upstream(configured string, known knownProvider) (*url.URL, error) {
	text, where := configured, "base_url"
	if text == "" && known.baseEnv != "" {
		text, where = os.Getenv(known.baseEnv), known.baseEnv
	}
	if text == "" {
		text, where = known.base, ""
	}
	u, err := parseBase(text)
	if err == nil && where == known.baseEnv && u.Scheme == "http" && !nearby(u.Hostname()) {
		err = errors.New("a key would go over the network in the open; begin it with https://, or name it in models.providers of config.json")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	return u, nil
}

// nearby says whether a host is this machine, or an address of a private network.
func nearby(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Zone() == "" && (addr.Unmap().IsLoopback() || addr.Unmap().IsPrivate())
}

// noKeyError says that neither a variable nor a secret has the name of a key.
type noKeyError struct {
	names []string
	host  string // of the provider
	// configured says that config.json names the key.
	configured bool
}

func (e *noKeyError) Error() string {
	return fmt.Sprintf("there is no key: neither is the variable %s set, nor is there a secret of that name", strings.Join(e.names, " or "))
}

// key finds a key by its name.
func (m *models) key(ctx context.Context, vault *secret.Store, name string, to *url.URL) (broker.Key, error) {
	if text := os.Getenv(name); text != "" {
		value, err := secret.ReadValue(strings.NewReader(text))
		if err != nil {
			return broker.Key{}, fmt.Errorf("the variable %s: %w", name, err)
		}
		text = value.Reveal()
		m.Known = append(m.Known, runs.KnownSecret(name, text))
		return broker.Key{Name: name, Value: func(context.Context) (string, error) { return text, nil }}, nil
	}
	about, err := vault.Get(ctx, name)
	if errors.Is(err, secret.ErrNotFound) {
		return broker.Key{}, &noKeyError{names: []string{name}, host: to.Host}
	}
	if err != nil {
		return broker.Key{}, err
	}
	switch {
	case about.Source == secret.GitHub:
		return broker.Key{}, fmt.Errorf("the secret %s makes tokens of a GitHub App, which are no keys of a model provider", name)
	case !boundTo(about.Hosts, to):
		return broker.Key{}, &command.Error{
			Code: command.CodeUsage, Message: fmt.Sprintf("the secret %s may not go to %s: it is bound to %s", name, to.Host, strings.Join(about.Hosts, ", ")),
			Hint: fmt.Sprintf("if it is meant for that one: ravi secrets set %s --host %s", name, strings.Join(append(slices.Clone(about.Hosts), to.Host), " --host ")), Status: http.StatusBadRequest, Exit: command.ExitUsage,
		}
	}
	lease, err := vault.Lease(ctx, name, secret.Scope{})
	if err != nil {
		return broker.Key{}, err
	}
	if about.Source == secret.Stored {
		value, _, err := lease.Value(ctx)
		if err != nil {
			return broker.Key{}, err
		}
		m.Known = append(m.Known, runs.KnownSecret(name, value))
	}
	m.Secrets = append(m.Secrets, name)
	return broker.Key{Name: name, Value: func(ctx context.Context) (string, error) {
		value, _, err := lease.Value(ctx)
		return value, err
	}}, nil
}

// boundTo says whether a secret's hosts have the one of an address. Secrets are bound to names, so an address is none.
func boundTo(hosts []string, to *url.URL) bool {
	port := cmp.Or(to.Port(), map[string]string{"https": "443", "http": "80"}[to.Scheme])
	name := strings.TrimSuffix(strings.ToLower(to.Hostname()), ".")
	return slices.ContainsFunc(hosts, func(bound string) bool {
		host, at, given := strings.Cut(bound, ":")
		if !given {
			at = "443"
		}
		below, wild := strings.CutPrefix(host, "*")
		return at == port && (host == name || wild && strings.HasSuffix(name, below) && len(name) > len(below))
	})
}

// modelsError tells what keeps a provider from being used.
func modelsError(provider string, err error) error {
	if none := new(noKeyError); errors.As(err, &none) {
		return &command.Error{
			Code: command.CodeUsage, Message: fmt.Sprintf("the model provider %s: %v", provider, err),
			Hint:   fmt.Sprintf("set the variable here (it stays outside of the sandbox), or keep the key: ravi secrets set %s --host %s", none.names[0], none.host),
			Status: http.StatusBadRequest, Exit: command.ExitUsage, Err: err,
		}
	}
	if told := new(command.Error); errors.As(err, &told) {
		return told
	}
	var told *command.Error
	if mapped := secretError(err); errors.As(mapped, &told) {
		told.Message = fmt.Sprintf("the model provider %s: %s", provider, err)
		return told
	}
	return &command.Error{
		Code: command.CodeConfig, Message: fmt.Sprintf("the model provider %s: %v", provider, err), Hint: "see docs/models.md",
		Status: http.StatusInternalServerError, Exit: command.ExitFailed, Err: err,
	}
}

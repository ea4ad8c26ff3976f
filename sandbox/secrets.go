package sandbox

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"ravi/internal/backend"
	"ravi/internal/network"
	"ravi/internal/network/inject"
)

// Secret is a credential that a sandbox can use and does not get. Inside there is
// a placeholder; in requests to Hosts, over HTTPS, it is replaced by the value.
type Secret struct {
	// Name is letters, digits and _.
	Name string
	// Value is the credential. It can be replaced while the sandbox runs.
	Value SecretValue
	// Hosts are names such as "api.github.com", "*.corp.example" or
	// "git.example:8443". That a secret is bound to a host does not allow the
	// sandbox to reach it: AllowNet does.
	Hosts []string
	// Headers are those that the placeholder may stand in, as templates:
	// "Authorization: Bearer {}", which is the default.
	Headers []string
	// Query is a parameter that it may stand in besides; empty: none.
	Query string
	// Env are the variables that hold the placeholder; nil: Name.
	Env []string
	// Placeholder is what to use in place of a new one.
	Placeholder string
}

// SecretValue is a credential that does not get into a message by mistake.
type SecretValue = inject.Value

// WithSecrets lets the sandbox use secrets. It needs a network.
func WithSecrets(secrets ...Secret) Option {
	return func(o *options) { o.secrets = append(o.secrets, secrets...) }
}

// secrets are those of a sandbox.
type secrets struct {
	mu  sync.Mutex
	all []Secret
	// known are the placeholders of one that another process opened.
	known map[string]string
}

var (
	secretName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)
	secretEnv  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
)

// takeSecrets checks the secrets, and gives each its placeholder: the one that
// the restored processes have, if there are any.
func (s *Sandbox) takeSecrets(given []Secret, kept map[string]string) error {
	if len(given) == 0 {
		return nil
	}
	switch {
	case s.backend == BackendHost:
		return fmt.Errorf("%w: on the host the network is open, and no secret can be put into its requests", backend.ErrUnsupported)
	case s.cfg.AllowNet.closed() && len(s.floor.AlwaysAllow) == 0:
		return fmt.Errorf("the secret %s is of no use without a network: allow the hosts that it is bound to (%s)", given[0].Name, strings.Join(given[0].Hosts, ", "))
	}
	variables := map[string]string{}
	for _, one := range given {
		if !secretName.MatchString(one.Name) {
			return fmt.Errorf("%q is not a name for a secret: letters, digits and _ only", one.Name)
		}
		if one.Headers == nil {
			one.Headers = []string{inject.DefaultHeader}
		}
		if one.Env == nil {
			one.Env = []string{one.Name}
		}
		for _, v := range one.Env {
			if !secretEnv.MatchString(v) {
				return fmt.Errorf("the secret %s: %q is not a name for a variable", one.Name, v)
			}
			if variables[v] != "" {
				return fmt.Errorf("the secrets %s and %s both want the variable %s", variables[v], one.Name, v)
			}
			variables[v] = one.Name
		}
		if one.Placeholder == "" {
			one.Placeholder = kept[one.Name]
		}
		if one.Placeholder == "" {
			one.Placeholder = inject.NewPlaceholder(one.Name)
		}
		s.secrets.all = append(s.secrets.all, one)
	}
	return new(inject.Set).Replace(s.secrets.list())
}

// list is what the gateway is told.
func (s *secrets) list() []inject.Secret {
	var list []inject.Secret
	for _, one := range s.all {
		list = append(list, inject.Secret{Name: one.Name, Placeholder: one.Placeholder, Value: one.Value, Hosts: one.Hosts, Headers: one.Headers, Query: one.Query})
	}
	return list
}

// giveSecrets hands the gateway the secrets as they are now.
func (s *Sandbox) giveSecrets(ctx context.Context) error {
	s.secrets.mu.Lock()
	defer s.secrets.mu.Unlock()
	if len(s.secrets.all) == 0 {
		return nil
	}
	list := s.secrets.list()
	if s.away != nil {
		var err error
		if list, err = s.away.setSecrets(list); err != nil {
			return err
		}
	}
	if _, err := s.line.order(ctx, network.Order{Secrets: &list}); err != nil {
		return fmt.Errorf("handing its network gateway the secrets: %w", err)
	}
	return nil
}

// SetSecret replaces the value of a secret that the sandbox was opened with. With
// an empty value requests that need the secret are refused from now on. Values that
// it had before are still taken out of responses.
func (s *Sandbox) SetSecret(ctx context.Context, name string, value SecretValue) error {
	if !s.own {
		return ErrNotOwner
	}
	if err := inject.CheckValue(string(value)); value != "" && err != nil {
		return fmt.Errorf("the secret %s: %w", name, err)
	}
	s.secrets.mu.Lock()
	i := slices.IndexFunc(s.secrets.all, func(one Secret) bool { return one.Name == name })
	if i >= 0 {
		s.secrets.all[i].Value = value
	}
	s.secrets.mu.Unlock()
	switch {
	case i < 0 && s.secrets.known[name] != "":
		return fmt.Errorf("the sandbox was taken over without its secrets, so that %s cannot be replaced", name)
	case i < 0:
		return fmt.Errorf("the sandbox was opened without a secret %q", name)
	}
	return s.explain(ctx, s.giveSecrets(ctx))
}

// Placeholders are what the sandbox holds in place of its secrets, by their names.
func (s *Sandbox) Placeholders() map[string]string {
	s.secrets.mu.Lock()
	defer s.secrets.mu.Unlock()
	m := map[string]string{}
	maps.Copy(m, s.secrets.known)
	for _, one := range s.secrets.all {
		m[one.Name] = one.Placeholder
	}
	return m
}

// secretVariables are the placeholders, for every process of the sandbox.
func (s *Sandbox) secretVariables(env map[string]string) {
	for _, one := range s.secrets.all {
		for _, v := range one.Env {
			env[v] = one.Placeholder
		}
	}
}

// gitCredentials is for git's system configuration: it asks for a credential when
// a server demands one, and gets a placeholder. The name is what GitHub wants to
// see with the token of an app, and others do not look at.
func (s *Sandbox) gitCredentials() string {
	var b strings.Builder
	for _, one := range s.secrets.all {
		if !slices.ContainsFunc(one.Headers, func(h string) bool { return strings.HasPrefix(strings.ToLower(h), "authorization:") }) {
			continue
		}
		for _, host := range one.Hosts {
			fmt.Fprintf(&b, "[credential \"https://%s\"]\n\thelper = \"!f() { test \\\"$1\\\" = get && echo username=x-access-token && echo password=%s; }; f\"\n", host, one.Placeholder)
		}
	}
	return b.String()
}

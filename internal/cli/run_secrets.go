package cli

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"ravi/internal/command"
	"ravi/internal/network/policy"
	"ravi/internal/redact"
	runs "ravi/internal/run"
	"ravi/internal/secret"
	"ravi/sandbox"
)

// runSecrets finds the run's secrets, and what a run must not show. A value that stands on the command line is refused:
// it would go into the sandbox.
func runSecrets(ctx context.Context, env *command.Env, in runInput, o *runs.Options) error {
	vault, known, err := refuseSecrets(ctx, env, in.Command, in.Env)
	if err != nil {
		return err
	}
	if o.Redact = known; known == nil {
		o.Redact = &redact.Redactor{} // what comes later is added to it
	}
	p, err := allowed(o.Config.AllowNet, o.NetworkFloor)
	if err != nil {
		return err
	}
	for _, name := range in.Secrets {
		if slices.Contains(o.Secrets, name) {
			continue
		}
		if err := maySecret(ctx, env, o.Store, name); err != nil {
			return err
		}
		about, err := vault.Get(ctx, name)
		if err != nil {
			return secretError(err)
		}
		if !slices.ContainsFunc(about.Hosts, func(host string) bool { return reaches(p, host) }) {
			return command.Usage(fmt.Sprintf("the secret %s is of no use to this run, which reaches none of its hosts (%s)", name, strings.Join(about.Hosts, ", ")),
				"add one to --allow-net, such as: --allow-net "+about.Hosts[0])
		}
		o.Secrets = append(o.Secrets, name)
	}
	for _, name := range injected(o.Config.AllowNet) {
		if !slices.Contains(o.Secrets, name) {
			return command.Usage(fmt.Sprintf("a rule of --allow-net injects the secret %s, which this run was not given", name), "add --secret "+name)
		}
	}
	o.Vault = vault
	return nil
}

// refuseSecrets opens the secrets, and gives what knows their values. One that stands in a command or in a variable for it
// is refused.
func refuseSecrets(ctx context.Context, env *command.Env, args []string, vars map[string]string) (*secret.Store, *redact.Redactor, error) {
	vault, err := secretStore(env)
	if err != nil {
		return nil, nil, secretError(err)
	}
	r, err := knownSecrets(ctx, env)
	if err != nil {
		return nil, nil, err
	}
	const hint = "give the name with --secret, and let the command use its variable"
	for _, arg := range args {
		if instead, found := r.Found(arg); found {
			return nil, nil, command.Usage("an argument of the command holds the value of a secret, "+instead, hint)
		}
	}
	for name, value := range vars {
		if instead, found := r.Found(value); found {
			return nil, nil, command.Usage(fmt.Sprintf("--env %s holds the value of a secret, %s", name, instead), hint)
		}
	}
	return vault, r, nil
}

// allowed is what a run may reach.
func allowed(a sandbox.AllowNet, floor policy.Floor) (policy.Effective, error) {
	p, err := a.Policy()
	return floor.Apply(p), err
}

// reaches says whether a run can reach a host that a secret is bound to. For *.NAME it is enough that there is a
// network: which of the hosts there are is not known.
func reaches(p policy.Effective, bound string) bool {
	name, port := bound, uint64(443)
	if host, text, err := net.SplitHostPort(bound); err == nil {
		name = host
		port, _ = strconv.ParseUint(text, 10, 16) // it was checked when it was set
	}
	return strings.HasPrefix(name, "*.") || p.Connect(name, netip.Addr{}, uint16(port)).Allowed
}

// injected are the names of the secrets that rules send unasked.
func injected(a sandbox.AllowNet) (names []string) {
	p, err := a.Policy()
	if err != nil {
		return nil // it was checked before
	}
	for _, r := range p.Rules() {
		names = append(names, r.Injects()...)
	}
	return names
}

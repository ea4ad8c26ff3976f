package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"ravi/internal/backend"
	"ravi/internal/network"
	"ravi/internal/network/policy"
	"ravi/internal/network/tap"
	"ravi/internal/strictjson"
)

// NetEvent is one decision of a sandbox's network: a question for a name, a
// request, or a connection that held none.
type NetEvent = network.Event

// WithNetEvents has f hear of every decision of the sandbox's network, in order.
// f is called from one goroutine and must be quick.
func WithNetEvents(f func(NetEvent)) Option { return func(o *options) { o.netEvents = f } }

// WithNetworkFloor sets what the operator decided about the network for every
// sandbox, as JSON: {"always_deny": [rules], "always_allow": [rules], "max":
// false, true or [rules]}. Whatever AllowNet says, now or later, what is denied
// is not reached, what is allowed is, and max bounds the rest.
func WithNetworkFloor(raw json.RawMessage) Option { return func(o *options) { o.netFloor = raw } }

// readFloor reads a floor, and refuses one that the backend cannot hold.
func readFloor(raw json.RawMessage, backendName string) (f policy.Floor, err error) {
	if len(raw) == 0 {
		return f, nil
	}
	if err := strictjson.Decode(raw, &f); err != nil {
		return f, fmt.Errorf("the network's floor: %w", err)
	}
	if err := f.Validate(); err != nil {
		return f, fmt.Errorf("the network's floor: %w", err)
	}
	if backendName == BackendHost && (len(f.AlwaysDeny) > 0 || f.Max != nil) {
		return f, fmt.Errorf("%w: on the host the network is open, and network.always_deny and network.max cannot be enforced", backend.ErrUnsupported)
	}
	return f, nil
}

// Policy is what the rules say.
func (a AllowNet) Policy() (policy.Policy, error) {
	switch {
	case a.All:
		return policy.All(), nil
	case a.closed():
		return policy.Policy{}, nil
	}
	var rules []policy.Rule
	for _, text := range a.Rules {
		r, err := parseRule(text)
		if err != nil {
			return policy.Policy{}, err
		}
		rules = append(rules, r)
	}
	return policy.FromRules(rules)
}

// parseRule reads a word such as "pypi.org", or an object as JSON.
func parseRule(text string) (r policy.Rule, err error) {
	if strings.HasPrefix(text, "{") {
		err = json.Unmarshal([]byte(text), &r)
		return r, err
	}
	return policy.ParseRule(text)
}

// closed says that there is no network at all.
func (a AllowNet) closed() bool { return !a.All && len(a.Rules) == 0 }

// networkConfig is what the keeper is told of the network; nil for none.
func (s *Sandbox) networkConfig(a AllowNet) (json.RawMessage, error) {
	if a.closed() && len(s.floor.AlwaysAllow)+len(s.serviceNames) == 0 || s.backend != BackendGVisor {
		return nil, nil
	}
	p, err := a.Policy()
	if err != nil {
		return nil, err
	}
	return s.networkJSON(p)
}

// HasNetwork says that the sandbox was made with a network that decides on what
// it may reach. The host backend has none: what runs there uses the host's own.
func (s *Sandbox) HasNetwork() bool { return s.network }

// SetAllowNet replaces what the sandbox may reach. Connections that it does not
// allow any more are cut. A sandbox that was made without a network gets none, and
// the floor that it was made with stays.
func (s *Sandbox) SetAllowNet(ctx context.Context, a AllowNet) error {
	if !s.own {
		return ErrNotOwner
	}
	p, err := a.Policy()
	if err != nil {
		return err
	}
	raw, err := s.networkJSON(p)
	if err != nil {
		return err
	}
	if err := s.away.setPolicy(s.networkOf(p)); err != nil {
		return err
	}
	return s.explain(ctx, s.inst.SetPolicy(ctx, raw))
}

// setUpNetwork lets what runs in the sandbox use its network: where names are
// answered, and whom to trust. Names that are known have their addresses already.
func (s *Sandbox) setUpNetwork(ctx context.Context, hear func(NetEvent), known []string) error {
	var certificate string
	hear, err := s.openAway(hear)
	if err != nil {
		return err
	}
	if s.line, certificate, err = newLine(ctx, s.inst.DialEvents, hear); err != nil {
		return fmt.Errorf("its network gateway: %w", err)
	}
	certificate += s.away.authority()
	if err := s.giveSecrets(ctx); err != nil {
		return err
	}
	if len(known) > 0 {
		if _, err := s.line.order(ctx, network.Order{Names: known}); err != nil {
			return fmt.Errorf("telling its network gateway the names of before: %w", err)
		}
	}
	res, err := s.Exec(ctx, Cmd{Args: []string{"/bin/sh", "-c", networkScript}, User: "root", GuestDir: "/", Stdin: strings.NewReader(certificate),
		Env: map[string]string{"GIT": s.gitCredentials()}})
	if err != nil || res.ExitCode != 0 {
		return errors.Join(err, fmt.Errorf("setting up its network failed with status %d: %s", res.ExitCode, res.Text(1000)))
	}
	env := map[string]string{}
	for _, name := range []string{
		"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "PIP_CERT", "DENO_CERT",
		"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "NIX_SSL_CERT_FILE",
	} {
		env[name] = bundlePath
	}
	env["NODE_EXTRA_CA_CERTS"] = caPath // which adds to those that Node has
	s.secretVariables(env)
	body, err := json.Marshal(map[string]any{"envVars": env, "timestamp": time.Now().UTC().Format(time.RFC3339Nano)})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://guest/init", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	out, err := s.client.HTTP.Do(req)
	if err != nil {
		return s.explain(ctx, err)
	}
	defer out.Body.Close()
	if out.StatusCode/100 != 2 {
		return fmt.Errorf("its guest agent does not take the network's variables: %s", out.Status)
	}
	return nil
}

// Where the certificates are, inside.
const (
	caPath     = "/etc/ravi/ca.pem"
	bundlePath = "/etc/ravi/ca-bundle.pem"
)

// networkScript writes the gateway's certificate, and a bundle of it and those
// that the image has, and says where names are answered.
var networkScript = `set -e
mkdir -p /etc/ravi
cat >` + caPath + `
: >` + bundlePath + `
for b in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem /etc/ssl/cert.pem; do
	if [ -s "$b" ]; then cat "$b" >` + bundlePath + `; break; fi
done
cat ` + caPath + ` >>` + bundlePath + `
for b in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt; do
	if [ -f "$b" ]; then to=$(readlink -f "$b"); cat ` + bundlePath + ` >"$to.ravi" && mv "$to.ravi" "$to"; fi
done
case "$(readlink /etc/resolv.conf)" in
/etc/ravi/*) ;;
*) rm -f /etc/resolv.conf ;;
esac
echo nameserver ` + tap.Sandbox.Gateway.String() + ` >/etc/resolv.conf
if [ -n "$GIT" ]; then
	printf %s "$GIT" >/etc/ravi/gitconfig
	case "$(cat /etc/gitconfig 2>/dev/null)" in
	*/etc/ravi/gitconfig*) ;;
	*) printf '[include]\n\tpath = /etc/ravi/gitconfig\n' >>/etc/gitconfig ;;
	esac
	chmod 0644 /etc/gitconfig /etc/ravi/gitconfig
fi
chmod 0644 ` + caPath + ` ` + bundlePath + ` /etc/resolv.conf
`

package bus

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// External is an existing server or cluster that is used in place of our own.
type External struct {
	// URL is where it is: one, or several of one cluster with commas between.
	URL string
	// CredsFile is a credential of the account that is to be CONTROL; who has it may do everything there.
	CredsFile string
	// AccountKeyFile has a signing key of that account, which makes credentials for runners and the processes of runs;
	// "" makes none.
	AccountKeyFile string
	// CAFile has the authorities of its certificate; "" are those of the system.
	CAFile string
	// Home and Dir are as in Options: the daemon's curve key is its own here too.
	Home, Dir string
	// Log is where connections say what goes on: slog.Default().
	Log *slog.Logger
}

// Existing is a bus that is not ours. It has one account, so guests of clients are not let in; and who is revoked is said
// with the tools of its operator.
type Existing struct {
	e      External
	keys   *keys
	signer *signer // nil: no credentials are made
}

var _ Bus = (*Existing)(nil)

// Connect looks whether the server is there and takes the credential.
func Connect(ctx context.Context, e External) (*Existing, error) {
	if e.Log == nil {
		e.Log = slog.Default()
	}
	if !filepath.IsAbs(e.Dir) || !filepath.IsAbs(e.Home) {
		return nil, refuse(ErrOptions, "", "the folder of the bus and Ravi's home must be absolute paths, not %q and %q", e.Dir, e.Home)
	}
	if err := ourFolder(e.Dir); err != nil {
		return nil, err
	}
	keys, err := openKeys(ctx, e.Home, e.Dir)
	if err != nil {
		return nil, err
	}
	x := &Existing{e: e, keys: keys}
	if e.AccountKeyFile != "" {
		if x.signer, err = x.readSigner(); err != nil {
			return nil, err
		}
	}
	nc, err := x.Control(ctx)
	if err != nil {
		return nil, err
	}
	nc.Close()
	return x, nil
}

// readSigner reads the signing key of the account that the credential is of.
func (x *Existing) readSigner() (*signer, error) {
	path := x.e.AccountKeyFile
	data, err := readPrivate(path)
	if err != nil {
		return nil, err
	}
	seed := ""
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "SA") {
			seed = line
		}
	}
	public, err := publicOf(seed, nkeys.PrefixByteAccount)
	if err != nil {
		return nil, refuse(ErrCredential, "it is one line that begins with SA, as nsc and nk write it", "there is no key of an account in %s", path)
	}
	pair, err := nkeys.FromSeed([]byte(seed))
	if err != nil {
		return nil, errors.New("the key of the account is none")
	}
	c, err := ReadFile(x.e.CredsFile)
	if err != nil {
		return nil, err
	}
	claims, err := jwt.DecodeUserClaims(c.JWT)
	if err != nil {
		return nil, errors.New("the credential of the bus cannot be read")
	}
	account := claims.IssuerAccount
	if account == "" {
		account = claims.Issuer
	}
	if account == public {
		account = ""
	}
	return &signer{pair: pair, account: account, curve: x.keys.doc.Curve, now: time.Now}, nil
}

// Control is a new connection in the account of the credential.
func (x *Existing) Control(ctx context.Context, opts ...nats.Option) (*nats.Conn, error) {
	c, err := ReadFile(x.e.CredsFile)
	if err != nil {
		return nil, err
	}
	return Dial(ctx, x.e.URL, c, WithTrust(x.Trust()), WithLog(x.e.Log), WithRenewal(RenewFile(x.e.CredsFile)), WithNATS(opts...))
}

// Client cannot be done: one account has no others in it.
func (x *Existing) Client(context.Context, string, ...nats.Option) (*nats.Conn, error) {
	return nil, x.cannot("make an account for a client")
}

// Issue makes credentials in the account, if there is a signing key of it.
func (x *Existing) Issue(_ context.Context, r Request) (Credential, error) {
	if err := r.check(); err != nil {
		return Credential{}, err
	}
	if r.Account != "" {
		return Credential{}, x.cannot("let a client's guests in: it has no account for each client")
	}
	if x.signer == nil {
		return Credential{}, refuse(ErrExternal, "set bus.account_key to a file with a signing key of its account, or make the credential with the tools of its operator",
			"the bus at %s is not ours, and no key for making credentials is given", x.e.URL)
	}
	return x.signer.issue(r)
}

// Revoke cannot be done: the account's operator says who is revoked.
func (x *Existing) Revoke(_ context.Context, _ string, users map[string]time.Time) error {
	if len(users) == 0 {
		return nil
	}
	return refuse(ErrExternal, "revoke it with the tools of its operator, such as nsc revocations add-user, or wait for its end",
		"the bus at %s is not ours: a credential cannot be revoked there from here", x.e.URL)
}

func (x *Existing) cannot(what string) error {
	return refuse(ErrExternal, "use the bus of the daemon (leave bus.url out), and join the other one as a leaf node: bus.leaf",
		"the bus at %s is not ours, and cannot %s", x.e.URL, what)
}

// Curve is the key pair of the daemon for what is sealed from end to end.
func (x *Existing) Curve() (nkeys.KeyPair, error) {
	return nkeys.FromSeed([]byte(x.keys.doc.Curve))
}

// Ready says nothing: what a server stores is its operator's matter, and errors of streams say it.
func (x *Existing) Ready() error { return nil }

// URL is where it is.
func (x *Existing) URL() string { return x.e.URL }

// Trust is what is checked there.
func (x *Existing) Trust() Trust { return Trust{CA: x.e.CAFile} }

// Addrs are none: nothing listens here.
func (x *Existing) Addrs() []netip.AddrPort { return nil }

// Close does nothing: connections are their callers'.
func (x *Existing) Close() error { return nil }

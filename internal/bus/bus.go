// Package bus is the message bus of a daemon: an embedded NATS server that nobody enters without a credential, or an
// existing server that is named. It makes accounts, credentials and certificates, and connects all of ours in one way.
//
// A bus has the accounts SYS, CONTROL (the daemon, the processes of runs, runners) and one for each client, in which its
// guests are; what is in one account is not seen from another. A credential (Issue) is a user of one account, with exact
// lists of what it may publish and subscribe to, an inbox of its own, pinned kinds of connections, an end and limits.
// Revoke takes credentials back and cuts their connections. Dial is the way in for everything of ours.
//
// The package touches <home>/bus (0700): keys.age, encrypted with the key that secrets.age has; jetstream; tls; lock.
// It opens the ports that it is told to, never one beyond loopback without TLS, and never a port for monitoring. It knows
// nothing of runs, records and messages, and no seed of it stands in a log line, an error or an argument.
package bus

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// The causes of errors, for errors.Is.
var (
	// ErrOptions refuses options: something is missing, or contradicts something else.
	ErrOptions = errors.New("refused options")
	// ErrExposed refuses to listen beyond loopback without TLS.
	ErrExposed = errors.New("it would be exposed without TLS")
	// ErrPort says that the address cannot be listened on.
	ErrPort = errors.New("the bus cannot listen there")
	// ErrRunning says that another process has this bus open.
	ErrRunning = errors.New("the bus runs already")
	// ErrKeys says that the keys of the bus cannot be read.
	ErrKeys = errors.New("the keys of the bus cannot be used")
	// ErrTLS says that certificates cannot be read or made.
	ErrTLS = errors.New("the certificate cannot be used")
	// ErrRequest refuses a request for a credential.
	ErrRequest = errors.New("refused request for a credential")
	// ErrCredential says that something is no credential, or could have been read by others.
	ErrCredential = errors.New("not a credential that can be used")
	// ErrExpired says that a credential has ended and none came in its place.
	ErrExpired = errors.New("the credential has expired")
	// ErrRefused says that the bus does not take a credential.
	ErrRefused = errors.New("the bus refused the credential")
	// ErrUnreachable says that nothing answers as a bus.
	ErrUnreachable = errors.New("the bus cannot be reached")
	// ErrNotBus says that what answers is no NATS server.
	ErrNotBus = errors.New("it is no NATS server")
	// ErrExternal says that an existing server which is not ours cannot do this: accounts for clients, and revoking.
	ErrExternal = errors.New("an external bus cannot do this")
	// ErrFull says that no more can be stored: the limit or the disk.
	ErrFull = errors.New("the bus has no space")
	// ErrClosed says that the bus was closed.
	ErrClosed = errors.New("the bus is closed")
)

// Error is what people are told: what happened, and what mends it. Neither holds a key.
type Error struct {
	Message string
	Hint    string
	Err     error // one of the causes above, and what is beneath it
}

func (e *Error) Error() string { return e.Message }

func (e *Error) Unwrap() error { return e.Err }

func refuse(cause error, hint, format string, args ...any) *Error {
	return &Error{Message: fmt.Sprintf(format, args...), Hint: hint, Err: cause}
}

// Bus is what the daemon needs of a bus: Server has it, and Existing. It is safe for concurrent use.
type Bus interface {
	// Control is a new connection of the daemon's own in CONTROL, where it may do everything. The caller closes it.
	Control(ctx context.Context, opts ...nats.Option) (*nats.Conn, error)
	// Client is the same in the account of a client, which is made if there is none.
	Client(ctx context.Context, client string, opts ...nats.Option) (*nats.Conn, error)
	// Issue makes a credential, or renews one. It is recorded nowhere: whoever asks for it records Credential.User.
	Issue(ctx context.Context, r Request) (Credential, error)
	// Revoke says which users of an account (a client, or "" for CONTROL) are revoked, by public key, and when they were:
	// what was issued until then is taken no more, and live connections are cut before it returns. It is the whole set
	// each time; who is not in it is not revoked. A restart keeps it. Those whose credentials are over need not be in it.
	Revoke(ctx context.Context, account string, users map[string]time.Time) error
	// Curve is the key pair of the daemon for what is sealed from end to end; the Peer of runners' credentials.
	Curve() (nkeys.KeyPair, error)
	// URL is where programs of this machine connect, and Trust what they check there: give both to Dial.
	URL() string
	Trust() Trust
	// Addrs are the addresses that it listens on, none for an external one.
	Addrs() []netip.AddrPort
	// Ready is nil, or why it stores nothing: ErrFull. Who could not publish to a stream asks it.
	Ready() error
	Close() error
}

// Kind says what a credential is for.
type Kind string

// The kinds of credentials that can be issued.
const (
	KindOwner    Kind = "owner"    // the process of one run, in CONTROL
	KindRunner   Kind = "runner"   // a runner elsewhere, in CONTROL
	KindGuest    Kind = "guest"    // the sandbox of one run, in its client's account
	KindOperator Kind = "operator" // a person or program that an operator lets in, with the subjects that they name
)

// Bounds of credentials.
const (
	// GuestPayload is the most bytes of a guest's message. NATS cuts the connection of who sends more.
	GuestPayload = 64 << 10
	// GuestSubscriptions is the most subscriptions of a guest.
	GuestSubscriptions = 16
	// MaxTTL is the longest life of a credential.
	MaxTTL = 366 * 24 * time.Hour

	maxSubjects = 64
)

// Request is what a credential is to be.
type Request struct {
	Kind Kind
	// Account is the client whose account it is in, and "" for CONTROL. Guests have one, owners and runners none.
	Account string
	// Name is what it is called: a runner's name, or a label. Letters, digits, - and _.
	Name string
	// RunID is the run of an owner or guest.
	RunID string
	// Publish and Subscribe are the subjects of an operator's credential; others' follow from what they are.
	Publish, Subscribe []string
	// TTL is how long it is good for.
	TTL time.Duration
	// WebSocket lets it connect by WebSocket too.
	WebSocket bool
	// From are the addresses that it may connect from, nothing for all. It is an extra layer.
	From []netip.Prefix
	// User is the public key of the credential that this one renews: the holder keeps its seeds, and none are made.
	User string
}

// Trust says how the certificate of a server is checked.
type Trust struct {
	// CA is a PEM file of authorities; "" are those of the system.
	CA string
	// ServerName is the name that the certificate must have, where it is not the one in the URL.
	ServerName string
}

var (
	tokenForm  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
	clientForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)
)

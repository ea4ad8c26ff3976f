// Package network is the network of one sandbox: it answers names, decides on
// every connection and every request, and tells what it decided.
//
// It runs in two processes of a keeper. The gateway (Gateway) has the far end of
// the sandbox's cable and reads what the guest writes; it has no network itself.
// The dialer (Dialer) opens connections for it, and checks each against the same
// policy once more, so that a gateway that was taken over reaches nothing that
// the policy does not allow.
//
// The package must not know of runs, keys or the command line, nor open a socket
// but through the dialer.
package network

import (
	"net/netip"
	"time"

	"ravi/internal/network/dial"
	"ravi/internal/network/policy"
)

// Config is what a sandbox's network may do. Its owner writes it.
type Config struct {
	// Policy is what the run asked for, Floor what the operator allows at all.
	Policy policy.Policy `json:"allow_net"`
	Floor  policy.Floor  `json:"floor"`
	// Services are the names, without ServiceDomain, that the owner serves.
	Services []string `json:"services,omitempty"`
	// Seed stands for the sandbox in the addresses that names get.
	Seed string `json:"seed"`
	// Proxy is what the dialer opens connections through; nil: nothing.
	Proxy *dial.Proxy `json:"proxy,omitempty"`
	// ExtraCAs are certificates, as PEM, that servers' may lead to besides the
	// host's own, by the host that it holds for: a name, an address or *.name. Of
	// several the name itself decides, then the longest.
	ExtraCAs map[string]string `json:"extra_cas,omitempty"`
	// Delegate has connections be the owner's.
	Delegate Delegation `json:"delegate,omitempty"`
}

// Delegation says which connections a gateway hands its owner as they are (Visit), once the policy allows them, in place of
// looking into them and dialling: those that need what must not come to where the gateway is. Package outlet is the
// owner's side.
type Delegation string

// The delegations.
const (
	DelegateNone  Delegation = ""
	DelegateBound Delegation = "bound" // to hosts that a secret is bound to
	DelegateAll   Delegation = "all"   // all; UDP goes nowhere
)

// Valid says whether it is one of those.
func (d Delegation) Valid() bool {
	return d == DelegateNone || d == DelegateBound || d == DelegateAll
}

// Effective is the policy on its floor.
func (c Config) Effective() policy.Effective { return c.Floor.Apply(c.Policy) }

// Kind says what an Event is about.
type Kind string

// The kinds of events.
const (
	KindName Kind = "dns"  // a question for a name
	KindFlow Kind = "flow" // a request, or a connection that held none
	KindLost Kind = "lost" // events that are missing here, and how many
)

// Event is one decision.
type Event struct {
	Time time.Time `json:"time"`
	Kind Kind      `json:"kind"`
	// Name is what was asked for or connected to, or empty for an address.
	Name string     `json:"name,omitempty"`
	Addr netip.Addr `json:"addr,omitzero"`
	Port uint16     `json:"port,omitempty"`
	// Proto is "http/1.1", "h2", "tls-passthrough" and the like; TLS says that
	// what is described was inside TLS.
	Proto  string `json:"proto,omitempty"`
	TLS    bool   `json:"tls,omitempty"`
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"` // without the query
	Status int    `json:"status,omitempty"`

	Allowed bool   `json:"allowed"`
	Rule    string `json:"rule,omitempty"` // that decided
	Why     string `json:"why,omitempty"`
	Hint    string `json:"hint,omitempty"`

	// Secrets are the names of those whose values were put into the request.
	Secrets []string `json:"secrets,omitempty"`
	// Alarm says that a placeholder of a secret was sent to where it does not
	// belong, which nothing does by accident.
	Alarm bool `json:"alarm,omitempty"`

	Lost int `json:"lost,omitempty"` // how many events are missing

	BytesIn  int64 `json:"bytes_in,omitempty"`
	BytesOut int64 `json:"bytes_out,omitempty"` // that left the sandbox
}

// Hello is the first line that an owner says on a gateway's socket.
type Hello struct {
	// Services: the connection is for Visits.
	Services bool `json:"services"`
	// Dial: the connection is to become one to this HOST:PORT, as if a process of
	// the sandbox had made it. A Message says whether it has. Without either it is
	// for Messages and Orders.
	Dial string `json:"dial,omitempty"`
}

// Message is one line that a gateway tells its owner: the greeting first, then
// events.
type Message struct {
	// CA is the certificate, as PEM, that the gateway ends TLS with.
	CA string `json:"ca,omitempty"`
	// Event is a decision.
	Event *Event `json:"event,omitempty"`
	// Lost is how many events there were before this message that nobody took.
	Lost int `json:"lost,omitempty"`
	// Done answers an Order; Error is why it was refused.
	Done  bool     `json:"done,omitempty"`
	Error string   `json:"error,omitempty"`
	Names []string `json:"names,omitempty"` // that were asked for, if the Order wants them
}

package doctor

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// Listener is something of ours that listens.
type Listener struct {
	// Name is what it is, for people and in ids: gateway, bus, bus_websocket, or port_ and the number.
	Name   string   `json:"name"`
	Port   uint16   `json:"port"`
	Speaks Protocol `json:"speaks"`
	// Secure says that TLS is expected, and so tried first.
	Secure bool `json:"secure,omitempty"`
	// PID is the process whose socket it is to be; 0: whoever's.
	PID int `json:"pid,omitempty"`
}

// Enumerate gives the addresses to dial.
type Enumerate func() ([]Address, error)

// State is who reaches a listener, as far as dialling from this machine shows. A firewall elsewhere may keep others away
// all the same, and nothing is said about that.
type State string

// The states.
const (
	LoopbackOnly State = "loopback_only"
	Exposed      State = "exposed"
	Closed       State = "closed" // nothing of ours answers anywhere
)

// Answer is what dialling one address of this machine gave.
type Answer struct {
	Address
	Kind    string  `json:"kind"`
	Outcome Outcome `json:"outcome"`
	// Problem is why it could not be told, where it could not.
	Problem  string   `json:"problem,omitempty"`
	Protocol Protocol `json:"protocol,omitempty"`
	TLS      Known    `json:"tls,omitempty"`
	Auth     Known    `json:"auth,omitempty"`
	// Stranger is the process that answers there, if it is another than the listener's.
	Stranger string `json:"stranger,omitempty"`

	server string
	cert   *x509.Certificate
}

// Exposure is who reaches a listener.
type Exposure struct {
	Listener
	State State `json:"state"`
	// Exposed are the addresses beyond loopback at which it answers.
	Exposed []Address `json:"exposed"`
	// Wide says that it listens on every address, whichever there are now.
	Wide bool `json:"wide"`
	// TLS and Auth are the weakest of what stands in front, over all addresses that answer.
	TLS     Known    `json:"tls"`
	Auth    Known    `json:"auth"`
	Answers []Answer `json:"answers"` // one for each address
}

// String is the state, with how many addresses it is exposed on.
func (e Exposure) String() string {
	if e.State == Exposed {
		return fmt.Sprintf("exposed (%s)", count(len(e.Exposed), "address", "addresses"))
	}
	return string(e.State)
}

// Front says what stands in front.
func (e Exposure) Front() string {
	say := func(what string, k Known) string {
		switch k {
		case Yes:
			return what
		case No:
			return "no " + what
		}
		return what + " unknown"
	}
	return say("TLS", e.TLS) + ", " + say("authentication", e.Auth)
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// mostDials is how many addresses are dialled at once.
const mostDials = 16

// Expose dials a listener on every address that enumerate gives, and tells which answer and what stands in front.
func Expose(ctx context.Context, l Listener, enumerate Enumerate) (Exposure, error) {
	return expose(ctx, l, enumerate, procRoot)
}

// procRoot is where the kernel shows processes.
const procRoot = "/proc"

func expose(ctx context.Context, l Listener, enumerate Enumerate, proc string) (Exposure, error) {
	e := Exposure{Listener: l, Exposed: []Address{}, Answers: []Answer{}, TLS: Unknown, Auth: Unknown}
	addrs, err := enumerate()
	if err != nil {
		return e, err
	}
	var ours []socket   // of the process
	var others []socket // of other processes, at this port
	if l.PID != 0 {
		if ours, others, err = socketsOf(proc, l.PID, l.Port); err != nil {
			return e, fmt.Errorf("the sockets of process %d: %w", l.PID, err)
		}
		e.Wide = slices.ContainsFunc(ours, socket.wide)
	}
	e.Answers = make([]Answer, len(addrs))
	room := make(chan struct{}, mostDials)
	var work sync.WaitGroup
	for i, a := range addrs {
		work.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			s := probe(ctx, netip.AddrPortFrom(a.Addr, l.Port), l.Speaks, l.Secure)
			e.Answers[i] = Answer{Address: a, Kind: a.Kind(), Outcome: s.outcome, Problem: s.problem, server: s.server, cert: s.cert}
			if s.outcome == Answered {
				e.Answers[i].Protocol, e.Answers[i].TLS, e.Answers[i].Auth = s.protocol, s.tls, s.auth
			}
		})
	}
	work.Wait()
	if err := ctx.Err(); err != nil {
		return e, context.Cause(ctx)
	}
	e.judge(proc, ours, others)
	return e, nil
}

// judge sums up what the addresses gave.
func (e *Exposure) judge(proc string, ours, others []socket) {
	e.State = Closed
	first := true
	for i := range e.Answers {
		a := &e.Answers[i]
		if a.Outcome != Answered {
			continue
		}
		if e.PID != 0 {
			a.Stranger = stranger(proc, netip.AddrPortFrom(a.Addr, e.Port), ours, others)
		}
		if a.Stranger != "" {
			continue // that one's business
		}
		if a.Kind != Loopback {
			e.Exposed = append(e.Exposed, a.Address)
			e.State = Exposed
		} else if e.State == Closed {
			e.State = LoopbackOnly
		}
		if first {
			e.TLS, e.Auth, first = a.TLS, a.Auth, false
			continue
		}
		e.TLS, e.Auth = weaker(e.TLS, a.TLS), weaker(e.Auth, a.Auth)
	}
}

// weaker is the worse of two.
func weaker(a, b Known) Known {
	switch {
	case a == No || b == No:
		return No
	case a == Unknown || b == Unknown:
		return Unknown
	}
	return Yes
}

// socketsOf are the listening sockets of a process, port 0 being any, and those of others at the same port.
func socketsOf(proc string, pid int, port uint16) (ours, others []socket, err error) {
	all, err := listening(proc, pid)
	if err != nil {
		return nil, nil, err
	}
	own, err := descriptors(proc, pid)
	if err != nil {
		return nil, nil, err
	}
	for _, s := range all {
		switch {
		case own[s.inode] && (port == 0 || s.at.Port() == port):
			ours = append(ours, s)
		case !own[s.inode] && port != 0 && s.at.Port() == port:
			others = append(others, s)
		}
	}
	return ours, others, nil
}

// stranger is the process that answers at an address, if it is not ours. A socket of one address goes before one of all.
func stranger(proc string, at netip.AddrPort, ours, others []socket) string {
	serves := func(wide bool) func(socket) bool {
		return func(s socket) bool { return s.wide() == wide && s.serves(at) }
	}
	for _, wide := range []bool{false, true} {
		if slices.ContainsFunc(ours, serves(wide)) {
			return ""
		}
		if i := slices.IndexFunc(others, serves(wide)); i >= 0 {
			if who := holder(proc, others[i].inode); who != "" {
				return who
			}
			return "another process"
		}
	}
	return "something that passes it on: no socket of this network listens there"
}

// OpenPorts are the TCP ports that a process listens on.
func OpenPorts(pid int) ([]uint16, error) { return openPorts(procRoot, pid) }

func openPorts(proc string, pid int) ([]uint16, error) {
	ours, _, err := socketsOf(proc, pid, 0)
	if err != nil {
		return nil, err
	}
	ports := []uint16{}
	for _, s := range ours {
		ports = append(ports, s.at.Port())
	}
	slices.Sort(ports)
	return slices.Compact(ports), nil
}

// Endpoint is a listener that the configuration gives, and how to make it otherwise.
type Endpoint struct {
	Name   string // gateway, bus, bus_websocket
	Speaks Protocol
	// Host and Port are those that config.json gives now; port 0 is any free one, and with Off there is none.
	Host string
	Port int
	Off  bool
	// Actual is where the daemon says that it listens; empty if it says nothing of it.
	Actual string
	// TLS says that config.json asks for TLS, with the certificate in the file Cert; empty: not known which.
	TLS  bool
	Cert string
	// HostKey, PortKey and TLSKeys are the settings' names, for what mends it.
	HostKey, PortKey string
	TLSKeys          []string
	// Auth says that callers elsewhere show a credential whatever is configured. Else its lack is mended by AuthFix.
	AuthFix string
}

// restart is the command that has the daemon run with what the configuration gives now.
const restart = "ravi daemon restart --recreate"

// findings judges an exposure of an endpoint.
func (e Endpoint) findings(r *result, x Exposure) {
	if len(x.Exposed) > 0 {
		e.exposed(r, x)
	} else if x.Wide {
		r.find(Warn, e.Name+".wide", "", e.narrow(), "%s listens on every address of this machine. It has none beyond loopback that answers now; once it has, others reach it there", e.called())
	}
	var strangers []string
	for _, a := range x.Answers {
		if a.Stranger != "" {
			strangers = append(strangers, fmt.Sprintf("%s: %s", a.Address, a.Stranger))
		}
	}
	if len(strangers) > 0 {
		r.find(Warn, e.Name+".stranger", "", fmt.Sprintf("end what listens there, or: ravi config set %s PORT && %s", e.PortKey, restart),
			"at port %d not only the daemon answers, so who calls %s there talks to another", x.Port, e.called())
		r.findings[len(r.findings)-1].Evidence = strangers
	}
}

func (e Endpoint) exposed(r *result, x Exposure) {
	names := make([]string, len(x.Exposed))
	for i, a := range x.Exposed {
		names[i] = a.String() + ", " + a.Kind()
	}
	where := fmt.Sprintf("%s is %s on port %d: %s", e.called(), x, x.Port, strings.Join(addressNames(x.Exposed), ", "))
	severity, fix, what := Info, "", ""
	switch {
	case x.Auth == No:
		severity, fix, what = Error, e.narrow(), "It lets in whoever connects, without any credential"
		if e.AuthFix != "" {
			fix = e.AuthFix
		}
	case x.TLS == No:
		severity, fix, what = Error, e.narrow(), "There is no TLS, so whoever is on the way reads what is sent there, credentials too"
		if len(e.TLSKeys) > 0 {
			fix += "; or have it speak TLS: set " + strings.Join(e.TLSKeys, " and ") + " in config.json, then: " + restart
		}
	case !e.wanted():
		severity, fix, what = Error, restart, fmt.Sprintf("config.json says %s, so it was started with something else", e.Host)
	case x.Auth == Unknown || x.TLS == Unknown:
		severity, fix, what = Warn, e.narrow(), "Whether it demands "+unknowns(x)+" could not be told"
	default:
		fix, what = "nothing, if that is meant; else: "+e.narrow(), "TLS and authentication stand in front, and config.json says so"
	}
	r.find(severity, e.Name+".exposed", "", fix, "%s. %s", where, what)
	r.findings[len(r.findings)-1].Evidence = names
}

func unknowns(x Exposure) string {
	switch {
	case x.Auth != Unknown:
		return "TLS"
	case x.TLS != Unknown:
		return "a credential"
	}
	return "TLS and a credential"
}

// addressNames are addresses for people.
func addressNames(addrs []Address) []string {
	out := make([]string, len(addrs))
	for i, a := range addrs {
		out[i] = a.String()
	}
	return out
}

// wanted says whether config.json has it listen elsewhere than on loopback.
func (e Endpoint) wanted() bool { return e.Host != "" && !loopbackHost(e.Host) }

func loopbackHost(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// narrow is the command that has it listen on loopback only.
func (e Endpoint) narrow() string {
	if e.HostKey == "" || !e.wanted() {
		return restart
	}
	return fmt.Sprintf("ravi config set %s 127.0.0.1 && %s", e.HostKey, restart)
}

func (e Endpoint) called() string { return "the " + strings.ReplaceAll(e.Name, "_", " ") }

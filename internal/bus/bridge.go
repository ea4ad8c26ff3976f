package bus

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"
)

// The first line of a server (https://docs.nats.io/reference/reference-protocols/nats-protocol#info) is bounded, and has to
// come in time.
const (
	maxInfo    = 32 << 10
	infoWithin = 10 * time.Second
)

// toGuests are the parts of the first line that a client needs. The others say where the server and its cluster are, which
// addresses this machine has, and how it is set up.
var toGuests = []string{"server_id", "server_name", "version", "proto", "headers", "max_payload", "nonce", "auth_required", "jetstream", "client_id"}

// Bounds of what the guests of one run have of the server.
const (
	// BridgesOfRun is how many connections they have at once, so that those of one run do not use up what there is for a client.
	BridgesOfRun = 16
	// What a guest sends beyond guestAtOnce is passed on at guestRate, in bytes a second: the server and who listens there
	// are everybody's.
	guestAtOnce = 8 << 20
	guestRate   = 4 << 20
)

// Bridges are the connections of a run's guests.
type Bridges struct {
	url   string
	trust Trust
	slots chan struct{}
	rate  *rate
}

// NewBridges makes those of a run, to the server at a URL.
func NewBridges(url string, t Trust) *Bridges {
	return &Bridges{url: url, trust: t, slots: make(chan struct{}, BridgesOfRun), rate: &rate{left: guestAtOnce, at: time.Now()}}
}

// Serve is Bridge for one of them. Beyond BridgesOfRun a connection is closed at once.
func (b *Bridges) Serve(ctx context.Context, guest net.Conn) error {
	select {
	case b.slots <- struct{}{}:
		defer func() { <-b.slots }()
	default:
		return guest.Close()
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	return Bridge(ctx, &paced{Conn: guest, ctx: ctx, rate: b.rate}, b.url, b.trust)
}

// rate says how long to wait with what was read.
type rate struct {
	mu   sync.Mutex
	left float64 // bytes that may come at once; negative: so many came too early
	at   time.Time
}

func (r *rate) take(n int, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = min(guestAtOnce, r.left+max(now.Sub(r.at), 0).Seconds()*guestRate) - float64(n)
	r.at = now
	return time.Duration(max(-r.left, 0) / guestRate * float64(time.Second))
}

// paced is a connection of which is read at a rate.
type paced struct {
	net.Conn
	ctx  context.Context
	rate *rate
}

func (p *paced) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	if wait := p.rate.take(n, time.Now()); wait > 0 {
		select {
		case <-time.After(wait):
		case <-p.ctx.Done():
			return 0, context.Cause(p.ctx)
		}
	}
	return n, err
}

// Bridge passes the connection of a guest on to the server, until one of them ends it or ctx ends. The guest speaks NATS
// as it is: TLS towards the server, where that wants it, ends here. Who the guest is, and what it may do, is its
// credential's to say, which is checked by the server; nothing of the guest is read here.
func Bridge(ctx context.Context, guest net.Conn, rawURL string, t Trust) error {
	servers, secure, err := checkURL(rawURL, false)
	if err != nil {
		return err
	}
	one, _, _ := strings.Cut(servers, ",")
	u, err := url.Parse(one)
	if err != nil || u.Scheme == "ws" || u.Scheme == "wss" {
		return refuse(ErrOptions, "use a URL with nats:// or tls://", "guests cannot be passed on to the bus at %s", one)
	}
	host := u.Host
	if u.Port() == "" {
		host = net.JoinHostPort(u.Hostname(), "4222")
	}
	server, err := new(net.Dialer).DialContext(ctx, "tcp", host)
	if err != nil {
		return refuse(errors.Join(ErrUnreachable, err), "ravi daemon status", "the bus cannot be reached: %s", err)
	}
	defer func() { server.Close() }()
	stop := context.AfterFunc(ctx, func() { server.Close(); guest.Close() })
	defer stop()
	if err := server.SetReadDeadline(time.Now().Add(infoWithin)); err != nil {
		return err
	}
	in := bufio.NewReaderSize(server, maxInfo)
	line, err := in.ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotBus, err)
	}
	told, wantsTLS, err := infoForGuests(line)
	if err != nil {
		return err
	}
	if err := server.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	from := io.Reader(in)
	if wantsTLS || secure {
		config, err := t.config()
		if err != nil {
			return err
		}
		if config.ServerName == "" {
			config.ServerName = u.Hostname()
		}
		wrapped := tls.Client(server, config)
		if err := wrapped.HandshakeContext(ctx); err != nil {
			return refuse(errors.Join(ErrTLS, err), "", "the certificate of the bus at %s does not hold: %s", host, err)
		}
		server, from = wrapped, wrapped
	}
	_ = guest.SetWriteDeadline(time.Now().Add(infoWithin))
	if _, err := guest.Write(told); err != nil {
		return nil // it is gone, or does not listen, which is no failure
	}
	_ = guest.SetWriteDeadline(time.Time{})
	var both sync.WaitGroup
	pass := func(to net.Conn, from io.Reader) {
		_, _ = io.Copy(to, from) // whichever ends it, both are closed
		server.Close()
		guest.Close()
	}
	both.Go(func() { pass(server, guest) })
	both.Go(func() { pass(guest, from) })
	both.Wait()
	return nil
}

// infoForGuests is the first line as guests are told it.
func infoForGuests(line []byte) (told []byte, wantsTLS bool, err error) {
	text, ok := strings.CutPrefix(string(line), "INFO ")
	var all map[string]json.RawMessage
	if !ok || json.Unmarshal([]byte(text), &all) != nil || all["server_id"] == nil {
		return nil, false, ErrNotBus
	}
	wantsTLS = string(all["tls_required"]) == "true"
	some := map[string]json.RawMessage{}
	for _, name := range toGuests {
		if v, ok := all[name]; ok {
			some[name] = v
		}
	}
	b, err := json.Marshal(some)
	if err != nil {
		return nil, false, err
	}
	return fmt.Appendf(nil, "INFO %s\r\n", b), wantsTLS, nil
}

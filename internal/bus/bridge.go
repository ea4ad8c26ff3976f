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
	if _, err := guest.Write(told); err != nil {
		return nil // it is gone, which is no failure
	}
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

package doctor

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Protocol is what a listener speaks.
type Protocol string

// The protocols.
const (
	NATS      Protocol = "nats"
	WebSocket Protocol = "nats_websocket" // NATS in a WebSocket
	HTTP      Protocol = "http"
	Other     Protocol = "unknown"
)

// Known is yes, no or unknown.
type Known string

// What can be known.
const (
	Yes     Known = "yes"
	No      Known = "no"
	Unknown Known = "unknown"
)

func known(b bool) Known {
	if b {
		return Yes
	}
	return No
}

// Outcome is what became of dialling an address.
type Outcome string

// What can become of it. Silent is neither yes nor no within the time, as behind a filter; unreachable is an address that
// this machine does not get to itself.
const (
	Answered    Outcome = "answered"
	Refused     Outcome = "refused"
	Silent      Outcome = "silent"
	Unreachable Outcome = "unreachable"
)

const mostSaid = 64 << 10

// Tests, which do not know how long they take, make these others.
var (
	dialTime   = 5 * time.Second        // within one machine
	bannerTime = 300 * time.Millisecond // for what may never say the first word
	natsTime   = time.Second            // for what may be NATS in TLS
	firstTime  = 5 * time.Second        // for a server of NATS to say the first word, which it does but for TLS first
	otherTime  = 3 * time.Second        // for all that is said with who speaks none of what is known
)

// speakTime is how long a connection is spoken over. A server of ours may have much else to do; who speaks none of what is
// known is not waited for so long.
func speakTime(speaks Protocol) time.Duration {
	if speaks == Other {
		return otherTime
	}
	return 15 * time.Second
}

// seen is what dialling showed.
type seen struct {
	outcome   Outcome
	problem   string
	protocol  Protocol
	tls, auth Known
	server    string // the id of a NATS server
	cert      *x509.Certificate
}

// probe dials an address, and speaks what is spoken there for so long as shows whether TLS and authentication stand in
// front. It shows no credential. Where TLS is expected that is tried first: a server of HTTP logs who comes without.
func probe(ctx context.Context, at netip.AddrPort, speaks Protocol, secure bool) seen {
	s := seen{protocol: Other, tls: Unknown, auth: Unknown}
	c, err := dial(ctx, at, speaks)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		s.outcome = Refused
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		s.outcome, s.problem = Silent, err.Error()
	case err != nil:
		s.outcome, s.problem = Unreachable, err.Error()
	}
	if err != nil {
		return s
	}
	defer c.Close()
	s.outcome = Answered
	if secure && speaks != NATS { // which says itself what it wants
		if s.secure(ctx, at, speaks, c); s.tls == Yes {
			return s
		}
		if c, err = dial(ctx, at, speaks); err != nil {
			return s
		}
		defer c.Close()
	}
	wait := bannerTime
	switch speaks {
	case NATS:
		wait = firstTime
	case HTTP, WebSocket:
		wait = 0
	}
	if wait > 0 {
		r := bufio.NewReaderSize(c, mostSaid)
		first, _ := banner(c, r, wait, speaks)
		if bytes.HasPrefix(first, []byte("INFO ")) {
			s.nats(c, r, first)
			return s
		}
		if speaks == NATS {
			s.secure(ctx, at, speaks, nil)
			return s
		}
	}
	if status, body := ask(c, at, speaks, bufio.NewReader(c)); status == http.StatusBadRequest && strings.Contains(body, "HTTPS server") || status == 0 {
		s.secure(ctx, at, speaks, nil)
	} else {
		s.tls = No
		s.web(at, speaks, status, body, func() (net.Conn, error) { return dial(ctx, at, speaks) })
	}
	return s
}

func dial(ctx context.Context, at netip.AddrPort, speaks Protocol) (net.Conn, error) {
	c, err := (&net.Dialer{Timeout: dialTime}).DialContext(ctx, "tcp", at.String())
	if err == nil {
		err = c.SetDeadline(time.Now().Add(speakTime(speaks)))
	}
	return c, err
}

// banner is the line that a server says first, if it does within a time.
func banner(c net.Conn, r *bufio.Reader, wait time.Duration, speaks Protocol) (line []byte, err error) {
	if err := c.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return nil, err
	}
	line, err = r.ReadBytes('\n')
	return line, errors.Join(err, c.SetDeadline(time.Now().Add(speakTime(speaks))))
}

// secure speaks TLS, over first if that is a connection on which nothing was said. Any certificate will do: what is asked
// is whether there is TLS.
func (s *seen) secure(ctx context.Context, at netip.AddrPort, speaks Protocol, first net.Conn) {
	shake := func() (*tls.Conn, error) {
		c := first
		if first = nil; c == nil {
			var err error
			if c, err = dial(ctx, at, speaks); err != nil {
				return nil, err
			}
		}
		t := tls.Client(c, anyone())
		if err := t.HandshakeContext(ctx); err != nil {
			c.Close()
			return nil, err
		}
		return t, nil
	}
	c, err := shake()
	if demandsCertificate(err) {
		s.tls, s.auth = Yes, Yes
		return
	}
	if err != nil {
		s.tls = No // it speaks neither
		return
	}
	defer c.Close()
	s.tls = Yes
	if chain := c.ConnectionState().PeerCertificates; len(chain) > 0 {
		s.cert = chain[0]
	}
	r := bufio.NewReaderSize(c, mostSaid)
	if speaks == NATS || speaks == Other {
		wait := natsTime
		if speaks == NATS {
			wait = firstTime
		}
		said, err := banner(c, r, wait, speaks)
		if demandsCertificate(err) {
			s.auth = Yes
			return
		}
		if bytes.HasPrefix(said, []byte("INFO ")) {
			s.nats(c, r, said)
			s.tls = Yes
			return
		}
		// A connection of TLS is of no more use once a deadline passed.
		if c, err = shake(); err != nil {
			return
		}
		defer c.Close()
		r = bufio.NewReader(c)
	}
	status, body := ask(c, at, speaks, r)
	s.web(at, speaks, status, body, func() (net.Conn, error) { return shake() })
}

// anyone is TLS with whoever is there: nothing is told to it, and nothing that it says is believed but that it speaks TLS.
func anyone() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }

// demandsCertificate says whether a server wants a certificate of its client. With TLS 1.3 it says so after the handshake.
func demandsCertificate(err error) bool {
	var alert tls.AlertError
	const badCertificate, certificateRequired = 42, 116
	return errors.As(err, &alert) && (alert == badCertificate || alert == certificateRequired) ||
		err != nil && (strings.Contains(err.Error(), "certificate required") || strings.Contains(err.Error(), "remote error: tls: bad certificate"))
}

// natsInfo is what of a server's first line matters here
// (https://docs.nats.io/reference/reference-protocols/nats-protocol).
type natsInfo struct {
	ServerID string `json:"server_id"`
	Auth     bool   `json:"auth_required"`
	TLS      bool   `json:"tls_required"`
	Verify   bool   `json:"tls_verify"`
	Nonce    string `json:"nonce"`
}

// nats reads the first line of a NATS server, and tries whether it lets in a client that shows nothing: what the line says
// is not all, since such a client may be made a user of its own. One that wants a signature (as in operator mode, which is
// our own bus's) is believed: it would only log the trial as an attack.
func (s *seen) nats(c net.Conn, r *bufio.Reader, first []byte) {
	var info natsInfo
	s.protocol = NATS
	if json.Unmarshal(bytes.TrimPrefix(first, []byte("INFO ")), &info) != nil {
		return
	}
	s.server, s.tls, s.auth = info.ServerID, known(info.TLS), known(info.Auth || info.TLS && info.Verify)
	if info.Auth && info.Nonce != "" && !info.TLS {
		return
	}
	if info.TLS {
		if _, over := c.(*tls.Conn); !over {
			t := tls.Client(c, anyone())
			err := t.Handshake()
			if err != nil {
				if demandsCertificate(err) {
					s.auth = Yes
				}
				return
			}
			if chain := t.ConnectionState().PeerCertificates; len(chain) > 0 {
				s.cert = chain[0]
			}
			c, r = t, bufio.NewReader(t)
		}
	}
	if info.Auth && info.Nonce != "" {
		return
	}
	if _, err := io.WriteString(c, "CONNECT {\"verbose\":false,\"pedantic\":false,\"lang\":\"go\",\"version\":\"1\",\"name\":\"ravi doctor\"}\r\nPING\r\n"); err != nil {
		return
	}
	for range 16 {
		line, err := r.ReadString('\n')
		switch {
		case strings.HasPrefix(line, "PONG"):
			s.auth = No // it let us in
			return
		case strings.HasPrefix(line, "-ERR"), demandsCertificate(err):
			s.auth = Yes
			return
		case err != nil:
			return
		}
	}
}

// web takes what a server of HTTP answered to who showed no key.
func (s *seen) web(at netip.AddrPort, speaks Protocol, status int, body string, again func() (net.Conn, error)) {
	if status == 0 {
		return
	}
	s.protocol = HTTP
	if speaks == WebSocket && status == http.StatusSwitchingProtocols {
		s.protocol = WebSocket
		var info natsInfo
		if json.Unmarshal([]byte(strings.TrimPrefix(body, "INFO ")), &info) == nil {
			s.server, s.auth = info.ServerID, known(info.Auth)
		}
		return
	}
	if status == http.StatusForbidden || status == http.StatusMisdirectedRequest {
		// It may only be that it is called otherwise.
		if c, err := again(); err == nil {
			defer c.Close()
			named := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), at.Port())
			if second, _ := ask(c, named, speaks, bufio.NewReader(c)); second != 0 {
				status = second
			}
		}
	}
	switch {
	case status == http.StatusUnauthorized:
		s.auth = Yes
	case status < 300:
		s.auth = No
	}
}

// asked is a path of the gateway that tells nothing to who shows no key. Elsewhere it is a path like any other.
const asked = "/api/v1/_meta/version"

// ask asks a server of HTTP for something without a key. The status is 0 if what answers is no such server. The body is
// its beginning; with a WebSocket, the first line in it.
func ask(c net.Conn, as netip.AddrPort, speaks Protocol, r *bufio.Reader) (status int, body string) {
	request := "GET " + asked + " HTTP/1.1\r\nHost: " + netip.AddrPortFrom(as.Addr().WithZone(""), as.Port()).String() + "\r\nUser-Agent: ravi-doctor\r\n"
	if speaks == WebSocket {
		request = strings.Replace(request, asked, "/", 1) + "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: cmF2aSBkb2N0b3IgYXNrcw==\r\n\r\n"
	} else {
		request += "Connection: close\r\n\r\n"
	}
	if _, err := io.WriteString(c, request); err != nil {
		return 0, ""
	}
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		return 0, ""
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusSwitchingProtocols {
		body, err = frame(r)
	} else {
		var b []byte
		b, err = io.ReadAll(io.LimitReader(res.Body, mostSaid))
		body = string(b)
	}
	if err != nil {
		body = ""
	}
	return res.StatusCode, body
}

// frame reads the first frame of a server's WebSocket (RFC 6455, section 5.2), which is not masked.
func frame(r *bufio.Reader) (string, error) {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return "", err
	}
	n := int64(head[1] & 0x7f)
	if long := map[int64]int{126: 2, 127: 8}[n]; long > 0 {
		b := make([]byte, long)
		if _, err := io.ReadFull(r, b); err != nil {
			return "", err
		}
		n = 0
		for _, digit := range b {
			n = n<<8 | int64(digit)
		}
	}
	if n < 0 || n > mostSaid || head[1]&0x80 != 0 {
		return "", fmt.Errorf("a frame of %s bytes", strconv.FormatInt(n, 10))
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return strings.TrimSpace(string(b)), err
}

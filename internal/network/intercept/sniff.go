package intercept

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/net/http/httpguts"
)

// kind is what a connection turned out to be.
type kind int

const (
	kindUnknown kind = iota // more bytes are needed; it may still be TLS or HTTP
	kindVague               // more bytes are needed; but it hardly is one of them
	kindTLS
	kindHTTP1
	kindHTTP2
	kindOther
)

const (
	preface   = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	sniffMost = 8 << 10

	// A ClientHello is at most 64 KiB, which crypto/tls sees to. In records of
	// one byte each it takes six times that.
	helloMost = 6 * 64 << 10
)

// Text that begins with one of these is HTTP to most servers, whatever follows.
var methods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "PRI"}

// classify says what begins with these bytes.
func classify(b []byte) kind {
	if len(b) == 0 {
		return kindUnknown
	}
	if b[0] == 0x16 { // a TLS record with a part of a handshake
		switch {
		case len(b) > 1 && b[1] != 3 || len(b) > 2 && b[2] > 4:
			return kindOther
		case len(b) < 3:
			return kindUnknown
		}
		return kindTLS
	}
	if n := min(len(b), len(preface)); string(b[:n]) == preface[:n] {
		switch {
		case n == len(preface):
			return kindHTTP2
		default:
			return kindUnknown
		}
	}
	// Servers skip empty lines before a request, so they hide none.
	text := bytes.TrimLeft(b, "\r\n")
	if len(text) == 0 {
		if len(b) > 64 {
			return kindOther
		}
		return kindUnknown
	}
	word, _, space := bytes.Cut(text, []byte(" "))
	for _, m := range methods {
		if space && string(word) == m {
			return kindHTTP1
		}
		if !space && len(word) <= len(m) && m[:len(word)] == string(word) {
			return kindUnknown
		}
	}
	line, _, whole := bytes.Cut(text, []byte("\n"))
	for _, c := range line {
		if c != '\r' && (c < ' ' || c == 0x7f) {
			return kindOther
		}
	}
	switch {
	case !httpguts.ValidHeaderFieldName(string(word)):
		return kindOther // no server takes that for a method
	case whole && space && bytes.Contains(line, []byte(" HTTP/")):
		return kindHTTP1
	case whole:
		return kindOther
	case len(b) >= sniffMost:
		if space {
			return kindHTTP1 // a long request line; net/http judges the rest
		}
		return kindOther
	}
	return kindVague
}

// replay is a connection of which the first bytes were read already.
type replay struct {
	net.Conn
	first []byte
}

func (r *replay) Read(p []byte) (int, error) {
	if len(r.first) > 0 {
		n := copy(p, r.first)
		if r.first = r.first[n:]; len(r.first) == 0 {
			r.first = nil
		}
		return n, nil
	}
	return r.Conn.Read(p)
}

// NetConn is the connection beneath, for what is done to it as a whole.
func (r *replay) NetConn() net.Conn { return r.Conn }

var errSilent = errors.New("nothing came that says what the connection is")

// sniff reads until it is known what the guest speaks, and has conn begin with
// all that was read. If the connection may be opaque and the guest is silent,
// the server is asked too, since it may be the one to speak first: then up is
// the connection to it. Servers of TLS and HTTP never do, so a guest does not
// escape the checks by waiting.
func (f *flow) sniff(conn *replay, up net.Conn) (kind, net.Conn, error) {
	first, err := conn.first, error(nil)
	defer func() { conn.first = first }()
	conn.first = nil
	if len(first) == 0 {
		first = make([]byte, 0, 1024)
	}
	deadline := time.Now().Add(f.limits.SniffTimeout)
	short := deadline
	if f.may.Opaque {
		short = time.Now().Add(f.limits.OpaqueAfter)
	}
	defer conn.SetReadDeadline(time.Time{})

	var server *peeked
	var late time.Time // until when a guest that was silent first must have said what it speaks
	for {
		k := classify(first)
		switch {
		case k > kindVague:
			return k, server.give(up), nil
		case err == io.EOF && len(first) == 0:
			return k, server.give(up), fmt.Errorf("closed by the guest: %w", errSilent)
		case err == io.EOF:
			return kindOther, server.give(up), nil
		case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
			return k, server.give(up), fmt.Errorf("the guest's connection broke: %w", err)
		case err != nil && server != nil && server.spoke():
			return kindOther, server.give(up), nil
		case err != nil && k == kindVague && f.may.Opaque:
			return kindOther, server.give(up), nil
		case err != nil && (!f.may.Opaque || server != nil):
			return k, server.give(up), errSilent
		case err != nil:
			if up == nil {
				if up, err = f.dial(); err != nil {
					return k, nil, fmt.Errorf("cannot connect to %s: %w", f.address(), err)
				}
			}
			// Whoever speaks first ends the other's wait.
			short = time.Now().Add(f.limits.CopyTimeout)
			conn.SetReadDeadline(short)
			server = peek(up, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
		default:
			if server != nil {
				// The guest has begun after all, and is not waited for as long as
				// a silent one.
				if late.IsZero() {
					late = time.Now().Add(f.limits.SniffTimeout)
				}
				short = late
				if k == kindVague {
					short = time.Now().Add(f.limits.OpaqueAfter)
				}
			}
			conn.SetReadDeadline(short)
			if server != nil && server.spoke() {
				conn.SetReadDeadline(time.Unix(1, 0)) // it may have just before
			}
		}
		if cap(first)-len(first) < 512 {
			first = append(make([]byte, 0, 2*cap(first)), first...)
		}
		var n int
		n, err = conn.Conn.Read(first[len(first):cap(first)])
		first = first[:len(first)+n]
	}
}

// peeked waits for a server's first byte.
type peeked struct {
	heard chan struct{} // something came, or the connection ended
	done  chan struct{} // and that was told
	conn  net.Conn
	first [1]byte
	n     int
}

func peek(conn net.Conn, then func()) *peeked {
	p := &peeked{heard: make(chan struct{}), done: make(chan struct{}), conn: conn}
	go func() {
		p.n, _ = conn.Read(p.first[:])
		close(p.heard)
		then()
		close(p.done)
	}()
	return p
}

// spoke says whether the server sent something, or ended the connection.
func (p *peeked) spoke() bool {
	select {
	case <-p.heard:
		return true
	default:
		return false
	}
}

// give ends the wait and returns the connection, nothing of it lost.
func (p *peeked) give(conn net.Conn) net.Conn {
	if p == nil {
		return conn
	}
	conn.SetReadDeadline(time.Unix(1, 0))
	<-p.done
	conn.SetReadDeadline(time.Time{})
	return &replay{Conn: conn, first: p.first[:p.n]}
}

// recorder keeps what is read, and never answers.
type recorder struct {
	net.Conn
	read []byte
}

var errHelloTooLarge = errors.New("the ClientHello is larger than 64 KiB")

func (r *recorder) Read(p []byte) (int, error) {
	if len(r.read) >= helloMost {
		return 0, errHelloTooLarge
	}
	n, err := r.Conn.Read(p[:min(len(p), helloMost-len(r.read))])
	r.read = append(r.read, p[:n]...)
	return n, err
}

func (r *recorder) Write(p []byte) (int, error) { return len(p), nil }

var errHelloRead = errors.New("the ClientHello was read")

// hello reads a ClientHello with the parser of crypto/tls, and has conn begin
// with it again.
func hello(ctx context.Context, conn *replay) (*tls.ClientHelloInfo, error) {
	rec := &recorder{Conn: conn}
	var info *tls.ClientHelloInfo
	err := tls.Server(rec, &tls.Config{GetConfigForClient: func(i *tls.ClientHelloInfo) (*tls.Config, error) {
		info = i
		return nil, errHelloRead
	}}).HandshakeContext(ctx)
	conn.first = append(rec.read, conn.first...)
	if info == nil {
		return nil, err
	}
	info.Conn = nil
	return info, nil
}

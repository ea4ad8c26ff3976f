package dial

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/net/proxy"
)

// Bounds of the talk with a proxy.
const (
	maxHead    = 16 << 10         // of all that it answers before the connection is through, in bytes
	answerTime = 10 * time.Second // for one connection
	proxyTime  = 20 * time.Second // for all addresses of a name; the gateway waits for 30 s, the looking up included
)

// connect has the proxy connect to target, HOST:PORT, and returns the connection
// when the next byte on it is target's.
func (u *Upstream) connect(ctx context.Context, target string) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: tryTime}
	raw, err := d.DialContext(ctx, "tcp", u.address)
	if err != nil {
		return nil, u.broken("cannot be reached: %v; it is set as network.proxy in config.json", cause(err))
	}
	conn := raw.(*net.TCPConn)
	_ = conn.SetDeadline(time.Now().Add(u.wait))
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if u.scheme == "socks5" {
		err = u.socks(conn, target)
	} else {
		err = u.httpConnect(conn, target)
	}
	if err == nil {
		// What is handed over is the socket, without a deadline.
		return conn, nil
	}
	conn.Close()
	return nil, err
}

// broken is a failure of the proxy itself, which another address does not mend.
func (u *Upstream) broken(format string, args ...any) error {
	return &Error{NoProxy, u.String() + " " + fmt.Sprintf(format, args...)}
}

// failed is a failure to get to target.
func (u *Upstream) failed(format string, args ...any) error {
	return &Error{ProxyFailed, u.String() + " " + fmt.Sprintf(format, args...)}
}

// cause is what happened to a connection, without its addresses.
func cause(err error) error {
	var op *net.OpError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return errors.New("there is no answer in time")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("it closed the connection")
	case errors.As(err, &op):
		return op.Err
	}
	return err
}

// byNameHint is for a proxy that could be one that wants names.
func (u *Upstream) byNameHint(target string) string {
	host, _, _ := net.SplitHostPort(target)
	if net.ParseIP(host) == nil {
		return ""
	}
	return "; a proxy that takes no addresses is handed names with network.proxy_by_name in config.json"
}

// authHint is what mends credentials that a proxy does not take.
func (u *Upstream) authHint() string {
	if u.auth == nil {
		return "wants a user and a password: set network.proxy_auth_file in config.json"
	}
	return "does not take the user and password in the file of network.proxy_auth_file in config.json"
}

// httpConnect asks with CONNECT.
func (u *Upstream) httpConnect(conn *net.TCPConn, target string) error {
	ask := "CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n"
	if u.auth != nil {
		ask += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(u.auth.user+":"+u.auth.password)) + "\r\n"
	}
	if _, err := io.WriteString(conn, ask+"\r\n"); err != nil {
		return u.broken("does not take a request: %v", cause(err))
	}
	in := &exact{r: conn, left: maxHead}
	status := 100
	for status/100 == 1 && status != http.StatusSwitchingProtocols {
		head, err := in.head()
		if err != nil {
			return u.broken("gives no answer to CONNECT %s: %v", target, cause(err))
		}
		res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), &http.Request{Method: http.MethodConnect})
		if err != nil {
			return u.broken("does not answer CONNECT %s as an HTTP proxy does; is it one?", target)
		}
		status = res.StatusCode
	}
	// The proxy's own words are not repeated: they could hold what it was sent.
	text := strings.TrimSpace(fmt.Sprintf("%d %s", status, http.StatusText(status)))
	switch {
	case status/100 == 2:
		return nil
	case status == http.StatusProxyAuthRequired, status == http.StatusUnauthorized: // some say the latter of wrong credentials
		return u.broken("refuses %s: %s; it %s", target, text, u.authHint())
	case status == http.StatusForbidden, status == http.StatusMethodNotAllowed, status == http.StatusBadRequest:
		return u.failed("refuses %s: %s%s", target, text, u.byNameHint(target))
	}
	return u.failed("does not connect to %s: %s", target, text)
}

// exact reads one byte after another, and none too many: what follows belongs to
// whoever gets the socket.
type exact struct {
	r    io.Reader
	left int
}

// head reads up to an empty line, and that too.
func (e *exact) head() ([]byte, error) {
	var head []byte
	one, line := make([]byte, 1), 0
	for {
		if e.left == 0 {
			return nil, fmt.Errorf("it has more than %d bytes", maxHead)
		}
		if _, err := io.ReadFull(e.r, one); err != nil {
			return nil, err
		}
		e.left--
		head = append(head, one[0])
		if one[0] != '\n' {
			continue
		}
		if text := strings.TrimSuffix(string(head[line:len(head)-1]), "\r"); text == "" {
			return head, nil
		}
		line = len(head)
	}
}

// socks asks with SOCKS5, of which the library reads every field at its length.
func (u *Upstream) socks(conn *net.TCPConn, target string) error {
	var auth *proxy.Auth
	if u.auth != nil {
		auth = &proxy.Auth{User: u.auth.user, Password: u.auth.password}
	}
	d, err := proxy.SOCKS5("tcp", u.address, auth, connected{conn})
	if err == nil {
		_, err = d.Dial("tcp", target)
	}
	if err == nil {
		return nil
	}
	err = cause(err)
	text := strings.TrimPrefix(err.Error(), "unknown error ")
	switch {
	case strings.Contains(text, "authentication"):
		return u.broken("refuses %s: %s; it %s", target, text, u.authHint())
	case text != err.Error(): // an answer to the request
		return u.failed("does not connect to %s: %s", target, text)
	}
	return u.broken("does not answer as a SOCKS5 proxy does: %s", text)
}

// connected is a proxy.Dialer of a connection that is there.
type connected struct{ conn net.Conn }

func (c connected) Dial(string, string) (net.Conn, error) { return c.conn, nil }

func (c connected) DialContext(context.Context, string, string) (net.Conn, error) {
	return c.conn, nil
}

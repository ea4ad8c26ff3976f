package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// maxPorts bounds the connections to ports that are open at once.
const maxPorts = 64

// dialPort bounds how long a port of the sandbox's own may take to answer.
const dialPort = 10 * time.Second

// servePort connects to a port of the sandbox's own loopback, and no other
// address: the request's body goes there, what comes from there is the
// response's. When either side of the port's connection has ended, all has.
func (s *Server) servePort(w http.ResponseWriter, r *http.Request) {
	port, err := strconv.ParseUint(r.URL.Query().Get("port"), 10, 16)
	if err != nil || port == 0 {
		writeError(w, http.StatusBadRequest, errors.New("port must be a number from 1 to 65535"))
		return
	}
	if r.ProtoMajor < 2 {
		writeError(w, http.StatusHTTPVersionNotSupported, errors.New("a port is reached over HTTP/2 only, which goes both ways at once"))
		return
	}
	select {
	case s.ports <- struct{}{}:
		defer func() { <-s.ports }()
	default:
		writeError(w, http.StatusTooManyRequests, fmt.Errorf("%d connections to ports are open, which is the most", maxPorts))
		return
	}
	conn, err := dialLoopback(r.Context(), uint16(port))
	if err != nil {
		status := http.StatusBadGateway
		if errors.Is(err, unix.ECONNREFUSED) {
			status, err = http.StatusNotFound, fmt.Errorf("nobody listens on port %d of the sandbox", port)
		}
		writeError(w, status, err)
		return
	}
	defer conn.Close()
	for _, ctx := range []context.Context{r.Context(), s.stopped} {
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		defer stop()
	}
	flush := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/octet-stream")
	w.WriteHeader(http.StatusOK)
	_ = flush.Flush() // a client that is gone shows in the copying

	sent := make(chan struct{})
	go func() {
		defer close(sent)
		if _, err := io.Copy(conn, r.Body); err != nil {
			conn.Close() // what it got is not all
			return
		}
		_ = conn.CloseWrite() // if it is closed, the other direction says so
	}()
	defer func() {
		r.Body.Close()
		<-sent
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return
			}
			_ = flush.Flush()
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			// The client must see that what it got is cut.
			panic(http.ErrAbortHandler)
		}
	}
}

// dialLoopback connects to whoever listens on loopback: many servers do on one
// of its addresses only.
func dialLoopback(ctx context.Context, port uint16) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: dialPort}
	var errs []error
	for _, host := range []string{"127.0.0.1", "::1"} {
		c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
		if err == nil {
			return c.(*net.TCPConn), nil
		}
		errs = append(errs, err)
	}
	return nil, errs[0] // the other one may not be there at all
}

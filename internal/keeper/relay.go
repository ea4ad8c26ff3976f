package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"ravi/internal/guestapi"
)

// How a relay ends, as its exit status.
const (
	relayLinkClosed = 0 // the guest's end of the link is gone
	relayViolation  = 3 // the guest broke the protocol
)

// Bounds on what one guest can make the relay hold or do.
const (
	maxHeaderBytes = 64 << 10
	maxStreams     = 512 // calls that are open at once
)

// Relay runs the unprivileged half of a keeper: descriptors 3 and 4 are its end
// of the guest's link, to read and to write, 5 is a listening unix socket for
// the owner. It does not return: the process ends with the link.
func Relay(uid, gid uint32) error {
	conn, err := guestapi.OpenEnd(3, 4)
	if err != nil {
		return fmt.Errorf("the link: %w", err)
	}
	listener := os.NewFile(5, "listener")
	l, err := net.FileListener(listener)
	if err != nil {
		return fmt.Errorf("the owner's socket: %w", err)
	}
	listener.Close()
	reap()
	// The HTTP code logs what a peer does wrong, as often as it does it.
	log.SetOutput(io.Discard)
	if err := confine(uid, gid); err != nil {
		return fmt.Errorf("confining the relay: %w", err)
	}
	os.Exit(relay(conn, l, os.Getenv(guestapi.EnvLinkToken)))
	return nil
}

// relay serves the owner on l with what the guest says on conn, until the link
// ends, and returns the exit status. A token means that the guest was restored
// and must begin a new session.
func relay(conn net.Conn, l net.Listener, token string) int {
	if token != "" {
		c, err := guestapi.NewSessions(conn, token).Restart()
		switch {
		case errors.Is(err, io.EOF):
			return relayLinkClosed
		case err != nil:
			fmt.Fprintln(os.Stderr, "ravi-keeper: beginning a new session:", err)
			return relayViolation
		}
		conn = c
	}
	watched := &watchedConn{Conn: conn, done: make(chan struct{})}
	transport := &http.Transport{
		DialContext:            func(context.Context, string, string) (net.Conn, error) { return watched, nil },
		Protocols:              onlyHTTP2(),
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeaderBytes,
		HTTP2: &http.HTTP2Config{
			StrictMaxConcurrentRequests: true,
			MaxReadFrameSize:            256 << 10,
			// What one call holds when its owner does not read. There is no
			// smaller bound on the connection: calls must not stop each other.
			MaxReceiveBufferPerStream: 1 << 20,
			CountError:                func(what string) { fmt.Fprintln(os.Stderr, "ravi-keeper: the link:", what) },
		},
	}
	guest, err := transport.NewClientConn(context.Background(), "http", "guest:80")
	if err != nil {
		return relayViolation
	}
	server := &http.Server{
		Handler:        limited(newRelay(guest)),
		Protocols:      onlyHTTP2(),
		MaxHeaderBytes: maxHeaderBytes,
		HTTP2:          &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReadFrameSize: 1 << 20},
	}
	go func() { _ = server.Serve(l) }() // it ends with the process
	<-watched.done
	_ = server.Close()
	if watched.sawEnd.Load() {
		return relayLinkClosed
	}
	// This side gave up the connection while the other still held it.
	return relayViolation
}

// onlyHTTP2 is HTTP/2 without TLS, on a wire that is private already.
func onlyHTTP2() *http.Protocols {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	return &p
}

// watchedConn tells when and why the link ends.
type watchedConn struct {
	net.Conn
	done   chan struct{}
	closed atomic.Bool
	sawEnd atomic.Bool
}

func (c *watchedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil && !c.closed.Load() {
		c.sawEnd.Store(true)
		c.Close()
	}
	return n, err
}

func (c *watchedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil && !c.closed.Load() && (errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, io.EOF)) {
		c.sawEnd.Store(true)
		c.Close()
	}
	return n, err
}

func (c *watchedConn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	err := c.Conn.Close()
	close(c.done)
	return err
}

// limited refuses calls beyond maxStreams over all connections of the owner.
func limited(next http.Handler) http.Handler {
	slots := make(chan struct{}, maxStreams)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
			next.ServeHTTP(w, r)
		default:
			http.Error(w, fmt.Sprintf("more than %d calls at once", maxStreams), http.StatusTooManyRequests)
		}
	})
}

// reap collects children that were orphaned in this process namespace, of
// which the relay is the init.
func reap() {
	if os.Getpid() != 1 {
		return
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	go func() {
		for range ended {
			for {
				var ws unix.WaitStatus
				pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
				if err != nil || pid <= 0 {
					break
				}
			}
		}
	}()
}

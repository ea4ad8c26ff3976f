// Package relay is the half of a keeper that reads what a guest writes.
//
// It has no rights at all: its own user, an empty root directory, a short list
// of system calls, a bound on memory. It decodes every message of the guest's
// protocol and encodes it anew, so that the owner only ever parses what this
// process has written. It must not import a backend or anything that opens
// files; what it needs it is born with.
package relay

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

	"ravi/internal/confine"
	"ravi/internal/guestapi"
	"ravi/internal/keeper"
	"ravi/internal/link"
)

// relayMemory bounds the relay's data segments; a guest that makes it use more
// ends its own sandbox.
const relayMemory = 384 << 20

// Bounds on what one guest can make the relay hold or do.
const (
	maxHeaderBytes = 64 << 10
	maxStreams     = 512 // calls that are open at once
)

// Run runs the relay: descriptors 3 and 4 are its end
// of the guest's link, to read and to write, 5 is a listening unix socket for
// the owner. It does not return: the process ends with the link.
func Run(uid, gid uint32) error {
	conn, err := link.OpenEnd(3, 4)
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
	if err := confine.Process(confine.To{UID: uid, GID: gid, Memory: relayMemory, Files: 1024}); err != nil {
		return fmt.Errorf("confining the relay: %w", err)
	}
	os.Exit(relay(conn, l, os.Getenv(link.EnvToken)))
	return nil
}

// relay serves the owner on l with what the guest says on conn, until the link
// ends, and returns the exit status. A token means that the guest was restored
// and must begin a new session.
func relay(conn net.Conn, l net.Listener, token string) int {
	if token != "" {
		c, err := link.NewSessions(conn, token).Restart()
		switch {
		case errors.Is(err, io.EOF):
			return keeper.RelayLinkClosed
		case err != nil:
			fmt.Fprintln(os.Stderr, "ravi-relay: beginning a new session:", err)
			return keeper.RelayViolation
		}
		conn = c
	}
	watched := &watchedConn{Conn: conn, done: make(chan struct{})}
	transport := &http.Transport{
		DialContext:            func(context.Context, string, string) (net.Conn, error) { return watched, nil },
		Protocols:              guestapi.OnlyHTTP2(),
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeaderBytes,
		HTTP2: &http.HTTP2Config{
			StrictMaxConcurrentRequests: true,
			MaxReadFrameSize:            256 << 10,
			// What one call holds when its owner does not read. There is no
			// smaller bound on the connection: calls must not stop each other.
			MaxReceiveBufferPerStream: 1 << 20,
			CountError:                func(what string) { fmt.Fprintln(os.Stderr, "ravi-relay: the link:", what) },
		},
	}
	guest, err := transport.NewClientConn(context.Background(), "http", "guest:80")
	if err != nil {
		return keeper.RelayViolation
	}
	server := &http.Server{
		Handler:        limited(newRelay(guest)),
		Protocols:      guestapi.OnlyHTTP2(),
		MaxHeaderBytes: maxHeaderBytes,
		HTTP2:          &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReadFrameSize: 1 << 20},
	}
	go func() { _ = server.Serve(l) }() // it ends with the process
	<-watched.done
	_ = server.Close()
	if watched.sawEnd.Load() {
		return keeper.RelayLinkClosed
	}
	// This side gave up the connection while the other still held it.
	return keeper.RelayViolation
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

package remote

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// conn is a stream that behaves as a socket does: closing it ends a Read that is under way, and errors are those of
// package net.
type conn struct{ net.Conn }

// Wire makes a stream one.
func Wire(c net.Conn) net.Conn { return &conn{c} }

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return n, socketError("read", err)
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	return n, socketError("write", err)
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	_ = c.Conn.SetReadDeadline(time.Unix(1, 0))
	return err
}

func socketError(op string, err error) error {
	var timeout interface{ Timeout() bool }
	switch {
	case err == nil || err == io.EOF:
		return err
	case errors.As(err, &timeout) && timeout.Timeout():
		err = os.ErrDeadlineExceeded
	}
	return &net.OpError{Op: op, Net: "tunnel", Err: err}
}

// slotted is a connection that is one of a bounded number until it is closed.
type slotted struct {
	net.Conn
	once sync.Once
	free func()
}

func (s *slotted) Close() error {
	err := s.Conn.Close()
	s.once.Do(s.free)
	return err
}

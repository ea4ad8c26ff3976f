package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"

	"ravi/internal/command"
	safe "ravi/internal/term"
	"ravi/sandbox"
)

func addSandboxPort(t *command.Table) {
	add(t, command.Spec[portInput, struct{}]{
		Group: "sandbox", Name: "port", Access: command.Write, Reach: command.LocalOnly,
		Summary: "Reach a port of a sandbox from this machine",
		Long: `Listens on a loopback port of this machine, prints its address, and carries each
connection to a port on which something in the sandbox listens, until Ctrl-C.
The sandbox needs no network for it. Every user of this machine can connect.`,
		Examples: []command.Example{{Line: "ravi sandbox port try 8000"}, {What: "on a port of your choice", Line: "ravi sandbox port try 8000 --listen 127.0.0.1:8000"}},
		Defaults: portInput{Listen: "127.0.0.1:0"},
		Handler:  forwardPort,
		Print:    func(*command.Env, io.Writer, struct{}) error { return nil },
	})
}

type portInput struct {
	Sandbox string `json:"sandbox" arg:"SANDBOX" host:"none" usage:"the id, its beginning, or the name"`
	Port    int    `json:"port" arg:"PORT" host:"none" usage:"the port in the sandbox"`
	Listen  string `json:"listen" flag:"listen" value:"ADDRESS:PORT" host:"network" usage:"where to listen: loopback only; port 0 is a free one"`
}

// mostForwarded bounds the connections that are carried at once; a sandbox takes as many.
const mostForwarded = 64

func forwardPort(ctx context.Context, env *command.Env, in portInput) (none struct{}, err error) {
	if in.Port < 1 || in.Port > 65535 {
		return none, command.Usage(fmt.Sprintf("the port %d is not between 1 and 65535", in.Port), "")
	}
	at, err := netip.ParseAddrPort(in.Listen)
	if err != nil || !at.Addr().IsLoopback() || at.Addr().Zone() != "" {
		return none, command.Usage(fmt.Sprintf("--listen %.100q is no address of loopback with a port", in.Listen), "such as 127.0.0.1:8000 or [::1]:0; for other machines, forward it with ssh -L")
	}
	sb, b, err := attach(ctx, env, "port", in.Sandbox)
	if err != nil {
		return none, err
	}
	defer sb.Close()
	l, err := net.Listen("tcp", at.String())
	if err != nil {
		return none, &command.Error{Code: command.CodeUnavailable, Message: "cannot listen: " + err.Error(), Hint: "name another port with --listen", Exit: command.ExitFailed, Err: err}
	}
	defer l.Close()
	if env.JSON {
		err = printJSONLine(env.Stdout, map[string]string{"address": l.Addr().String(), "sandbox": b.ID})
	} else {
		_, err = fmt.Fprintln(env.Stdout, l.Addr())
	}
	if err != nil {
		return none, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	go func() {
		select {
		case <-sb.Ended():
			l.Close()
		case <-ctx.Done():
		}
	}()
	f := forwarder{sb: sb, port: in.Port, failed: func(err error) { fmt.Fprintln(env.Stderr, safe.SafeText(err.Error())) }}
	err = f.serve(ctx, l)
	cancel()
	f.work.Wait()
	switch {
	case sb.Err() != nil:
		return none, execError(sb.Err())
	case errors.Is(err, net.ErrClosed):
		return none, nil // by Ctrl-C
	}
	return none, err
}

// forwarder carries connections to one port of a sandbox.
type forwarder struct {
	sb     *sandbox.Sandbox
	port   int
	failed func(error)
	work   sync.WaitGroup
}

func (f *forwarder) serve(ctx context.Context, l net.Listener) error {
	room := make(chan struct{}, mostForwarded)
	for {
		select { // who comes when there is no room waits to be accepted
		case room <- struct{}{}:
		case <-ctx.Done():
			return net.ErrClosed
		}
		c, err := l.Accept()
		if err != nil {
			return err
		}
		f.work.Go(func() {
			defer func() { <-room }()
			defer c.Close()
			if err := f.carry(ctx, c); err != nil && ctx.Err() == nil {
				f.failed(fmt.Errorf("port %s: %w", strconv.Itoa(f.port), err))
			}
		})
	}
}

// carry carries one connection until both its sides have ended.
func (f *forwarder) carry(ctx context.Context, c net.Conn) error {
	to, err := f.sb.DialPort(ctx, f.port)
	if err != nil {
		return err
	}
	defer to.Close()
	defer context.AfterFunc(ctx, func() { c.Close(); to.Close() })()
	type half interface{ CloseWrite() error }
	var work sync.WaitGroup
	work.Go(func() {
		_, _ = io.Copy(to, c) // how it ended the other side sees
		_ = to.(half).CloseWrite()
	})
	_, _ = io.Copy(c, to)
	_ = c.(half).CloseWrite()
	// When the sandbox's side has ended, all has: what is still sent has no reader.
	c.Close()
	work.Wait()
	return nil
}

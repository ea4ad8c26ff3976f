package runner

import (
	"bufio"
	"context"
	"io"
	"net"
	"sync"
	"time"

	"ravi/internal/backend/remote"
	"ravi/internal/network"
)

// serve has visits be brought home from now on.
func (s *served) serve(ctx context.Context) error {
	s.serving.Lock()
	defer s.serving.Unlock()
	if s.serves {
		return nil
	}
	c, err := network.CallForVisits(ctx, s.inst.DialEvents)
	if err != nil {
		return err
	}
	s.serves = true
	s.work.Go(func() { s.visits(ctx, c) })
	return nil
}

// visits brings them, until the sandbox or the session is over. A gateway that hung up is called again.
func (s *served) visits(ctx context.Context, u *net.UnixConn) {
	for {
		hangUp := context.AfterFunc(ctx, func() { u.Close() })
		for {
			visit, conn, err := network.ReadVisit(u)
			if err != nil {
				break
			}
			s.work.Go(func() { s.visit(ctx, visit, conn) })
		}
		hangUp()
		u.Close()
		select {
		case <-ctx.Done():
			return
		case <-s.inst.Ended():
			return
		case <-time.After(time.Second):
		}
		var err error
		if u, err = network.CallForVisits(ctx, s.inst.DialEvents); err != nil {
			return // it has ended
		}
	}
}

// visit brings one.
func (s *served) visit(ctx context.Context, v network.Visit, conn net.Conn) {
	defer conn.Close()
	c, err := s.session.Open(ctx)
	if err != nil {
		return
	}
	c = remote.Wire(c)
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close(); conn.Close() })
	defer stop()
	if err := remote.WriteLine(c, v); err != nil {
		return
	}
	home := remote.NewHalf(c, bufio.NewReaderSize(c, 16<<10))
	var both sync.WaitGroup
	cut := func() {
		home.SetLinger(0)
		home.Close()
		conn.Close()
	}
	carry := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		if err == nil {
			err = to.(interface{ CloseWrite() error }).CloseWrite()
		}
		if err != nil {
			cut()
		}
	}
	both.Go(func() { carry(conn, home) })
	carry(home, conn)
	both.Wait()
	home.Close()
}

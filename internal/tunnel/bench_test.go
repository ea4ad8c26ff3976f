package tunnel

import (
	"context"
	"io"
	"net"
	"testing"
)

// Each measure is done over plain TCP and over a tunnel, with NATS beneath and without, in one run, so that
// they are told beside each other: go test -bench . ./internal/tunnel

const benchPiece = 64 << 10

func tcpPair(b *testing.B) (near, far net.Conn) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	if near, err = net.Dial("tcp", l.Addr().String()); err != nil {
		b.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near, far
}

func tunnelPair(b *testing.B) (near, far net.Conn) {
	b.Helper()
	n := startNATS(b)
	s, t := natsPair(b, n, options{})
	return open(b, s, t)
}

// memPair has no NATS beneath: what is left is the tunnel's own cost.
func memPair(b *testing.B) (near, far net.Conn) {
	b.Helper()
	bus := newMemBus()
	s, t := pair(b, bus, bus, options{})
	return open(b, s, t)
}

var benches = []struct {
	name string
	pair func(*testing.B) (net.Conn, net.Conn)
}{
	{"tcp", tcpPair},
	{"tunnel", tunnelPair},
	{"tunnel-no-nats", memPair},
}

func BenchmarkThroughput(b *testing.B) {
	for _, bench := range benches {
		b.Run(bench.name, func(b *testing.B) {
			near, far := bench.pair(b)
			b.SetBytes(benchPiece)
			b.ReportAllocs()
			b.ResetTimer()
			errs := make(chan error, 1)
			go func() {
				piece := noise(benchPiece, 7)
				for range b.N {
					if _, err := near.Write(piece); err != nil {
						errs <- err
						return
					}
				}
				errs <- nil
			}()
			if _, err := io.CopyN(io.Discard, far, int64(b.N)*benchPiece); err != nil {
				b.Fatal(err)
			}
			if err := <-errs; err != nil {
				b.Fatal(err)
			}
		})
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	for _, bench := range benches {
		b.Run(bench.name, func(b *testing.B) {
			near, far := bench.pair(b)
			go func() { _, _ = io.Copy(far, far) }()
			ask := make([]byte, 200)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				if _, err := near.Write(ask); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(near, ask); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkNATSRoundTrip is what NATS itself takes for the same: a request and its answer between two clients.
func BenchmarkNATSRoundTrip(b *testing.B) {
	n := startNATS(b)
	asking, answering := natsBus{connect(b, n.addr())}, natsBus{connect(b, n.addr())}
	came := make(chan struct{}, 1)
	for _, s := range []struct {
		bus     natsBus
		subject string
		take    func(string, []byte)
	}{
		{answering, "down", func(_ string, p []byte) { _ = answering.publish("up", p) }},
		{asking, "up", func(string, []byte) { came <- struct{}{} }},
	} {
		cancel, err := s.bus.subscribe(s.subject, s.take)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = cancel() })
		if err := s.bus.Flush(); err != nil {
			b.Fatal(err)
		}
	}
	ask := make([]byte, 200)
	b.ResetTimer()
	for range b.N {
		if err := asking.publish("down", ask); err != nil {
			b.Fatal(err)
		}
		<-came
	}
}

// BenchmarkOpen is a stream with one question and one answer.
func BenchmarkOpen(b *testing.B) {
	n := startNATS(b)
	near, far := natsPair(b, n, options{})
	go func() {
		for {
			a, err := far.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.CopyN(a, a, 200)
				_ = a.Close()
			}()
		}
	}()
	ask := make([]byte, 200)
	b.ResetTimer()
	for range b.N {
		c, err := near.Open(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		if _, err := c.Write(ask); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, ask); err != nil {
			b.Fatal(err)
		}
		_ = c.Close()
	}
}

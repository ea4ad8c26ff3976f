package tunnel

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

// Whatever a frame says, it is read as it is or refused, and taking it neither fails otherwise nor breaks a bound.
func FuzzFrame(f *testing.F) {
	for _, fr := range []frame{{}, {flags: flagPing, seen: 1}, {flags: flagFin, data: []byte("end")}, {flags: flagOver, data: []byte{overClosed}},
		{offset: maxOffset, credit: maxOffset, ack: maxOffset}, {flags: flagGap | flagAgain, ack: 1}} {
		f.Add(append(fr.head(nil), fr.data...))
	}
	dp, lp := parties(f)
	d, _ := shake(f, dp, lp)
	f.Fuzz(func(t *testing.T, plain []byte) {
		fr, err := parseFrame(plain)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatal(err)
			}
			return
		}
		if again := append(fr.head(nil), fr.data...); !bytes.Equal(again, plain) {
			t.Fatalf("%x is read as %x", plain, again)
		}
		c := newConn(newMemBus(), "x", "y", d, options{dead: defaultDead, window: leastWindow})
		c.dog.Stop()
		for range 2 {
			c.mu.Lock()
			err := c.take(&fr, c.alive)
			if c.buffer.size > leastWindow || c.rcv > leastWindow+1 || c.una > c.most {
				t.Fatalf("%d bytes are held, %d came, %d of %d are acknowledged", c.buffer.size, c.rcv, c.una, c.most)
			}
			c.mu.Unlock()
			if err != nil && !errors.Is(err, ErrProtocol) {
				t.Fatal(err)
			}
		}
	})
}

// No packet opens that was not sealed, and none makes the handshake fail otherwise than by being dropped.
func FuzzPackets(f *testing.F) {
	dp, lp := parties(f)
	down, _ := testName.Subjects()
	h, err := newHello(dp, down)
	if err != nil {
		f.Fatal(err)
	}
	_, answer, err := welcome(lp, down, h.packet, codeOpen)
	if err != nil {
		f.Fatal(err)
	}
	d, _ := shake(f, dp, lp)
	fr := frame{}
	f.Add(h.packet)
	f.Add(answer)
	f.Add(d.out.seal(fr.head(d.out.begin(nil, 3)), 3))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, packet []byte) {
		other := h.packet
		if _, _, err := welcome(lp, down, packet, codeOpen); err == nil && !bytes.Equal(packet[1:], other[1:]) || err != nil && !errors.Is(err, errPacket) {
			t.Fatalf("as a hello: %v", err)
		}
		if _, err := h.finish(packet); err == nil && !bytes.Equal(packet[1:], answer[1:]) || err != nil && !errors.Is(err, errPacket) {
			t.Fatalf("as a welcome: %v", err)
		}
		if _, err := d.in.open(bytes.Clone(packet)); err == nil {
			t.Fatal("a frame opens that nobody sealed")
		}
	})
}

// Whatever the other end's streams say, the filter passes it on as it is, or refuses.
func FuzzFilter(f *testing.F) {
	f.Add([]byte{0, muxData, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 'h', 'i', 0, muxWindow, 0, muxFin, 0, 0, 0, 1, 0, 0, 0, 0}, 7)
	f.Add([]byte{0, muxPing, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1}, 4096)
	f.Fuzz(func(t *testing.T, in []byte, size int) {
		var refused error
		fl := newFilter(onlyReader{bytes.NewReader(in)}, func(err error) { refused = err })
		var out []byte
		p := make([]byte, 1+max(0, size)%5000)
		for {
			n, err := fl.Read(p)
			out = append(out, p[:n]...)
			if err != nil {
				if refused == nil && err != io.EOF && err != io.ErrUnexpectedEOF {
					t.Fatal(err)
				}
				break
			}
		}
		if !bytes.HasPrefix(in, out) {
			t.Fatalf("%x came out of %x", out, in)
		}
		if refused == nil && len(in)-len(out) >= muxHead {
			t.Fatalf("%d of %d bytes passed", len(out), len(in))
		}
	})
}

type onlyReader struct{ io.Reader }

func (onlyReader) Write(p []byte) (int, error) { return len(p), nil }
func (onlyReader) Close() error                { return nil }

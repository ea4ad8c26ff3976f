package remote

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// halves are the two ends of a connection over a stream.
func halves(t testing.TB) (a, b *Half) {
	x, y := streams(t)
	return NewHalf(x, bufio.NewReader(x)), NewHalf(y, bufio.NewReader(y))
}

// Each direction ends by itself, and what was written before arrives.
func TestHalfEnds(t *testing.T) {
	a, b := halves(t)
	big := bytes.Repeat([]byte("0123456789"), 100_000)
	go func() {
		_, _ = a.Write(big)
		_ = a.CloseWrite()
	}()
	got, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(got, big) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if _, err := a.Write([]byte("x")); err == nil {
		t.Error("after its end something was written")
	}
	go func() {
		_, _ = b.Write([]byte("answer"))
		b.Close()
	}()
	if got, err := io.ReadAll(a); err != nil || string(got) != "answer" {
		t.Errorf("%q %v", got, err)
	}
	a.Close()
}

// A cut is no end.
func TestHalfCut(t *testing.T) {
	a, b := halves(t)
	if _, err := a.Write([]byte("half of")); err != nil {
		t.Fatal(err)
	}
	_ = a.SetLinger(0)
	a.Close()
	if got, err := io.ReadAll(b); string(got) != "half of" || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%q %v", got, err)
	}
	// Nor is the end of the stream, or of the session.
	a, b = halves(t)
	if _, err := a.Write([]byte("half of")); err != nil {
		t.Fatal(err)
	}
	a.Conn.Close()
	if got, err := io.ReadAll(b); string(got) != "half of" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%q %v", got, err)
	}
}

// A Read that waits ends with Close, and at its deadline, after which all goes on.
func TestHalfWaits(t *testing.T) {
	a, b := halves(t)
	_ = a.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("at the deadline: %v", err)
	}
	_ = a.SetReadDeadline(time.Time{})
	if _, err := b.Write([]byte("late")); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 10)
	if n, err := a.Read(p); string(p[:n]) != "late" || err != nil {
		t.Errorf("afterwards: %q %v", p[:n], err)
	}
	over := make(chan error, 1)
	go func() {
		_, err := a.Read(p)
		over <- err
	}()
	time.AfterFunc(10*time.Millisecond, func() { a.Close() })
	select {
	case err := <-over:
		if err == nil {
			t.Error("it read something")
		}
	case <-time.After(time.Minute):
		t.Error("a Read outlives Close")
	}
}

// Whatever is written in whatever parts is what is read, in whatever parts.
func TestHalfCarriesAll(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		parts := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 100_000), 0, 8).Draw(rt, "parts")
		size := rapid.IntRange(1, 70_000).Draw(rt, "size")
		a, b := halves(t)
		go func() {
			for _, p := range parts {
				_, _ = a.Write(p)
			}
			a.Close()
		}()
		var got bytes.Buffer
		if _, err := io.CopyBuffer(struct{ io.Writer }{&got}, struct{ io.Reader }{b}, make([]byte, size)); err != nil {
			rt.Fatal(err)
		}
		if want := bytes.Join(parts, nil); !bytes.Equal(got.Bytes(), want) {
			rt.Fatalf("%d bytes of %d", got.Len(), len(want))
		}
		b.Close()
	})
}

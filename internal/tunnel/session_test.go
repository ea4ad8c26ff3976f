package tunnel

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

func TestStreamsCarryBytesBothWays(t *testing.T) {
	b := newMemBus()
	near, far := pair(t, b, b, options{})
	for _, ends := range [][2]*Session{{near, far}, {far, near}} {
		c, a := open(t, ends[0], ends[1])
		data := noise(3<<20, 1)
		errs := make(chan error, 2)
		go send(c, data, errs)
		go send(a, data, errs)
		for _, s := range []net.Conn{a, c} {
			got, err := sum(s, int64(len(data)))
			if err != nil || got != sha256.Sum256(data) {
				t.Fatalf("other bytes, or %v", err)
			}
		}
		for range 2 {
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		}
	}
	if near.Name() != testName || far.Name() != testName {
		t.Fatalf("the session is named %v and %v", near.Name(), far.Name())
	}
}

func TestStreamsEndAsTheirWritersSay(t *testing.T) {
	b := newMemBus()
	near, far := pair(t, b, b, options{})
	c, a := open(t, near, far)
	if _, err := c.Write([]byte("question")); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("more")); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("a write behind the end: %v", err)
	}
	if got, err := io.ReadAll(a); err != nil || string(got) != "question" {
		t.Fatalf("%q, %v", got, err)
	}
	if _, err := a.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || string(got) != "answer" {
		t.Fatalf("%q, %v", got, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("a read of a closed stream: %v", err)
	}
	forgotten(t, near)
	forgotten(t, far)
}

// forgotten waits until nothing is left of any stream.
func forgotten(t *testing.T, s *Session) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		n := len(s.streams)
		s.mu.Unlock()
		if n == 0 && s.mux.NumStreams() == 1 && len(s.slots) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d streams are left, %d of yamux, %d slots", n, s.mux.NumStreams(), len(s.slots))
		}
	}
}

// A stream that its reader closes stops its writer, who is in the middle of a write and reads nothing.
func TestClosingStopsTheWriter(t *testing.T) {
	b := newMemBus()
	near, far := pair(t, b, b, options{})
	for _, ends := range [][2]*Session{{near, far}, {far, near}} {
		c, a := open(t, ends[0], ends[1])
		errs := make(chan error, 1)
		go func() {
			for {
				if _, err := a.Write(make([]byte, 1<<20)); err != nil {
					errs <- err
					return
				}
			}
		}()
		if _, err := io.ReadFull(c, make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-errs; !errors.Is(err, ErrStopped) {
			t.Fatalf("the writer was told %v", err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	forgotten(t, near)
	forgotten(t, far)
}

// A stream that was closed before the other end took it is stopped there all the same.
func TestClosingBeforeItIsTaken(t *testing.T) {
	b := newMemBus()
	near, far := pair(t, b, b, options{})
	for range 20 {
		c, err := near.Open(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		a, err := far.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(a); err != nil || string(got) != "x" {
			t.Fatalf("%q, %v", got, err)
		}
		for {
			if _, err := a.Write(make([]byte, 64<<10)); err != nil {
				if !errors.Is(err, ErrStopped) {
					t.Fatal(err)
				}
				break
			}
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	forgotten(t, near)
	forgotten(t, far)
}

// One stream that nobody reads stops its writer, and no other stream.
func TestUnreadStreamHoldsUpNoOther(t *testing.T) {
	b := newMemBus()
	near, far := pair(t, b, b, options{window: leastWindow})
	idle, unread := open(t, near, far)
	// What a stream holds for its reader is written in any time, and nothing behind it.
	if _, err := idle.Write(make([]byte, streamWindow)); err != nil {
		t.Fatal(err)
	}
	if err := idle.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	n, err := idle.Write(make([]byte, 8<<20))
	if ne, ok := err.(net.Error); !ok || !ne.Timeout() {
		t.Fatalf("8 MiB that nobody reads were written: %d bytes, %v", n, err)
	}
	c, a := open(t, near, far)
	data := noise(4<<20, 2)
	errs := make(chan error, 1)
	go send(c, data, errs)
	if got, err := sum(a, int64(len(data))); err != nil || got != sha256.Sum256(data) {
		t.Fatalf("other bytes, or %v", err)
	}
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
	near.conn.mu.Lock()
	held := near.conn.unsent.size + near.conn.buffer.size
	near.conn.mu.Unlock()
	if held > 2*leastWindow {
		t.Fatalf("the session holds %d bytes", held)
	}
	if _, err := io.ReadFull(unread, make([]byte, streamWindow)); err != nil {
		t.Fatalf("what was written before the deadline is not there: %v", err)
	}
}

func TestManyStreamsAtOnce(t *testing.T) {
	b := newMemBus()
	near, far := pair(t, b, b, options{})
	manyStreams(t, near, far, 200)
}

// manyStreams has n streams open at once, each with a question and its answer.
func manyStreams(t *testing.T, near, far *Session, n int) {
	t.Helper()
	var wg sync.WaitGroup
	all := make(chan struct{}) // closed when every stream is open
	var open sync.WaitGroup
	open.Add(n)
	go func() { open.Wait(); close(all) }()
	wg.Go(func() {
		for range n {
			a, err := far.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			wg.Go(func() {
				defer a.Close()
				got, err := io.ReadAll(a)
				if err == nil {
					_, err = a.Write(bytes.ToUpper(got))
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
	})
	for i := range n {
		wg.Go(func() {
			c, err := near.Open(context.Background())
			open.Done()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			<-all
			text := fmt.Sprintf("stream %d", i)
			if _, err := io.WriteString(c, text); err != nil {
				t.Error(err)
			}
			if err := c.(*Stream).CloseWrite(); err != nil {
				t.Error(err)
			}
			got, err := io.ReadAll(c)
			if err != nil || string(got) != string(bytes.ToUpper([]byte(text))) {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	wg.Wait()
	forgotten(t, near)
	forgotten(t, far)
}

// The end of a session is no end of a stream: what was cut off is not taken for all.
func TestEndOfSessionIsNoEOF(t *testing.T) {
	b := newMemBus()
	near, far := pair(t, b, b, options{})
	c, a := open(t, near, far)
	whole, done := open(t, near, far)
	for _, s := range []net.Conn{c, whole} {
		if _, err := s.Write([]byte("half")); err != nil {
			t.Fatal(err)
		}
	}
	if err := whole.Close(); err != nil {
		t.Fatal(err)
	}
	forgottenFin(t, far, done)
	if err := near.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(a); !errors.Is(err, ErrPeerClosed) || string(got) != "half" {
		t.Fatalf("%q, %v", got, err)
	}
	if got, err := io.ReadAll(done); err != nil || string(got) != "half" {
		t.Fatalf("the stream that was ended: %q, %v", got, err)
	}
	if err := far.Err(); !errors.Is(err, ErrPeerClosed) {
		t.Fatal(err)
	}
	<-near.Done() // for which Close waits for a few seconds only
	if err := near.Err(); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	if _, err := near.Open(context.Background()); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	if _, err := far.Accept(); !errors.Is(err, ErrPeerClosed) {
		t.Fatal(err)
	}
	if _, err := a.Write([]byte("x")); !errors.Is(err, ErrPeerClosed) {
		t.Fatal(err)
	}
}

// forgottenFin waits until the end of the stream has come.
func forgottenFin(t *testing.T, s *Session, st *Stream) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !s.filter.ended(st.id); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the end of the stream does not come")
		}
	}
}

func TestOpenHeedsItsContext(t *testing.T) {
	b := newMemBus()
	near, _ := pair(t, b, b, options{})
	var last error
	for range muxBacklog + acceptQueue + 2 {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		_, last = near.Open(ctx)
		cancel()
		if last != nil {
			break
		}
	}
	if !errors.Is(last, context.DeadlineExceeded) {
		t.Fatalf("streams that nobody takes can be opened without end: %v", last)
	}
}

func TestDeadlinesOfStreams(t *testing.T) {
	b := newMemBus()
	near, far := pair(t, b, b, options{})
	c, a := open(t, near, far)
	if err := c.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !isTimeout(err) {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Write([]byte("y")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	// A write waits for a bus that is away no longer than its deadline.
	b.set(true, false)
	if err := c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := c.Write(make([]byte, 1<<20)); err != nil {
			if !isTimeout(err) {
				t.Fatal(err)
			}
			break
		}
	}
	b.set(false, false)
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// What a deadline cut short does not come behind what is written later.
func TestLateWritesKeepTheirOrder(t *testing.T) {
	b := newMemBus()
	near, far := pair(t, b, b, options{window: leastWindow})
	c, a := open(t, near, far)
	b.set(true, false)
	data := noise(1<<20, 9)
	// The deadline comes once the write is under way, or there would be nothing that it cuts short.
	if err := c.SetWriteDeadline(time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, 1)
	go send(c, data[:200<<10], errs)
	for len(c.writing) == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := c.SetWriteDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := <-errs; !isTimeout(err) {
		t.Fatal(err)
	}
	if n, err := c.Write([]byte("never")); n != 0 || !isTimeout(err) {
		t.Fatal(n, err)
	}
	if err := c.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	go send(c, data[200<<10:], errs)
	b.set(false, false)
	if got, err := sum(a, int64(len(data))); err != nil || got != sha256.Sum256(data) {
		t.Fatalf("other bytes, or %v", err)
	}
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
}

// A write that waits for its turn is woken by a deadline that is set meanwhile, and by the end of the stream.
func TestWaitingWritesAreWoken(t *testing.T) {
	b := newMemBus()
	near, far := pair(t, b, b, options{window: leastWindow})
	for what, wake := range map[string]func(st *Stream) error{
		"a deadline": func(st *Stream) error { return st.SetWriteDeadline(time.Now()) },
		"its end":    (*Stream).Close,
	} {
		c, _ := open(t, near, far)
		b.set(true, false)
		if err := c.SetWriteDeadline(time.Now()); err != nil {
			t.Fatal(err)
		}
		c.writing <- struct{}{} // another one writes
		if err := c.SetWriteDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		errs := make(chan error, 1)
		go send(c, []byte("x"), errs)
		if err := wake(c); err != nil {
			t.Fatal(err)
		}
		if err := <-errs; !isTimeout(err) && !errors.Is(err, net.ErrClosed) {
			t.Fatalf("%s: %v", what, err)
		}
		<-c.writing
		b.set(false, false)
	}
}

package guard

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// stream answers with events until its context ends, and says why it did.
func stream(w http.ResponseWriter, r *http.Request, told chan<- error) {
	ctx, err := Lift(struct{ unwrapper }{unwrapper{w}}, r)
	if err != nil {
		http.Error(w, err.Error(), 500)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, "data: begun\n\n")
	w.(http.Flusher).Flush()
	<-ctx.Done()
	fmt.Fprint(w, "data: bye\n\n")
	told <- context.Cause(ctx)
}

// unwrapper is a writer of a layer between.
type unwrapper struct{ http.ResponseWriter }

func (u unwrapper) Unwrap() http.ResponseWriter { return u.ResponseWriter }

// short is a time of the server within which a loaded machine gets a request to its handler, and longer is longer than that.
const short, longer = 1500 * time.Millisecond, 2 * time.Second

// 200 streams outlive every time of the server, are told of its end, and end well.
func TestStreams(t *testing.T) {
	const many = 200
	for _, kind := range []string{"unix", "tcp"} {
		t.Run(kind, func(t *testing.T) {
			var l *Listener
			var err error
			if kind == "tcp" {
				l, err = ListenTCP("127.0.0.1:0", nil)
			} else {
				l, err = ListenUnix(filepath.Join(privateDir(t), "s"), "127.0.0.1")
			}
			must(t, err)
			host := "localhost"
			if kind == "tcp" {
				host = l.Addr().String()
			}
			told := make(chan error, many)
			s := serve(t, l, func(w http.ResponseWriter, r *http.Request) { stream(w, r, told) },
				Options{HeaderTimeout: time.Minute, ReadTimeout: short, WriteTimeout: short, IdleTimeout: short})
			var outs []*bufio.Reader
			for range many {
				c, err := net.Dial(kind, l.Addr().String())
				must(t, err)
				defer c.Close()
				fmt.Fprintf(c, "GET /s HTTP/1.1\r\nHost: %s\r\n\r\n", host)
				r := bufio.NewReader(c)
				res, err := http.ReadResponse(r, nil)
				must(t, err)
				body := bufio.NewReader(res.Body)
				if line, err := body.ReadString('\n'); line != "data: begun\n" {
					t.Fatalf("%q, %v", line, err)
				}
				outs = append(outs, body)
			}
			// They are older than the server's times now, which is what this waits for.
			<-time.After(longer)
			if n := len(told); n != 0 {
				t.Fatalf("%d streams ended: %v", n, <-told)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			if err := s.Shutdown(ctx); err != nil {
				t.Error(err)
			}
			for _, out := range outs {
				if rest, err := io.ReadAll(out); err != nil || string(rest) != "\ndata: bye\n\n" {
					t.Fatalf("%q, %v", rest, err)
				}
			}
			for range many {
				if why := <-told; !errors.Is(why, ErrShutdown) {
					t.Fatalf("told %v", why)
				}
			}
		})
	}
}

// A stream's client that goes, or stops reading, ends its handler.
func TestStreamsEnd(t *testing.T) {
	told := make(chan error, 1)
	_, addr := onTCP(t, func(w http.ResponseWriter, r *http.Request) { stream(w, r, told) }, Options{})
	_, hasty := onTCP(t, func(w http.ResponseWriter, r *http.Request) {
		if _, err := Lift(w, r); err != nil {
			t.Error(err)
		}
		for {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				told <- err
				return
			}
		}
	}, Options{StallTimeout: short})
	c, err := net.Dial("tcp", addr)
	must(t, err)
	fmt.Fprintf(c, "GET /gone HTTP/1.1\r\nHost: %s\r\n\r\n", addr)
	_, err = c.Read(make([]byte, 1))
	must(t, err)
	c.Close()
	if why := <-told; !errors.Is(why, context.Canceled) || errors.Is(why, ErrShutdown) {
		t.Errorf("told %v", why)
	}
	c, err = net.Dial("tcp", hasty)
	must(t, err)
	defer c.Close()
	fmt.Fprintf(c, "GET /stalled HTTP/1.1\r\nHost: %s\r\n\r\n", hasty)
	var timeout net.Error
	if why := <-told; !errors.As(why, &timeout) || !timeout.Timeout() {
		t.Errorf("told %v", why)
	}
}

// With HTTP/2 the times are the stream's own, and go on while nothing is written: before the first word, and after it.
func TestQuietStream(t *testing.T) {
	// Where what comes before was not done within the times, they were too short for this machine, and longer ones are tried.
	for times := short; !quietStream(t, times); times *= 4 {
		if times > 30*time.Second {
			t.Fatalf("within %s nothing was begun", times)
		}
	}
}

func quietStream(t *testing.T, times time.Duration) (within bool) {
	t.Helper()
	asked := time.Now()
	var lifted, slow atomic.Bool // slow: what has to be done within the times was not
	soon := func(since time.Time) bool {
		slow.Store(slow.Load() || time.Since(since) >= times)
		return !slow.Load()
	}
	_, addr := onTCP(t, func(w http.ResponseWriter, r *http.Request) {
		ctx, err := Lift(w, r)
		if !soon(asked) {
			return
		}
		lifted.Store(true)
		if err != nil {
			t.Error(err)
			return
		}
		for _, word := range []string{"begun,", "bye"} {
			select { // longer than the server's times, which is what this waits for
			case <-ctx.Done():
				t.Error("the stream was cut: ", context.Cause(ctx))
			case <-time.After(times + 500*time.Millisecond):
			}
			now := time.Now()
			fmt.Fprint(w, word)
			w.(http.Flusher).Flush()
			if !soon(now) {
				return
			}
		}
	}, Options{H2C: true, WriteTimeout: times, StallTimeout: times})
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	r, err := (&http.Client{Transport: tr}).Get("http://" + addr + "/a")
	if slow.Load() || err != nil && !lifted.Load() && !soon(asked) {
		return false
	}
	must(t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if slow.Load() {
		return false
	}
	if err != nil || string(b) != "begun,bye" {
		t.Errorf("%q, %v", b, err)
	}
	return true
}

// A lifted request may also say what it has to say slowly.
func TestSlowBody(t *testing.T) {
	lifted := make(chan struct{})
	_, addr := onTCP(t, func(w http.ResponseWriter, r *http.Request) {
		if _, err := Lift(w, r); err != nil {
			t.Error(err)
		}
		close(lifted)
		b, err := io.ReadAll(r.Body)
		fmt.Fprint(w, string(b), err)
	}, Options{HeaderTimeout: time.Minute, ReadTimeout: short})
	c, err := net.Dial("tcp", addr)
	must(t, err)
	defer c.Close()
	fmt.Fprintf(c, "POST /a HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{", addr)
	<-lifted
	<-time.After(longer) // longer than the server's times, which is what this waits for
	fmt.Fprint(c, "}")
	if b, err := io.ReadAll(c); err != nil || !strings.HasSuffix(string(b), "{}<nil>") {
		t.Errorf("%q, %v", b, err)
	}
}

func TestLiftNeedsTheGuard(t *testing.T) {
	if _, err := Lift(unwrapper{nil}, nil); err == nil {
		t.Error("lifted")
	}
}

func TestShutdown(t *testing.T) {
	entered, leave := make(chan struct{}, 2), make(chan struct{})
	s, addr := onTCP(t, func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		select {
		case <-leave:
			ok(w, r)
		case <-r.Context().Done():
		}
	}, Options{})
	silent, err := net.Dial("tcp", addr) // asks nothing, and holds nothing up
	must(t, err)
	defer silent.Close()
	got := make(chan string)
	go func() {
		r, err := http.Get("http://" + addr + "/a")
		if err != nil {
			got <- err.Error()
			return
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body) // what came is looked at
		got <- string(b)
	}()
	<-entered
	over := make(chan error)
	go func() { over <- s.Shutdown(t.Context()) }()
	<-s.closing.Done()
	_, _ = silent.Read(make([]byte, 1)) // returns when it was closed
	close(leave)
	if b := <-got; b != "reached" {
		t.Errorf("a request at work got %q", b)
	}
	if err := <-over; err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Error("it still listens")
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestShutdownHasADeadline(t *testing.T) {
	entered, over := make(chan struct{}), make(chan struct{})
	s, addr := onTCP(t, func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done() // ends only when it is cut
		close(over)
	}, Options{})
	c, err := net.Dial("tcp", addr)
	must(t, err)
	defer c.Close()
	fmt.Fprintf(c, "GET /a HTTP/1.1\r\nHost: %s\r\n\r\n", addr)
	<-entered
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = s.Shutdown(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 requests") {
		t.Errorf("got %v", err)
	}
	<-over
}

// A request that comes on an open connection after the end began is told so.
func TestLateRequest(t *testing.T) {
	s := New(http.HandlerFunc(ok), Options{})
	s.close(ErrShutdown)
	l, err := ListenTCP("127.0.0.1:0", nil)
	must(t, err)
	defer l.Close()
	plain := &http.Server{Handler: s.http.Handler}
	go plain.Serve(l.inner)
	defer plain.Close()
	got := raw(t, l.Addr().String(), "GET /a HTTP/1.1\r\nHost: HOST\r\n\r\n")
	mustRefuse(t, got, 503, CodeUnavailable, "shuts down")
	if got.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

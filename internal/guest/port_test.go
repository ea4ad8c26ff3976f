package guest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"ravi/internal/guestapi"
	"ravi/internal/guestapi/process"
	"ravi/internal/porttest"
)

// listenOn serves each connection to a free port of an address of loopback.
func listenOn(t *testing.T, host string, serve func(*net.TCPConn)) (port int) {
	t.Helper()
	return listenOnPort(t, host, 0, serve)
}

func listenOnPort(t *testing.T, host string, port int, serve func(*net.TCPConn)) int {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c.(*net.TCPConn))
			}()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-over
	})
	return l.Addr().(*net.TCPAddr).Port
}

// port calls a port; what is written to in goes there.
func (g *guestTest) port(ctx context.Context, t *testing.T, port string) (res *http.Response, in *io.PipeWriter) {
	t.Helper()
	r, w := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+"/port?port="+port, r)
	if err != nil {
		t.Fatal(err)
	}
	if res, err = g.HTTP.Do(req); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close(); res.Body.Close() })
	return res, w
}

func TestPort(t *testing.T) {
	g := startGuest(t, Options{})
	echo := func(c *net.TCPConn) {
		_, _ = io.Copy(c, c)
		_, _ = io.WriteString(c, "end")
	}
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) {
			res, in := g.port(testContext(t), t, strconv.Itoa(listenOn(t, host, echo)))
			if res.StatusCode != http.StatusOK {
				t.Fatal(res.Status)
			}
			// Both ways at once: an answer comes while more can be sent.
			if _, err := io.WriteString(in, "hello"); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 5)
			if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != "hello" {
				t.Fatalf("%q %v", got, err)
			}
			sent := bytes.Repeat([]byte("0123456789"), 300_000)
			go func() {
				_, _ = in.Write(sent) // what is missing shows in the reading
				in.Close()
			}()
			if all, err := io.ReadAll(res.Body); err != nil || !bytes.Equal(all, append(sent, "end"...)) {
				t.Errorf("%d bytes came back: %v", len(all), err)
			}
		})
	}

	t.Run("cut", func(t *testing.T) {
		port := listenOn(t, "127.0.0.1", func(c *net.TCPConn) {
			_, _ = io.ReadFull(c, make([]byte, 1))
			_ = c.SetLinger(0)
		})
		res, in := g.port(testContext(t), t, strconv.Itoa(port))
		if _, err := in.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(res.Body); err == nil {
			t.Error("a connection that was cut ends in order")
		}
	})

	// Whoever lets go is let go of.
	t.Run("let go", func(t *testing.T) {
		gone := make(chan struct{})
		port := listenOn(t, "127.0.0.1", func(c *net.TCPConn) {
			_, _ = io.Copy(io.Discard, c)
			close(gone)
		})
		res, _ := g.port(testContext(t), t, strconv.Itoa(port))
		res.Body.Close()
		<-gone
	})
}

func TestPortRefused(t *testing.T) {
	g := startGuest(t, Options{})
	// Not even another address of the same machine is connected to. At the port nobody else listens, nor comes to.
	elsewhere := listenOnPort(t, "127.0.0.2", porttest.Free(t), func(c *net.TCPConn) { _, _ = io.WriteString(c, "reached") })
	for port, status := range map[string]int{
		"": 400, "0": 400, "65536": 400, "-1": 400, "80x": 400, "127.0.0.2:80": 400, "1e3": 400,
		strconv.Itoa(elsewhere): 404, fmt.Sprintf("%d&host=127.0.0.2", elsewhere): 404, fmt.Sprintf("%d&addr=127.0.0.2", elsewhere): 404,
	} {
		res, _ := g.port(testContext(t), t, port)
		b, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != status || !strings.Contains(string(b), `"message"`) {
			t.Errorf("port %s: %s %s %v", port, res.Status, b, err)
		}
	}
	res, err := http.Post(g.tcp(t)+"/port?port="+strconv.Itoa(elsewhere), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusHTTPVersionNotSupported {
		t.Errorf("over HTTP/1.1: %s", res.Status)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestPortsAreBounded(t *testing.T) {
	g := startGuest(t, Options{})
	hold := make(chan struct{})
	port := strconv.Itoa(listenOn(t, "127.0.0.1", func(*net.TCPConn) { <-hold }))
	for i := range maxPorts {
		if res, _ := g.port(testContext(t), t, port); res.StatusCode != http.StatusOK {
			t.Fatalf("connection %d: %s", i, res.Status)
		}
	}
	if res, _ := g.port(testContext(t), t, port); res.StatusCode != http.StatusTooManyRequests {
		t.Errorf("one more: %s", res.Status)
	}
	// Their ends make room.
	close(hold)
	deadline := testContext(t)
	for {
		if res, _ := g.port(deadline, t, port); res.StatusCode == http.StatusOK {
			return
		}
	}
}

// The end of the agent is the end of connections to ports.
func TestPortEndsWithTheAgent(t *testing.T) {
	s := New(Options{SpoolDir: t.TempDir()})
	ours, theirs := newLink(t)
	served := make(chan error, 1)
	go func() { served <- s.ServeLink(theirs, "") }()
	gone := make(chan struct{})
	port := listenOn(t, "127.0.0.1", func(c *net.TCPConn) {
		_, _ = io.Copy(io.Discard, c)
		close(gone)
	})
	g := &guestTest{Client: guestapi.NewLinkClient(ours), server: s}
	res, _ := g.port(testContext(t), t, strconv.Itoa(port))
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	<-gone
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Error("it ends as if the port's side had ended it")
	}
	g.HTTP.CloseIdleConnections()
	ours.Close()
	<-served
}

// What is listed of a process is who it runs as, and whether it has a terminal.
func TestListSaysWhoAndWhether(t *testing.T) {
	g := startGuest(t, Options{})
	ctx := testContext(t)
	first, second := sh("read x"), sh("read x")
	second.Pty = &process.PTY{Size: &process.PTY_Size{Cols: 80, Rows: 24}}
	g.start(t, ctx, first, "Authorization", basic("user"))
	g.start(t, ctx, second, "Authorization", basic("root"))
	res, err := g.Process.List(ctx, connect.NewRequest(&process.ListRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range res.Msg.GetProcesses() {
		got = append(got, fmt.Sprint(p.GetUser(), p.GetTerminal()))
	}
	if want := []string{"userfalse", "roottrue"}; !slices.Equal(got, want) {
		t.Errorf("listed are %q, want %q", got, want)
	}
}

package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/net/http2"

	"ravi/internal/guestapi"
	"ravi/internal/guestapi/process"
	"ravi/internal/keeper"
)

// The tests of this file have a hostile guest flood the real relay, and look
// at the memory that this costs. The guest floods as many calls as the relay
// takes, of an owner that does not read.

const floodPrefix = "flood, "

// floodingGuest is a hostile guest that answers every call with a flood.
func floodingGuest(conn net.Conn, flood string) error {
	answer := floods[flood]
	if answer == nil {
		return rawFloods[flood](conn)
	}
	l := &once{conn: conn, closed: make(chan struct{})}
	err := (&http.Server{
		Handler: answer, Protocols: guestapi.OnlyHTTP2(),
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 2 * maxStreams},
	}).Serve(l)
	if errors.Is(err, net.ErrClosed) {
		return nil // the relay ended it
	}
	return err
}

// floods are what a guest can answer that keeps to HTTP/2.
var floods = map[string]http.HandlerFunc{
	"endless data": func(w http.ResponseWriter, _ *http.Request) { endless(w, make([]byte, 64<<10)) },
	"endless archive": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-tar")
		head := make([]byte, 512)
		copy(head, "name")
		head[156] = '0'
		copy(head[124:], "77777777777\x00")
		copy(head[148:], checksum(head))
		if _, err := w.Write(head); err == nil {
			endless(w, make([]byte, 64<<10))
		}
	},
	// The largest message that is allowed, of which the last byte never comes.
	"messages that do not end": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		b := make([]byte, 5+guestapi.MaxMessage-1)
		binary.BigEndian.PutUint32(b[1:], guestapi.MaxMessage)
		if strings.HasPrefix(r.Header.Get("Content-Type"), "application/proto") {
			b = b[5:]
		}
		if _, err := w.Write(b); err == nil {
			_ = http.NewResponseController(w).Flush() // the relay may have ended
			<-r.Context().Done()
		}
	},
	"headers at the bound": func(w http.ResponseWriter, r *http.Request) {
		for i := range 60 {
			w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("v", 1000))
		}
		endless(w, make([]byte, 1))
	},
	// A value of very many is the most memory for its size.
	"JSON at the bound": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(manyValues()) // the relay may have ended
	},
}

var manyValues = sync.OnceValue(func() []byte { return []byte("[" + strings.Repeat("[],", 340_000) + "0]") })

func endless(w http.ResponseWriter, b []byte) {
	for {
		if _, err := w.Write(b); err != nil {
			return
		}
	}
}

// rawFloods keep to nothing.
var rawFloods = map[string]func(net.Conn) error{
	"data beyond every window": func(conn net.Conn) error {
		return everyCall(conn, func(f *http2.Framer, stream uint32) error {
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndHeaders: true, BlockFragment: headers(":status", "200")}); err != nil {
				return err
			}
			for range 100 {
				if err := f.WriteData(stream, false, make([]byte, 16<<10)); err != nil {
					return err
				}
			}
			return nil
		})
	},
	"headers that do not end": func(conn net.Conn) error {
		return everyCall(conn, func(f *http2.Framer, stream uint32) error {
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: headers(":status", "200")}); err != nil {
				return err
			}
			for {
				if err := f.WriteContinuation(stream, false, headers("x-more", strings.Repeat("y", 16000))); err != nil {
					return err
				}
			}
		})
	},
	"interim answers": func(conn net.Conn) error {
		return everyCall(conn, func(f *http2.Framer, stream uint32) error {
			for range 20 {
				if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndHeaders: true, BlockFragment: headers(":status", "103", "link", strings.Repeat("z", 10_000))}); err != nil {
					return err
				}
			}
			return nil
		})
	},
	// It asks for acknowledgements that it does not read.
	"pings and settings": func(conn net.Conn) error {
		f := greet(conn)
		if f == nil || firstRequest(f) == 0 {
			return nil
		}
		for i := range 2_000_000 {
			if err := errors.Join(f.WritePing(false, [8]byte{byte(i)}), f.WriteSettings()); err != nil {
				break
			}
		}
		linger(conn)
		return nil
	},
}

// everyCall answers each call, whatever comes of it, until the link ends.
func everyCall(conn net.Conn, answer func(*http2.Framer, uint32) error) error {
	f := greet(conn)
	if f == nil {
		return nil
	}
	for {
		stream := firstRequest(f)
		if stream == 0 || answer(f, stream) != nil {
			linger(conn) // the end is the relay's to make
			return nil
		}
	}
}

// peak follows the most memory that a process ever held, for as long as there
// is one; the kernel counts it, so looking seldom misses little.
func peak(pid int) (stop func() int64) {
	over, most := make(chan struct{}), make(chan int64)
	var seen int64
	look := func() {
		if kib, ok := statusNumber(pid, "VmHWM"); ok {
			seen = kib << 10
		}
	}
	look() // now, since it may end before the first look of another goroutine
	go func() {
		for {
			select {
			case <-over:
				look()
				most <- seen
				return
			case <-time.After(2 * time.Millisecond):
				look()
			}
		}
	}()
	return func() int64 { close(over); return <-most }
}

func statusNumber(pid int, key string) (int64, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, key+":"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return n, err == nil
		}
	}
	return 0, false // it is over
}

// relayOf finds the relay of a keeper. It is there once the keeper is ready, but a listing can miss it while others come and go.
func relayOf(t *testing.T, h *keeper.Handle) int {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		all, err := os.ReadDir("/proc")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended since
			if parent, ok := statusNumber(pid, "PPid"); ok && int(parent) == h.PID() && strings.HasPrefix(string(cmdline), "ravi-relay\x00") {
				return pid
			}
		}
	}
	t.Fatal("this test does not find the relay")
	return 0
}

// call makes one call and reads nothing of the answer, until ctx is over.
func call(ctx context.Context, c *guestapi.Client, path string) {
	switch path {
	case "List":
		_, _ = c.Process.List(ctx, connect.NewRequest(&process.ListRequest{})) // a flood is no answer
		return
	case "Start":
		s, err := c.Process.Start(ctx, connect.NewRequest(&process.StartRequest{Process: &process.ProcessConfig{Cmd: "x"}}))
		if err != nil {
			return
		}
		defer s.Close()
		for s.Receive() {
		}
		return
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guest"+path, nil)
	if err != nil {
		return
	}
	res, err := c.HTTP.Do(req)
	if err != nil {
		return
	}
	defer res.Body.Close()
	<-ctx.Done()
}

// Whatever a guest floods with, its relay stays within its bound, or ends; and
// it is the guest's own sandbox alone that ends with it.
func TestFloodedRelayStaysBounded(t *testing.T) {
	for _, c := range []struct {
		flood string
		paths []string // the calls that are made, in turns
	}{
		{"endless data", []string{"/files?path=x"}},
		{"endless archive", []string{"/tar?path=x"}},
		{"messages that do not end", []string{"Start"}},
		{"messages that do not end", []string{"List"}},
		{"headers at the bound", []string{"/files?path=x", "Start", "List"}},
		{"JSON at the bound", []string{"/metrics"}},
		{"data beyond every window", []string{"/files?path=x", "Start"}},
		{"headers that do not end", []string{"/files?path=x", "List"}},
		{"interim answers", []string{"/files?path=x"}},
		{"pings and settings", []string{"List"}},
	} {
		t.Run(c.flood+" "+c.paths[0], func(t *testing.T) {
			h, _ := hold(t, floodPrefix+c.flood)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			if _, err := h.Ready(ctx); err != nil {
				t.Fatal(err)
			}
			pid := relayOf(t, h)
			most := peak(pid)
			before, _ := statusNumber(os.Getpid(), "VmHWM")
			// An owner that takes next to nothing leaves the most to the relay.
			owner := guestapi.NewHTTPClient(h.Dial)
			owner.Transport.(*http.Transport).HTTP2.MaxReceiveBufferPerStream = 64 << 10
			client := guestapi.NewClient(owner, "http://guest")
			calling, stop := context.WithCancel(ctx)
			var calls sync.WaitGroup
			for i := range maxStreams {
				calls.Go(func() { call(calling, client, c.paths[i%len(c.paths)]) })
			}
			settling, enough := context.WithTimeout(ctx, 20*time.Second)
			defer enough()
			settled(settling, h, pid)
			stop()
			calls.Wait()
			over := false // one that ended at once was not seen to hold anything
			select {
			case <-h.Ended():
				over = true
			default:
			}
			if got := most(); got == 0 && !over || got > relayMemory {
				t.Errorf("the relay held %d MiB, its bound is %d", got>>20, relayMemory>>20)
			} else {
				t.Logf("the relay held at most %d MiB", got>>20)
			}
			if after, _ := statusNumber(os.Getpid(), "VmHWM"); after-before > 256<<10 {
				t.Errorf("the owner grew by %d MiB", (after-before)>>10)
			}
			select {
			case <-h.Ended():
				end := h.End()
				t.Logf("it ended: %s %.300s", end.Reason, end.Detail)
				if end.Reason != keeper.ReasonViolation && end.Reason != keeper.ReasonRelay {
					t.Errorf("it ended for %q", end.Reason)
				}
			default:
			}
			owner.CloseIdleConnections()
		})
	}
}

// settled waits until the sandbox has ended, or its relay has had nothing to do
// for two seconds: everything that it takes it has taken.
func settled(ctx context.Context, h *keeper.Handle, pid int) {
	for idle, before := 0, ""; idle < 2; {
		// The processor time that it used, in user and in system mode
		// (proc_pid_stat(5)).
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // it may have ended
		_, after, _ := strings.Cut(string(b), ") ")
		now := ""
		if f := strings.Fields(after); len(f) > 13 {
			now = f[11] + f[12]
		}
		if idle++; now != before {
			idle = 0
		}
		before = now
		select {
		case <-h.Ended():
			return
		case <-ctx.Done():
			return
		case <-time.After(time.Second): // waiting longer finds more, never less
		}
	}
}

package broker

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ravi/internal/guard"
)

// gate is an upstream whose answers wait in the middle, until it is told to go on.
type gate struct {
	arrived chan struct{}
	goOn    chan struct{}
	gone    chan struct{} // an upstream call was cut
}

func newGate() *gate {
	return &gate{arrived: make(chan struct{}, 1000), goOn: make(chan struct{}), gone: make(chan struct{}, 1000)}
}

func (g *gate) serve(out http.ResponseWriter, r *http.Request) {
	events := anthropicStream("hello")
	r.Body = http.NoBody // what was asked is not kept here
	sse(out, events[:3]...)
	g.arrived <- struct{}{}
	select {
	case <-g.goOn:
		sse(out, events[3:]...)
	case <-r.Context().Done():
		g.gone <- struct{}{}
	}
}

// begin makes a streamed call, and reads up to where it waits.
func (w *world) begin(ctx context.Context) *http.Response {
	w.t.Helper()
	res, err := w.client.Do(w.request("POST", "/anthropic/v1/messages", streamed(anthropicBody)).WithContext(ctx))
	if err != nil {
		w.t.Fatal(err)
	}
	want := strings.Join(anthropicStream("hello")[:3], "")
	got := make([]byte, len(want))
	if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != want {
		w.t.Fatalf("%d %q %v", res.StatusCode, got, err)
	}
	return res
}

func TestEventsComeAtOnce(t *testing.T) {
	g := newGate()
	w := newWorld(t, g.serve, nil)
	res := w.begin(t.Context()) // while the upstream waits
	close(g.goOn)
	rest, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil || !strings.HasSuffix(string(rest), anthropicStream()[4]) {
		t.Errorf("%q %v", rest, err)
	}
}

func TestAgentGoesAway(t *testing.T) {
	g := newGate()
	w := newWorld(t, g.serve, nil)
	ctx, cancel := context.WithCancel(t.Context())
	res := w.begin(ctx)
	cancel()
	res.Body.Close()
	<-g.gone
	c := w.finished(1)[0]
	if c.Status != 200 || c.Failed != "the agent went away" || !c.Estimated || c.Usage.Input != 25 || c.Usage.CacheRead != 100 || c.Usage.Output < 2 {
		t.Errorf("%+v", c)
	}
	if w.broker.Usage() != c.Usage {
		t.Errorf("%+v", w.broker.Usage())
	}
}

// Who goes away before the answer has begun has used what was asked.
func TestAgentGoesAwayBeforeTheAnswer(t *testing.T) {
	arrived, gone := make(chan struct{}), make(chan struct{})
	w := newWorld(t, func(out http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
		close(gone)
	}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	if _, err := w.client.Do(w.request("POST", "/anthropic/v1/messages", anthropicBody).WithContext(ctx)); err == nil {
		t.Error("there was an answer")
	}
	<-gone
	c := w.finished(1)[0]
	if c.Status != 0 || c.Failed != "the agent went away" || c.Usage.Input != estimate(len(anthropicBody)) || !c.Estimated {
		t.Errorf("%+v", c)
	}
}

func TestEnd(t *testing.T) {
	g := newGate()
	w := newWorld(t, g.serve, nil)
	res := w.begin(t.Context())
	w.broker.End("the run has ended")
	w.broker.End("again")
	<-g.gone
	rest, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil || !strings.HasPrefix(string(rest), "event: error\n") || !strings.Contains(string(rest), "the lease is over: the run has ended") {
		t.Errorf("%q %v", rest, err)
	}
	if c := w.finished(1)[0]; c.Failed != "the lease is over: the run has ended" || c.Usage.Input != 25 {
		t.Errorf("%+v", c)
	}
	for call, to := range calls {
		got := w.post(to.path, to.body)
		if message := errorOf(t, got, dialectOf(call)); got.status != 401 || message != "the lease is over: the run has ended" {
			t.Errorf("%d %s", got.status, message)
		}
	}
	if began := w.begun(); len(began) != 1+len(calls) || began[1].Refused == "" {
		t.Errorf("%+v", began)
	}
	// A stranger does not learn of it.
	if got := w.post("/anthropic/v1/messages", anthropicBody, "X-Api-Key", ""); !strings.Contains(got.body, "there is no lease") {
		t.Error(got.body)
	}
}

func TestEndBeforeTheAnswer(t *testing.T) {
	arrived := make(chan struct{})
	w := newWorld(t, func(out http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	}, nil)
	go func() {
		<-arrived
		w.broker.End("it is late")
	}()
	got := w.post("/anthropic/v1/messages", anthropicBody)
	if message := errorOf(t, got, Anthropic); got.status != 401 || message != "the lease is over: it is late" {
		t.Errorf("%d %s", got.status, message)
	}
	w.finished(1)
}

// Two hundred streams flow while one hangs, and while one agent does not read.
func TestTwoHundredStreams(t *testing.T) {
	const many = 200
	hang := make(chan struct{})
	texts := slices.Repeat([]string{"some words of a model"}, 20)
	want := strings.Join(anthropicStream(texts...), "")
	var once sync.Once
	w := newWorld(t, func(out http.ResponseWriter, r *http.Request) {
		first := false
		once.Do(func() { first = true })
		if first {
			sse(out, anthropicStream("hello")[:3]...)
			close(hang)
			<-r.Context().Done()
			return
		}
		if r.Header.Get("Anthropic-Version") == "2000-01-01" {
			sse(out, slices.Repeat([]string{": " + strings.Repeat("x", 64<<10) + "\n\n"}, 500)...)
			return
		}
		sse(out, anthropicStream(texts...)...)
	}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stuck := w.begin(ctx)
	defer stuck.Body.Close()
	<-hang
	deaf, err := w.client.Do(w.request("POST", "/anthropic/v1/messages", streamed(anthropicBody), "Anthropic-Version", "2000-01-01").WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Body.Close()
	var all sync.WaitGroup
	for range many {
		all.Go(func() {
			res, err := w.client.Do(w.request("POST", "/anthropic/v1/messages", streamed(anthropicBody)))
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			if b, err := io.ReadAll(res.Body); err != nil || string(b) != want {
				t.Errorf("%d %d bytes %v", res.StatusCode, len(b), err)
			}
		})
	}
	all.Wait()
	w.finished(many)
	if total := w.broker.Usage(); total.Output != many*15 {
		t.Errorf("%+v", total)
	}
	cancel()
	w.finished(many + 2)
}

// What a stream costs does not depend on how much was asked.
func TestMemoryOfAStream(t *testing.T) {
	const many = 100
	g := newGate()
	w := newWorld(t, g.serve, nil)
	// The agents' and the upstream's sides are in this process too, so they are measured by themselves.
	body := streamed(strings.Replace(anthropicBody, "hi", strings.Repeat("hi ", 100_000), 1))
	measure := func(addr string) (each uint64, bodies []io.Closer) {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&before)
		for range many {
			r := w.request("POST", "/anthropic/v1/messages", body)
			r.URL.Host, r.Host = addr, addr
			if addr != w.addr {
				r.URL.Path = "/v1/messages"
			}
			res, err := w.client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			<-g.arrived
			bodies = append(bodies, res.Body)
		}
		w.mu.Lock()
		w.seen = nil
		w.mu.Unlock()
		runtime.GC()
		runtime.GC() // what was pooled goes with the second
		runtime.ReadMemStats(&after)
		return (after.HeapAlloc + after.StackInuse - before.HeapAlloc - before.StackInuse) / many, bodies
	}
	direct, first := measure(w.options.provider("anthropic").BaseURL.Host)
	through, second := measure(w.addr)
	t.Logf("%d bytes a stream through the broker, %d without", through, direct)
	if through > direct+100<<10 {
		t.Errorf("a stream costs %d bytes", through-direct)
	}
	close(g.goOn)
	for _, b := range append(first, second...) {
		b.Close()
	}
	w.finished(many)
}

// Chat's last piece has the usage; if only the broker asked for it, the agent does not get it.
func TestHiddenUsage(t *testing.T) {
	s := streams["chat"]
	sum := `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}` + "\n\n"
	for _, asked := range []bool{true, false} {
		w := newWorld(t, func(out http.ResponseWriter, r *http.Request) { sse(out, s.first, sum, "data: [DONE]\n\n") }, nil)
		body := s.body
		if asked {
			body = strings.Replace(body, "{", `{"stream_options":{"include_usage":true},`, 1)
		}
		got := w.post(s.path, body)
		want := s.first + "data: [DONE]\n\n"
		if asked {
			want = s.first + sum + "data: [DONE]\n\n"
		}
		if got.status != 200 || got.body != want {
			t.Errorf("asked %v: %d %s", asked, got.status, got.body)
		}
		if c := w.finished(1)[0]; c.Usage != (Usage{Input: 9, Output: 3}) || c.Estimated {
			t.Errorf("%+v", c)
		}
		if !strings.Contains(w.came()[0].body, "include_usage") {
			t.Errorf("sent: %s", w.came()[0].body)
		}
	}
}

// A run's processes come over connections of their own, and call the service by its name.
func TestService(t *testing.T) {
	w := newWorld(t, func(out http.ResponseWriter, r *http.Request) { writeJSON(out, 200, anthropicAnswer) }, nil)
	serve, end := w.broker.Service("broker.ravi.internal")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() { serve(context.Background(), c) })
		}
	})
	for host, status := range map[string]int{"broker.ravi.internal": 200, "broker.ravi.internal:80": 200, "127.0.0.1": 403, "api.anthropic.com": 403} {
		r := w.request("POST", "/anthropic/v1/messages", anthropicBody)
		r.URL.Host, r.Host = l.Addr().String(), host
		if got := w.do(r); got.status != status {
			t.Errorf("%s: %d %s", host, got.status, got.body)
		}
	}
	l.Close()
	if err := end(t.Context()); err != nil {
		t.Error(err)
	}
	served.Wait()
}

// When the server shuts down, streams are told.
func TestShutdown(t *testing.T) {
	g := newGate()
	w := newWorld(t, g.serve, nil)
	l, err := guard.ListenTCP("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	s := guard.New(w.broker, ServerOptions())
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	w.addr = l.Addr().String()
	res := w.begin(t.Context())
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	rest, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil || !strings.Contains(string(rest), "Ravi shuts down") {
		t.Errorf("%q %v", rest, err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	w.finished(1)
}

// BenchmarkFirstByte says what the broker adds to the time in which an answer begins.
func BenchmarkFirstByte(b *testing.B) {
	w := newWorld(b, func(out http.ResponseWriter, r *http.Request) { sse(out, anthropicStream("hello")...) }, nil)
	base, err := url.Parse(w.options.provider("anthropic").BaseURL.String())
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{100, 85_000, 1_000_000} {
		body := streamed(strings.Replace(anthropicBody, "hi", strings.Repeat("a", size), 1))
		for name, host := range map[string]string{"direct": base.Host, "through": w.addr} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				var took []time.Duration
				for b.Loop() {
					r := w.request("POST", "/anthropic/v1/messages", body)
					r.URL.Host, r.Host = host, host
					if name == "direct" {
						r.URL.Path = "/v1/messages"
					}
					start := time.Now()
					res, err := w.client.Do(r)
					if err != nil {
						b.Fatal(err)
					}
					in := bufio.NewReader(res.Body)
					if _, err := in.ReadByte(); err != nil {
						b.Fatal(err)
					}
					took = append(took, time.Since(start))
					if _, err := io.Copy(io.Discard, in); err != nil {
						b.Fatal(err)
					}
					res.Body.Close()
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			})
		}
	}
}

// BenchmarkStreams says what a stream costs when many flow at once.
func BenchmarkStreams(b *testing.B) {
	events := anthropicStream(slices.Repeat([]string{"some words of a model"}, 100)...)
	up := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		sse(out, events...)
	}))
	defer up.Close()
	w := newWorld(b, nil, func(o *Options) {
		u, err := url.Parse(up.URL)
		if err != nil {
			b.Fatal(err)
		}
		o.provider("anthropic").BaseURL = u
	})
	body := streamed(anthropicBody)
	b.SetParallelism(100)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			res, err := w.client.Do(w.request("POST", "/anthropic/v1/messages", body))
			if err != nil {
				b.Error(err)
				return
			}
			if _, err := io.Copy(io.Discard, res.Body); err != nil {
				b.Error(err)
			}
			res.Body.Close()
		}
	})
}

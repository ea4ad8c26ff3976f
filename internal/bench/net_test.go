package bench

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"
)

// answering is a server that says of every name that it is 127.0.0.1, and
// counts how often it was asked.
func answering(t *testing.T) (address string, asked *atomic.Int64) {
	t.Helper()
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	asked = new(atomic.Int64)
	s := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		asked.Add(1)
		var a dns.Msg
		a.SetReply(q)
		a.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.IPv4(127, 0, 0, 1)}}
		_ = w.WriteMsg(&a)
	})}
	started := make(chan struct{})
	s.NotifyStartedFunc = func() { close(started) }
	ended := make(chan error, 1)
	go func() { ended <- s.ActivateAndServe() }()
	<-started
	t.Cleanup(func() { _ = s.Shutdown(); <-ended })
	return pc.LocalAddr().String(), asked
}

func serving(t *testing.T) *netServers {
	t.Helper()
	s, err := newNetServers()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.close() })
	return s
}

// Each job gives as many samples as were asked for, over each protocol, also on
// connections that begin with the marker; and only connect asks anew each time.
func TestClient(t *testing.T) {
	s := serving(t)
	for _, over := range []string{overHTTP, overHTTPS1, overHTTPS2} {
		for _, do := range []string{jobConnect, jobKept, jobEvents, jobDownload} {
			t.Run(over+" "+do, func(t *testing.T) {
				names, asked := answering(t)
				j := job{Do: do, Over: over, N: 3, Copies: 2, Bytes: 3_000_001, Ports: s.ports, CA: string(s.ca)}
				o, err := j.run(t.Context(), names)
				if err != nil {
					t.Fatal(err)
				}
				if len(o.Through) != 3 || len(o.Copied) != 2 {
					t.Errorf("%d and %d samples", len(o.Through), len(o.Copied))
				}
				for _, v := range append(o.Through, o.Copied...) {
					if v <= 0 {
						t.Errorf("a sample of %v", v)
					}
				}
				want := int64(2) // one connection each
				if do == jobConnect {
					want = 5
				}
				if asked.Load() != want {
					t.Errorf("asked for a name %d times, want %d", asked.Load(), want)
				}
			})
		}
	}
}

// A client that only copies does nothing else.
func TestClientCopies(t *testing.T) {
	s := serving(t)
	names, _ := answering(t)
	o, err := job{Do: jobDownload, Over: overHTTPS2, N: 2, Copied: true, Bytes: 10, Ports: s.ports, CA: string(s.ca)}.run(t.Context(), names)
	if err != nil || len(o.Through) != 0 || len(o.Copied) != 2 {
		t.Errorf("%v, %v", o, err)
	}
}

func TestClientFails(t *testing.T) {
	s := serving(t)
	names, _ := answering(t)
	for name, c := range map[string]struct {
		change func(*job)
		want   string
	}{
		"an unknown job":       {func(j *job) { j.Do = "sleep" }, `"sleep"`},
		"no certificate":       {func(j *job) { j.CA = "" }, "certificate"},
		"another's":            {func(j *job) { j.CA = string(serving(t).ca) }, "certificate"},
		"TLS that is not TLS":  {func(j *job) { j.Ports[1] = j.Ports[0] }, "HTTP"},
		"a server that is not": {func(j *job) { j.Ports[1] = "1" }, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			j := job{Do: jobKept, Over: overHTTPS1, N: 1, Ports: s.ports, CA: string(s.ca)}
			c.change(&j)
			if _, err := j.run(t.Context(), names); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
	if err := Client(t.Context(), "{", nil, nil); err == nil {
		t.Error("half a job is taken")
	}
}

// Nobody gets a byte before all are there, and each is timed.
func TestMeeting(t *testing.T) {
	s := serving(t)
	names, _ := answering(t)
	const size = 5
	s.crowd.expect(size, 100_000)
	run := func(ctx context.Context) error {
		_, err := job{Do: jobCrowd, Over: overHTTPS1, Bytes: 100_000, Ports: s.ports, CA: string(s.ca)}.run(ctx, names)
		return err
	}
	ended := make(chan error, size)
	for range size - 1 {
		go func() { ended <- run(t.Context()) }()
	}
	select {
	case err := <-ended:
		t.Fatalf("one did not wait: %v", err)
	default:
	}
	ended <- run(t.Context())
	for range size {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if n := len(s.crowd.times()); n != size {
		t.Errorf("%d times, want %d", n, size)
	}
}

func TestMeetingIsLeft(t *testing.T) {
	s := serving(t)
	names, _ := answering(t)
	s.crowd.expect(2, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := job{Do: jobCrowd, Over: overHTTP, Bytes: 1, Ports: s.ports, CA: string(s.ca)}.run(ctx, names)
		ended <- err
	}()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestEach(t *testing.T) {
	var now, most atomic.Int64
	seen := make([]bool, 20)
	each(3, len(seen), func(i int) {
		most.Store(max(most.Load(), now.Add(1)))
		seen[i] = true
		now.Add(-1)
	})
	if slices.Contains(seen, false) || most.Load() > 3 {
		t.Errorf("%v, %d at once", seen, most.Load())
	}
}

func TestExpand(t *testing.T) {
	if got := expand([]string{"exec", netAll, netCrowd}); !slices.Equal(got, append([]string{"exec", netCrowd}, netMeasures...)) {
		t.Error(got)
	}
	if expand(nil) != nil {
		t.Error("all became some")
	}
	for _, name := range netMeasures {
		if !slices.Contains(Measures(), name) {
			t.Errorf("%s is no measure", name)
		}
	}
	all := &bench{}
	if all.want(netCrowd) || !all.want("connect") {
		t.Error("by default the network is measured, and the crowd is not")
	}
}

// What goes to the client in a sandbox arrives there.
func TestJobIsJSON(t *testing.T) {
	j := job{Do: jobEvents, N: 2, Over: overHTTPS2, Copies: 1, Copied: true, Bytes: 3, Ports: [2]string{"1", "2"}, CA: "x"}
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	var again job
	if err := json.Unmarshal(text, &again); err != nil || again != j {
		t.Errorf("%v became %v, %v", j, again, err)
	}
}

package dispatch

import (
	"fmt"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// In a cluster the streams outlive a server; where there is only the name of one, they are as they are alone.
func TestStreamsOfACluster(t *testing.T) {
	for _, c := range []struct {
		servers, replicas int
	}{{1, 1}, {3, 3}} {
		t.Run(fmt.Sprint(c.servers), func(t *testing.T) {
			var ports []int
			var routes []*url.URL // each knows all, or they would not know how many they are
			for range c.servers {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				ports = append(ports, l.Addr().(*net.TCPAddr).Port)
				routes = append(routes, &url.URL{Scheme: "nats", Host: l.Addr().String()})
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
			}
			var all []*server.Server
			for i := range c.servers {
				o := &server.Options{
					ServerName: fmt.Sprint("n", i), Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
					Cluster: server.ClusterOpts{Name: "c"},
				}
				if c.servers > 1 {
					o.Cluster.Host, o.Cluster.Port, o.Routes = "127.0.0.1", ports[i], routes
				}
				s, err := server.NewServer(o)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					s.Shutdown()
					s.WaitForShutdown()
				})
				s.Start()
				all = append(all, s)
			}
			for _, s := range all { // none is before all are
				if !s.ReadyForConnections(30 * time.Second) {
					t.Fatal("a server does not start")
				}
			}
			nc, err := nats.Connect(all[0].ClientURL())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(nc.Close)
			js, err := jetstream.New(nc)
			if err != nil {
				t.Fatal(err)
			}
			d := &Dispatcher{o: Options{Conn: nc}, js: js}
			for end := time.Now().Add(time.Minute); ; { // a cluster needs a while for its first vote
				if err = d.stream(t.Context(), streams[0]); err == nil {
					break
				}
				if time.Now().After(end) {
					t.Fatal(err)
				}
			}
			s, err := js.Stream(t.Context(), WorkStream)
			if err != nil || s.CachedInfo().Config.Replicas != c.replicas {
				t.Errorf("%+v %v", s, err)
			}
		})
	}
}

package dispatch

import (
	"fmt"
	"net"
	"net/url"
	"os"
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
			var listening []net.Listener
			var routes []*url.URL // each knows all, or they would not know how many they are
			// At an address of this process, where no other test takes a port that was free a moment ago.
			host := fmt.Sprintf("127.%d.%d.1", 1+os.Getpid()>>8&0x7f, os.Getpid()&0xff)
			for range c.servers {
				l, err := net.Listen("tcp", host+":0")
				if err != nil {
					t.Fatal(err)
				}
				ports = append(ports, l.Addr().(*net.TCPAddr).Port)
				routes = append(routes, &url.URL{Scheme: "nats", Host: l.Addr().String()})
				listening = append(listening, l)
			}
			for _, l := range listening { // not before all have theirs, or two could have the same
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
			}
			var all []*server.Server
			for i := range c.servers {
				o := &server.Options{
					ServerName: fmt.Sprint("n", i), Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true, DisableShortFirstPing: true,
					Cluster: server.ClusterOpts{Name: "c"},
				}
				if c.servers > 1 {
					o.Cluster.Host, o.Cluster.Port, o.Routes = host, ports[i], routes
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
				if !s.ReadyForConnections(2 * time.Minute) {
					t.Fatal("a server does not start")
				}
			}
			nc, err := nats.Connect(all[0].ClientURL(), nats.Timeout(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(nc.Close)
			// A cluster needs a while for its first vote, and may vote anew.
			var s jetstream.Stream
			until(t, "the stream", func() bool {
				js, err := jetstream.New(nc)
				if err != nil {
					t.Fatal(err)
				}
				d := &Dispatcher{o: Options{Conn: nc}, js: js}
				if err = d.stream(t.Context(), streams[0]); err == nil {
					s, err = js.Stream(t.Context(), WorkStream)
				}
				if err != nil {
					t.Log(err)
				}
				return err == nil
			})
			if got := s.CachedInfo().Config; got.Replicas != c.replicas {
				t.Errorf("%+v", got)
			}
		})
	}
}

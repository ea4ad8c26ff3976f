package deploy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"ravi/internal/bus"
	"ravi/internal/porttest"
)

// natsServer starts a stock nats-server by a configuration.
func natsServer(t *testing.T, dir, file, conf string) *server.Server {
	t.Helper()
	opts, err := server.ProcessConfigFile(write(t, filepath.Join(dir, file), conf))
	if err != nil {
		t.Fatal(file, err)
	}
	opts.NoSigs, opts.NoLog = true, true
	// Who connects may be slow to say who that is. A ping that comes before is taken for a failure.
	const within = 240 // seconds
	opts.AuthTimeout, opts.TLSTimeout, opts.LeafNode.AuthTimeout, opts.LeafNode.TLSTimeout = within, within, within, within
	opts.DisableShortFirstPing = true
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(file, err)
	}
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	s.Start()
	if !s.ReadyForConnections(4 * time.Minute) {
		t.Fatal(file, "does not start")
	}
	return s
}

// hub starts the server of server.conf, and gives the folder with its keys and the ports of clients and of leaves.
func hub(t *testing.T) (dir, clients, leaves string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "hub")
	cmd := exec.Command("go", "run", "ravi/deploy/nats", dir, "far")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	home := t.TempDir()
	made, err := bus.MakeTLS(t.Context(), home, filepath.Join(home, "bus"), []string{"hub.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{made.Cert: "server.pem", made.Key: "server-key.pem", made.CA: "ca.pem"} {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, to), string(b))
	}
	conf := read(t, "nats/server.conf")
	t.Chdir(dir) // files that a configuration names are looked for here
	clients, leaves = strconv.Itoa(porttest.Free(t)), strconv.Itoa(porttest.Free(t))
	natsServer(t, dir, "server.conf", replace(t, conf, "0.0.0.0:4222", "127.0.0.1:"+clients, "0.0.0.0:7422", "127.0.0.1:"+leaves))
	return dir, clients, leaves
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func flush(nc *nats.Conn) error { return nc.FlushTimeout(4 * time.Minute) }

// arrives publishes until it is heard.
func arrives(t *testing.T, from *nats.Conn, subject string, to *nats.Subscription) {
	t.Helper()
	until(t, subject, func() error {
		if err := errors.Join(from.Publish(subject, []byte("x")), flush(from)); err != nil {
			return err
		}
		_, err := to.NextMsg(100 * time.Millisecond)
		return err
	})
}

func subscribe(t *testing.T, nc *nats.Conn, subject string) *nats.Subscription {
	t.Helper()
	s, err := nc.SubscribeSync(subject)
	if err == nil {
		err = flush(nc)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A stock server takes the place of our bus: streams, credentials for runners, and what they may do.
func TestExistingServer(t *testing.T) {
	text := read(t, "nats/existing.json")
	dir, clients, _ := hub(t)
	conf := parse(t, "existing.json", replace(t, text, "hub.example.com:4222", "127.0.0.1:"+clients, "/etc/ravi", dir)).Bus
	home := t.TempDir()
	var b *bus.Existing
	until(t, "the server", func() (err error) {
		b, err = bus.Connect(t.Context(), bus.External{URL: conf.URL, CredsFile: conf.Creds, AccountKeyFile: conf.AccountKey, CAFile: conf.CA, Home: home, Dir: filepath.Join(home, "bus"), Log: quiet()})
		return err
	})
	own, err := b.Control(t.Context(), nats.Timeout(4*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	js, err := own.JetStream(nats.MaxWait(4 * time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.AddStream(&nats.StreamConfig{Name: "WORK", Subjects: []string{"work.*.*"}, Retention: nats.WorkQueuePolicy}); err != nil {
		t.Fatal(err)
	}
	cred, err := b.Issue(t.Context(), bus.Request{Kind: bus.KindRunner, Name: "near", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	nc, err := bus.Dial(ctx, b.URL(), cred, bus.WithTrust(b.Trust()), bus.WithLog(quiet()), bus.Persist())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	all := subscribe(t, own, ">")
	arrives(t, nc, "runner.near.status", all)
	if err := errors.Join(nc.Publish("runner.far.status", nil), nc.Publish("work.default.x", nil), flush(nc)); err != nil {
		t.Fatal(err)
	}
	if m, err := all.NextMsg(300 * time.Millisecond); err == nil && m.Subject != "runner.near.status" {
		t.Error("a runner says", m.Subject)
	}
	plain, err := net.DialTimeout("tcp", "127.0.0.1:"+clients, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	plain.Close()
	if nc, err := nats.Connect("tls://127.0.0.1:"+clients, nats.RootCAs(conf.CA)); err == nil {
		nc.Close()
		t.Error("the server lets in who has no credential")
	}
}

// Our bus dials out to a hub, and so does the server of a site: a runner of the site is heard at home, and hears it.
func TestHubAndSite(t *testing.T) {
	text, siteConf := read(t, "nats/leaf.json"), read(t, "nats/site.conf")
	dir, _, leaves := hub(t)
	conf := parse(t, "leaf.json", replace(t, text, "hub.example.com:7422", "127.0.0.1:"+leaves, "/etc/ravi", dir)).Bus
	home := t.TempDir()
	b, err := bus.Start(t.Context(), bus.Options{Dir: filepath.Join(home, "bus"), Home: home, Log: quiet(), Leaf: &bus.Leaf{URL: conf.Leaf.URL, CredsFile: conf.Leaf.Creds, CA: conf.Leaf.CA}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	site := strconv.Itoa(porttest.Free(t))
	natsServer(t, dir, "site.conf", replace(t, siteConf, "hub.example.com:7422", "127.0.0.1:"+leaves, "127.0.0.1:4222", "127.0.0.1:"+site))
	// The runner's credential is the hub's, with the curve keys of ours, as docs/scaling.md has it.
	issued, err := b.Issue(t.Context(), bus.Request{Kind: bus.KindRunner, Name: "far", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	hubs, err := os.ReadFile(filepath.Join(dir, "far.creds"))
	if err != nil {
		t.Fatal(err)
	}
	_, curve, ok := strings.Cut(string(issued.File()), "-----BEGIN RAVI CURVE SEED")
	if !ok {
		t.Fatal("the credential has no curve key")
	}
	both, err := bus.ReadFile(write(t, filepath.Join(dir, "far-at-hub.creds"), string(hubs)+"-----BEGIN RAVI CURVE SEED"+curve))
	if err != nil || both.Name != "far" || both.XPublic != issued.XPublic || both.Peer != issued.Peer {
		t.Fatal(err, both.Name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	there, err := bus.Dial(ctx, "nats://127.0.0.1:"+site, both, bus.WithLog(quiet()), bus.Persist())
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	own, err := b.Control(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	arrives(t, there, "runner.far.status", subscribe(t, own, "runner.*.status"))
	down := fmt.Sprintf("tunnel.far.run%d.0.down", 1)
	arrives(t, own, down, subscribe(t, there, "tunnel.far.*.*.down"))
	// What a site's runner is not, it cannot say.
	others := subscribe(t, own, "runner.other.status")
	work := subscribe(t, own, "work.>")
	if err := errors.Join(there.Publish("runner.other.status", nil), there.Publish("work.default.x", nil), flush(there)); err != nil {
		t.Fatal(err)
	}
	arrives(t, there, "runner.far.status", subscribe(t, own, "runner.far.status")) // what was said before it has come by now
	for _, s := range []*nats.Subscription{others, work} {
		if n, _, err := s.Pending(); err != nil || n > 0 {
			t.Errorf("%d of %s came from the site: %v", n, s.Subject, err)
		}
	}
}

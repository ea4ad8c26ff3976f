package bus

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// bridged is a connection of a guest's by the bridges of its run. served is what Serve gave once it is over.
func bridged(t *testing.T, b *Bridges) (guest net.Conn, served chan error) {
	t.Helper()
	guest, ours := net.Pipe()
	// Now: a pipe whose other end is closed, as Serve does at once with one too many, takes no deadline any more.
	if err := guest.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served = make(chan error, 1)
	go func() {
		served <- b.Serve(ctx, ours)
		close(served)
	}()
	t.Cleanup(func() {
		stop()
		guest.Close()
		<-served
	})
	return guest, served
}

// through connects by bridges.
type through struct {
	t *testing.T
	b *Bridges
}

func (d through) Dial(string, string) (net.Conn, error) {
	guest, _ := bridged(d.t, d.b)
	return guest, guest.SetDeadline(time.Time{})
}

// A guest has so many connections at once, those that say nothing among them, and another one when one of them is over.
func TestBridgesAreCounted(t *testing.T) {
	s := start(t, options(t))
	b := NewBridges(s.URL(), s.Trust())
	var first net.Conn
	for range BridgesOfRun {
		guest, _ := bridged(t, b)
		if _, err := bufio.NewReader(guest).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		first = guest
	}
	for range 3 {
		guest, _ := bridged(t, b)
		if n, err := guest.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("one more was told %d bytes, %v", n, err)
		}
	}
	first.Close()
	for {
		guest, _ := bridged(t, b)
		if _, err := guest.Read(make([]byte, 1)); err == nil {
			break
		}
	}
	// Another run's are not in the way, nor is the server.
	guest := issue(t, s, guest("acme", run1))
	nc, _ := hostile(t, s, guest, nats.SetCustomDialer(through{t, NewBridges(s.URL(), s.Trust())}))
	flush(t, nc)
}

// What is no server of NATS is told as that, and no guest hears what it says.
func TestBridgeToNoBus(t *testing.T) {
	for name, c := range map[string]struct {
		says  string
		cause error
	}{
		"another protocol":      {"220 mail.example.com\r\n", ErrNotBus},
		"a broken one":          {"INFO {\r\n", ErrNotBus},
		"an empty one":          {"INFO {}\r\n", ErrNotBus},
		"a line without an end": {"INFO {" + strings.Repeat(" ", maxInfo), bufio.ErrBufferFull},
		"who hangs up":          {"", io.EOF},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if conn, err := l.Accept(); err == nil {
				_, _ = io.WriteString(conn, c.says)
				conn.Close()
			}
		}()
		// Nobody reads from it: who wrote to the guest would not come back.
		_, served := bridged(t, NewBridges("nats://"+l.Addr().String(), Trust{}))
		if err := <-served; !errors.Is(err, c.cause) || !errors.Is(err, ErrNotBus) {
			t.Errorf("%s: %v", name, err)
		}
		l.Close()
	}
}

// What a guest is told of the server has nothing of the machine, and it cannot speak with the server as another kind of
// client, or without a credential, whatever it sends first.
func TestRawThroughTheBridge(t *testing.T) {
	s := start(t, options(t))
	guest := issue(t, s, guest("acme", run1))
	other := issue(t, s, Request{Kind: KindRunner, Name: "far"})
	connect := func(c Credential, more string) string {
		return fmt.Sprintf("CONNECT {%s\"verbose\":true,\"jwt\":%q,\"sig\":\"AAAA\"}\r\nPING\r\n", more, c.JWT)
	}
	for name, sent := range map[string]string{
		"no credential":              "CONNECT {}\r\nPING\r\n",
		"not at all":                 "PING\r\nPUB x 1\r\nx\r\n",
		"its own, not signed":        connect(guest, ""),
		"another's, not signed":      connect(other, ""),
		"as a leaf node":             connect(guest, `"is_leaf":true,"remote_account":"A","name":"l","cluster":"c",`),
		"another account":            connect(guest, `"account":"CONTROL","new_account":true,`),
		"two, one after the other":   connect(guest, "") + connect(other, ""),
		"a first line of the server": "INFO {\"server_id\":\"x\",\"auth_required\":false,\"connect_urls\":[\"127.0.0.1:1\"]}\r\nPING\r\n",
		"a line that does not end":   "CONNECT " + strings.Repeat("{", 2<<20),
		"as a route":                 "RS+ x y\r\nRMSG x y 1\r\nx\r\n",
		"with HTTP":                  "GET /varz HTTP/1.1\r\nHost: bus\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, served := bridged(t, NewBridges(s.URL(), s.Trust()))
			in := bufio.NewReader(conn)
			line, err := in.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			var told map[string]any
			if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "INFO ")), &told); err != nil {
				t.Fatal(err)
			}
			for _, secret := range []string{"host", "port", "ip", "client_ip", "connect_urls", "domain", "cluster", "go", "git_commit"} {
				if told[secret] != nil {
					t.Errorf("it is told %s: %v", secret, told[secret])
				}
			}
			go func() { _, _ = io.WriteString(conn, sent) }()
			rest, err := io.ReadAll(in)
			if errors.Is(err, context.DeadlineExceeded) || bytes.Contains(rest, []byte("PONG")) || bytes.Contains(rest, []byte("MSG")) {
				t.Errorf("it is answered %q, %v", rest, err)
			}
			<-served
		})
	}
}

// What a guest can do within its own subjects, with its own connection: nothing of it reaches others.
func TestGuestsGamesThroughTheBridge(t *testing.T) {
	s := start(t, options(t))
	seen, beside := everything(t, control(t, s)), everything(t, warden(t, s, "other"))
	heard := subscribe(t, warden(t, s, "acme"), ">")
	c := issue(t, s, guest("acme", run1))
	nc, errs := hostile(t, s, c, nats.SetCustomDialer(through{t, NewBridges(s.URL(), s.Trust())}))
	own := "run." + run1 + ".up.x"
	// Tracing asks servers to say which way a message took.
	for _, to := range []string{"run." + run2 + ".event", "$SYS.x", own, "run." + run1 + ".down.x"} {
		m := nats.NewMsg(own)
		m.Header.Set("Nats-Trace-Dest", to)
		m.Header.Set("Nats-Trace-Only", "true")
		m.Header.Set("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	// Answers of streams and their flow control, service imports, inboxes of others, and no responders.
	for _, subject := range []string{
		"$JS.ACK.WORK.client-acme.1.1.1.1.1", "$JS.FC.WORK.client-acme.x", "$JS.API.STREAM.MSG.DELETE.WORK", "$JS.acme.API.INFO", "$SRV.PING", "$G.x",
		"$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.USER.INFO", "$SYS.DEBUG.SUBSCRIBERS", "_R_.x.y.z", "_GR_.x", "_INBOX.x", "_INBOX_control.x", "run.*.up.x", "run.>", ">",
	} {
		refusedPublish(t, nc, errs, &nats.Msg{Subject: subject, Reply: own})
	}
	for _, subject := range []string{"_INBOX_*.>", "_INBOX_" + c.User + "*", "run.*.down.>", "*." + run1 + ".down.x", "$SYS.REQ.USER.INFO", "_R_.>", "run." + run1 + ".up.>"} {
		if _, err := nc.Subscribe(subject, func(*nats.Msg) {}); err != nil {
			t.Fatal(err)
		}
		wantViolation(t, errs, subject)
	}
	flush(t, nc)
	nothing(t, seen)
	nothing(t, beside)
	for range 100 {
		m, err := heard.NextMsg(100 * time.Millisecond)
		if err != nil {
			break
		}
		if m.Subject != own {
			t.Errorf("somebody said %s: %s", m.Subject, m.Data)
		}
	}
}

// Ten thousand subscriptions, and pings without end: the connection is ended or goes on, and the server does.
func TestGuestAsksTooMuchThroughTheBridge(t *testing.T) {
	s := start(t, options(t))
	c := issue(t, s, guest("acme", run1))
	var refused atomic.Int64
	nc, _ := hostile(t, s, c, nats.SetCustomDialer(through{t, NewBridges(s.URL(), s.Trust())}),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) { refused.Add(1) }))
	for n := range 10_000 {
		if _, err := nc.Subscribe(fmt.Sprint("run.", run1, ".down.", n), func(*nats.Msg) {}); err != nil {
			break
		}
		if n%100 == 0 && nc.FlushTimeout(time.Minute) != nil {
			break
		}
	}
	if !nc.IsClosed() && nc.FlushTimeout(time.Minute) == nil && refused.Load() == 0 {
		t.Error("it has as many subscriptions as it likes")
	}
	conn, _ := bridged(t, NewBridges(s.URL(), s.Trust()))
	if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Write([]byte(strings.Repeat("PING\r\n", 1000)))
	control(t, s)
}

// All connections of a run together send at a rate, once they have sent a good deal.
func TestGuestsRate(t *testing.T) {
	now := time.Now()
	r := &rate{left: guestAtOnce, at: now}
	var sum time.Duration
	for range 100 {
		sum = r.take(guestAtOnce/50, now) // in no time
	}
	if want := time.Duration(guestAtOnce/50*50) * time.Second / guestRate; sum < want*9/10 || sum > want*11/10 {
		t.Errorf("twice as much as may be sent at once waits %v", sum)
	}
	if wait := r.take(1, now.Add(time.Hour)); wait != 0 {
		t.Errorf("an hour later it waits %v", wait)
	}
	if wait := r.take(1, now.Add(-time.Hour)); wait != 0 {
		t.Errorf("with a clock that went back it waits %v", wait)
	}
	// And one that waits ends with its run.
	ctx, stop := context.WithCancel(t.Context())
	one, other := net.Pipe()
	defer one.Close()
	defer other.Close()
	p := &paced{Conn: one, ctx: ctx, rate: &rate{left: -1 << 40, at: time.Now()}}
	var over sync.WaitGroup
	over.Go(func() { _, _ = other.Write([]byte("x")) })
	time.AfterFunc(10*time.Millisecond, stop)
	if _, err := p.Read(make([]byte, 1)); err == nil {
		t.Error("it was read at once")
	}
	over.Wait()
}

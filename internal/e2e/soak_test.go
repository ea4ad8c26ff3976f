package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"ravi/internal/store"
)

// soakEnv has TestSoak take so long, such as 5m; without it there is none. make soak sets it.
const soakEnv = "RAVI_SOAK"

// How often a server of the cluster is killed, and for how long it is gone.
const (
	soakKillEvery = 12 * time.Second
	soakGoneFor   = 6 * time.Second
)

// natsServer is one of a cluster: the stock program.
type natsServer struct {
	t       *testing.T
	program string
	conf    string
	port    int
	log     string
	cmd     *exec.Cmd
	over    chan struct{}
}

func (s *natsServer) start() {
	s.t.Helper()
	f, err := os.OpenFile(s.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must(s.t, err)
	defer f.Close()
	s.cmd = exec.Command(s.program, "-c", s.conf)
	s.cmd.Stdout, s.cmd.Stderr = f, f
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(s.t, s.cmd.Start())
	over, cmd := make(chan struct{}), s.cmd
	s.over = over
	go func() {
		_ = cmd.Wait() // it is killed
		close(over)
	}()
}

func (s *natsServer) kill() {
	_ = s.cmd.Process.Kill() // it may have ended
	<-s.over
}

func (s *natsServer) answers() bool {
	c, err := net.DialTimeout("tcp", "127.0.0.1:"+strconv.Itoa(s.port), time.Second)
	if err == nil {
		c.Close()
	}
	return err == nil
}

// freePorts are some that nobody listens on.
func freePorts(t *testing.T, n int) (ports []int) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

// newCluster is three servers on loopback, with an account as deploy/nats makes it, of which dir has the files.
func newCluster(t *testing.T, dir string, runners ...string) (all []*natsServer, url string) {
	t.Helper()
	root := filepath.Dir(filepath.Dir(program))
	server := filepath.Join(dir, "nats-server")
	for _, args := range [][]string{
		{"build", "-o", server, "github.com/nats-io/nats-server/v2"},
		append([]string{"run", "./deploy/nats", filepath.Join(dir, "keys")}, runners...),
	} {
		cmd := exec.Command("go", args...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v\n%s", args, err, out)
		}
	}
	ports := freePorts(t, 6)
	clients, routes := ports[:3], ports[3:]
	var others, urls []string
	for i := range clients {
		others = append(others, fmt.Sprintf(`"nats://127.0.0.1:%d"`, routes[i]))
		urls = append(urls, fmt.Sprintf("nats://127.0.0.1:%d", clients[i]))
	}
	for i, port := range clients {
		s := &natsServer{t: t, program: server, port: port}
		s.conf, s.log = filepath.Join(dir, fmt.Sprintf("keys/n%d.conf", i)), filepath.Join(dir, fmt.Sprintf("n%d.log", i))
		must(t, os.WriteFile(s.conf, fmt.Appendf(nil, `server_name: "n%d"
listen: "127.0.0.1:%d"
jetstream: { store_dir: %q, max_mem: 16MB, max_file: 1GB }
cluster: { name: "soak", listen: "127.0.0.1:%d", routes: [%s] }
include "accounts.conf"
`, i, port, filepath.Join(dir, fmt.Sprint("js", i)), routes[i], strings.Join(others, ", ")), 0o600))
		s.start()
		t.Cleanup(s.kill)
		all = append(all, s)
	}
	for _, s := range all {
		eventually(t, "a server", s.answers)
	}
	return all, strings.Join(urls, ",")
}

// A server of the cluster that is the bus is killed and comes back, again and again, while there are messages all the time:
// each is answered once, in its session's order, by runners that are at that bus.
func TestSoak(t *testing.T) {
	if os.Getenv(soakEnv) == "" {
		t.Skip("it takes minutes: make soak")
	}
	during, err := time.ParseDuration(os.Getenv(soakEnv))
	must(t, err)
	w := newWorld(t)
	w.env = []string{"RAVI_BUS_PORT="} // it is another server's
	names := []string{"one", "two"}
	servers, url := newCluster(t, w.user, names...)
	keys := filepath.Join(w.user, "keys")
	b, err := json.Marshal(map[string]any{
		"gateway": map[string]any{"port": 0}, "dispatch": map[string]any{"runs": 1},
		"bus": map[string]any{"url": url, "creds": filepath.Join(keys, "ravi.creds"), "account_key": filepath.Join(keys, "ravi.nk")},
	})
	must(t, err)
	must(t, os.MkdirAll(w.home, 0o700))
	must(t, os.WriteFile(filepath.Join(w.home, "config.json"), b, 0o600))
	l := &lan{world: w}
	l.st, err = store.Open(t.Context(), w.home)
	must(t, err)
	t.Cleanup(func() { l.st.Close() })
	t.Cleanup(func() {
		w.ravi("daemon", "stop")
		if t.Failed() {
			t.Log("the daemon said\n" + short(l.daemonLog()))
		}
	})
	w.withWorker("anna", plain(t), "--", "sh", "-c", "sleep 1; cat TASK.md")
	w.ravi("daemon", "start").want(0)
	for _, name := range names {
		r := &lender{world: newWorld(t), name: name, creds: l.credential(name), said: filepath.Join(w.user, name+".said")}
		r.env = []string{"RAVI_BUS_PORT="}
		r.cmd = r.command("runner", "--bus", url, "--creds", r.creds, "--capacity", "2")
		f, err := os.Create(r.said)
		must(t, err)
		r.cmd.Stdout, r.cmd.Stderr = f, f
		must(t, r.cmd.Start())
		f.Close()
		over := make(chan struct{})
		r.over = over
		go func() { _ = r.cmd.Wait(); close(over) }()
		t.Cleanup(r.kill)
		l.ready(name)
	}
	const sessions = 4
	sent, kills := [sessions]int{}, 0
	var gone *natsServer
	next := time.Now().Add(soakKillEvery)
	for n, end := 0, time.Now().Add(during); time.Now().Before(end); n++ {
		s := n % sessions
		l.send(fmt.Sprint("s", s), strconv.Itoa(sent[s]))
		sent[s]++
		if !time.Now().Before(next) {
			if gone == nil {
				gone = servers[kills%len(servers)]
				gone.kill()
				kills++
				next = time.Now().Add(soakGoneFor)
			} else {
				gone.start()
				gone, next = nil, time.Now().Add(soakKillEvery)
			}
		}
		time.Sleep(200 * time.Millisecond)
		// So much waits that all places are taken; more would only take longer to end.
		for live := sessions * 3; live >= sessions*3; {
			all, err := l.st.ListWork(t.Context(), store.WorkFilter{Live: true})
			must(t, err)
			if live = len(all); live >= sessions*3 {
				time.Sleep(200 * time.Millisecond)
			}
			if time.Now().After(next) {
				break
			}
		}
	}
	if gone != nil {
		gone.start()
	}
	on, tries := map[string]int{}, 0
	for _, k := range l.over() {
		on[k.Runner]++
		tries += k.Tries
		if k.Status != store.WorkDone {
			t.Errorf("%+v", k)
		}
	}
	total := 0
	for s := range sessions {
		total += sent[s]
		c, err := l.st.ListSessions(t.Context(), store.SessionFilter{})
		must(t, err)
		i := slices.IndexFunc(c, func(c store.Session) bool { return c.Name == fmt.Sprint("s", s) })
		said := l.answers(c[i].ID)
		for n, text := range said {
			if strings.TrimSpace(text) != strconv.Itoa(n) {
				t.Errorf("session %d was answered %q, want %d", s, text, n)
				break
			}
		}
		if len(said) != sent[s] {
			t.Errorf("session %d has %d answers to %d messages", s, len(said), sent[s])
		}
	}
	t.Logf("%d messages, by %v; %d servers were killed; %d further tries", total, on, kills, tries)
	if kills == 0 || on["one"]+on["two"] == 0 {
		t.Error("no server was killed, or no runner worked")
	}
}

// answers are all that a session was answered, page by page.
func (l *lan) answers(session string) (texts []string) {
	l.t.Helper()
	for after := int64(0); ; {
		page, err := l.st.Messages(l.t.Context(), session, store.MessageFilter{After: after})
		must(l.t, err)
		if len(page) == 0 {
			return texts
		}
		for _, m := range page {
			if after = m.Seq; m.Role != store.RoleUser {
				texts = append(texts, m.Text)
			}
		}
	}
}

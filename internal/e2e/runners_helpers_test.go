package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"

	"ravi/internal/bus"
	"ravi/internal/store"
)

// host is a network namespace that stands for a machine.
type host struct {
	name string // of the namespace
	addr string
	plug string // the end of its cable at the switch
	lan  *lan
	// mounts is a mount namespace, if it has one of its own.
	mounts *os.File
}

// do does something on the host, with its network; with none, here. It must not end the test.
func (h *host) do(t *testing.T, f func()) {
	t.Helper()
	if h == nil {
		f()
		return
	}
	over := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		fd, err := unix.Open("/run/netns/"+h.name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			unix.Close(fd)
		}
		if err == nil && h.mounts != nil {
			err = errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(int(h.mounts.Fd()), unix.CLONE_NEWNS))
		}
		if err == nil {
			f()
		}
		over <- err
	}()
	must(t, <-over)
}

// own gives the host a mount namespace of its own, in which a script of the shell mounts something.
func (h *host) own(t *testing.T, script string, args ...string) {
	t.Helper()
	holder := exec.Command("unshare", append([]string{"-m", "sh", "-ec", script + "; echo ready; exec cat"}, args...)...)
	holder.Stderr = os.Stderr
	in, err := holder.StdinPipe()
	must(t, err)
	out, err := holder.StdoutPipe()
	must(t, err)
	must(t, holder.Start())
	_, err = io.ReadFull(out, make([]byte, len("ready")))
	must(t, err)
	h.mounts, err = os.Open(fmt.Sprintf("/proc/%d/ns/mnt", holder.Process.Pid))
	must(t, err)
	must(t, in.Close())
	_, _ = io.Copy(io.Discard, out)
	must(t, holder.Wait())
}

// cable pulls out the cable of a host, or plugs it in.
func (h *host) cable(state string) {
	h.lan.t.Helper()
	must(h.lan.t, ip("-n", h.lan.at.name, "link", "set", h.plug, state))
}

// received is how many bytes came to the host.
func (h *host) received() int64 {
	h.lan.t.Helper()
	out, err := exec.Command("ip", "-n", h.lan.at.name, "-s", "-j", "link", "show", h.plug).Output()
	must(h.lan.t, err)
	var links []struct {
		Stats64 struct{ Tx struct{ Bytes int64 } }
	}
	must(h.lan.t, json.Unmarshal(out, &links))
	return links[0].Stats64.Tx.Bytes
}

// Dial implements nats.CustomDialer, from the host.
func (h *host) Dial(network, address string) (c net.Conn, err error) {
	h.do(h.lan.t, func() { c, err = net.DialTimeout(network, address, 10*time.Second) })
	return c, err
}

func ip(args ...string) error { return tool("ip", args...) }

func tool(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// lan is a world on a host of its own, with a bus that others reach, and hosts around it at a switch.
type lan struct {
	*world
	st    *store.Store
	ca    string
	hosts int
}

const (
	busAddr = "10.77.0.1"
	busPort = "4222"
)

var netnsMade atomic.Int64

// newLAN is a network whose Ravi makes no sandboxes itself. config is what config.json says further.
func newLAN(t *testing.T, config map[string]any) *lan {
	t.Helper()
	l := &lan{world: newWorld(t)}
	l.at = &host{addr: busAddr, lan: l}
	l.at.name = l.namespace()
	l.env = []string{"RAVI_BUS_PORT=" + busPort}
	for _, args := range [][]string{
		{"link", "add", "sw", "type", "bridge"}, {"addr", "add", busAddr + "/24", "dev", "sw"}, {"link", "set", "sw", "up"}, {"link", "set", "lo", "up"},
	} {
		must(t, ip(append([]string{"-n", l.at.name}, args...)...))
	}
	var made struct {
		Cert string `json:"tls_cert"`
		Key  string `json:"tls_key"`
		CA   string `json:"ca"`
	}
	must(t, json.Unmarshal([]byte(l.ravi("bus", "tls", busAddr, "--json").want(0).stdout), &made))
	l.ca = made.CA
	file := map[string]any{
		"gateway":  map[string]any{"port": 0},
		"bus":      map[string]any{"host": busAddr, "tls_cert": made.Cert, "tls_key": made.Key},
		"dispatch": map[string]any{"runs": -1},
	}
	for name, value := range config {
		file[name] = value
	}
	b, err := json.Marshal(file)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(l.home, "config.json"), b, 0o600))
	l.st, err = store.Open(t.Context(), l.home)
	must(t, err)
	t.Cleanup(func() {
		l.st.Close()
		if l.at.mounts != nil {
			l.at.mounts.Close()
		}
	})
	t.Cleanup(func() { l.ravi("daemon", "stop") })
	return l
}

// namespace makes one.
func (l *lan) namespace() string {
	l.t.Helper()
	if os.Geteuid() != 0 {
		l.t.Skip("SKIP-FEATURE: only root makes hosts")
	}
	name := fmt.Sprintf("ravie2e-%d-%d", os.Getpid(), netnsMade.Add(1))
	if err := ip("netns", "add", name); err != nil {
		l.t.Skip("SKIP-FEATURE: there are no network namespaces here: ", err)
	}
	l.t.Cleanup(func() {
		if err := ip("netns", "del", name); err != nil {
			l.t.Error(err)
		}
	})
	return name
}

// host is another machine.
func (l *lan) host() *host {
	l.t.Helper()
	l.hosts++
	h := &host{name: l.namespace(), addr: fmt.Sprint("10.77.0.", 10+l.hosts), plug: fmt.Sprint("port", l.hosts), lan: l}
	for _, args := range [][]string{
		{"-n", l.at.name, "link", "add", h.plug, "type", "veth", "peer", "name", "eth0", "netns", h.name},
		{"-n", l.at.name, "link", "set", h.plug, "master", "sw"},
		{"-n", l.at.name, "link", "set", h.plug, "up"},
		{"-n", h.name, "addr", "add", h.addr + "/24", "dev", "eth0"},
		{"-n", h.name, "link", "set", "eth0", "up"},
		{"-n", h.name, "link", "set", "lo", "up"},
	} {
		must(l.t, ip(args...))
	}
	return h
}

// lender is a runner on a host.
type lender struct {
	*world
	name  string
	creds string
	args  []string
	said  string // the file of what it says

	cmd  *exec.Cmd
	over chan struct{}
}

// runner is a runner on a new host, with a credential of its own, that is known at home.
func (l *lan) runner(name string, args ...string) *lender {
	l.t.Helper()
	return l.runnerAt(l.host(), name, l.credential(name), args...)
}

func (l *lan) credential(name string, args ...string) string {
	l.t.Helper()
	file := filepath.Join(l.user, name+".creds")
	l.ravi(append([]string{"bus", "creds", "issue", "--runner", name, "--out", file}, args...)...).want(0)
	return file
}

// program is a credential for a program that may subscribe to subjects.
func (l *lan) program(name, client string, subscribe ...string) (file string) {
	l.t.Helper()
	file = filepath.Join(l.user, name+".creds")
	args := []string{"bus", "creds", "issue", "--name", name, "--out", file}
	if client != "" {
		args = append(args, "--client", client)
	}
	for _, s := range subscribe {
		args = append(args, "--subscribe", s)
	}
	l.ravi(args...).want(0)
	return file
}

// dial connects to the bus from a host, with the credential in a file.
func (l *lan) dial(h *host, file string, opts ...nats.Option) (*nats.Conn, error) {
	l.t.Helper()
	c, err := bus.ReadFile(file)
	must(l.t, err)
	nc, err := bus.Dial(l.t.Context(), "tls://"+busAddr+":"+busPort, c, bus.WithTrust(bus.Trust{CA: l.ca}), bus.WithDialer(h),
		bus.WithLog(slog.New(slog.DiscardHandler)), bus.WithNATS(opts...))
	if err == nil {
		l.t.Cleanup(nc.Close)
	}
	return nc, err
}

// heard is what a subscriber heard.
type heard struct {
	mu   sync.Mutex
	msgs []*nats.Msg
}

func (h *heard) take(m *nats.Msg) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.msgs = append(h.msgs, m)
}

func (h *heard) all() []*nats.Msg {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.msgs)
}

// hears subscribes at home, with the credential in a file.
func (l *lan) hears(file, subject string) *heard {
	l.t.Helper()
	nc, err := l.dial(l.at, file)
	must(l.t, err)
	h := &heard{}
	_, err = nc.Subscribe(subject, h.take)
	must(l.t, err)
	must(l.t, nc.FlushTimeout(time.Minute))
	return h
}

func (l *lan) runnerAt(h *host, name, creds string, args ...string) *lender {
	l.t.Helper()
	r := &lender{world: newWorld(l.t), name: name, creds: creds, args: args}
	r.at, r.said = h, filepath.Join(r.user, "said")
	l.t.Cleanup(func() {
		r.kill()
		r.empty()
		if l.t.Failed() {
			b, _ := os.ReadFile(r.said)
			l.t.Logf("the runner %s said\n%s", r.name, short(string(b)))
		}
	})
	r.start(l.ca)
	l.ready(name)
	return r
}

// ready waits until a runner was heard of anew.
func (l *lan) ready(name string) {
	l.t.Helper()
	since := time.Now()
	eventually(l.t, "the runner "+name, func() bool {
		all, err := l.st.ListRunners(l.t.Context())
		must(l.t, err)
		for _, r := range all {
			if r.Name == name && r.SeenAt.After(since) {
				return true
			}
		}
		return false
	})
}

func (r *lender) start(ca string) {
	r.t.Helper()
	r.cmd = r.command(append([]string{"runner", "--bus", "tls://" + busAddr + ":" + busPort, "--creds", r.creds, "--ca", ca}, r.args...)...)
	f, err := os.OpenFile(r.said, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must(r.t, err)
	defer f.Close()
	r.cmd.Stdout, r.cmd.Stderr = f, f
	r.at.do(r.t, func() { err = r.cmd.Start() })
	must(r.t, err)
	over, cmd := make(chan struct{}), r.cmd
	r.over = over
	go func() {
		_ = cmd.Wait() // how it ended is in its state
		close(over)
	}()
}

// kill has it end at once.
func (r *lender) kill() {
	_ = r.cmd.Process.Kill() // it may have ended
	<-r.over
}

// term asks it to end.
func (r *lender) term() { must(r.t, r.cmd.Process.Signal(syscall.SIGTERM)) }

// wait waits for its end, and gives its status.
func (r *lender) wait() int {
	r.t.Helper()
	inTime(r.t, "the end of the runner "+r.name, func() bool {
		select {
		case <-r.over:
			return true
		default:
			return false
		}
	})
	return r.cmd.ProcessState.ExitCode()
}

// boxes are its sandboxes.
func (r *lender) boxes() (ids []string) {
	all, _ := filepath.Glob(filepath.Join(r.home, "runner", "sandboxes", "*")) // the pattern is well-formed
	for _, dir := range all {
		ids = append(ids, filepath.Base(dir))
	}
	return ids
}

// empty waits until it has none, and nothing of those that it had is left.
func (r *lender) empty(ids ...string) {
	r.t.Helper()
	inTime(r.t, "the end of the sandboxes of "+r.name, func() bool { return len(r.boxes()) == 0 })
	for _, id := range ids {
		nothingRemains(r.t, filepath.Join(r.home, "runner"), id)
	}
}

// inTime is eventually for what takes minutes anyway.
func inTime(t *testing.T, what string, f func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	if t.Context().Err() != nil { // in a cleanup
		ctx, cancel = context.WithTimeout(context.Background(), 4*time.Minute)
	}
	defer cancel()
	for !f() {
		select {
		case <-ctx.Done():
			t.Errorf("it did not happen in time: %s", what)
			runtime.Goexit()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// all is the work there is, the oldest first.
func (l *lan) all() []store.Work {
	l.t.Helper()
	found, err := l.st.ListWork(l.t.Context(), store.WorkFilter{})
	must(l.t, err)
	for i := range len(found) / 2 {
		found[i], found[len(found)-1-i] = found[len(found)-1-i], found[i]
	}
	return found
}

// last is the work that was asked for last.
func (l *lan) last() store.Work {
	l.t.Helper()
	all := l.all()
	if len(all) == 0 {
		l.t.Fatal("there is no work")
	}
	return all[len(all)-1]
}

// send says something to the agent anna.
func (l *lan) send(session, text string) {
	l.t.Helper()
	l.ravi("sessions", "send", session, text, "--agent", "anna").want(0)
}

// worked says how the agent anna works from now on: with a script of the shell.
func (l *lan) worked(r *repo, script string, args ...string) {
	l.t.Helper()
	l.ravi(append(append([]string{"agents", "work", "anna", "--repo", r.dir}, args...), "--", "sh", "-c", script)...).want(0)
}

// out is what a run's command has said so far.
func (l *lan) out(run string) string {
	b, _ := os.ReadFile(filepath.Join(l.home, "runs", run, "logs", "stdout.log")) // it may not be there yet
	return string(b)
}

// says waits until the run of the work that was asked for last says something.
func (l *lan) says(what string) store.Work {
	l.t.Helper()
	var w store.Work
	inTime(l.t, fmt.Sprintf("%q of the run", what), func() bool {
		w = l.last()
		if w.Status.Final() && !strings.Contains(l.out(w.RunID), what) {
			l.t.Fatalf("it is over: %+v\n%s", w, short(l.daemonLog()))
		}
		return strings.Contains(l.out(w.RunID), what)
	})
	return w
}

// over waits until all work is.
func (l *lan) over() []store.Work {
	l.t.Helper()
	var all []store.Work
	inTime(l.t, "the end of all work", func() bool {
		all = l.all()
		for _, w := range all {
			if !w.Status.Final() {
				return false
			}
		}
		return true
	})
	return all
}

// replies are what a session was answered.
func (l *lan) replies(session string) (texts []string) {
	l.t.Helper()
	all, err := l.st.Messages(l.t.Context(), session, store.MessageFilter{})
	must(l.t, err)
	for _, m := range all {
		if m.Role != store.RoleUser {
			texts = append(texts, m.Text)
		}
	}
	return texts
}

func (l *lan) daemonLog() string {
	b, _ := os.ReadFile(filepath.Join(l.home, "daemon.log"))
	return string(b)
}

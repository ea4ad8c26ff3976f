package doctor

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"ravi/internal/config"
	"ravi/internal/daemon"
	"ravi/internal/procid"
	"ravi/internal/store"
)

const noDaemon = "no daemon runs"

func daemonAnswers(_ context.Context, p *patient) (r result) {
	file := filepath.Join(p.Home, daemon.StateFile)
	switch {
	case p.viewErr != nil:
		r.find(Error, "daemon.state_file", "", "rm "+quote(file)+" && ravi daemon start", "%v", p.viewErr)
		return r.saying("")
	case p.view == nil:
		return skipped(noDaemon)
	case p.view.Err != nil:
		r.find(Error, "daemon.silent", "", restart, "the daemon (process %d) runs, and does not answer at its socket: %v", p.view.State.Process.PID, p.view.Err)
		return r.saying("")
	}
	var said struct {
		State daemon.State `json:"state"`
	}
	if err := json.Unmarshal(p.view.Info, &said); err != nil || said.State.Process != p.view.State.Process {
		r.find(Error, "daemon.another", "", fmt.Sprintf("kill %d; rm %s; ravi daemon start", said.State.Process.PID, quote(file)), "at the socket answers process %d, and the daemon's file names process %d", said.State.Process.PID, p.view.State.Process.PID)
	}
	return r.saying("process %d, since %s", p.view.State.Process.PID, p.view.State.Since.Format(time.RFC3339))
}

// daemonCurrent compares the daemon that runs with the one that would be started now: a restart can keep old arguments,
// and an edit of config.json reaches nobody who has read it before.
func daemonCurrent(_ context.Context, p *patient) (r result) {
	if p.view == nil {
		return skipped(noDaemon)
	}
	s := p.view.State
	if s.Version != p.Version {
		r.find(Warn, "daemon.version", "", restart, "the daemon is ravi %s, this is ravi %s", s.Version, p.Version)
	}
	p.program(&r, s.Process)
	p.flags(&r, s.Process)
	info, err := os.Stat(filepath.Join(p.Home, config.File))
	if err == nil && info.ModTime().After(s.Since) {
		r.find(Warn, "daemon.config_newer", "", restart, "config.json was changed at %s, and the daemon has read it at %s: where it listens, and what else it read once, is as it was",
			info.ModTime().UTC().Format(time.RFC3339), s.Since.Format(time.RFC3339))
	}
	for _, e := range p.endpoints() {
		if differs := e.differs(); differs != "" {
			r.find(Error, e.Name+".stale", "", restart, "config.json has %s listen at %s, and the daemon has it %s", e.called(), e.configured(), differs)
		}
	}
	if p.StaleUnit != nil {
		file, err := p.StaleUnit()
		if err != nil {
			return skipped("the service manager's file cannot be compared: %v", err)
		}
		if file != "" {
			r.find(Warn, "daemon.unit_stale", "", restart, "%s is not what ravi daemon install would write now, so the service manager starts the daemon as it was", file)
		}
	}
	return r.saying("version, program, arguments and addresses are those of now")
}

// program compares the file that the daemon runs with this program's.
func (p *patient) program(r *result, id procid.ID) {
	exe := filepath.Join(p.proc, strconv.Itoa(id.PID), "exe")
	running, err := os.Stat(exe)
	if err != nil || p.Program == "" {
		return // a process that has ended since; what is to be seen of it is seen elsewhere
	}
	path, err := os.Readlink(exe)
	if err != nil {
		return
	}
	if removed, gone := strings.CutSuffix(path, " (deleted)"); gone {
		r.find(Warn, "daemon.program_replaced", "", restart, "the daemon runs a program that is no longer at %s: it was replaced since it was started", removed)
		return
	}
	if now, err := os.Stat(p.Program); err == nil && !os.SameFile(now, running) {
		r.find(Warn, "daemon.program", "", restart, "the daemon runs %s, and this is %s", path, p.Program)
	}
}

// usualFlags are those with which the daemon is started by itself, and by a service manager.
var usualFlags = [][]string{{"daemon", "run"}, {"daemon", "run", "--keep-sandboxes"}}

func (p *patient) flags(r *result, id procid.ID) {
	b, err := os.ReadFile(filepath.Join(p.proc, strconv.Itoa(id.PID), "cmdline"))
	if err != nil || len(b) == 0 {
		return
	}
	args := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")[1:]
	if !slices.ContainsFunc(usualFlags, func(u []string) bool { return slices.Equal(u, args) }) {
		r.find(Warn, "daemon.flags", "", restart, "the daemon was started with other flags than it would be now: %s", strings.Join(args, " "))
	}
}

// endpoints are the listeners, as the daemon and config.json have them.
func (p *patient) endpoints() []Endpoint {
	if p.Endpoints == nil || p.ConfigErr != nil {
		return nil
	}
	return p.Endpoints(p.view)
}

// configured is where it is to listen, for people.
func (e Endpoint) configured() string {
	if e.Off {
		return "none"
	}
	return net.JoinHostPort(e.Host, strconv.Itoa(e.Port))
}

// differs says how the daemon has it otherwise than config.json; empty: it does not.
func (e Endpoint) differs() string {
	switch {
	case e.Off && e.Actual != "":
		return "at " + e.Actual
	case e.Off:
		return ""
	case e.Actual == "":
		return "nowhere"
	}
	host, port, err := net.SplitHostPort(e.Actual)
	if err != nil || e.Port != 0 && port != strconv.Itoa(e.Port) || !sameHost(e.Host, host) {
		return "at " + e.Actual
	}
	return ""
}

// sameHost says whether an address could have come of a host. A name may stand for any.
func sameHost(host, actual string) bool {
	if host == actual {
		return true
	}
	if host == "localhost" {
		return loopbackHost(actual)
	}
	given, is := net.ParseIP(host), net.ParseIP(actual)
	if host == "" || given != nil && given.IsUnspecified() {
		return is != nil && is.IsUnspecified()
	}
	return given == nil || given.Equal(is)
}

func (p *patient) endpoint(name string) (Endpoint, bool) {
	for _, e := range p.endpoints() {
		if e.Name == name {
			return e, true
		}
	}
	return Endpoint{}, false
}

func gatewayExposure(ctx context.Context, p *patient) result { return p.exposure(ctx, "gateway") }

func busExposure(ctx context.Context, p *patient) result {
	r := p.exposure(ctx, "bus")
	web, ok := p.endpoint("bus_websocket")
	if r.skip || !ok || web.Off {
		return r
	}
	also := p.exposure(ctx, "bus_websocket")
	r.said += "; WebSocket " + also.said
	r.findings = append(r.findings, also.findings...)
	return r
}

// exposure dials an endpoint of the daemon everywhere.
func (p *patient) exposure(ctx context.Context, name string) (r result) {
	e, ok := p.endpoint(name)
	switch {
	case p.ConfigErr != nil:
		return skipped("config.json cannot be read: see config.valid")
	case !ok:
		return skipped("this ravi has none")
	case e.Off && (p.view == nil || e.Actual == ""):
		return skipped("config.json has none")
	case p.view == nil:
		return p.untaken(ctx, e)
	}
	if same, err := sameNetwork(p.proc, p.view.State.Process.PID); err != nil || !same {
		return skipped("the daemon is in another network namespace than this program, or cannot be looked at")
	}
	port := e.Port
	if _, actual, err := net.SplitHostPort(e.Actual); err == nil {
		port, _ = strconv.Atoi(actual) // what is no number is no port
	}
	if port <= 0 || port > 65535 || e.Actual == "" {
		r.find(Error, e.Name+".silent", "", restart, "config.json has %s listen at %s, and the daemon does not listen for it", e.called(), e.configured())
		return r.saying("")
	}
	x, err := expose(ctx, Listener{Name: e.Name, Port: uint16(port), Speaks: e.Speaks, Secure: e.TLS, PID: p.view.State.Process.PID}, p.Interfaces, p.proc)
	if err != nil {
		return skipped("it cannot be told: %v", err)
	}
	if x.State == Closed {
		r.find(Error, e.Name+".silent", "", restart, "%s does not answer at port %d of any address of this machine", e.called(), port)
		return r.saying("")
	}
	e.findings(&r, x)
	e.certificate(&r, x, p.now())
	r.said = fmt.Sprintf("%s: port %d, %s", x, port, x.Front())
	return r
}

// untaken looks whether another holds the place of an endpoint while no daemon runs.
func (p *patient) untaken(ctx context.Context, e Endpoint) (r result) {
	if e.Port == 0 {
		return skipped(noDaemon)
	}
	loopback := func() ([]Address, error) {
		all, err := p.Interfaces()
		return slices.DeleteFunc(all, func(a Address) bool { return a.Kind() != Loopback && a.Addr.String() != e.Host }), err
	}
	x, err := expose(ctx, Listener{Name: e.Name, Port: uint16(e.Port), Speaks: e.Speaks}, loopback, p.proc)
	if err != nil || x.State == Closed {
		return skipped(noDaemon)
	}
	who := "another process"
	if sockets, err := listening(p.proc, os.Getpid()); err == nil {
		for _, s := range sockets {
			if s.at.Port() == uint16(e.Port) {
				if h := holder(p.proc, s.inode); h != "" {
					who = h
				}
			}
		}
	}
	r.find(Warn, e.Name+".taken", "", fmt.Sprintf("end what listens there, or: ravi config set %s PORT", e.PortKey),
		"no daemon runs, and at port %d, where %s is to listen, answers %s: the daemon will not start", e.Port, e.called(), who)
	return r.saying("")
}

// portsExposure dials what else the daemon listens on.
func portsExposure(ctx context.Context, p *patient) (r result) {
	if p.view == nil {
		return skipped(noDaemon)
	}
	pid := p.view.State.Process.PID
	if same, err := sameNetwork(p.proc, pid); err != nil || !same {
		return skipped("the daemon is in another network namespace than this program, or cannot be looked at")
	}
	ports, err := openPorts(p.proc, pid)
	if err != nil {
		return skipped("it cannot be told: %v", err)
	}
	var known []string
	for _, e := range p.endpoints() {
		if _, port, err := net.SplitHostPort(e.Actual); err == nil {
			known = append(known, port)
		}
	}
	said := []string{}
	for _, port := range ports {
		if slices.Contains(known, strconv.Itoa(int(port))) {
			continue
		}
		e := Endpoint{Name: fmt.Sprintf("port_%d", port), Speaks: Other}
		x, err := expose(ctx, Listener{Name: e.Name, Port: port, Speaks: Other, PID: pid}, p.Interfaces, p.proc)
		if err != nil {
			return skipped("it cannot be told: %v", err)
		}
		e.findings(&r, x)
		said = append(said, fmt.Sprintf("%d %s", port, x))
	}
	if len(said) == 0 {
		return pass("it has no other")
	}
	r.said = strings.Join(said, ", ")
	return r
}

// certSoon is how long before its end a certificate is worth a word.
const certSoon = 14 * 24 * time.Hour

// certificate compares what an endpoint shows with what config.json gives.
func (e Endpoint) certificate(r *result, x Exposure, now time.Time) {
	var shown *x509.Certificate
	for _, a := range x.Answers {
		if a.cert != nil && a.Stranger == "" {
			shown = a.cert
		}
	}
	if e.TLS != (x.TLS == Yes) && x.TLS != Unknown {
		r.find(Error, e.Name+".tls", "", restart, "config.json asks for TLS: %v; %s speaks it: %v", e.TLS, e.called(), x.TLS == Yes)
	}
	if shown == nil {
		return
	}
	switch left := shown.NotAfter.Sub(now); {
	case left <= 0:
		r.find(Error, e.Name+".certificate_over", "", "put a new certificate in "+quote(e.Cert)+", then: "+restart, "the certificate of %s ended at %s", e.called(), shown.NotAfter.UTC().Format(time.RFC3339))
	case left < certSoon:
		r.find(Warn, e.Name+".certificate_ends", "", "put a new certificate in "+quote(e.Cert)+", then: "+restart, "the certificate of %s ends at %s", e.called(), shown.NotAfter.UTC().Format(time.RFC3339))
	}
	if e.Cert == "" {
		return
	}
	b, err := os.ReadFile(e.Cert)
	if err != nil {
		r.find(Error, e.Name+".certificate_file", "", "put the certificate back, or name another in config.json; then: "+restart, "the certificate that config.json names cannot be read: %v", err)
		return
	}
	if block, _ := pem.Decode(b); block != nil && !bytes.Equal(block.Bytes, shown.Raw) {
		r.find(Warn, e.Name+".certificate_stale", "", restart, "%s shows another certificate than the one in %s", e.called(), e.Cert)
	}
}

// maxEnviron bounds what is read of an environment.
const maxEnviron = 4 << 20

// secretsIn are the names of what looks like a credential in a process's environment.
func (p *patient) secretsIn(pid int) ([]string, error) {
	b, err := os.ReadFile(filepath.Join(p.proc, strconv.Itoa(pid), "environ"))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, v := range bytes.Split(b[:min(len(b), maxEnviron)], []byte{0}) {
		name, value, ok := strings.Cut(string(v), "=")
		if ok && p.LooksSecret(name, value) != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func without(names []string) string {
	var b strings.Builder
	b.WriteString("env")
	for _, n := range names {
		b.WriteString(" -u " + quote(n))
	}
	return b.String()
}

// daemonEnvironment looks for secrets where every program of this user can read them. Names are told, and no values.
func daemonEnvironment(ctx context.Context, p *patient) (r result) {
	looked, unseen := 0, []string{}
	if p.view != nil {
		names, err := p.secretsIn(p.view.State.Process.PID)
		if err != nil {
			unseen = append(unseen, "the daemon's")
		} else {
			looked++
		}
		if len(names) > 0 {
			r.find(Warn, "daemon.secrets", "", without(names)+" "+restart, "the daemon's environment, and so that of what it starts, holds what looks like credentials: %s", strings.Join(names, ", "))
		}
	}
	if p.noStore() == nil {
		runs, err := p.store.ListRuns(ctx, store.RunFilter{Live: true})
		if err != nil {
			return skipped("%v", err)
		}
		for _, run := range runs {
			if run.Owner.PID == 0 || !procid.Alive(run.Owner) {
				continue
			}
			names, err := p.secretsIn(run.Owner.PID)
			switch {
			case errors.Is(err, os.ErrNotExist):
			case err != nil:
				unseen = append(unseen, run.ID+"'s")
			default:
				looked++
			}
			if len(names) > 0 {
				r.find(Info, "run.secrets", run.ID, without(names)+" ravi …, the next time; it ends with the run", "the environment of the process of run %s, which no sandbox sees, holds what looks like credentials: %s", run.ID, strings.Join(names, ", "))
			}
		}
	}
	switch {
	case len(unseen) > 0 && len(r.findings) == 0:
		return skipped("%s environment cannot be read", strings.Join(unseen, ", "))
	case looked == 0:
		return skipped("no process of Ravi runs")
	}
	return r.saying("%s", count(looked, "process has none", "processes have none"))
}

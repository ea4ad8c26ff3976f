package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"ravi/sandbox"
)

const (
	// copied is the network of our sandbox with its policy taken away: the same
	// device, stack and dialer, and nothing looked at that passes.
	copied = "copied"

	copiesEvery   = 10    // of new connections, how many are not copied for one that is
	keptTries     = 2000  // requests on a connection that is there
	eventTries    = 200   // streams on a connection that is there
	mostDownloads = 5     // of each kind
	mostConnects  = 20000 // what Options.Connects may be
	mostDownload  = 10_000

	guestProgram = "/srv/ravi"
)

// netMeasures are what Only may name at once as "network". crowd is not among
// them: it is asked for by itself.
var netMeasures = []string{"connect", "kept", "http", "https1", "https2", "gatecpu", "allcpu", "sse", "cable", "netmem"}

const netAll, netCrowd = "network", "crowd"

// expand puts the measures in the place of the names for several.
func expand(only []string) []string {
	for _, g := range groups {
		if i := slices.Index(only, g.name); i >= 0 {
			only = append(slices.Delete(slices.Clone(only), i, i+1), g.measures...)
		}
	}
	return only
}

// networked is a sandbox of ours with a network, and the servers that it may
// reach.
type networked struct {
	*bench
	servers *netServers
	roots   string // the file with the servers' authority
}

// newNetworked begins to serve. Close it.
func (b *bench) newNetworked() (*networked, error) {
	servers, err := newNetServers()
	if err != nil {
		return nil, err
	}
	n := &networked{bench: b, servers: servers, roots: filepath.Join(b.dir, "roots.pem")}
	if err := os.WriteFile(n.roots, servers.ca, 0o644); err != nil {
		return nil, errors.Join(err, servers.close())
	}
	return n, nil
}

// trusting calls do while sandboxes that are made trust the servers: whom a
// gateway trusts is taken from the environment.
func (n *networked) trusting(do func()) (err error) {
	const roots = "SSL_CERT_FILE"
	before, had := os.LookupEnv(roots)
	if err := os.Setenv(roots, n.roots); err != nil {
		return err
	}
	do()
	if had {
		return os.Setenv(roots, before)
	}
	return os.Unsetenv(roots)
}

// open makes a sandbox that reaches the servers and has this program inside.
// It is called within trusting.
func (n *networked) open(ctx context.Context) (*sandbox.Sandbox, int, error) {
	x := n.ourBox()
	cfg := sandbox.Default()
	cfg.Backend = ours
	cfg.AllowNet = sandbox.AllowNet{Rules: n.servers.rules()}
	cfg.ExtraVolumes = []sandbox.Volume{{Host: n.Program, Guest: guestProgram, ReadOnly: true}}
	sb, err := sandbox.Open(ctx, cfg, "", sandbox.WithHome(x.home), sandbox.WithRecorder(x.record))
	if err != nil {
		return nil, 0, err
	}
	return sb, x.record.keeper(sb.ID), nil
}

// client has a client in the sandbox do a job.
func (n *networked) client(ctx context.Context, sb *sandbox.Sandbox, j job) (o outcome, err error) {
	j.Ports, j.CA = n.servers.ports, string(n.servers.ca)
	return inSandbox(ctx, sb, j)
}

// inSandbox does a job in a sandbox that has this program inside.
func inSandbox(ctx context.Context, sb *sandbox.Sandbox, j job) (o outcome, err error) {
	text, err := json.Marshal(j)
	if err != nil {
		return o, err
	}
	var out bytes.Buffer
	var said tail
	p, err := sb.Start(ctx, sandbox.Cmd{
		Args: []string{guestProgram, "bench"}, Env: map[string]string{EnvClient: string(text), "HOME": "/tmp"}, Stdout: &out, Stderr: &said,
	})
	if err != nil {
		return o, err
	}
	if err := ended(p.Wait()); err != nil {
		return o, fmt.Errorf("the client in the sandbox: %w: %s", err, said.b)
	}
	if err := json.Unmarshal(out.Bytes(), &o); err != nil {
		return o, fmt.Errorf("the client in the sandbox: %w in %q", err, out.String())
	}
	return o, nil
}

// network measures what a sandbox's network costs: every connection through the
// policy has a twin that the same stack copies without looking at it.
func (b *bench) network(ctx context.Context) (err error) {
	n, err := b.newNetworked()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.servers.close()) }()
	var sb *sandbox.Sandbox
	var keeper int
	var opening error
	if err := n.trusting(func() { sb, keeper, opening = n.open(ctx) }); err != nil || opening != nil {
		return errors.Join(err, opening)
	}
	defer func() { err = errors.Join(err, sb.Close()) }()
	if b.want("netmem") {
		if err := n.memory(ctx, keeper, atRest); err != nil {
			return err
		}
	}
	for _, m := range []struct {
		name string
		job  job
	}{
		{"connect", job{Do: jobConnect, Over: overHTTPS1, N: b.Connects, Copies: copiesEvery}},
		{"kept", job{Do: jobKept, Over: overHTTPS1, N: keptTries, Copies: 1}},
		{"sse", job{Do: jobEvents, Over: overHTTPS1, N: eventTries, Copies: 1}},
	} {
		if b.want(m.name) {
			if err := n.one(ctx, sb, m.name, m.job); err != nil {
				return err
			}
		}
	}
	if err := n.downloads(ctx, sb, keeper); err != nil {
		return err
	}
	if b.want("netmem") {
		if err := n.memory(ctx, keeper, afterUse); err != nil {
			return err
		}
	}
	if b.want("cable") {
		return n.cables(ctx)
	}
	return nil
}

// one does a job and keeps what it found.
func (n *networked) one(ctx context.Context, sb *sandbox.Sandbox, name string, j job) error {
	o, err := n.client(ctx, sb, j)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n.fail(name, ours, err)
		return nil
	}
	for _, v := range o.Through {
		n.add(name, ours, v)
	}
	for _, v := range o.Copied {
		n.add(name, copied, v)
	}
	return nil
}

// downloads measures bytes that come in, and what processor time they need.
func (n *networked) downloads(ctx context.Context, sb *sandbox.Sandbox, keeper int) error {
	type way struct {
		over   string
		copied bool
	}
	var ways []way
	for _, over := range []string{overHTTP, overHTTPS1, overHTTPS2} {
		if n.want(over) {
			ways = append(ways, way{over, false}, way{over, true})
		}
	}
	return inTurns(ctx, min(n.Runs, mostDownloads), ways, func(w way) error {
		before, err := netCPU(keeper)
		if err != nil {
			return err
		}
		o, err := n.client(ctx, sb, job{Do: jobDownload, Over: w.over, N: 1, Copied: w.copied, Bytes: int64(n.Download) * 1e6})
		if err != nil {
			return err
		}
		after, err := netCPU(keeper)
		if err != nil {
			return err
		}
		by, who := ours, w.over
		if w.copied {
			by, who = copied, w.over+" "+copied
		}
		for _, v := range append(o.Through, o.Copied...) {
			n.add(w.over, by, v)
		}
		perMB := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) / float64(n.Download) }
		n.add("gatecpu", who, perMB(after.gateway-before.gateway))
		n.add("allcpu", who, perMB(after.all-before.all))
		return nil
	}, func(w way, err error) { n.fail(w.over, ours, err) })
}

// settle waits for what has just worked to come to rest.
func settle(ctx context.Context) error {
	select {
	case <-time.After(settleTime):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

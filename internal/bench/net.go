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
	mostDownloads = 5     // rounds; one is six downloads
	mostConnects  = 20000 // what Options.Connects may be
	mostDownload  = 10_000

	guestProgram = "/srv/ravi"
)

// netMeasures are what Only may name at once as "network". crowd is not among
// them: it is asked for by itself.
var netMeasures = []string{"connect", "kept", "http", "https1", "https2", "sse", "cable", "netmem"}

const netAll, netCrowd = "network", "crowd"

// expand puts the measures in the place of a name for several.
func expand(only []string) []string {
	if i := slices.Index(only, netAll); i >= 0 {
		return append(slices.Delete(slices.Clone(only), i, i+1), netMeasures...)
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
	i := slices.IndexFunc(n.boxes, func(x *box) bool { return x.backend == ours })
	x := n.boxes[i] // without which prepare has failed
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
	if err := n.downloads(ctx, sb); err != nil {
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

func (n *networked) downloads(ctx context.Context, sb *sandbox.Sandbox) error {
	ways := slices.DeleteFunc([]string{overHTTP, overHTTPS1, overHTTPS2}, func(way string) bool { return !n.want(way) })
	for round := range min(n.Runs, mostDownloads) {
		for i := range ways {
			way := ways[(round+i)%len(ways)]
			j := job{Do: jobDownload, Over: way, N: 1, Copies: 1, First: round%2 == 1, Bytes: int64(n.Download) * 1e6}
			if err := n.one(ctx, sb, way, j); err != nil {
				return err
			}
			if n.result(way, ours).Failures > 0 {
				return nil
			}
		}
	}
	return nil
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

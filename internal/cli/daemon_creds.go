package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/nats-io/nats.go"

	"ravi/internal/audit"
	"ravi/internal/bus"
	"ravi/internal/dispatch"
	"ravi/internal/store"
	"ravi/sandbox"
)

// runCredTTL is the life of a run's credentials. Its process has them renewed while it lives.
const runCredTTL = time.Hour

// orderBus is what the process of a try needs of the bus; nil: nothing.
func (d *daemonBus) orderBus(ctx context.Context, t dispatch.Try, work agentsWorkInput) (*orderBus, error) {
	connect, err := parseConnect(work.Connect)
	if err != nil {
		return nil, err
	}
	o := &orderBus{URL: d.bus.URL(), Trust: d.bus.Trust(), Runner: t.Runner, Try: t.Work.Tries}
	if connect.on {
		if err := d.warden.Watch(ctx, t.Work.Client); err != nil && !errors.Is(err, bus.ErrExternal) {
			return nil, err
		}
		cred, _, err := d.mint(ctx, bus.Request{Kind: bus.KindGuest, Name: t.RunID, Account: t.Work.Client, RunID: t.RunID, TTL: runCredTTL, From: d.fromHere()})
		if err != nil && !errors.Is(err, bus.ErrExternal) { // on another's bus there are no accounts for guests
			return nil, err
		}
		if err == nil {
			o.Guest = string(cred.File())
		}
	}
	if t.Runner == "" {
		if o.Guest == "" {
			return nil, nil
		}
		return o, nil
	}
	found, err := d.st.ListBusCredentials(ctx, store.BusCredentialFilter{Live: true, Kind: store.BusRunner, Name: t.Runner})
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: %s has no credential that holds", dispatch.ErrNoRunner, t.Runner)
	}
	cred, _, err := d.mint(ctx, bus.Request{Kind: bus.KindOwner, Name: t.RunID, RunID: t.RunID, TTL: runCredTTL, From: d.fromHere()})
	if err != nil {
		return nil, err
	}
	o.Credential, o.Peer = string(cred.File()), found[0].XKey
	return o, nil
}

// fromHere is where the processes of runs connect from, which are all of this machine: what was stolen from a sandbox is good
// nowhere else, also if the bus can be reached. From where this machine is seen by a server that is not ours is not known.
func (d *daemonBus) fromHere() []netip.Prefix {
	if d.file.Bus.URL != "" {
		return nil
	}
	// A connection to an address of this machine comes from that very one.
	var all []netip.Prefix
	for _, a := range d.bus.Addrs() {
		if a := a.Addr().Unmap(); !a.IsUnspecified() {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return append(all, netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"))
}

// onlyHere says that a runner cannot do a piece of work: it is about folders of this machine, or asks for no isolation.
func (d *daemonBus) onlyHere(ctx context.Context, w store.Work) bool {
	a, err := d.st.Agent(ctx, w.AgentID)
	if err != nil {
		return true
	}
	in, err := workOf(a)
	return err != nil || len(in.Volumes) > 0 || in.Backend == sandbox.BackendHost || in.Backend == sandbox.BackendNone
}

// startWarden hears the guests of runs that are under way.
func (d *daemonBus) startWarden(ctx context.Context) (err error) {
	d.warden, err = dispatch.NewWarden(d.control, d.st, func(ctx context.Context, client string) (*nats.Conn, error) { return d.bus.Client(ctx, client) }, d.log)
	if err != nil {
		return err
	}
	live, err := d.st.ListBusCredentials(ctx, store.BusCredentialFilter{Live: true, Kind: store.BusGuest})
	for _, c := range live {
		err = errors.Join(err, d.warden.Watch(ctx, c.Client))
	}
	return err
}

// tellNews tells what works on a session that something more was said in it.
func (d *daemonBus) tellNews(ctx context.Context, running, next store.Work) error {
	m, err := d.st.Message(ctx, next.MessageID)
	if err != nil {
		return err
	}
	return d.warden.Tell(running.Client, running.RunID, "message", map[string]any{"session": m.SessionID, "seq": m.Seq, "role": m.Role})
}

// runOver ends what a run had of the bus.
func (d *daemonBus) runOver(ctx context.Context, runID string) error {
	d.warden.Forget(runID)
	return d.endCredentials(ctx, runID)
}

// endCredentials ends those of a run that is over.
func (d *daemonBus) endCredentials(ctx context.Context, runID string) error {
	had, err := d.st.ListBusCredentials(ctx, store.BusCredentialFilter{Live: true, RunID: runID})
	if err != nil || len(had) == 0 {
		return err
	}
	if _, err := d.st.RevokeBusCredentials(ctx, store.BusCredentialFilter{RunID: runID}, "", "the run is over"); err != nil {
		return err
	}
	accounts := map[string]bool{}
	var rows []audit.Record
	for _, c := range had {
		accounts[c.Client] = true
		rows = append(rows, audit.Record{Action: audit.BusRevoke, Object: c.ID, Decision: store.Allowed, RunID: runID, Reason: "the run is over"})
	}
	if err := d.audit.Append(ctx, rows...); err != nil {
		return err
	}
	for account := range accounts {
		// A server that is not ours lets it hold to its end, which is an hour at most.
		if err := d.applyRevoked(ctx, account); err != nil && !errors.Is(err, bus.ErrExternal) {
			return err
		}
	}
	return nil
}

// applyRevoked has the bus refuse what the record says is revoked in an account, and cut who is connected with it.
func (d *daemonBus) applyRevoked(ctx context.Context, account string) error {
	all, err := d.st.ListBusCredentials(ctx, store.BusCredentialFilter{Revoked: true})
	if err != nil {
		return err
	}
	set := map[string]time.Time{}
	for _, c := range all {
		if c.Client == account {
			set[c.ID] = *c.RevokedAt
		}
	}
	return d.bus.Revoke(ctx, account, set)
}

// applyAllRevoked does that for all accounts: what was revoked while no daemon ran holds from now on.
func (d *daemonBus) applyAllRevoked(ctx context.Context) error {
	all, err := d.st.ListBusCredentials(ctx, store.BusCredentialFilter{Revoked: true})
	if err != nil {
		return err
	}
	accounts := map[string]bool{}
	for _, c := range all {
		accounts[c.Client] = true
	}
	for account := range accounts {
		err := d.applyRevoked(ctx, account)
		if errors.Is(err, bus.ErrExternal) {
			d.log.Warn("credentials that are revoked here hold on the bus until their end", "error", err.Error())
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// renew renews the credential of a run that is under way.
func (d *daemonBus) renew(ctx context.Context, user string) (string, error) {
	c, err := d.st.BusCredential(ctx, user)
	if err != nil {
		return "", err
	}
	r, err := d.st.Run(ctx, c.RunID)
	if err != nil {
		return "", err
	}
	if c.Kind != store.BusOwner && c.Kind != store.BusGuest || c.RevokedAt != nil || r.Status.Final() {
		return "", fmt.Errorf("the credential %s is not renewed: its run is over: %w", c.Name, store.ErrFinal)
	}
	cred, _, err := d.mint(ctx, bus.Request{Kind: bus.Kind(c.Kind), Name: c.Name, Account: c.Client, RunID: c.RunID, TTL: runCredTTL, User: c.ID, From: d.fromHere()})
	return string(cred.File()), err
}

package cli

import (
	"context"
	"fmt"
	"time"

	"ravi/internal/bus"
	"ravi/internal/dispatch"
	"ravi/internal/store"
	"ravi/sandbox"
)

// ownerTTL is the life of a run's own credential. Its process has it renewed while it lives.
const ownerTTL = time.Hour

// orderBus is what the process of a try needs of the bus; nil: nothing.
func (d *daemonBus) orderBus(ctx context.Context, t dispatch.Try) (*orderBus, error) {
	if t.Runner == "" {
		return nil, nil
	}
	found, err := d.st.ListBusCredentials(ctx, store.BusCredentialFilter{Live: true, Kind: store.BusRunner, Name: t.Runner})
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("the runner %s has no credential that holds", t.Runner)
	}
	cred, _, err := d.mint(ctx, bus.Request{Kind: bus.KindOwner, Name: t.RunID, RunID: t.RunID, TTL: ownerTTL})
	if err != nil {
		return nil, err
	}
	return &orderBus{
		URL: d.bus.URL(), CA: d.bus.Trust().CA, Credential: string(cred.File()), Runner: t.Runner, Peer: found[0].XKey, Try: t.Work.Tries,
	}, nil
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
	for _, c := range had {
		accounts[c.Client] = true
	}
	for account := range accounts {
		if err := d.applyRevoked(ctx, account); err != nil {
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
		if err := d.applyRevoked(ctx, account); err != nil {
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
	if c.Kind != store.BusOwner || c.RevokedAt != nil || r.Status.Final() {
		return "", fmt.Errorf("the credential %s is not renewed: its run is over: %w", c.Name, store.ErrFinal)
	}
	cred, _, err := d.mint(ctx, bus.Request{Kind: bus.KindOwner, Name: c.Name, RunID: c.RunID, TTL: ownerTTL, User: c.ID})
	return string(cred.File()), err
}

package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"ravi/internal/backend/host"
	"ravi/internal/guestapi"
	"ravi/internal/keeper"
	"ravi/internal/network"
)

// Errors of Attach.
var (
	// ErrNoSandbox: there is no sandbox of that id, or it has ended.
	ErrNoSandbox = errors.New("there is no such sandbox")
	// ErrOwned: the sandbox cannot be taken over, since its owner lives.
	ErrOwned = keeper.ErrOwned
	// ErrNotOwner: only the sandbox's owner can do this.
	ErrNotOwner = errors.New("only the process that owns the sandbox can do this")
)

// kept is what others than the process that opened a sandbox must know of it. It
// lies in the sandbox's directory, on the host, closed to others. Of secrets it
// holds the placeholders, never a value.
type kept struct {
	ID        string   `json:"id"`
	Dir       string   `json:"dir"`
	Backend   string   `json:"backend"`
	Config    Config   `json:"config"`
	Workspace string   `json:"workspace"`
	Root      string   `json:"root"`
	Volumes   []Volume `json:"volumes"`
	User      string   `json:"user"`
	Context   string   `json:"context"`
	// WorkspaceOnly is WithWorkspaceOnly.
	WorkspaceOnly bool `json:"workspace_only,omitempty"`
	// HasNetwork says that it was made with one. Network is what there would be
	// besides the rules, which can be replaced.
	HasNetwork bool           `json:"has_network"`
	Network    network.Config `json:"network"`
	// Placeholders are what there is in place of secrets, by their names.
	Placeholders map[string]string `json:"placeholders"`
}

// keep says what others must know.
func (s *Sandbox) keep(dir string) ([]byte, error) {
	return json.Marshal(kept{
		ID: s.ID, Dir: dir, Backend: s.backend, Config: s.cfg, Workspace: s.workspace, Root: s.root, Volumes: s.volumes, User: s.user,
		Context: s.context, WorkspaceOnly: s.workspaceOnly, HasNetwork: s.network,
		Network:      network.Config{Floor: s.floor, Services: s.serviceNames, Seed: s.seed, Proxy: s.beyond.proxy, ExtraCAs: s.beyond.extraCAs},
		Placeholders: s.Placeholders(),
	})
}

// readKept makes the sandbox in dir of what was kept of it. It must be that one's.
func readKept(dir string) (*Sandbox, error) {
	b, err := keeper.ReadOwner(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoSandbox
	}
	if err != nil {
		return nil, err
	}
	var k kept
	if err := json.Unmarshal(b, &k); err != nil {
		return nil, fmt.Errorf("what is kept in %s: %w", dir, err)
	}
	if k.Dir != dir || k.ID != filepath.Base(dir) {
		return nil, fmt.Errorf("what is kept in %s is of another sandbox", dir)
	}
	s := &Sandbox{ID: k.ID, backend: k.Backend}
	if k.Backend == BackendHost {
		// Commands get the environment of whoever calls them, less what may be
		// a secret; none of it is written down.
		s.onHost(dir)
	}
	s.cfg, s.workspace, s.root, s.volumes, s.user = k.Config, k.Workspace, k.Root, k.Volumes, k.User
	s.context, s.workspaceOnly, s.network = k.Context, k.WorkspaceOnly, k.HasNetwork
	s.floor, s.serviceNames, s.seed = k.Network.Floor, k.Network.Services, k.Network.Seed
	s.beyond = beyond{proxy: k.Network.Proxy, extraCAs: k.Network.ExtraCAs}
	s.secrets.known = k.Placeholders
	if s.sealed() {
		s.seal()
	}
	return s, nil
}

// WithTakeOver has Attach make this process the sandbox's owner, which it
// outlives for grace. The former owner must be gone: ErrOwned if it lives. Of
// several that take over at once, one does.
//
// WithNetEvents, WithService and WithRecorder are then as for Open. A recorder's
// Created is called again. With WithSecrets the values are replaced: all secrets
// that the sandbox was opened with must be given, and have the placeholders that
// they had; without it the sandbox's network keeps the values that it has.
func WithTakeOver(grace time.Duration) Option { return func(o *options) { o.takeOver = &grace } }

var sandboxID = regexp.MustCompile(`^sbx[0-9a-z]{26}$`)

// Attach takes hold of a sandbox that another process of the same user opened,
// by its id. There may be many holds at once. With one, commands are run, files
// moved, ports reached, and the sandbox paused, whoever owns it. Close only lets
// go: the sandbox goes on, and so do commands that were started. What its owner
// decides, as SetAllowNet, is ErrNotOwner. See WithTakeOver for a new owner.
//
// Of the options WithHome, WithTakeOver and those that WithTakeOver names apply.
func Attach(ctx context.Context, id string, opts ...Option) (*Sandbox, error) {
	var o options
	for _, f := range opts {
		f(&o)
	}
	s, err := attach(ctx, id, o)
	if err != nil {
		return nil, fmt.Errorf("the sandbox %.40q: %w", id, err)
	}
	return s, nil
}

func attach(ctx context.Context, id string, o options) (*Sandbox, error) {
	if !sandboxID.MatchString(id) {
		return nil, ErrNoSandbox
	}
	if err := o.attachable(); err != nil {
		return nil, err
	}
	if err := o.findHome(); err != nil {
		return nil, err
	}
	dir := filepath.Join(o.home, "sandboxes", id)
	s, err := readKept(dir)
	if err != nil {
		return nil, err
	}
	own, grace := o.takeOver != nil, time.Duration(0)
	if own {
		grace = *o.takeOver
		if err := s.takeOver(o); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(s.cfg.VerifyTimeout)*time.Second,
		fmt.Errorf("it did not answer within %d s (verify_timeout)", s.cfg.VerifyTimeout))
	defer cancel()
	h, err := keeper.Attach(ctx, dir, own, grace)
	switch {
	case errors.Is(err, keeper.ErrGone), errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: it has ended", ErrNoSandbox)
	case err != nil:
		return nil, err
	}
	s.own, s.inst = own, h
	if s.backend == BackendHost {
		s.inst = host.Attached(h)
	}
	s.client = guestapi.NewClient(guestapi.NewHTTPClient(s.inst.Dial), "http://guest")
	if s.Notes, err = h.Ready(ctx); err == nil && own {
		err = s.begin(ctx, o)
	}
	if err != nil {
		s.Detach() // it may still be of use to another
		return nil, s.explain(ctx, err)
	}
	return s, nil
}

// attachable refuses options that say nothing about a sandbox that is there.
func (o options) attachable() error {
	if o.grace != 0 || o.checkpoint != "" || o.context != "" || o.proxy != nil || o.extraCAs != nil || o.workspaceOnly || len(o.mounts)+len(o.readOnly)+len(o.netFloor) > 0 {
		return errors.New("what a sandbox is made of is decided when it is opened, and cannot be given when it is attached to")
	}
	if o.takeOver == nil && (o.recorder != nil || o.netEvents != nil || len(o.secrets)+len(o.services) > 0) {
		return fmt.Errorf("%w: take it over to record it, hear of its network, serve it or give it secrets", ErrNotOwner)
	}
	if o.takeOver != nil && *o.takeOver < 0 {
		return errors.New("the grace is negative")
	}
	return nil
}

// takeOver checks what the new owner brings.
func (s *Sandbox) takeOver(o options) error {
	for name, serve := range o.services {
		if serve == nil || !slices.Contains(s.serviceNames, name) {
			return fmt.Errorf("it was opened without a service %q", name)
		}
	}
	s.record = o.recorder
	if len(o.secrets) == 0 {
		return nil
	}
	var given []string
	again := slices.Clone(o.secrets)
	for i, one := range again {
		placeholder := s.secrets.known[one.Name]
		switch {
		case placeholder == "":
			return fmt.Errorf("it was opened without a secret %q", one.Name)
		case one.Placeholder != "" && one.Placeholder != placeholder:
			return fmt.Errorf("it holds another placeholder for the secret %s", one.Name)
		}
		again[i].Placeholder = placeholder
		given = append(given, one.Name)
	}
	for name := range s.secrets.known {
		if !slices.Contains(given, name) {
			return fmt.Errorf("the secret %s is missing: give all that it was opened with, or none to keep what they are", name)
		}
	}
	return s.takeSecrets(again, nil)
}

// begin does what an owner does all the time.
func (s *Sandbox) begin(ctx context.Context, o options) error {
	if s.network {
		var err error
		if s.line, _, err = newLine(ctx, s.inst.DialEvents, o.netEvents); err != nil {
			return fmt.Errorf("its network gateway: %w", err)
		}
		if err := s.giveSecrets(ctx); err != nil {
			return err
		}
	}
	if len(o.services) > 0 {
		var err error
		if s.visits, err = s.serve(ctx, o.services); err != nil {
			return err
		}
	}
	if s.record != nil {
		return s.record.Created(ctx, s.ID, s.inst.PID())
	}
	return nil
}

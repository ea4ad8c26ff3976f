package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"ravi/internal/command"
	"ravi/internal/daemon"
	runs "ravi/internal/run"
	"ravi/internal/store"
	safe "ravi/internal/term"
	"ravi/sandbox"
)

func addSandboxCreate(t *command.Table, boxes *daemon.Sandboxes) {
	add(t, command.Spec[createInput, createdItem]{
		Group: "sandbox", Name: "create", Access: command.Write,
		Bounded: []string{"workspace", "backend", "image", "cpus", "memory", "disk", "allow_net", "volumes", "secrets", "ttl"},
		Summary: "Make a sandbox that stays, to run commands in",
		Long: `Makes a sandbox and prints its id. It belongs to the daemon, which is started if
none runs, and lives until ravi sandbox kill, until its --ttl is over, or until
the daemon stops. If the daemon is killed, the next one takes it over, if it
comes within --grace.

With --workspace it sees that folder of this machine as /workspace, and what it
writes there is written here; with --overlay what it writes stays inside.

A holder of a key can ask for what its profile lists; see ravi profiles.`,
		Examples: []command.Example{
			{Line: "ravi sandbox create --name try --workspace ."},
			{What: "for an hour, with one host to reach", Line: "ravi sandbox create --ttl 1h --allow-net pypi.org"},
		},
		Defaults: createInput{Grace: daemon.DefaultGrace},
		Handler: func(ctx context.Context, env *command.Env, in createInput) (createdItem, error) {
			if boxes == nil {
				return askCreate(ctx, env, in)
			}
			return createSandbox(ctx, env, in, boxes)
		},
		Print: func(env *command.Env, w io.Writer, c createdItem) error {
			if !env.Quiet {
				for _, note := range c.Notes {
					fmt.Fprintln(env.Stderr, "note:", safe.Safe(note))
				}
			}
			_, err := fmt.Fprintln(w, safe.Safe(c.ID))
			return err
		},
	})
}

type createInput struct {
	Name      string        `json:"name" flag:"name" value:"NAME" host:"none" usage:"what to call it; no other that lives may have the name"`
	Workspace string        `json:"workspace" flag:"workspace" short:"w" value:"DIR" host:"path" usage:"a folder of this machine to see as /workspace"`
	Overlay   bool          `json:"overlay" flag:"overlay" host:"none" usage:"what it writes in the workspace stays inside"`
	Backend   string        `json:"backend" flag:"backend" value:"NAME" host:"backend" usage:"how the sandbox is made: auto, gvisor, host"`
	Image     string        `json:"image" flag:"image" value:"NAME" host:"image" usage:"its root file system; host is this machine's own tools"`
	CPUs      *float64      `json:"cpus" flag:"cpus" value:"N" host:"size" usage:"processors"`
	Memory    *int          `json:"memory" flag:"memory" value:"MiB" host:"size" usage:"memory"`
	Disk      *int          `json:"disk" flag:"disk" value:"GiB" host:"size" usage:"what it may write"`
	TTL       time.Duration `json:"ttl" flag:"ttl" value:"DURATION" host:"size" usage:"end it after this time, such as 2h"`
	Grace     time.Duration `json:"grace" flag:"grace" value:"DURATION" host:"size" usage:"how long it outlives a daemon that was killed"`
	Volumes   []string      `json:"volumes" flag:"volume" short:"v" value:"HOST:GUEST[:ro|rw]" host:"volume" usage:"a folder of this machine to see inside, read-only unless :rw"`
	AllowNet  []string      `json:"allow_net" flag:"allow-net" value:"none|all|HOST,…" host:"network" usage:"what it may reach: names, NAME:PORT, *.NAME, @LIST; all is the public internet"`
	Secrets   []string      `json:"secrets" flag:"secret" value:"NAME" host:"secret" usage:"a secret that it can use without having it; see ravi secrets"`
}

// createdItem is a sandbox that was made, with what there is to say about it once.
type createdItem struct {
	sandboxItem
	Notes []string `json:"notes"`
}

// askCreate has the daemon make a sandbox. Paths are taken from where this process stands.
func askCreate(ctx context.Context, env *command.Env, in createInput) (out createdItem, err error) {
	if !env.Caller.IsOperator() {
		return out, &command.Error{Code: command.CodeUnavailable, Message: "sandboxes are made by the daemon, and this is not it", Hint: "ask the daemon's gateway", Status: http.StatusServiceUnavailable, Exit: command.ExitFailed}
	}
	if err := in.absolute(); err != nil {
		return out, err
	}
	home, err := env.Home()
	if err != nil {
		return out, err
	}
	if err := startDaemon(ctx, env); err != nil {
		return out, err
	}
	done := env.Progress.Step("Make the sandbox")
	err = daemon.Ask(ctx, filepath.Join(home, daemon.Socket), "sandbox/create", in.wire(), &out)
	done(err)
	return out, answered(err)
}

// absolute takes its paths from where this process stands.
func (in *createInput) absolute() (err error) {
	if in.Workspace != "" {
		if in.Workspace, err = filepath.Abs(in.Workspace); err != nil {
			return err
		}
	}
	for i, v := range in.Volumes {
		host, guest, ok := strings.Cut(v, ":")
		if !ok {
			continue // it is refused with the rest
		}
		if host, err = filepath.Abs(host); err != nil {
			return err
		}
		in.Volumes[i] = host + ":" + guest
	}
	return nil
}

// wire is the input as the gateway reads it: durations as texts, and what was not given left out.
func (in createInput) wire() map[string]any {
	m := map[string]any{
		"name": in.Name, "workspace": in.Workspace, "overlay": in.Overlay, "backend": in.Backend, "image": in.Image,
		"ttl": in.TTL.String(), "grace": in.Grace.String(),
	}
	for key, size := range map[string]*int{"memory": in.Memory, "disk": in.Disk} {
		if size != nil {
			m[key] = *size
		}
	}
	if in.CPUs != nil {
		m["cpus"] = *in.CPUs
	}
	for key, list := range map[string][]string{"volumes": in.Volumes, "allow_net": in.AllowNet, "secrets": in.Secrets} {
		if len(list) > 0 {
			m[key] = list
		}
	}
	return m
}

// answered is what the daemon refused, told as if this process had.
func answered(err error) error {
	var r *daemon.Refusal
	if !errors.As(err, &r) {
		return err
	}
	told := &command.Error{Code: r.Code, Message: r.Message, Hint: r.Hint, Status: r.Status, Exit: command.ExitFailed, Err: err}
	if r.Code == command.CodeUsage {
		told.Exit = command.ExitUsage
	}
	return told
}

// createSandbox makes a sandbox; this process is the daemon.
func createSandbox(ctx context.Context, env *command.Env, in createInput, boxes *daemon.Sandboxes) (out createdItem, err error) {
	w, err := in.wanted(ctx, env)
	if err != nil {
		return out, err
	}
	row, notes, err := boxes.Create(ctx, w)
	if err != nil {
		return out, notCreated(err)
	}
	return createdItem{itemOf(env, row), append([]string{}, notes...)}, nil
}

// wanted checks an input, and holds it against the caller's profile, before anything is made.
func (in createInput) wanted(ctx context.Context, env *command.Env) (w daemon.Wanted, err error) {
	switch {
	case in.TTL < 0 || in.Grace < 0:
		return w, command.Usage("a time is negative", "leave --ttl out for no bound")
	case strings.Contains(in.Name, ":") || looksLikeID("sbx", in.Name) || looksLikeID("run", in.Name):
		return w, command.Usage(fmt.Sprintf("the name %.100q would be taken for something else", in.Name), "use one without a colon that begins with neither sbx nor run")
	case in.Overlay && in.Workspace == "":
		return w, command.Usage("--overlay is about a workspace, and there is none", "add --workspace DIR")
	case in.Workspace != "" && !filepath.IsAbs(in.Workspace):
		return w, command.Usage(fmt.Sprintf("the workspace %.100q is no absolute path", in.Workspace), "")
	}
	file, err := env.Config()
	if err != nil {
		return w, err
	}
	own, err := networkOf(file)
	if err != nil {
		return w, err
	}
	st, err := env.Store(ctx)
	if err != nil {
		return w, err
	}
	o := runs.Options{Store: st, Config: sandbox.Default(), Timeout: in.TTL, NetworkFloor: own.floor()}
	if err := file.Sandbox(&o.Config); err != nil {
		return w, err
	}
	o.Config.Debug.Enabled = false // as for runs
	o.Config.Workspace = sandbox.WorkspaceShared
	if in.Overlay {
		o.Config.Workspace = sandbox.WorkspaceOverlay
	}
	asked := runInput{Backend: in.Backend, Image: in.Image, CPUs: in.CPUs, Memory: in.Memory, Disk: in.Disk, Volumes: in.Volumes, AllowNet: in.AllowNet, Secrets: in.Secrets}
	if err := overrideConfig(&o.Config, asked, own.list); err != nil {
		return w, err
	}
	if err := runSecrets(ctx, env, asked, &o); err != nil {
		return w, err
	}
	// The workspace is held against the profile as a volume, which it is.
	if in.Workspace != "" {
		o.Config.ExtraVolumes = append(o.Config.ExtraVolumes, sandbox.Volume{Host: in.Workspace, ReadOnly: in.Overlay})
	}
	if err := boundRun(ctx, env, &o); err != nil {
		return w, err
	}
	if in.Workspace != "" {
		last := len(o.Config.ExtraVolumes) - 1
		in.Workspace, o.Config.ExtraVolumes = o.Config.ExtraVolumes[last].Host, o.Config.ExtraVolumes[:last]
	}
	w = daemon.Wanted{
		Name: in.Name, CreatedBy: env.Caller.Name(), Config: o.Config, Workspace: in.Workspace, TTL: o.Timeout, Grace: in.Grace, Secrets: o.Secrets,
		Check: func(ctx context.Context) error { return boundCount(ctx, env, st) },
	}
	if w.Options, err = own.options(); o.RealPaths {
		w.Options = append(w.Options, sandbox.WithRealPaths())
	}
	return w, err
}

// options are what the operator decided about the network, as a sandbox is opened with it.
func (b networkBlock) options() (opts []sandbox.Option, err error) {
	if f := b.floor(); f.Max != nil || len(f.AlwaysDeny)+len(f.AlwaysAllow) > 0 {
		raw, err := json.Marshal(f)
		if err != nil {
			return nil, err
		}
		opts = append(opts, sandbox.WithNetworkFloor(raw))
	}
	if p := b.proxy(); p != nil {
		opts = append(opts, sandbox.WithNetworkProxy(*p))
	}
	extra, err := b.extraCAs()
	return append(opts, sandbox.WithExtraCAs(extra)), err
}

// notCreated tells why there is no sandbox.
func notCreated(err error) error {
	told := command.AsError(err)
	var init *sandbox.InitError
	switch {
	case errors.As(err, new(*command.Error)):
		return told
	case errors.Is(err, store.ErrExists), errors.Is(err, store.ErrInvalid):
		return refused(err)
	case errors.Is(err, daemon.ErrStopping):
		told.Code, told.Status, told.Hint = command.CodeUnavailable, http.StatusServiceUnavailable, "start it again: ravi daemon start"
	case errors.As(err, &init):
		told.Hint = init.Hint
		if init.Stage == "config" || init.Stage == "workspace" || init.Stage == "backend" {
			told.Code, told.Status = command.CodeUsage, http.StatusBadRequest
		}
	default:
		return secretError(err)
	}
	return told
}

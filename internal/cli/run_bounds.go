package cli

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"ravi/internal/access"
	"ravi/internal/command"
	"ravi/internal/gitbox"
	runs "ravi/internal/run"
	"ravi/internal/store"
	"ravi/sandbox"
)

// profileOf is a profile by its name; the default one is there also if nobody set it.
func profileOf(ctx context.Context, st *store.Store, name string) (access.Profile, error) {
	row, err := st.Profile(ctx, name)
	if errors.Is(err, store.ErrNotFound) && name == access.DefaultName {
		return access.DefaultProfile(), nil
	}
	if err != nil {
		return access.Profile{}, err
	}
	var p access.Profile
	return p, json.Unmarshal(row.Spec, &p)
}

// boundRun holds a run that a holder of a key asked for against its profile. What was not said is the profile's to say,
// and the paths become those that were checked.
func boundRun(ctx context.Context, env *command.Env, o *runs.Options) error {
	if env.Caller.IsOperator() {
		return nil
	}
	key := env.Caller.Key
	if key == nil {
		return command.Denied(&access.Denied{Caller: env.Caller.Name(), Missing: "a key"})
	}
	p, err := profileOf(ctx, o.Store, key.Profile)
	if err != nil {
		return err
	}
	if o.Timeout == 0 {
		o.Timeout = time.Duration(p.Timeout) * time.Second
	}
	w, err := p.Check(key.Profile, wishOf(*o))
	if err != nil {
		return command.Denied(err)
	}
	if w.Repo, err = wholeRepo(ctx, key.Profile, p, w.Repo); err != nil {
		return err
	}
	o.Repo, o.Config.Backend, o.RealPaths = w.Repo, w.Backend, true
	o.RepoAllowed = func(top string) error { return repoAllowed(key.Profile, p, top) }
	o.Room = func(ctx context.Context) error { return boundCount(ctx, env, o.Store) }
	for i := range o.Config.ExtraVolumes {
		o.Config.ExtraVolumes[i].Host = w.Volumes[i].Host
	}
	return nil
}

// wholeRepo is the repository that holds a path that a profile allows. It is looked for upwards, and a run gets all of it:
// where it begins above what is listed, it is not what was allowed.
func wholeRepo(ctx context.Context, name string, p access.Profile, path string) (string, error) {
	if path == "" || runs.IsAddress(path) {
		return path, nil
	}
	repo, err := gitbox.Open(ctx, path)
	if err != nil {
		return "", err
	}
	if err := repoAllowed(name, p, repo.Top); err != nil {
		return "", command.Denied(&access.Denied{Caller: "the profile " + name, Missing: "all of the repository that " + path + " is a part of"})
	}
	return repo.Top, nil
}

// maySecret refuses a secret that a caller's profile does not list before it is looked up: which there are, and for which
// hosts, is nothing that a holder of a key learns.
func maySecret(ctx context.Context, env *command.Env, st *store.Store, name string) error {
	if env.Caller.IsOperator() {
		return nil
	}
	profile := own(env).Profile
	p, err := profileOf(ctx, st, profile)
	if err != nil {
		return err
	}
	if !slices.Contains(p.Secrets, name) {
		return command.Denied(&access.Denied{Caller: "the profile " + profile, Missing: "the secret " + name})
	}
	return nil
}

// repoAllowed is asked again when the run looks for its repository: it may lie elsewhere by then.
func repoAllowed(name string, p access.Profile, top string) error {
	if p.AllowsRepo(top) {
		return nil
	}
	return command.Denied(&access.Denied{Caller: "the profile " + name, Missing: "the repository that was found"})
}

// wishOf is what a run asks of the host, everything said.
func wishOf(o runs.Options) access.Wish {
	c := o.Config
	w := access.Wish{
		Backend: c.Backend, Image: c.Image, Repo: o.Repo, Secrets: o.Secrets, Networks: networksOf(c.AllowNet),
		CPUs: c.CPUs, MemoryMiB: c.MemoryMiB, DiskGB: 4, Timeout: o.Timeout,
	}
	if o.Agent != nil {
		w.Program = o.Agent.Program.Name
	}
	if w.Backend == sandbox.BackendAuto {
		w.Backend = sandbox.BackendGVisor
	}
	if c.DiskSizeGB != nil {
		w.DiskGB = *c.DiskSizeGB
	}
	for _, v := range c.ExtraVolumes {
		w.Volumes = append(w.Volumes, access.Volume{Host: v.Host, ReadOnly: v.ReadOnly})
	}
	return w
}

func networksOf(a sandbox.AllowNet) []string {
	switch {
	case a.All:
		return []string{"all"}
	case len(a.Rules) == 0:
		return []string{"none"}
	}
	return a.Rules
}

// boundCount says whether a caller has room for one more, which is recorded already; roomForOne, for one that is not.
func boundCount(ctx context.Context, env *command.Env, st *store.Store) error {
	return bounded(ctx, env, st, 0)
}

func roomForOne(ctx context.Context, env *command.Env) error {
	st, err := env.Store(ctx)
	if err != nil {
		return err
	}
	return bounded(ctx, env, st, 1)
}

func bounded(ctx context.Context, env *command.Env, st *store.Store, more int) error {
	if env.Caller.IsOperator() {
		return nil
	}
	key := env.Caller.Key
	p, err := profileOf(ctx, st, key.Profile)
	if err != nil {
		return err
	}
	n, err := st.CountLiveBy(ctx, key.ID)
	if err != nil {
		return err
	}
	if n+more > p.Sandboxes {
		return command.Denied(&access.Denied{Caller: "the profile " + key.Profile, Missing: "room for one more sandbox"})
	}
	return nil
}

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"ravi/internal/access"
	"ravi/internal/command"
	"ravi/internal/store"
	"ravi/internal/strictjson"
	safe "ravi/internal/term"
)

func addProfiles(t *command.Table) {
	t.AddGroup(command.Group{Name: "profiles", Summary: "Bound what holders of keys may ask of a sandbox"})
	add(t, command.Spec[profilesListInput, paged[profileItem]]{
		Group: "profiles", Name: "ls", Aliases: []string{"list"}, Access: command.Read, Scoped: true,
		Summary: "List profiles",
		Long: `Lists the profiles by name. The profile "default" is there even if it was never
set: a closed sandbox of the built-in kind, without anything of this machine's.`,
		Examples: []command.Example{{Line: "ravi profiles ls"}},
		Defaults: profilesListInput{Limit: pageSize},
		Handler:  listProfiles, Print: printProfiles,
	})
	add(t, command.Spec[profilesOneInput, profileItem]{
		Group: "profiles", Name: "show", Aliases: []string{"inspect"}, Access: command.Read, Object: profilesOneObject,
		Summary:  "Show what a profile allows",
		Long:     `Shows everything that a profile allows. What it does not list is refused.`,
		Examples: []command.Example{{Line: "ravi profiles show default"}, {What: "to change it in an editor", Line: "ravi profiles show default --json"}},
		Handler: func(ctx context.Context, env *command.Env, in profilesOneInput) (profileItem, error) {
			return findProfile(ctx, env, in.Name)
		},
		Print: printProfile,
	})
	add(t, command.Spec[profilesSetInput, profileItem]{
		Group: "profiles", Name: "set", Aliases: []string{"create", "edit"}, Access: command.Write, Reach: command.OperatorOnly,
		Summary: "Make a profile, or change one",
		Long: `Sets what a profile allows. A FILE in JSON, such as the "spec" of ravi profiles
show --json, replaces all of it; - is standard input. Flags replace what they
name, and leave the rest as it was; a new profile begins as the built-in
default. A list is given by repeating its flag, and '' is none.

A folder in --repo or --volume allows what is in it as well, and an address what
begins with it. --program and --model say which agent programs of other makers
may work, and which models runs may ask. Agents and keys name a profile; what is
changed holds for them from their next sandbox on.`,
		Examples: []command.Example{
			{What: "repositories in one folder, and two secrets", Line: "ravi profiles set web --repo /srv/web --secret NPM --secret GITHUB"},
			{What: "the registry, and more memory", Line: "ravi profiles set web --network registry.npmjs.org --memory 8192"},
			{What: "Claude Code, and the models that it asks", Line: "ravi profiles set web --program claude --model 'anthropic/claude-*'"},
			{What: "as a file says", Line: "ravi profiles set web profile.json"},
		},
		Handler: setProfile, Print: printProfileSet,
	})
	add(t, command.Spec[profilesOneInput, profileItem]{
		Group: "profiles", Name: "rm", Aliases: []string{"remove", "delete"}, Access: command.Write, Reach: command.OperatorOnly,
		Summary: "Remove a profile",
		Long: `Removes a profile that no agent and no living key names. The profile "default",
which is always there, becomes what it was before it was set.`,
		Examples: []command.Example{{Line: "ravi profiles rm web"}},
		Handler:  removeProfile,
		Print: func(env *command.Env, w io.Writer, p profileItem) error {
			if !env.Quiet {
				fmt.Fprintln(w, "removed", p.Name)
			}
			return nil
		},
	})
}

type profilesListInput struct {
	Limit int    `json:"limit" flag:"limit" short:"n" value:"N" host:"none" usage:"at most N of them, up to 500"`
	After string `json:"after" flag:"after" value:"NAME" host:"none" usage:"the page that comes after this one"`
}

type profilesOneInput struct {
	Name string `json:"name" arg:"NAME" host:"none" usage:"the profile"`
}

func profilesOneObject(_ context.Context, _ *command.Env, in profilesOneInput) (string, error) {
	return in.Name, nil // a name is all the id that a profile has
}

type profilesSetInput struct {
	Name      string         `json:"name" arg:"NAME" host:"none" usage:"letters, digits and ._-:@+ only"`
	File      string         `json:"file" arg:"FILE" optional:"true" host:"path" usage:"all of it in JSON; - is standard input"`
	Backends  []string       `json:"backends" flag:"backend" value:"NAME" host:"backend" usage:"a backend; may be repeated"`
	Images    []string       `json:"images" flag:"image" value:"NAME" host:"image" usage:"an image; may be repeated"`
	Repos     []string       `json:"repos" flag:"repo" value:"FOLDER|URL/" host:"path" usage:"where repositories may be; may be repeated"`
	Volumes   []string       `json:"volumes" flag:"volume" value:"FOLDER:ro|rw" host:"volume" usage:"a folder to see inside; may be repeated"`
	Secrets   []string       `json:"secrets" flag:"secret" value:"NAME" host:"secret" usage:"a secret to use; may be repeated"`
	Networks  []string       `json:"networks" flag:"network" value:"none|all|HOST" host:"network" usage:"a rule as --allow-net takes it; may be repeated"`
	Programs  []string       `json:"programs" flag:"program" value:"NAME" host:"command" usage:"an agent program to name, such as claude; may be repeated"`
	Models    []string       `json:"models" flag:"model" value:"PROVIDER/MODEL" host:"none" usage:"models to ask, * is any, such as 'anthropic/*'; may be repeated"`
	CPUs      *float64       `json:"cpus" flag:"cpus" value:"N" host:"size" usage:"processors"`
	Memory    *int           `json:"memory" flag:"memory" value:"MiB" host:"size" usage:"memory"`
	Disk      *int           `json:"disk" flag:"disk" value:"GiB" host:"size" usage:"what a sandbox may write"`
	Timeout   *time.Duration `json:"timeout" flag:"timeout" value:"DURATION" host:"size" usage:"the longest that a run may take"`
	Sandboxes *int           `json:"sandboxes" flag:"sandboxes" value:"N" host:"size" usage:"how many at once, for one key and its children"`
}

// profileItem is a profile with what it allows.
type profileItem struct {
	Name string         `json:"name"`
	Spec access.Profile `json:"spec"`
	// BuiltIn says that nobody set it.
	BuiltIn   bool       `json:"built_in"`
	CreatedAt *time.Time `json:"created_at,omitempty"`
	UpdatedAt *time.Time `json:"updated_at,omitempty"`
}

func builtInProfile() profileItem {
	return profileItem{Name: access.DefaultName, Spec: wholeLists(access.DefaultProfile()), BuiltIn: true}
}

// wholeLists has no missing list, which would be null in JSON.
func wholeLists(p access.Profile) access.Profile {
	for _, list := range []*[]string{&p.Backends, &p.Images, &p.Repos, &p.Volumes, &p.Secrets, &p.Networks, &p.Programs, &p.Models} {
		if *list == nil {
			*list = []string{}
		}
	}
	return p
}

func profileItemOf(p store.Profile) (profileItem, error) {
	item := profileItem{Name: p.Name, CreatedAt: &p.CreatedAt, UpdatedAt: &p.UpdatedAt}
	if err := strictjson.Decode(p.Spec, &item.Spec); err != nil {
		return item, fmt.Errorf("the profile %s cannot be read: %w", p.Name, err)
	}
	item.Spec = wholeLists(item.Spec)
	return item, nil
}

func findProfile(ctx context.Context, env *command.Env, name string) (profileItem, error) {
	s, err := env.Store(ctx)
	if err != nil {
		return profileItem{}, err
	}
	p, err := s.Profile(ctx, name)
	switch {
	case errors.Is(err, store.ErrNotFound) && name == access.DefaultName:
		return builtInProfile(), nil
	case errors.Is(err, store.ErrNotFound):
		return profileItem{}, &command.Error{Code: command.CodeNotFound, Message: fmt.Sprintf("there is no profile %.100q", name),
			Hint: "see ravi profiles ls", Status: http.StatusNotFound, Exit: command.ExitFailed, Err: err}
	case err != nil:
		return profileItem{}, err
	}
	return profileItemOf(p)
}

func listProfiles(ctx context.Context, env *command.Env, in profilesListInput) (paged[profileItem], error) {
	none := paged[profileItem]{Items: []profileItem{}}
	s, err := env.Store(ctx)
	if err != nil {
		return none, err
	}
	found, err := s.Profiles(ctx)
	if err != nil {
		return none, err
	}
	see := scopeOf(ctx, env, "profiles", "ls")
	all := []profileItem{}
	if !slices.ContainsFunc(found, func(p store.Profile) bool { return p.Name == access.DefaultName }) && see.shows(access.DefaultName) {
		all = append(all, builtInProfile())
	}
	for _, p := range found {
		if !see.shows(p.Name) {
			continue
		}
		item, err := profileItemOf(p)
		if err != nil {
			return none, err
		}
		all = append(all, item)
	}
	slices.SortFunc(all, func(a, b profileItem) int { return cmp.Compare(a.Name, b.Name) })
	return pageAfter(all, in.Limit, in.After, func(p profileItem) string { return p.Name })
}

func setProfile(ctx context.Context, env *command.Env, in profilesSetInput) (profileItem, error) {
	old, err := findProfile(ctx, env, in.Name)
	if errors.Is(err, store.ErrNotFound) {
		old = builtInProfile()
	} else if err != nil {
		return old, err
	}
	spec := old.Spec
	changed := in.change(&spec)
	switch {
	case in.File != "" && changed:
		return old, command.Usage("a file and flags are both given", "give one of them: a file is all of the profile")
	case in.File == "" && !changed:
		return old, command.Usage("nothing is said about the profile", "give flags, or a file; see ravi profiles set --help")
	case in.File != "":
		text, err := readText(env, in.File, store.MaxContent)
		if err != nil {
			return old, err
		}
		spec = access.Profile{}
		if err := strictjson.Decode([]byte(text), &spec); err != nil {
			return old, command.Usage(fmt.Sprintf("%s: %v", in.File, err), "ravi profiles show default --json has a spec to begin with")
		}
	}
	if err := spec.Validate(); err != nil {
		return old, command.Usage("the profile makes no sense: "+err.Error(), "see ravi profiles set --help")
	}
	b, err := json.Marshal(wholeLists(spec))
	if err != nil {
		return old, err
	}
	s, err := env.Store(ctx)
	if err != nil {
		return old, err
	}
	p, err := s.PutProfile(ctx, store.Profile{Name: in.Name, Spec: b})
	if err != nil {
		return old, err
	}
	return profileItemOf(p)
}

// change lays the flags over a profile, and says whether there were any.
func (in profilesSetInput) change(p *access.Profile) (changed bool) {
	for _, list := range []struct {
		given []string
		to    *[]string
	}{{in.Backends, &p.Backends}, {in.Images, &p.Images}, {in.Repos, &p.Repos}, {in.Volumes, &p.Volumes}, {in.Secrets, &p.Secrets}, {in.Networks, &p.Networks},
		{in.Programs, &p.Programs}, {in.Models, &p.Models}} {
		if list.given != nil {
			*list.to = slices.DeleteFunc(slices.Clone(list.given), func(s string) bool { return s == "" })
			changed = true
		}
	}
	for _, n := range []struct{ given, to *int }{{in.Memory, &p.MemoryMiB}, {in.Disk, &p.DiskGB}, {in.Sandboxes, &p.Sandboxes}} {
		if n.given != nil {
			*n.to, changed = *n.given, true
		}
	}
	if in.CPUs != nil {
		p.CPUs, changed = *in.CPUs, true
	}
	if in.Timeout != nil {
		p.Timeout, changed = int(in.Timeout.Round(time.Second)/time.Second), true
	}
	return changed
}

func removeProfile(ctx context.Context, env *command.Env, in profilesOneInput) (profileItem, error) {
	p, err := findProfile(ctx, env, in.Name)
	if err != nil {
		return p, err
	}
	if p.BuiltIn {
		return p, &command.Error{Code: command.CodeConflict, Message: "the profile default is built in, and was not set", Hint: "ravi profiles set default changes it",
			Status: http.StatusConflict, Exit: command.ExitFailed}
	}
	s, err := env.Store(ctx)
	if err != nil {
		return p, err
	}
	if in.Name == access.DefaultName {
		b, err := json.Marshal(builtInProfile().Spec)
		if err != nil {
			return p, err
		}
		_, err = s.PutProfile(ctx, store.Profile{Name: in.Name, Spec: b})
		return p, err
	}
	return p, s.DeleteProfile(ctx, in.Name)
}

func printProfiles(env *command.Env, w io.Writer, page paged[profileItem]) error {
	if env.Quiet {
		return printIDs(w, page.Items, func(p profileItem) string { return p.Name })
	}
	if len(page.Items) == 0 {
		fmt.Fprintln(w, "no profiles")
		return nil
	}
	rows := make([][]string, len(page.Items))
	for i, p := range page.Items {
		s := p.Spec
		rows[i] = []string{p.Name, strings.Join(s.Backends, " "), strings.Join(s.Networks, " "), fmt.Sprintf("%g", s.CPUs), fmt.Sprint(s.MemoryMiB),
			fmt.Sprint(len(s.Repos)), fmt.Sprint(len(s.Volumes)), fmt.Sprint(len(s.Secrets))}
	}
	return printRows(env, w, "profiles", []safe.Column{{Title: "NAME", Flex: true}, {Title: "BACKENDS", Flex: true}, {Title: "NETWORKS", Flex: true}, {Title: "CPUS", Right: true},
		{Title: "MiB", Right: true}, {Title: "REPOS", Right: true}, {Title: "VOLUMES", Right: true}, {Title: "SECRETS", Right: true}}, rows, nextPage("--after", page.Next))
}

func printProfile(_ *command.Env, w io.Writer, p profileItem) error {
	printLine(w, "name", p.Name)
	if p.BuiltIn {
		printMany(w, "", []string{"it is built in, and was not set"})
	}
	s := p.Spec
	for _, list := range []struct {
		name   string
		values []string
	}{{"backends:", s.Backends}, {"images:", s.Images}, {"repositories:", s.Repos}, {"volumes:", s.Volumes}, {"secrets:", s.Secrets}, {"networks:", s.Networks},
		{"programs:", s.Programs}, {"models:", s.Models}} {
		if len(list.values) == 0 {
			list.values = []string{"none at all"}
		}
		printMany(w, list.name, list.values)
	}
	printLine(w, "sizes", fmt.Sprintf("%g CPUs, %d MiB memory, %d GiB disk", s.CPUs, s.MemoryMiB, s.DiskGB))
	printLine(w, "time", (time.Duration(s.Timeout) * time.Second).String())
	printLine(w, "sandboxes", fmt.Sprint(s.Sandboxes))
	printLine(w, "changed", momentOf(p.UpdatedAt))
	return nil
}

func printProfileSet(env *command.Env, w io.Writer, p profileItem) error {
	if env.Quiet {
		return nil
	}
	return printProfile(env, w, p)
}

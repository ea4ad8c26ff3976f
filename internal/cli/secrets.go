package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"ravi/internal/command"
	"ravi/internal/secret"
	safe "ravi/internal/term"
)

func addSecrets(t *command.Table) {
	t.AddGroup(command.Group{Name: "secrets", Summary: "Keep credentials that never go into a sandbox"})
	addSecretsSet(t)
	command.Add(t, command.Spec[secretsListInput, []secretItem]{
		Group: "secrets", Name: "ls", Aliases: []string{"list"}, Access: command.Read,
		Summary: "List secrets, without their values",
		Long: `Lists all secrets by name: the hosts and the header that the value may go to,
where it comes from, and how long ago it was changed. Values are never shown. A
holder of a key sees names and hosts.`,
		Examples: []command.Example{{Line: "ravi secrets ls"}, {What: "names only, for scripts", Line: "ravi secrets ls -q"}},
		Handler:  listSecrets,
		Print:    printSecrets,
	})
	command.Add(t, command.Spec[secretsShowInput, secretShown]{
		Group: "secrets", Name: "show", Aliases: []string{"inspect"}, Access: command.Read, Reach: command.OperatorOnly,
		Summary: "Show all about a secret but its value",
		Long: `Shows where the value of a secret may go and where it comes from; of a command
also its arguments. The value is never shown.

With --check the source is tried: the command is run, or a token of the GitHub
App is made and given back. What is told is whether there was a value and when
it ends.`,
		Examples: []command.Example{
			{Line: "ravi secrets show GITHUB_TOKEN"},
			{What: "does its source work?", Line: "ravi secrets show GITHUB_TOKEN --check --repository acme/web"},
		},
		Handler: showSecret, Print: printSecret,
	})
	command.Add(t, command.Spec[secretsRemoveInput, []string]{
		Group: "secrets", Name: "rm", Aliases: []string{"remove", "delete"}, Access: command.Write, Reach: command.OperatorOnly,
		Summary: "Remove secrets",
		Long: `Removes the named secrets; if one of them is not there, none is removed. Runs
that hold one keep it until they end. The credential itself stays good: if
others may know it, revoke it where it was made.`,
		Examples: []command.Example{{Line: "ravi secrets rm OLD_TOKEN OTHER_TOKEN"}},
		Handler: func(ctx context.Context, env *command.Env, in secretsRemoveInput) ([]string, error) {
			st, err := secretStore(env)
			if err != nil {
				return nil, err
			}
			return in.Names, secretError(st.Remove(ctx, in.Names...))
		},
		Print: func(env *command.Env, w io.Writer, names []string) error {
			for _, name := range names {
				if !env.Quiet {
					fmt.Fprintln(w, "removed", name)
				}
			}
			return nil
		},
	})
}

type secretsListInput struct{}

type secretsShowInput struct {
	Name       string `json:"name" arg:"NAME" host:"none" usage:"the secret"`
	Check      bool   `json:"check" flag:"check" host:"secret" usage:"try its source, and say when the value ends"`
	Repository string `json:"repository" flag:"repository" value:"OWNER/NAME" host:"secret" usage:"with --check of a GitHub App: the repository that the token is for"`
}

type secretsRemoveInput struct {
	Names []string `json:"names" arg:"NAME" host:"none" usage:"the secrets"`
}

// secretItem is a secret as the caller may see it: who has a key learns what there is and where it may go.
type secretItem struct {
	secret.Secret
	Headers   []string    `json:"headers,omitempty"`
	Env       []string    `json:"env,omitempty"`
	Source    secret.Kind `json:"source,omitempty"`
	CreatedAt *time.Time  `json:"created_at,omitempty"`
	UpdatedAt *time.Time  `json:"updated_at,omitempty"`
}

func secretItemOf(env *command.Env, s secret.Secret) secretItem {
	if !env.Caller.IsOperator() {
		return secretItem{Secret: secret.Secret{Name: s.Name, Binding: secret.Binding{Hosts: s.Hosts}}}
	}
	return secretItem{Secret: s, Headers: s.Headers, Env: s.Env, Source: s.Source, CreatedAt: &s.CreatedAt, UpdatedAt: &s.UpdatedAt}
}

func listSecrets(ctx context.Context, env *command.Env, _ secretsListInput) ([]secretItem, error) {
	st, err := secretStore(env)
	if err != nil {
		return nil, err
	}
	list, err := st.List(ctx)
	items := make([]secretItem, len(list))
	for i, s := range list {
		items[i] = secretItemOf(env, s)
	}
	return items, secretError(err)
}

// secretShown is a secret, with what its source did when it was tried.
type secretShown struct {
	secret.Secret
	Checked *secretChecked `json:"check,omitempty"`
}

type secretChecked struct {
	// ExpiresAt is missing for a value that does not end by itself, as far as its source says.
	ExpiresAt *time.Time `json:"expires_at"`
}

// secretStore is the store in Ravi's home.
func secretStore(env *command.Env) (*secret.Store, error) {
	home, err := env.Home()
	if err != nil {
		return nil, err
	}
	return secret.Open(home)
}

// secretError is an error of the store as the command line tells it.
func secretError(err error) error {
	var told *secret.Error
	if err == nil || errors.Is(err, context.Canceled) || !errors.As(err, &told) {
		return err
	}
	out := &command.Error{
		Code: command.CodeConfig, Message: err.Error(), Hint: told.Hint, Status: http.StatusInternalServerError, Exit: command.ExitFailed, Err: err,
	}
	is := func(causes ...error) bool {
		return slices.ContainsFunc(causes, func(cause error) bool { return errors.Is(err, cause) })
	}
	switch {
	case is(secret.ErrNotFound):
		out.Code, out.Status = command.CodeNotFound, http.StatusNotFound
	case is(secret.ErrName, secret.ErrValue, secret.ErrBinding, secret.ErrScope):
		out.Code, out.Status, out.Exit = command.CodeUsage, http.StatusBadRequest, command.ExitUsage
	case is(secret.ErrNewer, secret.ErrSource):
		out.Code, out.Status = command.CodeUnavailable, http.StatusServiceUnavailable
	}
	return out
}

func showSecret(ctx context.Context, env *command.Env, in secretsShowInput) (out secretShown, err error) {
	if in.Repository != "" && !in.Check {
		return out, command.Usage("--repository is for --check only", "add --check, or leave it out")
	}
	st, err := secretStore(env)
	if err != nil {
		return out, err
	}
	if out.Secret, err = st.Get(ctx, in.Name); err != nil {
		return out, secretError(err)
	}
	if !in.Check {
		return out, nil
	}
	if in.Repository == "" && out.App != nil && !out.App.AllRepositories {
		return out, command.Usage("a token of "+in.Name+" is made for one repository, and none is named", "name one that the app is installed for: --repository OWNER/NAME")
	}
	lease, err := st.Lease(ctx, in.Name, secret.Scope{Repository: in.Repository})
	if err != nil {
		return out, secretError(err)
	}
	done := env.Progress.Step("asking the source of " + in.Name)
	_, until, err := lease.Value(ctx)
	// Also after Ctrl-C: what was made is given back.
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	err = errors.Join(err, lease.End(after))
	done(err)
	if err != nil {
		return out, secretError(err)
	}
	out.Checked = &secretChecked{}
	if !until.IsZero() {
		until = until.UTC()
		out.Checked.ExpiresAt = &until
	}
	return out, nil
}

func printSecrets(env *command.Env, w io.Writer, list []secretItem) error {
	if env.Quiet {
		for _, s := range list {
			fmt.Fprintln(w, s.Name)
		}
		return nil
	}
	if len(list) == 0 {
		fmt.Fprintln(w, "no secrets; make one: ravi secrets set NAME --host HOST")
		return nil
	}
	rows := make([][]string, len(list))
	if !env.Caller.IsOperator() {
		for i, s := range list {
			rows[i] = []string{s.Name, strings.Join(s.Hosts, ", ")}
		}
		return safe.Table(w, widthOf(w), []safe.Column{{Title: "NAME", Flex: true}, {Title: "HOSTS", Flex: true}}, rows)
	}
	for i, s := range list {
		rows[i] = []string{s.Name, strings.Join(s.Hosts, ", "), strings.Join(placesOf(s.Secret), ", "), sourceWord(s.Source), age(time.Since(*s.UpdatedAt))}
	}
	return safe.Table(w, widthOf(w), []safe.Column{{Title: "NAME", Flex: true}, {Title: "HOSTS", Flex: true}, {Title: "HEADER", Flex: true},
		{Title: "SOURCE"}, {Title: "CHANGED", Right: true}}, rows)
}

// placesOf names where in a request the value may stand.
func placesOf(s secret.Secret) []string {
	var places []string
	for _, h := range s.Headers {
		name, _, _ := strings.Cut(h, ":")
		places = append(places, name)
	}
	if s.Query != "" {
		places = append(places, "?"+s.Query)
	}
	return places
}

func sourceWord(k secret.Kind) string {
	if k == secret.GitHub {
		return "GitHub App"
	}
	return string(k)
}

func printSecret(_ *command.Env, w io.Writer, s secretShown) error {
	line := func(name string, values ...string) {
		for _, v := range values {
			if v != "" {
				fmt.Fprintf(w, "%-13s %s\n", name, safe.Safe(v))
			}
			name = ""
		}
	}
	moment := func(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }
	line("name:", s.Name)
	line("hosts:", s.Hosts...)
	line("headers:", s.Headers...)
	line("query:", s.Query)
	line("variables:", s.Env...)
	line("source:", sourceWord(s.Source))
	if s.Argv != nil {
		line("command:", fmt.Sprintf("%q", s.Argv))
	}
	if a := s.App; a != nil {
		line("app:", fmt.Sprint(a.ID))
		installation := "found by the repository"
		if a.Installation != 0 {
			installation = fmt.Sprint(a.Installation)
		}
		line("installation:", installation)
		line("api:", a.APIURL)
		var may []string
		for _, name := range slices.Sorted(maps.Keys(a.Permissions)) {
			may = append(may, name+"="+a.Permissions[name])
		}
		line("permissions:", may...)
		whole := "the run's only"
		if a.AllRepositories {
			whole = "all of the installation"
		}
		line("repositories:", whole)
	}
	line("created:", moment(s.CreatedAt))
	line("changed:", moment(s.UpdatedAt)+" ("+age(time.Since(s.UpdatedAt))+" ago)")
	if c := s.Checked; c != nil {
		ends := "and does not say when it ends"
		switch {
		case s.Source == secret.Stored:
			ends = "which does not end by itself"
		case c.ExpiresAt != nil:
			ends = fmt.Sprintf("which ends at %s (in %s)", moment(*c.ExpiresAt), age(time.Until(*c.ExpiresAt)))
		}
		line("check:", "the source gave a value, "+ends)
	}
	return nil
}

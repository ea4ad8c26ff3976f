package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"ravi/internal/command"
	"ravi/internal/secret"
)

func addSecretsSet(t *command.Table) {
	command.Add(t, command.Spec[secretsSetInput, secretSet]{
		Group: "secrets", Name: "set", Access: command.Write, Reach: command.OperatorOnly,
		Summary: "Make a secret, or change one",
		Long: `Keeps a credential, encrypted, together with the hosts and the header that its
value may go to. The value is never an argument, which the shell's history and
every user of this machine could read. It comes from one of:

  standard input     asked for on a terminal, without showing it; else read
  --from-file FILE   a file; - is standard input
  --from-env VAR     a variable of ravi's own environment
  --command -- CMD   a program of this machine, which prints it when it is
                     needed: the value alone, or
                     {"value": "…", "expires_at": "2026-01-31T12:00:00Z"}.
                     It is run without a shell, in Ravi's home, for at most 30
                     seconds, and again before the value ends.
  --github-app ID    tokens of a GitHub App, each for the repository of a run
                     alone, with the --permission that are named (contents=read
                     by default), given back when the run ends.

A new secret needs --host. Of one that is there, what is not given stays as it
was: with flags for where it may go and no source, its value stays, too, and
standard input is not read.`,
		Examples: []command.Example{
			{What: "asks for the value", Line: "ravi secrets set GITHUB_TOKEN --host api.github.com"},
			{What: "for a header of its own", Line: "ravi secrets set DEPLOY_KEY --host '*.corp.example' --header 'X-Api-Key: {}' \\\n      --from-file key.txt"},
			{What: "from a program", Line: "ravi secrets set GH --host api.github.com --command -- gh auth token"},
			{What: "tokens of a GitHub App", Line: "ravi secrets set GITHUB --host github.com --host api.github.com \\\n      --github-app 12345 --private-key-file app.pem --permission contents=write"},
			{What: "one more host; the value stays", Line: "ravi secrets set GITHUB_TOKEN --host api.github.com --host github.com"},
		},
		Handler: setSecret, Print: printSecretSet,
	})
}

type secretsSetInput struct {
	Name            string            `json:"name" arg:"NAME" host:"none" usage:"letters, digits and _, such as GITHUB_TOKEN"`
	Hosts           []string          `json:"hosts" flag:"host" value:"HOST[:PORT]" host:"network" usage:"a host that it may go to, or *.HOST; may be repeated"`
	Headers         []string          `json:"headers" flag:"header" value:"'NAME: {}'" host:"none" usage:"a header that it may stand in, {} is the value; may be repeated (default 'Authorization: Bearer {}')"`
	Query           *string           `json:"query" flag:"query" value:"PARAM" host:"none" usage:"a parameter of the query that it may stand in as well; '' is none"`
	Env             []string          `json:"env" flag:"env" value:"VAR" host:"none" usage:"the variable of the sandbox that stands for it; may be repeated (default NAME)"`
	FromEnv         string            `json:"from_env" flag:"from-env" value:"VAR" host:"secret" usage:"take the value from this variable"`
	FromFile        string            `json:"from_file" flag:"from-file" value:"FILE" host:"path" usage:"take the value from this file; - is standard input"`
	Command         bool              `json:"command" flag:"command" host:"secret" usage:"the program after -- prints the value"`
	GitHubApp       int64             `json:"github_app" flag:"github-app" value:"ID" host:"secret" usage:"tokens of this GitHub App"`
	PrivateKeyFile  string            `json:"private_key_file" flag:"private-key-file" value:"FILE" host:"path" usage:"the app's private key, as GitHub gave it out (PEM)"`
	Installation    *int64            `json:"installation" flag:"installation" value:"N" host:"none" usage:"the app's installation; 0 has it found by the repository"`
	Permissions     map[string]string `json:"permissions" flag:"permission" value:"NAME=LEVEL" host:"none" usage:"what the tokens may do: read, write or admin; may be repeated"`
	AllRepositories bool              `json:"all_repositories" flag:"all-repositories" host:"secret" usage:"tokens for every repository of the installation; taken back by giving --github-app without it"`
	APIURL          string            `json:"api_url" flag:"api-url" value:"URL" host:"network" usage:"the API of another GitHub than github.com"`
	Program         []string          `json:"program" arg:"-- PROGRAM ARG" optional:"true" host:"secret" usage:"with --command: what prints the value"`
}

// secretSet is a secret as it is now, and what was done to it.
type secretSet struct {
	secret.Secret
	Created   bool `json:"created"`
	SourceSet bool `json:"source_set"` // the value, or where it comes from
}

func setSecret(ctx context.Context, env *command.Env, in secretsSetInput) (out secretSet, err error) {
	if err := secret.CheckName(in.Name); err != nil {
		return out, secretError(err)
	}
	if err := in.check(); err != nil {
		return out, err
	}
	st, err := secretStore(env)
	if err != nil {
		return out, err
	}
	old, err := st.Get(ctx, in.Name)
	switch {
	case errors.Is(err, secret.ErrNotFound):
		out.Created = true
	case err != nil:
		return out, secretError(err)
	}
	if out.Created && len(in.Hosts) == 0 {
		return out, command.Usage("--host is missing: a new secret is bound to the hosts that it is for",
			"such as: ravi secrets set "+in.Name+" --host api.github.com")
	}
	change := secret.Change{Hosts: in.Hosts, Headers: in.Headers, Env: in.Env, Query: in.Query}
	if change.Source, err = in.source(ctx, env, out.Created, old.Source); err != nil {
		return out, inputError(err)
	}
	out.SourceSet = change.Source != nil
	out.Secret, err = st.Set(ctx, in.Name, change)
	return out, inputError(err)
}

// inputError is secretError for a source that was given on the command line, and so is the user's to mend.
func inputError(err error) error {
	told := secretError(err)
	if out := (*command.Error)(nil); errors.Is(err, secret.ErrSource) && errors.As(told, &out) {
		out.Code, out.Status, out.Exit = command.CodeUsage, 400, command.ExitUsage
	}
	return told
}

// check refuses flags that make no sense together.
func (in *secretsSetInput) check() error {
	if len(in.Program) > 0 && !in.Command {
		// What stands there may be the value, so it is not repeated.
		return command.Usage("the value of a secret is never an argument",
			"the history of your shell may hold it now: remove it there. Then: ravi secrets set "+in.Name+" < FILE, or without < to be asked."+
				" For a program that prints the value: --command -- PROGRAM ARG…")
	}
	if in.Command && len(in.Program) == 0 {
		return command.Usage("--command is given, and no program", "write it at the end after --, such as: --command -- gh auth token")
	}
	given := 0
	for _, one := range []bool{in.FromEnv != "", in.FromFile != "", in.Command, in.ofApp()} {
		if one {
			given++
		}
	}
	if given > 1 {
		return command.Usage("more than one source is given for the value", "give one of --from-env, --from-file, --command and --github-app")
	}
	return nil
}

// ofApp says that a flag of GitHub Apps is given.
func (in *secretsSetInput) ofApp() bool {
	return in.GitHubApp != 0 || in.PrivateKeyFile != "" || in.Installation != nil || in.Permissions != nil || in.AllRepositories || in.APIURL != ""
}

// source is where the value comes from; nil when that stays as it was.
func (in *secretsSetInput) source(ctx context.Context, env *command.Env, created bool, old secret.Kind) (*secret.Source, error) {
	value := func(v secret.Value, err error) (*secret.Source, error) { return &secret.Source{Value: v}, err }
	switch {
	case in.FromEnv != "":
		text, set := os.LookupEnv(in.FromEnv)
		if !set {
			return nil, command.Usage(fmt.Sprintf("the variable %q is not set", in.FromEnv), "export it first; a variable of the shell alone is not passed on")
		}
		return value(secret.ReadValue(strings.NewReader(text)))
	case in.FromFile == "-":
		return value(secret.ReadValue(env.Stdin))
	case in.FromFile != "":
		f, err := os.Open(in.FromFile)
		if err != nil {
			return nil, command.Usage("cannot read the value: "+err.Error(), "")
		}
		defer f.Close()
		return value(secret.ReadValue(f))
	case in.Command:
		argv, err := hostProgram(in.Program)
		return &secret.Source{Argv: argv}, err
	case in.ofApp():
		app, err := in.app(old)
		return &secret.Source{App: app}, err
	case !created && (in.Hosts != nil || in.Headers != nil || in.Query != nil || in.Env != nil):
		return nil, nil
	case env.StdinTerminal:
		return value(askValue(ctx, env, in.Name))
	}
	return value(secret.ReadValue(env.Stdin))
}

// hostProgram is a program of this machine that can be run from any directory.
func hostProgram(argv []string) ([]string, error) {
	if _, err := exec.LookPath(argv[0]); err != nil {
		hint := "give its whole path"
		if strings.Contains(argv[0], " ") {
			hint = "write its words apart, without quotes around them all: --command -- gh auth token"
		}
		return nil, command.Usage("the program after -- cannot be run: "+errors.Unwrap(err).Error(), hint)
	}
	out := append([]string{}, argv...)
	if strings.Contains(out[0], "/") {
		path, err := filepath.Abs(out[0])
		if err != nil {
			return nil, err
		}
		out[0] = path
	}
	return out, nil
}

// app is the GitHub App of the flags.
func (in *secretsSetInput) app(old secret.Kind) (*secret.AppSource, error) {
	if in.GitHubApp == 0 && old != secret.GitHub {
		return nil, command.Usage("there are flags of a GitHub App, and no app", "add --github-app ID and --private-key-file FILE")
	}
	a := &secret.AppSource{ID: in.GitHubApp, Installation: in.Installation, APIURL: in.APIURL, Permissions: in.Permissions}
	if in.AllRepositories || in.GitHubApp != 0 {
		a.AllRepositories = &in.AllRepositories
	}
	if in.PrivateKeyFile == "" {
		return a, nil
	}
	const most = 64 << 10
	f, err := os.Open(in.PrivateKeyFile)
	if err != nil {
		return nil, command.Usage("cannot read the private key: "+err.Error(), "")
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return nil, command.Usage("cannot read the private key: "+err.Error(), "")
	}
	a.PrivateKey = secret.NewValue(string(bytes.TrimSpace(b)))
	return a, nil
}

// askValue asks for a value on the terminal, which does not show it.
func askValue(ctx context.Context, env *command.Env, name string) (secret.Value, error) {
	f, ok := env.Stdin.(interface{ Fd() uintptr })
	if !ok {
		return secret.ReadValue(env.Stdin)
	}
	fd := int(f.Fd())
	before, err := term.GetState(fd)
	if err == nil {
		err = hideInput(fd) // before it is asked for, since who is asked may be quick
	}
	if err != nil {
		return secret.Value{}, fmt.Errorf("cannot ask for the value: %w", err)
	}
	defer term.Restore(fd, before)
	fmt.Fprintf(env.Stderr, "value of %s (it is not shown): ", name)
	defer fmt.Fprintln(env.Stderr)
	type line struct {
		text []byte
		err  error
	}
	read := make(chan line, 1)
	go func() { // stays until this program ends when nothing is typed any more, and so leaves the terminal alone
		text, err := bufio.NewReader(env.Stdin).ReadBytes('\n')
		read <- line{text, err}
	}()
	var got line
	select {
	case got = <-read:
	case <-ctx.Done():
		return secret.Value{}, ctx.Err()
	}
	if got.err != nil && !errors.Is(got.err, io.EOF) {
		return secret.Value{}, fmt.Errorf("cannot read the value: %w", got.err)
	}
	// A terminal hands on no more than this of a line, and drops the rest without a word.
	const most = 4095
	if len(bytes.TrimRight(got.text, "\n")) >= most {
		return secret.Value{}, command.Usage(fmt.Sprintf("a terminal passes on %d bytes of a line, and the value may be longer", most), "give it with --from-file")
	}
	return secret.ReadValue(bytes.NewReader(got.text))
}

// hideInput has a terminal not show what is typed, and hand it on by lines.
func hideInput(fd int) error {
	state, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return err
	}
	state.Lflag = state.Lflag&^unix.ECHO | unix.ICANON | unix.ISIG
	state.Iflag |= unix.ICRNL
	return unix.IoctlSetTermios(fd, unix.TCSETS, state)
}

func printSecretSet(env *command.Env, w io.Writer, s secretSet) error {
	if env.Quiet {
		return nil
	}
	what := "changed"
	if s.Created {
		what = "made"
	}
	fmt.Fprintf(w, "%s %s, for %s\n", what, s.Name, strings.Join(s.Hosts, ", "))
	if !s.SourceSet {
		fmt.Fprintln(w, "its value stays as it was; --from-file - reads a new one")
	}
	return nil
}

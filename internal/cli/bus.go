package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"ravi/internal/audit"
	"ravi/internal/bus"
	"ravi/internal/command"
	"ravi/internal/daemon"
	"ravi/internal/store"
	safe "ravi/internal/term"
)

var credKind = kind[store.BusCredential]{"credential", "ravi bus creds ls", "bus-creds", (*store.Store).BusCredential, func(c store.BusCredential) string { return c.ID }}

// addBus adds what is about the bus; own is that of the daemon that this process is, nil in every other.
func addBus(t *command.Table, own *daemonBus) {
	t.AddGroup(command.Group{Name: "bus", Summary: "Let others onto the bus"})
	t.AddGroup(command.Group{Name: "bus-creds", Under: "bus", Summary: "Issue credentials for the bus, and end them"})
	add(t, command.Spec[busTLSInput, busTLS]{
		Group: "bus", Name: "tls", Access: command.Write, Reach: command.LocalOnly,
		Summary: "Make a certificate, so that the bus can listen elsewhere",
		Long: `Makes a certificate authority of your own, and a certificate of the bus for the
names and addresses that others reach it by. What to set in config.json is said
then; whoever connects gets the file of the authority, which is no secret.`,
		Examples: []command.Example{{Line: "ravi bus tls bus.example.com 10.0.0.5"}},
		Handler:  makeBusTLS, Print: printBusTLS,
	})
	add(t, command.Spec[credsIssueInput, issuedCredential]{
		Group: "bus-creds", Name: "issue", Access: command.Write, Reach: command.OperatorOnly,
		Summary: "Let a runner or a program onto the bus",
		Long: `Makes a credential and prints it, once; --out writes it to a file that only you
can read. Who has the file has the credential: bring it to its machine by a way
that you trust, and nowhere else.

--runner is for ravi runner on another machine: it may lend sandboxes, and
nothing else. Any other program gets the subjects that --publish and --subscribe
name, in the account of --client, or in the one where work is queued.`,
		Examples: []command.Example{
			{What: "a runner", Line: "ravi bus creds issue --runner far --out far.creds"},
			{What: "a program that hears what happens in runs", Line: "ravi bus creds issue --name board --subscribe 'run.*.>' --ttl 720h \\\n      --out board.creds"},
		},
		Defaults: credsIssueInput{TTL: 90 * 24 * time.Hour},
		Handler: func(ctx context.Context, env *command.Env, in credsIssueInput) (issuedCredential, error) {
			if own == nil {
				return askIssue(ctx, env, in)
			}
			return own.issue(ctx, in)
		},
		Print: printIssuedCred,
	})
	add(t, command.Spec[credsListInput, credsList]{
		Group: "bus-creds", Name: "ls", Aliases: []string{"list"}, Access: command.Read, Reach: command.OperatorOnly,
		Summary: "List credentials for the bus",
		Long: `Lists the credentials that hold, the newest first; with --all those that were
revoked or have expired, too. Those of runs end with their runs.`,
		Examples: []command.Example{{Line: "ravi bus creds ls"}},
		Handler:  listCreds, Print: printCreds,
	})
	add(t, command.Spec[credsRevokeInput, store.BusCredential]{
		Group: "bus-creds", Name: "revoke", Access: command.Write, Reach: command.OperatorOnly,
		Summary: "End a credential for the bus",
		Long: `Ends a credential, named by its name or by its id. Who is connected with it is
cut off within a second, and does not get in again.`,
		Examples: []command.Example{{Line: "ravi bus creds revoke far"}},
		Handler: func(ctx context.Context, env *command.Env, in credsRevokeInput) (store.BusCredential, error) {
			return revokeCred(ctx, env, in, own)
		},
		Print: func(env *command.Env, w io.Writer, c store.BusCredential) error {
			if !env.Quiet {
				fmt.Fprintln(w, safe.Safe(c.Name), "is revoked")
			}
			return nil
		},
	})
	add(t, command.Spec[credsRenewInput, renewedCredential]{
		Group: "bus-creds", Name: "renew", Access: command.Write, Reach: command.OperatorOnly,
		Summary:  "Renew the credential of a run",
		Long:     `Asked by the process of a run, for its own, while the run goes on.`,
		Examples: []command.Example{{Line: "ravi bus creds ls"}},
		Handler: func(ctx context.Context, env *command.Env, in credsRenewInput) (out renewedCredential, err error) {
			if own == nil {
				return out, &command.Error{Code: command.CodeUnavailable, Message: "credentials of runs are renewed by the daemon, and this is not it",
					Hint: "ravi daemon start", Status: http.StatusServiceUnavailable, Exit: command.ExitFailed}
			}
			out.File, err = own.renew(ctx, in.User)
			return out, err
		},
	})
}

type credsRenewInput struct {
	User string `json:"user" arg:"USER" host:"none" usage:"the id of the credential"`
}

type renewedCredential struct {
	File string `json:"credential"`
}

type busTLSInput struct {
	Hosts []string `json:"hosts" arg:"HOST" host:"none" usage:"names and addresses that the bus is reached by"`
}

type busTLS struct {
	Cert string `json:"tls_cert"`
	Key  string `json:"tls_key"`
	CA   string `json:"ca"`
}

func makeBusTLS(ctx context.Context, env *command.Env, in busTLSInput) (out busTLS, err error) {
	home, err := env.Home()
	if err != nil {
		return out, err
	}
	made, err := bus.MakeTLS(ctx, home, filepath.Join(home, busFolder), in.Hosts)
	if err != nil {
		return out, busError(err)
	}
	return busTLS{Cert: made.Cert, Key: made.Key, CA: made.CA}, nil
}

func printBusTLS(env *command.Env, w io.Writer, t busTLS) error {
	printLine(w, "certificate", safe.Safe(t.Cert))
	printLine(w, "key", safe.Safe(t.Key))
	printLine(w, "authority", safe.Safe(t.CA)+" (give this file to who connects)")
	if !env.Quiet {
		fmt.Fprintf(env.Stderr, "set it: ravi config set bus.tls_cert %q && ravi config set bus.tls_key %q && ravi config set bus.host 0.0.0.0\nand then: ravi daemon restart\n", t.Cert, t.Key)
	}
	return nil
}

type credsIssueInput struct {
	Runner    string        `json:"runner" flag:"runner" value:"NAME" host:"none" usage:"for a runner with this name"`
	Name      string        `json:"name" flag:"name" value:"NAME" host:"none" usage:"for a program, which is called so"`
	Client    string        `json:"client" flag:"client" value:"CLIENT" host:"none" usage:"in the account of this client"`
	Publish   []string      `json:"publish" flag:"publish" value:"SUBJECT" host:"none" usage:"what the program may publish to; may be repeated"`
	Subscribe []string      `json:"subscribe" flag:"subscribe" value:"SUBJECT" host:"none" usage:"what it may subscribe to; may be repeated"`
	From      []string      `json:"from" flag:"from" value:"NETWORK" host:"none" usage:"from where only, such as 10.0.0.0/8; no lock, but one more"`
	WebSocket bool          `json:"websocket" flag:"websocket" host:"none" usage:"it may come by WebSocket, too"`
	TTL       time.Duration `json:"ttl" flag:"ttl" value:"DURATION" host:"size" usage:"how long it holds"`
	Out       string        `json:"out" flag:"out" short:"o" value:"FILE" host:"path" usage:"write it there, for nobody else to read"`
}

// wire is the input as the gateway takes it.
func (in credsIssueInput) wire() map[string]any {
	return map[string]any{"runner": in.Runner, "name": in.Name, "client": in.Client, "publish": in.Publish, "subscribe": in.Subscribe, "from": in.From, "websocket": in.WebSocket, "ttl": in.TTL.String()}
}

// issuedCredential is a credential, for whoever gets it.
type issuedCredential struct {
	store.BusCredential
	// File is the credential itself; URL is where the bus is, from this machine.
	File string `json:"credential,omitempty"`
	URL  string `json:"url"`
	Path string `json:"path,omitempty"` // where it was written
}

func askIssue(ctx context.Context, env *command.Env, in credsIssueInput) (out issuedCredential, err error) {
	path := in.Out
	if path != "" {
		if path, err = filepath.Abs(path); err != nil {
			return out, err
		}
		if _, err := os.Lstat(path); err == nil {
			return out, command.Usage(fmt.Sprintf("%s is there already", path), "name another file with --out, or remove it")
		}
		in.Out = ""
	}
	if err := startDaemon(ctx, env); err != nil {
		return out, err
	}
	home, err := env.Home()
	if err != nil {
		return out, err
	}
	if err = daemon.Ask(ctx, filepath.Join(home, daemon.Socket), "bus-creds/issue", in.wire(), &out); err != nil {
		return out, answered(err)
	}
	if path == "" {
		return out, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = io.WriteString(f, out.File)
		err = errors.Join(err, f.Close())
	}
	out.File, out.Path = "", path
	return out, err
}

// issue makes a credential, which is in the record before anybody has it.
func (d *daemonBus) issue(ctx context.Context, in credsIssueInput) (out issuedCredential, err error) {
	r := bus.Request{Kind: bus.KindOperator, Name: in.Name, Account: in.Client, Publish: in.Publish, Subscribe: in.Subscribe, WebSocket: in.WebSocket, TTL: in.TTL}
	switch {
	case in.Out != "":
		return out, command.Usage("--out is for the ravi that asks", "")
	case (in.Runner == "") == (in.Name == ""):
		return out, command.Usage("it is not said whom the credential is for", "give --runner NAME, or --name NAME with --publish and --subscribe")
	case in.Runner != "":
		if in.Client != "" || len(in.Publish)+len(in.Subscribe) > 0 {
			return out, command.Usage("--runner is given with --client, --publish or --subscribe: what a runner may do is fixed", "leave them out")
		}
		r.Kind, r.Name = bus.KindRunner, in.Runner
	}
	for _, text := range in.From {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return out, command.Usage(fmt.Sprintf("--from %.60q is no network", text), "it is such as 10.0.0.0/8 or 192.0.2.7/32")
		}
		r.From = append(r.From, p)
	}
	if in.Client != "" {
		if _, err := d.st.Client(ctx, in.Client); err != nil {
			return out, notFoundHint(err, "see ravi clients ls")
		}
	}
	cred, row, err := d.mint(ctx, r)
	if errors.Is(err, store.ErrExists) {
		return out, &command.Error{Code: command.CodeConflict, Message: fmt.Sprintf("the runner %s has a credential already", in.Runner),
			Hint: "end it first: ravi bus creds revoke " + in.Runner, Status: http.StatusConflict, Exit: command.ExitFailed, Err: err}
	}
	return issuedCredential{BusCredential: row, File: string(cred.File()), URL: d.bus.URL()}, err
}

// mint makes a credential and records it.
func (d *daemonBus) mint(ctx context.Context, r bus.Request) (bus.Credential, store.BusCredential, error) {
	cred, err := d.bus.Issue(ctx, r)
	if err != nil {
		return cred, store.BusCredential{}, busError(err)
	}
	if r.User != "" { // it is renewed, and its record stays
		return cred, store.BusCredential{}, d.st.SlideBusCredentials(ctx, r.RunID, cred.Expires)
	}
	if r.RunID != "" {
		if err := d.audit.Append(ctx, audit.Record{Action: audit.BusIssue, Object: cred.User, Decision: store.Allowed, RunID: r.RunID}); err != nil {
			return cred, store.BusCredential{}, err
		}
	}
	row, err := d.st.InsertBusCredential(ctx, store.BusCredential{
		ID: cred.User, Kind: string(r.Kind), Name: r.Name, Client: r.Account, RunID: r.RunID, XKey: cred.XPublic, ExpiresAt: &cred.Expires,
	})
	return cred, row, err
}

type credsListInput struct {
	All bool `json:"all" flag:"all" host:"none" usage:"those that hold no more, too"`
}

type credsList struct {
	Items []store.BusCredential `json:"items"`
}

func listCreds(ctx context.Context, env *command.Env, in credsListInput) (out credsList, err error) {
	s, err := env.Store(ctx)
	if err != nil {
		return out, err
	}
	out.Items, err = s.ListBusCredentials(ctx, store.BusCredentialFilter{Live: !in.All, Limit: pageMost})
	return out, err
}

func printCreds(env *command.Env, w io.Writer, l credsList) error {
	if env.Quiet {
		return printIDs(w, l.Items, credKind.id)
	}
	if len(l.Items) == 0 {
		fmt.Fprintln(w, "no credentials; let a runner in: ravi bus creds issue --runner NAME --out FILE")
		return nil
	}
	var rows [][]string
	for _, c := range l.Items {
		state := "expires " + momentOf(c.ExpiresAt)
		switch {
		case c.RevokedAt != nil:
			state = "revoked"
		case c.ExpiresAt != nil && time.Now().After(*c.ExpiresAt):
			state = "expired"
		case c.ExpiresAt != nil:
			state = "for " + age(time.Until(*c.ExpiresAt))
		}
		rows = append(rows, []string{c.Name, c.Kind, c.Client, state, safe.Truncate(c.ID, 12)})
	}
	return printRows(env, w, "credentials", []safe.Column{{Title: "NAME", Flex: true}, {Title: "FOR"}, {Title: "CLIENT"}, {Title: "HOLDS"}, {Title: "ID"}}, rows, "")
}

type credsRevokeInput struct {
	Credential string `json:"credential" arg:"CREDENTIAL" host:"none" usage:"its name, its id or the id's beginning"`
	Reason     string `json:"reason" flag:"reason" value:"TEXT" host:"none" usage:"why, for the record"`
}

func revokeCred(ctx context.Context, env *command.Env, in credsRevokeInput, own *daemonBus) (c store.BusCredential, err error) {
	if c, err = credKind.get(ctx, env, in.Credential); err != nil {
		return c, err
	}
	if c.RevokedAt != nil {
		return c, fmt.Errorf("the credential %s is revoked already: %w", c.Name, store.ErrFinal)
	}
	s, err := env.Store(ctx)
	if err != nil {
		return c, err
	}
	if own == nil {
		// A daemon that runs cuts who is connected. One that starts later reads the record.
		home, err := env.Home()
		if err != nil {
			return c, err
		}
		if state, rerr := daemon.ReadState(home); rerr == nil {
			return c, answered(daemon.Ask(ctx, state.Socket, "bus-creds/revoke", credsRevokeInput{Credential: c.ID, Reason: in.Reason}, &c))
		}
	}
	why := in.Reason
	if strings.TrimSpace(why) == "" {
		why = "revoked"
	}
	if _, err = s.RevokeBusCredentials(ctx, store.BusCredentialFilter{}, c.ID, why); err != nil {
		return c, err
	}
	if own != nil {
		if err := own.applyRevoked(ctx, c.Client); err != nil {
			return c, busError(err)
		}
	}
	return s.BusCredential(ctx, c.ID)
}

func printIssuedCred(env *command.Env, w io.Writer, c issuedCredential) error {
	if c.Path == "" {
		_, err := io.WriteString(w, c.File)
		return err
	}
	printLine(w, "written", safe.Safe(c.Path))
	printLine(w, "holds until", momentOf(c.ExpiresAt))
	if c.Kind == store.BusRunner && !env.Quiet {
		fmt.Fprintf(env.Stderr, "bring it to the runner's machine, and there: ravi runner --bus URL --creds %s\n", safe.Safe(filepath.Base(c.Path)))
	}
	return nil
}

package cli

import (
	"context"
	"fmt"
	"io"

	"ravi/internal/command"
	"ravi/internal/store"
	safe "ravi/internal/term"
)

var clientKind = kind[store.Client]{"client", "ravi clients ls", "clients", (*store.Store).Client, func(c store.Client) string { return c.Name }}

func addClients(t *command.Table) {
	t.AddGroup(command.Group{Name: "clients", Summary: "Say whom agents work for; each has a queue of its own"})
	add(t, command.Spec[clientsCreateInput, store.Client]{
		Group: "clients", Name: "create", Aliases: []string{"new"}, Access: command.Write, Reach: command.OperatorOnly,
		Summary: "Make a client",
		Long: `Makes a client. Its work waits in a queue of its own, and is begun in turn with
that of the others; its sandboxes have an account of their own on the bus. Which
agents work for it is said with ravi agents work --client.`,
		Examples: []command.Example{{Line: "ravi clients create acme"}, {What: "at most two of its messages at once", Line: "ravi clients create acme --most 2"}},
		Handler: func(ctx context.Context, env *command.Env, in clientsCreateInput) (store.Client, error) {
			s, err := env.Store(ctx)
			if err != nil {
				return store.Client{}, err
			}
			return s.InsertClient(ctx, store.Client{Name: in.Name, Title: in.Title, Most: in.Most})
		},
		Print: printClientName,
	})
	add(t, command.Spec[clientsListInput, clientList]{
		Group: "clients", Name: "ls", Aliases: []string{"list"}, Access: command.Read, Reach: command.OperatorOnly,
		Summary: "List clients, and how much of their work waits",
		Long: `Lists the clients, the newest first, with how many of their messages wait and
are worked on; with --all those that are archived, too.`,
		Examples: []command.Example{{Line: "ravi clients ls"}},
		Handler:  listClients, Print: printClients,
	})
	add(t, command.Spec[clientsEditInput, store.Client]{
		Group: "clients", Name: "edit", Aliases: []string{"set"}, Access: command.Write, Reach: command.OperatorOnly,
		Summary:  "Change a client",
		Long:     `Changes what is given of a client; its name stays.`,
		Examples: []command.Example{{Line: "ravi clients edit acme --most 4"}},
		Handler: func(ctx context.Context, env *command.Env, in clientsEditInput) (store.Client, error) {
			return changeClient(ctx, env, in.Client, func(c *store.Client) {
				if in.Title != nil {
					c.Title = *in.Title
				}
				if in.Most != nil {
					c.Most = *in.Most
				}
			})
		},
		Print: printClientName,
	})
	add(t, command.Spec[clientsArchiveInput, store.Client]{
		Group: "clients", Name: "archive", Access: command.Write, Reach: command.OperatorOnly,
		Summary: "Put a client away",
		Long: `Leaves a client out of ravi clients ls. What waits of it is not begun any more;
what is under way ends as it does. --undo brings it back.`,
		Examples: []command.Example{{Line: "ravi clients archive acme"}},
		Handler: func(ctx context.Context, env *command.Env, in clientsArchiveInput) (store.Client, error) {
			return changeClient(ctx, env, in.Client, func(c *store.Client) {
				now := store.Now()
				switch {
				case in.Undo:
					c.ArchivedAt = nil
				case c.ArchivedAt == nil:
					c.ArchivedAt = &now
				}
			})
		},
		Print: printClientName,
	})
}

type clientsCreateInput struct {
	Name  string `json:"name" arg:"NAME" host:"none" usage:"small letters, digits and -; it never changes"`
	Title string `json:"title" flag:"title" value:"TEXT" host:"none" usage:"for people"`
	Most  int    `json:"most" flag:"most" value:"N" host:"size" usage:"how many of its messages are worked on at once (default: no bound)"`
}

type clientsListInput struct {
	All bool `json:"all" flag:"all" host:"none" usage:"those that are archived, too"`
}

type clientsEditInput struct {
	Client string  `json:"client" arg:"CLIENT" host:"none" usage:"its name"`
	Title  *string `json:"title" flag:"title" value:"TEXT" host:"none" usage:"for people"`
	Most   *int    `json:"most" flag:"most" value:"N" host:"size" usage:"how many of its messages are worked on at once; 0: no bound"`
}

type clientsArchiveInput struct {
	Client string `json:"client" arg:"CLIENT" host:"none" usage:"its name"`
	Undo   bool   `json:"undo" flag:"undo" host:"none" usage:"bring it back"`
}

// clientShown is a client with its work.
type clientShown struct {
	store.Client
	Queued  int `json:"queued"`
	Running int `json:"running"`
}

type clientList struct {
	Items []clientShown `json:"items"`
}

func listClients(ctx context.Context, env *command.Env, in clientsListInput) (out clientList, err error) {
	out.Items = []clientShown{}
	s, err := env.Store(ctx)
	if err != nil {
		return out, err
	}
	all, err := s.ListClients(ctx, in.All)
	if err != nil {
		return out, err
	}
	for _, c := range all {
		shown := clientShown{Client: c}
		if shown.Queued, err = s.CountWork(ctx, store.WorkFilter{Live: true, Client: c.Name, Status: store.WorkQueued}); err != nil {
			return out, err
		}
		if shown.Running, err = s.CountWork(ctx, store.WorkFilter{Live: true, Client: c.Name, Status: store.WorkRunning}); err != nil {
			return out, err
		}
		out.Items = append(out.Items, shown)
	}
	return out, nil
}

func changeClient(ctx context.Context, env *command.Env, typed string, change func(*store.Client)) (store.Client, error) {
	c, err := clientKind.get(ctx, env, typed)
	if err != nil {
		return c, err
	}
	s, err := env.Store(ctx)
	if err != nil {
		return c, err
	}
	return s.UpdateClient(ctx, c.Name, func(c *store.Client) error {
		change(c)
		return nil
	})
}

func printClientName(_ *command.Env, w io.Writer, c store.Client) error {
	fmt.Fprintln(w, c.Name)
	return nil
}

func printClients(env *command.Env, w io.Writer, l clientList) error {
	if env.Quiet {
		for _, c := range l.Items {
			fmt.Fprintln(w, c.Name)
		}
		return nil
	}
	var rows [][]string
	for _, c := range l.Items {
		most := ""
		if c.Most > 0 {
			most = fmt.Sprint(c.Most)
		}
		rows = append(rows, []string{c.Name, fmt.Sprint(c.Queued), fmt.Sprint(c.Running), most, c.Title})
	}
	return printRows(env, w, "clients", []safe.Column{{Title: "NAME"}, {Title: "WAITING", Right: true}, {Title: "RUNNING", Right: true},
		{Title: "MOST", Right: true}, {Title: "TITLE", Flex: true}}, rows, "")
}

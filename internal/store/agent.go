package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Agent is somebody who works: with instructions, with memory, and with the profile that bounds what its keys may ask
// for.
type Agent struct {
	ID           string   `json:"id"`
	Name         string   `json:"name"`
	Instructions string   `json:"instructions"`
	AutoApprove  []string `json:"auto_approve"` // patterns of memory paths of which what a run writes needs no approval
	Profile      string   `json:"profile"`
	Program      string   `json:"program,omitempty"` // the agent program of another maker that works as this agent
	// Client is whom it works for, and Work how runs of messages to it are made; empty: nobody works on them.
	Client     string          `json:"client"`
	Work       json.RawMessage `json:"work,omitempty"`
	CreatedAt  time.Time       `json:"created_at"`
	UpdatedAt  time.Time       `json:"updated_at"`
	ArchivedAt *time.Time      `json:"archived_at,omitempty"`
}

// AgentFilter chooses agents; the zero filter chooses those that are not archived.
type AgentFilter struct {
	Archived bool     // the archived ones, too
	IDs      []string // only these; empty, but not nil: none
	Before   string   // the id after which the page begins
	Limit    int      // the newest so many; 0 is no limit
}

func (f AgentFilter) choice() (c choice) {
	c.add(!f.Archived, `archived_at IS NULL`)
	c.among(`id`, f.IDs)
	return c
}

var agents = table[Agent]{
	name: "agents", what: "agent",
	columns: `id, name, instructions, auto_approve, profile, program, client, work, created_at, updated_at, archived_at`,
	order:   byPlace,
	args: func(a *Agent) ([]any, error) {
		approve, err := toJSON(&a.AutoApprove)
		return []any{a.ID, a.Name, a.Instructions, approve, a.Profile, a.Program, a.Client, string(a.Work), a.CreatedAt.UnixMilli(),
			a.UpdatedAt.UnixMilli(), millis(a.ArchivedAt)}, err
	},
	scan: func(rows *sql.Rows) (a Agent, err error) {
		var approve, work string
		var created, updated int64
		var archived sql.NullInt64
		if err := rows.Scan(&a.ID, &a.Name, &a.Instructions, &approve, &a.Profile, &a.Program, &a.Client, &work, &created, &updated, &archived); err != nil {
			return a, err
		}
		if work != "" {
			a.Work = json.RawMessage(work)
		}
		a.CreatedAt, a.UpdatedAt, a.ArchivedAt = fromMilli(created), fromMilli(updated), fromMillis(archived)
		return a, fromJSON(approve, &a.AutoApprove)
	},
	id: func(a Agent) string { return a.ID },
}

// InsertAgent records an agent. An empty id, profile or time is filled in; a name that another has is refused with
// ErrExists.
func (s *Store) InsertAgent(ctx context.Context, a Agent) (Agent, error) {
	if a.ID == "" {
		a.ID = newID("agt")
	}
	if a.Profile == "" {
		a.Profile = "default"
	}
	if a.Client == "" {
		a.Client = DefaultClient
	}
	if a.CreatedAt.IsZero() {
		a.CreatedAt = Now()
	}
	a.UpdatedAt = a.CreatedAt
	err := s.tx(ctx, func(tx *sql.Tx) error {
		if err := checkAgent(ctx, tx, a); err != nil {
			return err
		}
		if err := agents.insert(ctx, tx, &a); err != nil {
			return err
		}
		return happened(ctx, tx, EventAgentCreated, a.ID, "", nil)
	})
	if err != nil {
		return Agent{}, err
	}
	return a, nil
}

// UpdateAgent changes the record of an agent, named by its full id.
func (s *Store) UpdateAgent(ctx context.Context, id string, change func(*Agent) error) (Agent, error) {
	var a Agent
	err := s.tx(ctx, func(tx *sql.Tx) error {
		before, err := agents.get(ctx, tx, id)
		if err != nil {
			return err
		}
		a = before
		if err := change(&a); err != nil {
			return err
		}
		if a.ID != before.ID || !a.CreatedAt.Equal(before.CreatedAt) {
			return errors.New("the id and the creation time of an agent never change")
		}
		if err := checkAgent(ctx, tx, a); err != nil {
			return err
		}
		a.UpdatedAt = Now()
		if err := agents.set(ctx, tx, &a); err != nil {
			return err
		}
		return happened(ctx, tx, EventAgentChanged, id, "", nil)
	})
	return a, err
}

func checkAgent(ctx context.Context, tx *sql.Tx, a Agent) error {
	if err := checkName("agt", a.ID, a.Name); err != nil {
		return err
	}
	if err := checkText("the text of the instructions", a.Instructions, MaxText); err != nil {
		return err
	}
	if a.Program != "" {
		if err := checkName("", "", a.Program); err != nil {
			return fmt.Errorf("the program of the agent %s: %w", a.Name, err)
		}
	}
	if len(a.Work) > 0 {
		if err := checkText("how its messages are worked on", string(a.Work), MaxText); err != nil {
			return err
		}
		if !json.Valid(a.Work) {
			return fmt.Errorf("how messages to the agent %s are worked on is %w: it is no JSON", a.Name, ErrInvalid)
		}
	}
	if _, err := clientNamed(ctx, tx, a.Client); err != nil {
		return err
	}
	for _, pattern := range a.AutoApprove {
		if err := checkLines(line{"a pattern of paths", pattern}); err != nil {
			return err
		}
	}
	return free(ctx, tx, "agents", "an agent", a.ID, a.Name)
}

// free refuses a name that another has.
func free(ctx context.Context, tx *sql.Tx, table, what, id, name string) error {
	n, err := number(ctx, tx, `SELECT count(*) FROM `+table+` WHERE name = ? AND id <> ?`, name, id)
	if err == nil && n > 0 {
		err = fmt.Errorf("%s with the name %q: %w", what, name, ErrExists)
	}
	return err
}

// Agent finds one agent by its id, its name, or a beginning of an id that only one has.
func (s *Store) Agent(ctx context.Context, idOrName string) (Agent, error) {
	return agents.find(ctx, s.reads, idOrName, `name = ?`)
}

// ListAgents gives the chosen agents, the newest first.
func (s *Store) ListAgents(ctx context.Context, f AgentFilter) ([]Agent, error) {
	return agents.list(ctx, s.reads, f.choice(), f.Before, f.Limit)
}

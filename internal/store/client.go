package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// DefaultClient is whom agents work for of which nothing else is said. It is always there.
const DefaultClient = "default"

// maxClientName is in bytes: the name is a part of subjects.
const maxClientName = 40

// Client is whom the organisation works for. Its name is that of its account on the bus, and never changes.
type Client struct {
	Name  string `json:"name"` // small letters, digits and -
	Title string `json:"title,omitempty"`
	// Most is how many of its messages are worked on at once; 0 is no bound.
	Most       int        `json:"most,omitempty"`
	CreatedAt  time.Time  `json:"created_at"`
	ArchivedAt *time.Time `json:"archived_at,omitempty"`
}

var clients = table[Client]{
	name: "clients", what: "client",
	columns: `name, title, most, created_at, archived_at`,
	order:   byPlace,
	args: func(c *Client) ([]any, error) {
		return []any{c.Name, c.Title, c.Most, c.CreatedAt.UnixMilli(), millis(c.ArchivedAt)}, nil
	},
	scan: func(rows *sql.Rows) (c Client, err error) {
		var created int64
		var archived sql.NullInt64
		err = rows.Scan(&c.Name, &c.Title, &c.Most, &created, &archived)
		c.CreatedAt, c.ArchivedAt = fromMilli(created), fromMillis(archived)
		return c, err
	},
	id: func(c Client) string { return c.Name },
}

// CheckClientName refuses a name that cannot be a client's.
func CheckClientName(name string) error {
	ok := name != "" && len(name) <= maxClientName && name[0] != '-'
	for _, r := range name {
		ok = ok && (r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-')
	}
	if !ok {
		return fmt.Errorf("the name %.60q of a client is %w: it has small letters, digits and -, at most %d", name, ErrInvalid, maxClientName)
	}
	return nil
}

func checkClient(c Client) error {
	if c.Most < 0 {
		return fmt.Errorf("the client %s is %w: its bound is negative", c.Name, ErrInvalid)
	}
	return errors.Join(CheckClientName(c.Name), checkLines(line{"the title", c.Title}))
}

// InsertClient records a client.
func (s *Store) InsertClient(ctx context.Context, c Client) (Client, error) {
	if c.CreatedAt.IsZero() {
		c.CreatedAt = Now()
	}
	if err := checkClient(c); err != nil {
		return Client{}, err
	}
	err := s.tx(ctx, func(tx *sql.Tx) error {
		if _, err := clientNamed(ctx, tx, c.Name); err == nil {
			return fmt.Errorf("a client with the name %q: %w", c.Name, ErrExists)
		}
		if err := clients.insert(ctx, tx, &c); err != nil {
			return err
		}
		return happened(ctx, tx, EventClientCreated, c.Name, "", nil)
	})
	if err != nil {
		return Client{}, err
	}
	return c, nil
}

// UpdateClient changes the record of a client.
func (s *Store) UpdateClient(ctx context.Context, name string, change func(*Client) error) (Client, error) {
	var c Client
	err := s.tx(ctx, func(tx *sql.Tx) error {
		before, err := clientNamed(ctx, tx, name)
		if err != nil {
			return err
		}
		c = before
		if err := change(&c); err != nil {
			return err
		}
		if c.Name != before.Name || !c.CreatedAt.Equal(before.CreatedAt) {
			return errors.New("the name and the creation time of a client never change")
		}
		if err := checkClient(c); err != nil {
			return err
		}
		if c.ArchivedAt != nil && c.Name == DefaultClient {
			return fmt.Errorf("the client %s is %w: it is always there", DefaultClient, ErrInvalid)
		}
		if _, err := tx.ExecContext(ctx, `UPDATE clients SET title = ?, most = ?, archived_at = ? WHERE name = ?`,
			c.Title, c.Most, millis(c.ArchivedAt), c.Name); err != nil {
			return fmt.Errorf("cannot record client %s: %w", c.Name, err)
		}
		return happened(ctx, tx, EventClientChanged, c.Name, "", nil)
	})
	return c, err
}

func clientNamed(ctx context.Context, q querier, name string) (Client, error) {
	found, err := few(ctx, q, clients.scan, `SELECT `+clients.columns+` FROM clients WHERE name = ?`, name)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("client %q: %w", name, ErrNotFound)
	}
	if err != nil {
		return Client{}, err
	}
	return found[0], nil
}

// Client finds the client with this name.
func (s *Store) Client(ctx context.Context, name string) (Client, error) {
	return clientNamed(ctx, s.reads, name)
}

// ListClients gives the clients, the newest first; all of them, or those that are not archived.
func (s *Store) ListClients(ctx context.Context, archived bool) ([]Client, error) {
	var c choice
	c.add(!archived, `archived_at IS NULL`)
	return clients.list(ctx, s.reads, c, "", 0)
}

package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// Session is a conversation with an agent.
type Session struct {
	ID        string     `json:"id"`
	AgentID   string     `json:"agent_id"`
	Name      string     `json:"name"`
	Title     string     `json:"title"`
	CreatedAt time.Time  `json:"created_at"`
	UpdatedAt time.Time  `json:"updated_at"`
	ClosedAt  *time.Time `json:"closed_at,omitempty"`
}

// SessionFilter chooses sessions; the zero filter chooses all.
type SessionFilter struct {
	AgentID string   // empty: any
	Open    bool     // only those that are not closed
	IDs     []string // only these; empty, but not nil: none
	Before  string   // the id after which the page begins
	Limit   int      // the newest so many; 0 is no limit
}

func (f SessionFilter) choice() (c choice) {
	c.is(`agent_id`, f.AgentID)
	c.add(f.Open, `closed_at IS NULL`)
	c.among(`id`, f.IDs)
	return c
}

var sessions = table[Session]{
	name: "sessions", what: "session",
	columns: `id, agent_id, name, title, created_at, updated_at, closed_at`,
	order:   byPlace,
	args: func(c *Session) ([]any, error) {
		return []any{c.ID, c.AgentID, c.Name, c.Title, c.CreatedAt.UnixMilli(), c.UpdatedAt.UnixMilli(), millis(c.ClosedAt)}, nil
	},
	scan: func(rows *sql.Rows) (c Session, err error) {
		var created, updated int64
		var closed sql.NullInt64
		err = rows.Scan(&c.ID, &c.AgentID, &c.Name, &c.Title, &created, &updated, &closed)
		c.CreatedAt, c.UpdatedAt, c.ClosedAt = fromMilli(created), fromMilli(updated), fromMillis(closed)
		return c, err
	},
	id: func(c Session) string { return c.ID },
}

// InsertSession records a session of an agent. An empty id or time is filled in, and an empty name is the id; a name
// that another has is refused with ErrExists.
func (s *Store) InsertSession(ctx context.Context, c Session) (Session, error) {
	if c.ID == "" {
		c.ID = newID("ses")
	}
	if c.Name == "" {
		c.Name = c.ID
	}
	if c.CreatedAt.IsZero() {
		c.CreatedAt = Now()
	}
	c.UpdatedAt = c.CreatedAt
	err := s.tx(ctx, func(tx *sql.Tx) error {
		if err := checkSession(ctx, tx, c); err != nil {
			return err
		}
		if err := sessions.insert(ctx, tx, &c); err != nil {
			return err
		}
		return happened(ctx, tx, EventSessionCreated, c.ID, "", data{"agent_id": c.AgentID})
	})
	if err != nil {
		return Session{}, err
	}
	return c, nil
}

// UpdateSession changes the record of a session, named by its full id.
func (s *Store) UpdateSession(ctx context.Context, id string, change func(*Session) error) (Session, error) {
	var c Session
	err := s.tx(ctx, func(tx *sql.Tx) error {
		before, err := sessions.get(ctx, tx, id)
		if err != nil {
			return err
		}
		c = before
		if err := change(&c); err != nil {
			return err
		}
		if c.ID != before.ID || c.AgentID != before.AgentID || !c.CreatedAt.Equal(before.CreatedAt) {
			return errors.New("the id, the agent and the creation time of a session never change")
		}
		if err := checkSession(ctx, tx, c); err != nil {
			return err
		}
		c.UpdatedAt = Now()
		if err := sessions.set(ctx, tx, &c); err != nil {
			return err
		}
		return happened(ctx, tx, EventSessionChanged, id, "", data{"open": c.ClosedAt == nil})
	})
	return c, err
}

func checkSession(ctx context.Context, tx *sql.Tx, c Session) error {
	if err := checkName("ses", c.ID, c.Name); err != nil {
		return err
	}
	if err := checkLines(line{"the title", c.Title}); err != nil {
		return err
	}
	if err := needs(ctx, tx, "agents", "agent", c.AgentID); err != nil {
		return err
	}
	return free(ctx, tx, "sessions", "a session", c.ID, c.Name)
}

// Session finds one session by its id, its name, or a beginning of an id that only one has.
func (s *Store) Session(ctx context.Context, idOrName string) (Session, error) {
	return sessions.find(ctx, s.reads, idOrName, `name = ?`)
}

// ListSessions gives the chosen sessions, the newest first.
func (s *Store) ListSessions(ctx context.Context, f SessionFilter) ([]Session, error) {
	return sessions.list(ctx, s.reads, f.choice(), f.Before, f.Limit)
}

// CountSessions says how many sessions are chosen, whatever page is.
func (s *Store) CountSessions(ctx context.Context, f SessionFilter) (int, error) {
	return sessions.count(ctx, s.reads, f.choice())
}

// Role is who speaks in a message, as a model sees it.
type Role string

// The roles.
const (
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleSystem    Role = "system"
	RoleTool      Role = "tool"
)

// Message is something that was said in a session.
type Message struct {
	ID        string    `json:"id"`
	SessionID string    `json:"session_id"`
	Seq       int64     `json:"seq"` // 1, 2, 3, … in its session
	Role      Role      `json:"role"`
	Author    string    `json:"author,omitempty"`  // whose words they are, for people
	Channel   string    `json:"channel,omitempty"` // where they came in
	Text      string    `json:"text"`
	KeyID     string    `json:"key_id,omitempty"`
	RunID     string    `json:"run_id,omitempty"`
	CreatedAt time.Time `json:"created_at"`
}

// MessageFilter chooses messages of a session; the zero filter chooses the first PageSize of them.
type MessageFilter struct {
	// After and Before bound the numbers, themselves excluded: where the next page begins. 0 is no bound.
	After, Before int64
	// Newest gives the newest first.
	Newest bool
	Limit  int // 0 is PageSize
}

var messages = table[Message]{
	name: "messages", what: "message",
	columns: `id, session_id, seq, role, author, channel, text, key_id, run_id, created_at`,
	args: func(m *Message) ([]any, error) {
		return []any{m.ID, m.SessionID, m.Seq, string(m.Role), m.Author, m.Channel, m.Text, m.KeyID, m.RunID, m.CreatedAt.UnixMilli()}, nil
	},
	scan: func(rows *sql.Rows) (m Message, err error) {
		var created int64
		err = rows.Scan(&m.ID, &m.SessionID, &m.Seq, &m.Role, &m.Author, &m.Channel, &m.Text, &m.KeyID, &m.RunID, &created)
		m.CreatedAt = fromMilli(created)
		return m, err
	},
	id: func(m Message) string { return m.ID },
}

// errClosed says that a session takes no messages any more.
var errClosed = fmt.Errorf("it is closed and takes no messages: %w", ErrFinal)

// AppendMessage adds a message at the end of its session, and gives it its number. A closed session takes none.
func (s *Store) AppendMessage(ctx context.Context, m Message) (Message, error) {
	return s.appendMessage(ctx, m, func(*sql.Tx, Message, Session) error { return nil })
}

// appendMessage adds a message and, in the same transaction, what is about it.
func (s *Store) appendMessage(ctx context.Context, m Message, with func(*sql.Tx, Message, Session) error) (Message, error) {
	if m.ID == "" {
		m.ID = newID("msg")
	}
	if m.CreatedAt.IsZero() {
		m.CreatedAt = Now()
	}
	if err := checkOneOf("the role", m.Role, RoleUser, RoleAssistant, RoleSystem, RoleTool); err != nil {
		return Message{}, err
	}
	if err := checkText("the message", m.Text, MaxText); err != nil {
		return Message{}, err
	}
	if err := checkLines(line{"the author", m.Author}, line{"the channel", m.Channel}); err != nil {
		return Message{}, err
	}
	err := s.tx(ctx, func(tx *sql.Tx) error {
		session, err := sessions.get(ctx, tx, m.SessionID)
		if err != nil {
			return err
		}
		if session.ClosedAt != nil {
			return fmt.Errorf("session %s: %w", session.ID, errClosed)
		}
		last, err := number(ctx, tx, `SELECT seq FROM messages WHERE session_id = ? ORDER BY seq DESC LIMIT 1`, m.SessionID)
		if err != nil {
			return err
		}
		m.Seq = last + 1
		if err := messages.insert(ctx, tx, &m); err != nil {
			return err
		}
		session.UpdatedAt = Now()
		if err := sessions.set(ctx, tx, &session); err != nil {
			return err
		}
		if err := happened(ctx, tx, EventSessionMessage, m.SessionID, m.RunID, data{"seq": m.Seq, "role": m.Role}); err != nil {
			return err
		}
		return with(tx, m, session)
	})
	if err != nil {
		return Message{}, err
	}
	return m, nil
}

// Messages gives the chosen messages of a session, named by its full id, in their order or the newest first. A session
// that is not there has none.
func (s *Store) Messages(ctx context.Context, sessionID string, f MessageFilter) ([]Message, error) {
	var c choice
	c.add(true, `session_id = ?`, sessionID)
	c.add(f.After > 0, `seq > ?`, f.After)
	c.add(f.Before > 0, `seq < ?`, f.Before)
	order := `seq`
	if f.Newest {
		order += ` DESC`
	}
	limit := f.Limit
	if limit <= 0 {
		limit = PageSize
	}
	return collect(ctx, s.reads, messages.scan, `SELECT `+messages.columns+` FROM messages`+c.where()+` ORDER BY `+order+` LIMIT ?`,
		append(c.args, limit)...)
}

// Message finds the message with this full id.
func (s *Store) Message(ctx context.Context, id string) (Message, error) {
	return messages.get(ctx, s.reads, id)
}

// CountMessages is how many messages a session has.
func (s *Store) CountMessages(ctx context.Context, sessionID string) (int64, error) {
	return number(ctx, s.reads, `SELECT seq FROM messages WHERE session_id = ? ORDER BY seq DESC LIMIT 1`, sessionID)
}

package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"
)

// Kinds of events. Each is written in the transaction of what it tells. Its object is the one that a capability for
// it names, so for memory the agent.
const (
	EventRunCreated     = "run.created"
	EventRunChanged     = "run.changed" // data: status, reason
	EventSandboxCreated = "sandbox.created"
	EventSandboxChanged = "sandbox.changed" // data: seen, desired, reason
	EventAgentCreated   = "agent.created"
	EventAgentChanged   = "agent.changed"
	EventSessionCreated = "session.created"
	EventSessionChanged = "session.changed"
	EventSessionMessage = "session.message" // data: seq, role, never the text
	EventTaskCreated    = "task.created"
	EventTaskChanged    = "task.changed"   // data: status
	EventTaskCommented  = "task.commented" // data: id, kind
	EventMemoryWritten  = "memory.written" // data: id, kind, path, state, never the content
	EventMemoryDecided  = "memory.decided" // data: the same
	EventKeyIssued      = "key.issued"
	EventKeyRevoked     = "key.revoked" // data: reason
	EventProfileChanged = "profile.changed"
	EventProfileDeleted = "profile.deleted"
	EventLeaseBegun     = "lease.begun"
	EventLeaseEnded     = "lease.ended" // data: reason

	EventModelLeaseBegun = "model_lease.begun" // data: providers, models
	EventModelLeaseEnded = "model_lease.ended" // data: reason

	EventClientCreated = "client.created"
	EventClientChanged = "client.changed"

	// The object is the session.
	EventWorkCreated = "work.created" // data: id, status, reason, tries, run_id, runner
	EventWorkChanged = "work.changed" // data: the same

	EventBusCredential = "bus.credential" // data: id, kind, name, client, state: issued or revoked

	// The object is the run.
	EventApprovalAsked   = "approval.asked"   // data: id, status, tool, family, never the command
	EventApprovalChanged = "approval.changed" // data: the same
)

// Event is something that happened, for those who listen.
type Event struct {
	Seq    int64           `json:"seq"` // 1, 2, 3, …
	Time   time.Time       `json:"time"`
	Kind   string          `json:"kind"`
	Object string          `json:"object"`
	RunID  string          `json:"run_id,omitempty"`
	Data   json.RawMessage `json:"data"`
}

// PageSize is how many rows are given at once where no limit is named and there is no end to what is recorded.
const PageSize = 1000

type data map[string]any

// happened writes an event.
func happened(ctx context.Context, tx *sql.Tx, kind, object, runID string, d data) error {
	if d == nil {
		d = data{}
	}
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO events (time, kind, object, run_id, data) VALUES (?, ?, ?, ?, ?)`,
		Now().UnixMilli(), kind, object, runID, string(text))
	if err != nil {
		return fmt.Errorf("cannot record that %s happened: %w", kind, err)
	}
	return nil
}

// Events gives what happened after the event with the number after, in its order. Numbers have no gaps: when the first
// is not after+1, those between were forgotten.
func (s *Store) Events(ctx context.Context, after int64, limit int) ([]Event, error) {
	if limit <= 0 {
		limit = PageSize
	}
	return collect(ctx, s.reads, func(rows *sql.Rows) (e Event, err error) {
		var at int64
		var text string
		err = rows.Scan(&e.Seq, &at, &e.Kind, &e.Object, &e.RunID, &text)
		e.Time, e.Data = fromMilli(at), json.RawMessage(text)
		return e, err
	}, `SELECT seq, time, kind, object, run_id, data FROM events WHERE seq > ? ORDER BY seq LIMIT ?`, after, limit)
}

// EventsEnd is the number of the last event that ever was, 0 if there was none.
func (s *Store) EventsEnd(ctx context.Context) (int64, error) {
	return number(ctx, s.reads, `SELECT seq FROM sqlite_sequence WHERE name = 'events'`)
}

// TrimEvents forgets all events but the last so many.
func (s *Store) TrimEvents(ctx context.Context, keep int) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM events WHERE seq <= (SELECT seq FROM sqlite_sequence WHERE name = 'events') - ?`, max(keep, 0))
		if err != nil {
			return fmt.Errorf("cannot forget old events: %w", err)
		}
		return nil
	})
}

// Watcher notices that something was written, by whichever process, without reading a table.
type Watcher struct {
	conn *sql.Conn
	last int64
}

// Watch begins to watch. The watcher is for one goroutine, and is closed before the store is.
func (s *Store) Watch(ctx context.Context) (*Watcher, error) {
	// SQLite counts, for a connection, the commits of all others. Nothing is ever written on this one.
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot watch the database: %w", err)
	}
	return &Watcher{conn: conn}, nil
}

// Changed says whether anything was written since it was asked last; the first answer is yes. Who asks before reading
// misses nothing: what is written in between is told the next time.
func (w *Watcher) Changed(ctx context.Context) (bool, error) {
	var version int64
	if err := w.conn.QueryRowContext(ctx, `PRAGMA data_version`).Scan(&version); err != nil {
		return false, fmt.Errorf("cannot watch the database: %w", err)
	}
	changed := version != w.last
	w.last = version
	return changed, nil
}

// Close ends the watching.
func (w *Watcher) Close() error { return w.conn.Close() }

package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// WorkStatus is how far the work on a message got.
type WorkStatus string

// The states of work. All but queued and running are final.
const (
	WorkQueued   WorkStatus = "queued"
	WorkRunning  WorkStatus = "running"
	WorkDone     WorkStatus = "done"   // a run gave its outcome, whichever that was
	WorkFailed   WorkStatus = "failed" // no try came to an outcome
	WorkCanceled WorkStatus = "canceled"
)

// Final says whether work is over.
func (s WorkStatus) Final() bool { return s != WorkQueued && s != WorkRunning }

// Priority is what of a client's work comes first.
type Priority int

// The priorities.
const (
	Low Priority = iota
	Normal
	High
	Urgent
)

var priorityNames = []string{"low", "normal", "high", "urgent"}

func (p Priority) String() string {
	if p < 0 || int(p) >= len(priorityNames) {
		return fmt.Sprintf("Priority(%d)", int(p))
	}
	return priorityNames[p]
}

// MarshalText implements encoding.TextMarshaler.
func (p Priority) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Priority) UnmarshalText(text []byte) error {
	for i, name := range priorityNames {
		if name == string(text) {
			*p = Priority(i)
			return nil
		}
	}
	return fmt.Errorf("%.20q is no priority: low, normal, high and urgent are: %w", text, ErrInvalid)
}

// Work is the record of a message that somebody works on: of each there is one, which ends once.
type Work struct {
	ID        string     `json:"id"`
	Client    string     `json:"client"`
	AgentID   string     `json:"agent_id"`
	SessionID string     `json:"session_id"`
	MessageID string     `json:"message_id"`
	Priority  Priority   `json:"priority"`
	Status    WorkStatus `json:"status"`
	Reason    string     `json:"reason,omitempty"`
	Tries     int        `json:"tries"`              // that came to no outcome
	RunID     string     `json:"run_id,omitempty"`   // of the try that was begun last
	Runner    string     `json:"runner,omitempty"`   // whose sandbox that has; empty: this machine's own
	ReplyID   string     `json:"reply_id,omitempty"` // the message that came of it
	NotBefore *time.Time `json:"not_before,omitempty"`
	Published *time.Time `json:"published_at,omitempty"` // on the bus
	CreatedBy string     `json:"created_by,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	StartedAt *time.Time `json:"started_at,omitempty"` // of the first try
	EndedAt   *time.Time `json:"ended_at,omitempty"`
}

// WorkFilter chooses work; the zero filter chooses all.
type WorkFilter struct {
	Live                       bool // only what is not over
	Unpublished                bool // only what is not over, and was not published
	Status                     WorkStatus
	Client, AgentID, SessionID string
	RunID                      string
	SessionIDs                 []string // only of these; empty, but not nil: none
	Before                     string   // the id after which the page begins
	Limit                      int      // the newest so many; 0 is no limit
}

var works = table[Work]{
	name: "work", what: "work",
	columns: `id, client, agent_id, session_id, message_id, priority, status, reason, tries, run_id, runner, reply_id, not_before,
	published_at, created_by, created_at, started_at, ended_at`,
	order: byPlace,
	args: func(w *Work) ([]any, error) {
		return []any{w.ID, w.Client, w.AgentID, w.SessionID, w.MessageID, int(w.Priority), string(w.Status), w.Reason, w.Tries, w.RunID,
			w.Runner, w.ReplyID, millis(w.NotBefore), millis(w.Published), w.CreatedBy, w.CreatedAt.UnixMilli(), millis(w.StartedAt), millis(w.EndedAt)}, nil
	},
	scan: func(rows *sql.Rows) (w Work, err error) {
		var created int64
		var notBefore, published, started, ended sql.NullInt64
		err = rows.Scan(&w.ID, &w.Client, &w.AgentID, &w.SessionID, &w.MessageID, (*int)(&w.Priority), &w.Status, &w.Reason, &w.Tries,
			&w.RunID, &w.Runner, &w.ReplyID, &notBefore, &published, &w.CreatedBy, &created, &started, &ended)
		w.NotBefore, w.Published, w.StartedAt, w.EndedAt = fromMillis(notBefore), fromMillis(published), fromMillis(started), fromMillis(ended)
		w.CreatedAt = fromMilli(created)
		return w, err
	},
	id: func(w Work) string { return w.ID },
}

// MostLiveWork is how much of a client's may wait or be worked on at once. The bus delivers so much of it: what comes first
// is then always among what was delivered.
const MostLiveWork = 10_000

// ErrQueueFull says that a client has as much work as it can have at once.
var ErrQueueFull = errors.New("as much waits as can")

// AppendWork adds a message to a session and, in one, the work on it: the session's agent does it, for that one's client.
// It is refused with ErrQueueFull when too much of the client's waits.
// w says how urgent it is and who asked. Either both are there or nothing is.
func (s *Store) AppendWork(ctx context.Context, m Message, w Work) (Message, Work, error) {
	w.ID, w.Status, w.CreatedAt = newID("wrk"), WorkQueued, Now()
	if w.Priority < Low || w.Priority > Urgent {
		return Message{}, Work{}, fmt.Errorf("the priority %d is %w", w.Priority, ErrInvalid)
	}
	m, err := s.appendMessage(ctx, m, func(tx *sql.Tx, m Message, c Session) error {
		agent, err := agents.get(ctx, tx, c.AgentID)
		if err != nil {
			return err
		}
		w.Client, w.AgentID, w.SessionID, w.MessageID = agent.Client, agent.ID, c.ID, m.ID
		n, err := number(ctx, tx, `SELECT count(*) FROM work WHERE client = ? AND ended_at IS NULL`, w.Client)
		if err == nil && n >= MostLiveWork {
			err = fmt.Errorf("%d messages to the agents of client %s wait already: %w", n, w.Client, ErrQueueFull)
		}
		if err != nil {
			return err
		}
		if err := works.insert(ctx, tx, &w); err != nil {
			return err
		}
		return happened(ctx, tx, EventWorkCreated, w.SessionID, "", workData(w))
	})
	if err != nil {
		return Message{}, Work{}, err
	}
	return m, w, nil
}

func workData(w Work) data {
	return data{"id": w.ID, "status": w.Status, "reason": w.Reason, "tries": w.Tries, "run_id": w.RunID, "runner": w.Runner}
}

// ErrBusy says that somebody works on another message of the session.
var ErrBusy = errors.New("another message of the session is worked on")

// BeginWork begins a try at work that waits: its run's id is recorded before there is anything of the run. It is refused
// with ErrBusy when another message of the session is worked on, or came before, and with ErrFinal when the work is not
// waiting any more.
func (s *Store) BeginWork(ctx context.Context, id, runID, runner string) (Work, error) {
	return s.changeWork(ctx, id, func(tx *sql.Tx, w *Work) error {
		if w.Status != WorkQueued {
			return fmt.Errorf("work %s is %s: %w", id, w.Status, ErrFinal)
		}
		n, err := number(ctx, tx, `SELECT count(*) FROM work WHERE session_id = ?1 AND ended_at IS NULL AND id <> ?2
			AND (status = 'running' OR place < (SELECT place FROM work WHERE id = ?2))`, w.SessionID, id)
		if err == nil && n > 0 {
			err = fmt.Errorf("work %s has to wait: %w", id, ErrBusy)
		}
		if err != nil {
			return err
		}
		now := Now()
		w.Status, w.RunID, w.Runner, w.Reason, w.NotBefore = WorkRunning, runID, runner, "", nil
		if w.StartedAt == nil {
			w.StartedAt = &now
		}
		return nil
	})
}

// longestRetry is how long work waits for another try at most.
const longestRetry = time.Minute

// RetryWork has work whose try, the run, came to no outcome wait for another one, not before a moment. counted says that
// this was a try; one for which there was no room was none. It is refused with ErrFinal unless that run is the work's.
func (s *Store) RetryWork(ctx context.Context, id, runID, reason string, notBefore time.Time, counted bool) (Work, error) {
	return s.changeWork(ctx, id, func(_ *sql.Tx, w *Work) error {
		if w.Status != WorkRunning || w.RunID != runID {
			return fmt.Errorf("work %s is %s, by run %s: %w", id, w.Status, w.RunID, ErrFinal)
		}
		at := inMillis(notBefore)
		w.Status, w.Reason, w.NotBefore = WorkQueued, reason, &at
		if counted {
			w.Tries++
		}
		return nil
	})
}

// EndWork ends work, once, and in one adds what came of it to its session; a reply without a text is none. What has ended
// stays as it is: that is refused with ErrFinal. A session that was closed meanwhile gets no reply, and the work ends.
func (s *Store) EndWork(ctx context.Context, id string, status WorkStatus, reason string, reply Message) (Work, error) {
	if err := checkOneOf("the end of work", status, WorkDone, WorkFailed, WorkCanceled); err != nil {
		return Work{}, err
	}
	w, err := works.get(ctx, s.reads, id)
	if err != nil {
		return Work{}, err
	}
	end := func(tx *sql.Tx, replyID string) error {
		return s.changeWorkIn(ctx, tx, id, &w, func(_ *sql.Tx, w *Work) error {
			if w.Status.Final() {
				return fmt.Errorf("work %s is %s: %w", id, w.Status, ErrFinal)
			}
			now := Now()
			w.Status, w.Reason, w.ReplyID, w.NotBefore, w.EndedAt = status, reason, replyID, nil, &now
			return nil
		})
	}
	if reply.Text != "" {
		reply.SessionID = w.SessionID
		_, err = s.appendMessage(ctx, reply, func(tx *sql.Tx, m Message, _ Session) error { return end(tx, m.ID) })
		if !errors.Is(err, errClosed) {
			return w, err
		}
	}
	err = s.tx(ctx, func(tx *sql.Tx) error { return end(tx, "") })
	return w, err
}

// CancelWork ends work that waits. What was begun is refused with ErrBusy, since its run goes on, and what has ended with
// ErrFinal.
func (s *Store) CancelWork(ctx context.Context, id, reason string) (Work, error) {
	return s.changeWork(ctx, id, func(_ *sql.Tx, w *Work) error {
		switch {
		case w.Status.Final():
			return fmt.Errorf("work %s is %s: %w", id, w.Status, ErrFinal)
		case w.Status != WorkQueued:
			return fmt.Errorf("work %s is %s: %w", id, w.Status, ErrBusy)
		}
		now := Now()
		w.Status, w.Reason, w.NotBefore, w.EndedAt = WorkCanceled, reason, nil, &now
		return nil
	})
}

// PublishedWork notes that work is on the bus.
func (s *Store) PublishedWork(ctx context.Context, ids []string) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		for _, id := range ids {
			if _, err := tx.ExecContext(ctx, `UPDATE work SET published_at = ? WHERE id = ? AND ended_at IS NULL`, Now().UnixMilli(), id); err != nil {
				return fmt.Errorf("cannot record that work %s is on the bus: %w", id, err)
			}
		}
		return nil
	})
}

func (s *Store) changeWork(ctx context.Context, id string, change func(*sql.Tx, *Work) error) (Work, error) {
	var w Work
	err := s.tx(ctx, func(tx *sql.Tx) error { return s.changeWorkIn(ctx, tx, id, &w, change) })
	if err != nil {
		return Work{}, err
	}
	return w, nil
}

func (s *Store) changeWorkIn(ctx context.Context, tx *sql.Tx, id string, w *Work, change func(*sql.Tx, *Work) error) error {
	before, err := works.get(ctx, tx, id)
	if err != nil {
		return err
	}
	was, err := works.args(&before)
	if err != nil {
		return err
	}
	*w = before
	if err := change(tx, w); err != nil {
		return err
	}
	if changed, err := works.update(ctx, tx, was, w); !changed {
		return err
	}
	return happened(ctx, tx, EventWorkChanged, w.SessionID, w.RunID, workData(*w))
}

// WaitingWork gives what of a client's work could begin now: of each session the first, the most urgent and oldest in front.
//
// A moment that is further away than anybody waits was told by a clock that was put back since: it does not count.
func (s *Store) WaitingWork(ctx context.Context, client string, at time.Time, limit int) ([]Work, error) {
	return collect(ctx, s.reads, works.scan, `SELECT `+works.columns+` FROM work AS w
		WHERE client = ?1 AND ended_at IS NULL AND status = 'queued' AND (not_before IS NULL OR not_before <= ?2 OR not_before > ?2 + ?4)
		AND NOT EXISTS (SELECT 1 FROM work AS o WHERE o.session_id = w.session_id AND o.ended_at IS NULL
			AND (o.status = 'running' OR o.place < w.place))
		ORDER BY priority DESC, place LIMIT ?3`, client, at.UnixMilli(), limit, longestRetry.Milliseconds())
}

// Work finds work by its id, or by a beginning that only one has.
func (s *Store) Work(ctx context.Context, id string) (Work, error) {
	return works.find(ctx, s.reads, id, "")
}

// ListWork gives the chosen work, the newest first.
func (s *Store) ListWork(ctx context.Context, f WorkFilter) ([]Work, error) {
	return works.list(ctx, s.reads, f.choice(), f.Before, f.Limit)
}

// CountWork says how much work is chosen, whatever page is.
func (s *Store) CountWork(ctx context.Context, f WorkFilter) (int, error) {
	return works.count(ctx, s.reads, f.choice())
}

func (f WorkFilter) choice() (c choice) {
	c.add(f.Live || f.Unpublished, `ended_at IS NULL`)
	c.add(f.Unpublished, `published_at IS NULL`)
	c.is(`status`, string(f.Status))
	c.is(`client`, f.Client)
	c.is(`agent_id`, f.AgentID)
	c.is(`session_id`, f.SessionID)
	c.is(`run_id`, f.RunID)
	c.among(`session_id`, f.SessionIDs)
	return c
}

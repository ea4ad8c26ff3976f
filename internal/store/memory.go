package store

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"
)

// MemoryKind is what a file of an agent's is.
type MemoryKind string

// Kinds of files.
const (
	MemoryNote  MemoryKind = "memory"
	MemorySkill MemoryKind = "skill"
)

// MemoryState is what was decided about a writing.
type MemoryState string

// The states of a writing. What is pending changes nothing.
const (
	MemoryPending  MemoryState = "pending"
	MemoryApproved MemoryState = "approved"
	MemoryRejected MemoryState = "rejected"
)

// MemoryFile is one writing of a file of an agent's memory, or its removal.
type MemoryFile struct {
	ID        string      `json:"id"`
	AgentID   string      `json:"agent_id"`
	Kind      MemoryKind  `json:"kind"`
	Path      string      `json:"path"`
	Content   string      `json:"content,omitempty"`
	Size      int64       `json:"size"` // of the content, in bytes; the store counts it
	Removed   bool        `json:"removed,omitempty"`
	State     MemoryState `json:"state"`
	Author    string      `json:"author,omitempty"`
	KeyID     string      `json:"key_id,omitempty"`
	RunID     string      `json:"run_id,omitempty"`
	CreatedAt time.Time   `json:"created_at"`
	DecidedAt *time.Time  `json:"decided_at,omitempty"`
	DecidedBy string      `json:"decided_by,omitempty"`
}

// MemoryFilter chooses writings that are pending; the zero filter chooses all.
type MemoryFilter struct {
	AgentID string   // empty: any
	Agents  []string // only of these; empty, but not nil: of none
	Before  string   // the id after which the page begins
	Limit   int      // the newest so many; 0 is no limit
}

var memory = table[MemoryFile]{
	name: "memory", what: "memory file",
	columns: `id, agent_id, kind, path, content, removed, state, author, key_id, run_id, created_at, decided_at, decided_by`,
	order:   byPlace,
	args: func(m *MemoryFile) ([]any, error) {
		return []any{m.ID, m.AgentID, string(m.Kind), m.Path, m.Content, m.Removed, string(m.State), m.Author, m.KeyID, m.RunID,
			m.CreatedAt.UnixMilli(), millis(m.DecidedAt), m.DecidedBy}, nil
	},
	scan: func(rows *sql.Rows) (MemoryFile, error) {
		m, err := scanMemory(rows)
		m.Size = int64(len(m.Content))
		return m, err
	},
	id: func(m MemoryFile) string { return m.ID },
}

func scanMemory(rows *sql.Rows, more ...any) (m MemoryFile, err error) {
	var created int64
	var decided sql.NullInt64
	err = rows.Scan(append([]any{&m.ID, &m.AgentID, &m.Kind, &m.Path, &m.Content, &m.Removed, &m.State, &m.Author, &m.KeyID, &m.RunID,
		&created, &decided, &m.DecidedBy}, more...)...)
	m.CreatedAt, m.DecidedAt = fromMilli(created), fromMillis(decided)
	return m, err
}

// WriteMemory records the writing of a file, or its removal, as pending or approved as it says. An empty id or time is
// filled in. An approved one counts from now on.
func (s *Store) WriteMemory(ctx context.Context, m MemoryFile) (MemoryFile, error) {
	if m.ID == "" {
		m.ID = newID("mem")
	}
	if m.CreatedAt.IsZero() {
		m.CreatedAt = Now()
	}
	if err := checkMemory(m); err != nil {
		return MemoryFile{}, err
	}
	m.Size, m.DecidedAt = int64(len(m.Content)), nil
	err := s.tx(ctx, func(tx *sql.Tx) error {
		if err := needs(ctx, tx, "agents", "agent", m.AgentID); err != nil {
			return err
		}
		if m.State == MemoryApproved {
			at, err := decisionTime(ctx, tx, m, m.CreatedAt)
			if err != nil {
				return err
			}
			m.CreatedAt, m.DecidedAt = at, &at
		}
		if err := memory.insert(ctx, tx, &m); err != nil {
			return err
		}
		return happened(ctx, tx, EventMemoryWritten, m.AgentID, m.RunID, memoryData(m))
	})
	if err != nil {
		return MemoryFile{}, err
	}
	return m, nil
}

func memoryData(m MemoryFile) data {
	return data{"id": m.ID, "kind": m.Kind, "path": m.Path, "state": m.State}
}

func checkMemory(m MemoryFile) error {
	if err := checkOneOf("the kind of memory", m.Kind, MemoryNote, MemorySkill); err != nil {
		return err
	}
	if err := checkOneOf("the state of new memory", m.State, MemoryPending, MemoryApproved); err != nil {
		return err
	}
	if err := CheckMemoryPath(m.Path); err != nil {
		return err
	}
	if m.Removed && m.Content != "" {
		return fmt.Errorf("the removal of %q is %w: it has content", m.Path, ErrInvalid)
	}
	if err := checkText("the content of "+m.Path, m.Content, MaxContent); err != nil {
		return err
	}
	return checkLines(line{"the author", m.Author}, line{"the name of who decided", m.DecidedBy})
}

// DecideMemory approves or rejects a writing that is pending, named by its full id.
func (s *Store) DecideMemory(ctx context.Context, id string, approve bool, by string) (MemoryFile, error) {
	if err := checkLines(line{"the name of who decided", by}); err != nil {
		return MemoryFile{}, err
	}
	var m MemoryFile
	err := s.tx(ctx, func(tx *sql.Tx) error {
		var err error
		if m, err = memory.get(ctx, tx, id); err != nil {
			return err
		}
		if m.State != MemoryPending {
			return fmt.Errorf("memory file %s is %s already: %w", id, m.State, ErrFinal)
		}
		at := Now()
		m.State = MemoryRejected
		if approve {
			m.State = MemoryApproved
			if at, err = decisionTime(ctx, tx, m, at); err != nil {
				return err
			}
		}
		m.DecidedAt, m.DecidedBy = &at, by
		if err := memory.set(ctx, tx, &m); err != nil {
			return err
		}
		return happened(ctx, tx, EventMemoryDecided, m.AgentID, m.RunID, memoryData(m))
	})
	return m, err
}

// decisionTime is when a writing begins to hold: now, or, where the clock went back, just after what held before, so
// that what is decided last holds.
func decisionTime(ctx context.Context, tx *sql.Tx, m MemoryFile, now time.Time) (time.Time, error) {
	if !m.Removed {
		if err := checkRoom(ctx, tx, m); err != nil {
			return now, err
		}
	}
	last, err := number(ctx, tx, `SELECT coalesce(max(decided_at), 0) FROM memory
		WHERE agent_id = ? AND kind = ? AND path = ? AND state = 'approved'`, m.AgentID, string(m.Kind), m.Path)
	if err == nil && last >= now.UnixMilli() {
		now = fromMilli(last + 1)
	}
	return now, err
}

// checkRoom refuses a file where a directory is, and one below a file: no file system has both.
func checkRoom(ctx context.Context, tx *sql.Tx, m MemoryFile) error {
	var above []string
	for i, r := range m.Path {
		if r == '/' {
			above = append(above, m.Path[:i])
		}
	}
	// What is below a directory begins with its slash; '0' comes after '/'.
	found, err := collect(ctx, tx, scanText, `SELECT path FROM memory `+holds+` AND path > ? AND path < ? LIMIT 1`,
		m.AgentID, string(m.Kind), m.Path+"/", m.Path+"0")
	for _, path := range above {
		if err != nil || len(found) > 0 {
			break
		}
		found, err = collect(ctx, tx, scanText, `SELECT path FROM memory `+holds+` AND path = ?`, m.AgentID, string(m.Kind), path)
	}
	if err == nil && len(found) > 0 {
		err = fmt.Errorf("%q cannot be a file beside %q, one of them would be a directory: %w", m.Path, found[0], ErrExists)
	}
	return err
}

// holds chooses the writings that hold: of each path the approved one that was decided last, unless it is a removal.
const holds = `AS m WHERE agent_id = ? AND kind = ? AND state = 'approved' AND NOT removed AND NOT EXISTS (
	SELECT 1 FROM memory AS later WHERE later.agent_id = m.agent_id AND later.kind = m.kind AND later.path = m.path
		AND later.state = 'approved' AND (later.decided_at, later.place) > (m.decided_at, m.place))`

// Memory gives the files of an agent as they are now, by path.
func (s *Store) Memory(ctx context.Context, agentID string, kind MemoryKind) ([]MemoryFile, error) {
	return collect(ctx, s.reads, memory.scan, `SELECT `+memory.columns+` FROM memory `+holds+` ORDER BY path`, agentID, string(kind))
}

// MemoryNames gives the files of an agent as Memory does, without their contents.
func (s *Store) MemoryNames(ctx context.Context, agentID string, kind MemoryKind) ([]MemoryFile, error) {
	return collect(ctx, s.reads, scanMemoryName, `SELECT `+memoryNames+` FROM memory `+holds+` ORDER BY path`, agentID, string(kind))
}

// memoryNames are the columns of a file with the size of its content in place of it.
var memoryNames = strings.Replace(memory.columns, "content", "''", 1) + ", octet_length(content)"

func scanMemoryName(rows *sql.Rows) (MemoryFile, error) {
	var size int64
	m, err := scanMemory(rows, &size)
	m.Size = size
	return m, err
}

// MemoryFile is one file of an agent as it is now.
func (s *Store) MemoryFile(ctx context.Context, agentID string, kind MemoryKind, path string) (MemoryFile, error) {
	found, err := collect(ctx, s.reads, memory.scan, `SELECT `+memory.columns+` FROM memory `+holds+` AND path = ?`, agentID, string(kind), path)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("%s file %.220q: %w", kind, path, ErrNotFound)
	}
	if err != nil {
		return MemoryFile{}, err
	}
	return found[0], nil
}

// MemoryByID finds one writing, whatever was decided about it, by its id or by a beginning that only one has.
func (s *Store) MemoryByID(ctx context.Context, id string) (MemoryFile, error) {
	return memory.find(ctx, s.reads, id, "")
}

// PendingMemory gives the chosen writings about which nothing was decided, the newest first.
func (s *Store) PendingMemory(ctx context.Context, f MemoryFilter) ([]MemoryFile, error) {
	var c choice
	c.add(true, `state = 'pending'`)
	c.is(`agent_id`, f.AgentID)
	c.among(`agent_id`, f.Agents)
	return memory.list(ctx, s.reads, c, f.Before, f.Limit)
}

// MemoryHistory gives the last so many writings of one file, the newest first, whatever was decided about them; 0 is
// no limit.
func (s *Store) MemoryHistory(ctx context.Context, agentID string, kind MemoryKind, path string, limit int) ([]MemoryFile, error) {
	var c choice
	c.add(true, `agent_id = ? AND kind = ? AND path = ?`, agentID, string(kind), path)
	return memory.list(ctx, s.reads, c, "", limit)
}

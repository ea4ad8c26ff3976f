// Package snapshot makes the context snapshot: the read-only copy of an agent's instructions, memory and skills, of its
// session's conversation and of its tasks that a run boots with. It is plain files, so that any agent can read it.
//
// Nearly all that stands in it was written by others, who may be hostile: paths, names and texts. None of them decides
// where a file goes, looks like a line of Ravi's own or reaches a terminal, and none makes the snapshot larger than it
// may be. What is left out is told where it is missing, in the manifest and in the README.
//
// The package reads the record and writes beneath the directory that it is given, nothing else. It must not change the
// record, and knows nothing of sandboxes, keys or HTTP.
package snapshot

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ravi/internal/access"
	"ravi/internal/redact"
	"ravi/internal/store"
)

// Bounds of a snapshot, in bytes.
const (
	DefaultMaxBytes = 8 << 20
	MinBytes        = 128 << 10
)

// ErrOtherAgent refuses a snapshot of one agent with the session of another.
var ErrOtherAgent = errors.New("the session is another agent's")

// Options say what a snapshot is of. Ids are full ones.
type Options struct {
	// SessionID is the conversation, and TaskID the run's own task; both may be missing.
	SessionID, TaskID string
	// AgentID is whose instructions and memory it is; empty: the session's, or the task's.
	AgentID string
	// RunID is the run that it is made for, if any.
	RunID string
	// Redact takes known secrets out of everything.
	Redact *redact.Redactor
	// MaxBytes bounds all files together, 0 is DefaultMaxBytes.
	MaxBytes int64
	// Connected says that the run can ask for live data, and Capabilities what it may.
	Connected    bool
	Capabilities access.Capabilities
	// Time is when the snapshot is made; zero: now.
	Time time.Time
}

// Manifest says what a snapshot holds, and what it does not.
type Manifest struct {
	Version   int       `json:"version"`
	Time      time.Time `json:"time"`
	AgentID   string    `json:"agent_id,omitempty"`
	SessionID string    `json:"session_id,omitempty"`
	TaskID    string    `json:"task_id,omitempty"`
	RunID     string    `json:"run_id,omitempty"`
	Connected bool      `json:"connected"`
	MaxBytes  int64     `json:"max_bytes"`
	Bytes     int64     `json:"bytes"` // of the files below; the manifest is not among them
	Files     []File    `json:"files"`
	Cuts      []Cut     `json:"cuts"`
}

// File is a file of a snapshot.
type File struct {
	Path   string `json:"path"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	Whose  string `json:"whose"`
	// ID is the record that the file was made of, where it is one.
	ID string `json:"id,omitempty"`
	// Cut says that not all of it is here.
	Cut bool `json:"cut,omitempty"`
}

// Cut is something that a snapshot does not hold.
type Cut struct {
	Path  string `json:"path"`
	Count int64  `json:"count,omitempty"`
	What  string `json:"what"`
}

// String is a cut as people read it.
func (c Cut) String() string {
	if c.Count > 0 {
		return fmt.Sprintf("%s: %d %s", c.Path, c.Count, c.What)
	}
	return c.Path + ": " + c.What
}

// Build makes a snapshot in dir, which is empty or not there. Files, and dir if it is made here, are readable by all, so
// that whoever the reader is in a sandbox can read them: what keeps others on this machine out is the mode of a directory
// above, or of a dir that is there, which stays as it is. If Build fails, nothing of it stays. The manifest is written
// last.
func Build(ctx context.Context, st *store.Store, o Options, dir string) (Manifest, error) {
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.MaxBytes < MinBytes {
		return Manifest{}, fmt.Errorf("a context snapshot of %d bytes is too small to be of use: allow %d at least", o.MaxBytes, MinBytes)
	}
	if o.Time.IsZero() {
		o.Time = store.Now()
	}
	o.Time = o.Time.UTC()
	b := newBuilder(st, o)
	if err := b.gather(ctx); err != nil {
		return Manifest{}, fmt.Errorf("cannot gather the context: %w", err)
	}
	m, err := b.finish()
	if err != nil {
		return Manifest{}, err
	}
	if err := writeAll(ctx, dir, b.files); err != nil {
		return Manifest{}, fmt.Errorf("cannot write the context to %s: %w", dir, err)
	}
	return m, nil
}

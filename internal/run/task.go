package run

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"ravi/internal/gitbox"
	"ravi/internal/redact"
	"ravi/internal/store"
)

// Names in a run's directory.
const (
	TaskTextFile = "TASK.md"            // what was asked for
	TaskFile     = "task.json"          // what came of it
	PatchFile    = "changes.patch"      // what was changed
	HeldFile     = "changes.patch.held" // the same, in its place, when it holds a secret
	EventsFile   = "events.jsonl"       // what happened, a line each
	LogsDir      = "logs"               // what the command wrote
	ModelsFile   = "models.jsonl"       // what its models were asked and answered, if that is kept
	StateFile    = "agent-state.tar"    // what the agent program kept of its conversation, as the guest packed it
)

// Task is task.json: the outcome of a run.
type Task struct {
	ID     string          `json:"id"`
	Status store.RunStatus `json:"status"`
	// ExitCode is the command's own; null if it gave none.
	ExitCode *int `json:"exit_code"`
	// Signal is what ended the command, if a signal did.
	Signal int `json:"signal,omitempty"`
	// Reason says who decided, when it was not the command: timeout, oom,
	// signal, canceled, and for what Ravi could not do the step that failed.
	Reason string `json:"reason,omitempty"`
	// Error is what went wrong, for people.
	Error   string   `json:"error,omitempty"`
	Hint    string   `json:"hint,omitempty"`
	Command []string `json:"command"`
	Repo    string   `json:"repo"`
	// Base is what the run started from.
	Base *gitbox.Base `json:"base"`
	// Timings are the steps in milliseconds.
	Timings map[string]int64 `json:"timings"`
	Sandbox string           `json:"sandbox,omitempty"`
	Backend string           `json:"backend"`
	Image   string           `json:"image"`
	Limits  store.Limits     `json:"limits"`
	Patch   *Patch           `json:"patch"`
	Output  Output           `json:"output"`
	// Agent is the agent program that did the task, Models what the models were asked for.
	Agent  string    `json:"agent,omitempty"`
	Models *ModelUse `json:"models,omitempty"`
	// Answer is what the agent said last.
	Answer string `json:"answer,omitempty"`
	// Conversation is there where the agent program keeps any.
	Conversation *Conversation `json:"conversation,omitempty"`
	// Applied are the paths that --apply changed in the user's tree.
	Applied []string `json:"applied,omitempty"`
	// Suggested are rules for allow_net that would have allowed what the
	// network refused.
	Suggested []string `json:"suggested_rules,omitempty"`
	// Notes are what the user should know besides.
	Notes     []string   `json:"notes,omitempty"`
	Dir       string     `json:"dir"`
	StartedAt time.Time  `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`

	// Exit is the exit status of `ravi sandbox run`.
	Exit int `json:"-"`
}

// Patch is what is known of changes.patch.
type Patch struct {
	Files      int    `json:"files"`
	Insertions int    `json:"insertions"`
	Deletions  int    `json:"deletions"`
	Bytes      int64  `json:"bytes"`
	SHA256     string `json:"sha256"`
	// Applies: it was applied to a clean checkout of the base, and gave what
	// the sandbox held.
	Applies bool `json:"applies"`
	// Partial: the sandbox ended before the last state could be taken; this is
	// the state that was saved before.
	Partial bool                `json:"partial,omitempty"`
	Paths   []gitbox.PathChange `json:"paths,omitempty"`
	// Risky are paths that programs of the user's would execute or obey.
	Risky []gitbox.RiskyPath `json:"risky,omitempty"`
	// LFS are changed files whose content is not in the patch.
	LFS []string `json:"lfs,omitempty"`
	// Secrets are the names of those whose values the patch holds. It is then
	// held back: changes.patch is missing, and changes.patch.held there.
	Secrets []string `json:"secrets,omitempty"`
}

// Output says how much the command wrote, and whether the logs have all of it.
type Output struct {
	Bytes     int64 `json:"bytes"`
	Truncated bool  `json:"truncated"`
}

// folder is the directory of one run.
type folder struct {
	dir    string
	redact *redact.Redactor // for all that is written here but the patch

	mu     sync.Mutex
	events *os.File
}

func newFolder(home, id string, r *redact.Redactor) (*folder, error) {
	f := &folder{dir: filepath.Join(home, "runs", id), redact: r}
	if err := os.MkdirAll(filepath.Join(f.dir, LogsDir), 0o700); err != nil {
		return nil, fmt.Errorf("making the run's folder: %w", err)
	}
	var err error
	f.events, err = os.OpenFile(f.path(EventsFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	return f, err
}

func (f *folder) path(name string) string { return filepath.Join(f.dir, name) }

func (f *folder) close() { f.events.Close() }

// event appends one line to events.jsonl. What cannot be written there is not
// worth ending a run for; task.json is written at the end in any case.
func (f *folder) event(kind string, fields map[string]any) {
	line := map[string]any{"time": time.Now().UTC().Format(time.RFC3339Nano), "event": kind}
	for k, v := range scrub(f.redact, fields) {
		line[k] = v
	}
	b, err := json.Marshal(line)
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, _ = f.events.Write(append(b, '\n'))
}

// write replaces a file as a whole.
func (f *folder) write(name string, b []byte) error {
	tmp := f.path(name + ".tmp")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, f.path(name))
}

func (f *folder) writeTask(t *Task) error {
	b, err := json.MarshalIndent(scrub(f.redact, t), "", "  ")
	if err != nil {
		return err
	}
	return f.write(TaskFile, append(b, '\n'))
}

// ReadTask reads what came of a run from its folder. Where nothing is left of it the error is fs.ErrNotExist.
func ReadTask(dir string) (t Task, err error) {
	b, err := os.ReadFile(filepath.Join(dir, TaskFile))
	if err != nil {
		return t, err
	}
	if err := json.Unmarshal(b, &t); err != nil {
		return t, fmt.Errorf("the outcome of the run in %s: %w", dir, err)
	}
	return t, nil
}

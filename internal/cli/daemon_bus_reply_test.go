package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	runs "ravi/internal/run"
	"ravi/internal/store"
)

// A run whose folder was lost, or spoiled, has an outcome all the same, so that its session goes on.
func TestReplyOfALostRun(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"the folder": os.RemoveAll,
		"no task":    func(dir string) error { return os.Remove(filepath.Join(dir, runs.TaskFile)) },
		"half a task": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, runs.TaskFile), []byte(`{"id":`), 0o600)
		},
		"an empty one": func(dir string) error { return os.WriteFile(filepath.Join(dir, runs.TaskFile), nil, 0o600) },
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, runs.TaskFile), []byte(`{"answer":"yes"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		r := store.Run{ID: "run1", Status: store.RunSucceeded, Dir: dir}
		if m, err := replyOf(t.Context(), store.Work{}, r); err != nil || m.Text != "yes" {
			t.Fatalf("a good one: %q, %v", m.Text, err)
		}
		if err := spoil(dir); err != nil {
			t.Fatal(err)
		}
		m, err := replyOf(t.Context(), store.Work{}, r)
		if err != nil || !strings.Contains(m.Text, "ended as succeeded; what it left cannot be read") {
			t.Errorf("%s: %q, %v", name, m.Text, err)
		}
	}
}

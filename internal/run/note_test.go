package run

import (
	"strings"
	"sync"
	"testing"

	"ravi/internal/redact"
)

// What several tell at once is all kept, and told one after the other.
func TestNotesAtOnce(t *testing.T) {
	dir, err := newFolder(t.TempDir(), "run01", &redact.Redactor{})
	if err != nil {
		t.Fatal(err)
	}
	defer dir.close()
	told := 0
	s := &state{Options: Options{Redact: &redact.Redactor{}, Note: func(string) { told++ }}, task: &Task{}, dir: dir}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 50 {
				s.note("the %d", i)
			}
		})
	}
	all.Wait()
	if len(s.task.Notes) != 400 || told != 400 || strings.Count(strings.Join(s.task.Notes, " "), "the 49") != 8 {
		t.Errorf("%d notes are kept, and %d were told", len(s.task.Notes), told)
	}
}

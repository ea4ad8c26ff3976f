package run

import "fmt"

// note tells something beside the steps, and keeps it in task.json.
func (s *state) note(format string, args ...any) {
	n := s.Redact.String(fmt.Sprintf(format, args...))
	s.noting.Lock()
	defer s.noting.Unlock()
	s.task.Notes = append(s.task.Notes, n)
	s.dir.event("note", map[string]any{"text": n})
	if s.Note != nil {
		s.Note(n)
	}
}

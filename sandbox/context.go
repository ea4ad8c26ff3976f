package sandbox

import (
	"fmt"
	"os"
	"path/filepath"

	"ravi/internal/backend"
)

// guestContext is where the context is seen.
const guestContext = "/ravi/context"

// WithContext shows a folder of the host, read-only, as /ravi/context. What
// belongs to the folder's owner is seen as the sandbox's user's. Without root
// there is no such translation: files must be readable by all, and the folder
// above may be closed instead. On the host backend the folder is seen where it
// is, and only if that is sealed (WithService) it cannot be written.
func WithContext(dir string) Option { return func(o *options) { o.context = dir } }

// ContextDir is where the folder of WithContext is, as the sandbox sees it; empty
// if there is none.
func (s *Sandbox) ContextDir() string { return s.context }

// takeContext describes the folder to the backend.
func (s *Sandbox) takeContext(dir string) ([]backend.Mount, error) {
	if dir == "" {
		return nil, nil
	}
	real, err := filepath.EvalSymlinks(dir)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return nil, fmt.Errorf("the context %s: %w", dir, unwrapPath(err))
	}
	if st, err := os.Stat(real); err != nil {
		return nil, err
	} else if !st.IsDir() {
		return nil, fmt.Errorf("the context %s is not a folder", dir)
	}
	if s.backend == BackendHost {
		s.context = real
		if s.sealed() {
			return []backend.Mount{{Host: real, Guest: real, ReadOnly: true}}, nil
		}
		return nil, nil
	}
	s.context = guestContext
	return []backend.Mount{{Host: real, Guest: guestContext, ReadOnly: true, Own: true}}, nil
}

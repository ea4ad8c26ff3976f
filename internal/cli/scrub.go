package cli

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"ravi/internal/command"
	"ravi/internal/redact"
	"ravi/internal/secret"
)

// scrubber takes the values in the store of secrets out of texts that are written down. It looks again when the store
// was changed.
type scrubber struct {
	env *command.Env
	// failed hears that the store could not be read again; what was known before is taken out all the same.
	failed func(error)

	mu   sync.Mutex
	seen stamp
	r    *redact.Redactor
}

// stamp says which state of a file was read; the zero stamp is that of none.
type stamp struct {
	size  int64
	mtime time.Time
}

// newScrubber reads the store. If that cannot be done nothing can be written down, so nothing is done.
func newScrubber(ctx context.Context, env *command.Env, failed func(error)) (s *scrubber, err error) {
	s = &scrubber{env: env, failed: failed}
	if s.seen, err = s.stamp(); err == nil {
		s.r, err = knownSecrets(ctx, env)
	}
	return s, err
}

// Now takes the values out of texts, of the secrets that there are now.
func (s *scrubber) Now() func(string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.stamp()
	if err == nil && now != s.seen {
		var r *redact.Redactor
		if r, err = knownSecrets(context.Background(), s.env); err == nil {
			s.r = r
		}
		s.seen = now
	}
	if err != nil {
		s.failed(err)
	}
	return s.r.String
}

func (s *scrubber) stamp() (stamp, error) {
	home, err := s.env.Home()
	if err != nil {
		return stamp{}, err
	}
	info, err := os.Stat(filepath.Join(home, secret.File))
	if errors.Is(err, fs.ErrNotExist) {
		return stamp{}, nil
	}
	if err != nil {
		return stamp{}, err
	}
	return stamp{info.Size(), info.ModTime()}, nil
}

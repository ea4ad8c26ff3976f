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

// WithReadOnly shows a folder of the host, read-only, at a path of the sandbox. It is
// for folders of this program's own, also beneath Ravi's home, where the
// configuration's volumes cannot lead; what was said of owners at WithContext holds
// for it. On the host backend it is seen where it is.
func WithReadOnly(dir, guest string) Option {
	return func(o *options) { o.readOnly = append(o.readOnly, Volume{Host: dir, Guest: guest, ReadOnly: true}) }
}

// takeContext describes the folders of WithContext and WithReadOnly to the backend.
func (s *Sandbox) takeContext(dir string, others []Volume) (mounts []backend.Mount, err error) {
	if dir != "" {
		at, m, err := s.showFolder("context", Volume{Host: dir, Guest: guestContext})
		if err != nil {
			return nil, err
		}
		s.context, mounts = at, append(mounts, m...)
	}
	for _, v := range others {
		_, m, err := s.showFolder("folder", v)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, m...)
	}
	return mounts, nil
}

// showFolder says where the sandbox sees a folder, and what has to be mounted for that.
func (s *Sandbox) showFolder(what string, v Volume) (at string, mounts []backend.Mount, err error) {
	real, err := filepath.EvalSymlinks(v.Host)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return "", nil, fmt.Errorf("the %s %s: %w", what, v.Host, unwrapPath(err))
	}
	if st, err := os.Stat(real); err != nil {
		return "", nil, err
	} else if !st.IsDir() {
		return "", nil, fmt.Errorf("the %s %s is not a folder", what, v.Host)
	}
	switch {
	case s.backend != BackendHost:
		return v.Guest, []backend.Mount{{Host: real, Guest: v.Guest, ReadOnly: true, Own: true, Copy: true, Keep: v.Guest != guestContext}}, nil
	case s.sealed():
		return real, []backend.Mount{{Host: real, Guest: real, ReadOnly: true}}, nil
	}
	return real, nil, nil
}

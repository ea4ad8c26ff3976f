package run

import (
	"context"
	"time"

	"ravi/internal/store"
)

// heedEvery is how often a run whose sandbox is elsewhere looks whether it was canceled.
const heedEvery = 200 * time.Millisecond

// heedCancel ends the sandbox of a run that was canceled, where whoever cancels it cannot: it is on another machine. It
// heeds until stop.
func (s *state) heedCancel(ctx context.Context) (stop func()) {
	if s.Elsewhere == nil {
		return func() {}
	}
	ctx = context.WithoutCancel(ctx)
	w, err := s.Store.Watch(ctx)
	if err != nil {
		s.dir.event("cancel_not_heeded", map[string]any{"error": err.Error()})
		return func() {}
	}
	beat := begin(ctx, heedEvery, func(ctx context.Context) {
		changed, err := w.Changed(ctx)
		if err != nil || !changed {
			return // it is asked again
		}
		if r, err := s.Store.Run(ctx, s.task.ID); err == nil && r.Status == store.RunCanceled {
			_ = s.sb.Close() // the run closes it too, and says what came of that
		}
	})
	return func() {
		beat.end()
		_ = w.Close() // nothing was written by it
	}
}

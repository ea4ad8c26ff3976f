package sandbox

import (
	"context"
	"time"
)

// Stats is what the host counts for a sandbox: all of it, its kernel included.
// What the backend cannot count is 0.
type Stats struct {
	MemoryBytes     int64
	MemoryPeakBytes int64
	CPUTime         time.Duration
	// Processes of the host that belong to it.
	Processes int
	// OOMKills is how often the host's kernel ended one at the memory limit.
	OOMKills int64
}

// Stats asks what the sandbox uses now.
func (s *Sandbox) Stats(ctx context.Context) (Stats, error) {
	st, err := s.inst.Stats(ctx)
	if err != nil {
		return Stats{}, s.explain(ctx, err)
	}
	return Stats{
		MemoryBytes: st.MemoryBytes, MemoryPeakBytes: st.MemoryPeakBytes,
		CPUTime: st.CPUTime, Processes: st.Processes, OOMKills: st.OOMKills,
	}, nil
}

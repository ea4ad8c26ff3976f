package guest

import (
	"fmt"
	"sync"

	"ravi/internal/link"
)

// lanes are the pipes beside the link that this program was born with. Each is
// for one process: whatever that left behind may still hold it.
type lanes struct {
	mu   sync.Mutex
	free map[uint32]link.End // by their numbers, which begin with 1
}

func newLanes(all []link.End) *lanes {
	l := &lanes{free: map[uint32]link.End{}}
	for i, end := range all {
		l.free[uint32(i+1)] = end
	}
	return l
}

// take gives a lane out.
func (l *lanes) take(number uint32) (link.End, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	end, ok := l.free[number]
	if !ok {
		return end, fmt.Errorf("%w: there is no lane %d, or it was used", errBadArgument, number)
	}
	delete(l.free, number)
	return end, nil
}

// giveBack is for a lane that no process has got.
func (l *lanes) giveBack(number uint32, end link.End) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free[number] = end
}

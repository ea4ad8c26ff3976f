package guard

import (
	"container/list"
	"sync"
	"time"
)

// Limiter bounds how often something is done for each of many keys: burst times at once, and perSecond from then on.
// It remembers a bounded number of keys, and forgets only those that have been quiet long enough to start anew anyway.
// Where there is no room for another, all new ones share one measure, so that whoever makes up keys gains nothing.
type Limiter struct {
	perSecond, burst float64
	max              int
	now              func() time.Time

	mu     sync.Mutex
	keys   map[string]*list.Element
	recent *list.List // of *bucket, the longest quiet at the back
	rest   bucket     // of those for whom there is no room
}

type bucket struct {
	key    string
	tokens float64
	at     time.Time
}

// NewLimiter makes one; now is the clock, nil for the machine's.
func NewLimiter(perSecond float64, burst, maxKeys int, now func() time.Time) *Limiter {
	if now == nil {
		now = time.Now
	}
	return &Limiter{
		perSecond: perSecond, burst: float64(burst), max: maxKeys, now: now,
		keys: map[string]*list.Element{}, recent: list.New(), rest: bucket{tokens: float64(burst), at: now()},
	}
}

// Allow says whether it may be done now for this key, and if not, after which time it may.
func (l *Limiter) Allow(key string) (ok bool, after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	b := l.find(key, now)
	// A clock that was set back gives nothing, and takes nothing.
	if passed := now.Sub(b.at); passed > 0 {
		b.tokens = min(l.burst, b.tokens+passed.Seconds()*l.perSecond)
	}
	b.at = now
	if b.tokens >= 1 {
		b.tokens--
		return true, 0
	}
	return false, time.Duration((1 - b.tokens) / l.perSecond * float64(time.Second))
}

func (l *Limiter) find(key string, now time.Time) *bucket {
	if e := l.keys[key]; e != nil {
		l.recent.MoveToFront(e)
		return e.Value.(*bucket)
	}
	if len(l.keys) >= l.max {
		oldest := l.recent.Back()
		if oldest == nil || now.Sub(oldest.Value.(*bucket).at).Seconds()*l.perSecond < l.burst {
			return &l.rest
		}
		delete(l.keys, l.recent.Remove(oldest).(*bucket).key)
	}
	b := &bucket{key: key, tokens: l.burst, at: now}
	l.keys[key] = l.recent.PushFront(b)
	return b
}

package broker

import (
	"context"
	"sync"
)

// budget bounds what all calls together keep at once.
type budget struct {
	mu    sync.Mutex
	freed sync.Cond
	left  int64
}

func newBudget(most int64) *budget {
	b := &budget{left: most}
	b.freed.L = &b.mu
	return b
}

// take waits until there is so much, at most as long as ctx lasts.
func (b *budget) take(ctx context.Context, n int64) error {
	wake := context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.freed.Broadcast()
	})
	defer wake()
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.left < n {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		b.freed.Wait()
	}
	b.left -= n
	return nil
}

// grab takes so much if it is there.
func (b *budget) grab(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left < n {
		return false
	}
	b.left -= n
	return true
}

func (b *budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += n
	b.freed.Broadcast()
}

// memory knows the last of the names that it was told.
type memory struct {
	mu    sync.Mutex
	names map[string]bool
	order []string // a ring
	next  int
}

const (
	maxNames = 4096
	maxName  = 256
)

func (m *memory) add(name string) {
	if name == "" || len(name) > maxName {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[name] {
		return
	}
	if m.names == nil {
		m.names = map[string]bool{}
	}
	if len(m.order) < maxNames {
		m.order = append(m.order, name)
	} else {
		delete(m.names, m.order[m.next])
		m.order[m.next] = name
		m.next = (m.next + 1) % maxNames
	}
	m.names[name] = true
}

func (m *memory) has(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.names[name]
}

package runner

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"ravi/internal/backend/remote"
)

// Capacity is what the sandboxes of a runner can have in all.
type Capacity struct {
	// CPUs are processors' time. Most sandboxes wait most of the time, so it may be more than there is: without it, it is
	// four times that, or what a control group leaves of it.
	CPUs float64 `json:"cpus"`
	// MemoryMiB is memory; without it, what the machine has or a control group leaves of it, less an eighth.
	MemoryMiB int64 `json:"memory_mib"`
	// Sandboxes is how many there are at once; without it, 256.
	Sandboxes int `json:"sandboxes"`
	// DiskMiB bounds what one sandbox may write; without it, 64 GiB.
	DiskMiB int64 `json:"disk_mib"`
}

// fill puts in what is left out.
func (c *Capacity) fill() error {
	if c.CPUs < 0 || c.MemoryMiB < 0 || c.Sandboxes < 0 || c.DiskMiB < 0 {
		return errors.New("a runner's capacity is not negative")
	}
	if c.CPUs == 0 {
		c.CPUs = 4 * float64(runtime.GOMAXPROCS(0))
	}
	if c.MemoryMiB == 0 {
		total, _, err := ownMemory()
		if err != nil {
			return err
		}
		c.MemoryMiB = (total - total/8) >> 20
	}
	if c.Sandboxes == 0 {
		c.Sandboxes = 256
	}
	if c.DiskMiB == 0 {
		c.DiskMiB = 64 << 10
	}
	return nil
}

// Cost is the memory that a sandbox with that much of its own takes of the machine, in bytes.
func Cost(memory int64) int64 { return cost(memory) }

// room is what is given to sandboxes and what is left.
type room struct {
	capacity  Capacity
	available func() (int64, error) // bytes of memory that are left

	mu       sync.Mutex
	cpus     float64 // given
	memory   int64   // given, bytes
	running  int
	draining bool
	change   chan struct{} // closed, and made anew, with every sandbox that ends
}

func newRoom(c Capacity, available func() (int64, error)) *room {
	if available == nil {
		available = Available
	}
	return &room{capacity: c, available: available, change: make(chan struct{})}
}

// cost is the memory that a sandbox takes of the machine: its own, and what gVisor gets on top of that (package gvisor).
func cost(memory int64) int64 { return memory + 64<<20 + memory/32 }

// take gives a sandbox its part, until free is called. Errors are remote.ErrFull, ErrDraining and ErrRefused.
func (r *room) take(cpus float64, memory int64) (free func(), err error) {
	memory = cost(memory)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.draining:
		return nil, remote.ErrDraining
	case cpus > r.capacity.CPUs:
		return nil, fmt.Errorf("%w: it has %g processors in all, and %g were asked for", remote.ErrRefused, r.capacity.CPUs, cpus)
	case memory > r.capacity.MemoryMiB<<20:
		return nil, fmt.Errorf("%w: it has %d MiB of memory in all, and the sandbox takes %d MiB", remote.ErrRefused, r.capacity.MemoryMiB, memory>>20)
	case r.running >= r.capacity.Sandboxes:
		return nil, fmt.Errorf("%w: it has %d sandboxes, which is the most", remote.ErrFull, r.running)
	case r.cpus+cpus > r.capacity.CPUs:
		return nil, fmt.Errorf("%w: %g of its %g processors are free", remote.ErrFull, r.capacity.CPUs-r.cpus, r.capacity.CPUs)
	}
	left, err := r.left()
	if err != nil {
		return nil, err
	}
	if memory > left {
		return nil, fmt.Errorf("%w: %d MiB of its memory are free", remote.ErrFull, max(0, left>>20))
	}
	r.cpus += cpus
	r.memory += memory
	r.running++
	var once sync.Once
	return func() {
		once.Do(func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.cpus -= cpus
			r.memory -= memory
			if r.running--; r.running == 0 {
				r.cpus = 0 // what rounding left
			}
			close(r.change)
			r.change = make(chan struct{})
		})
	}, nil
}

// left is the memory that can be given: what is not given, or what the machine has left, if that is less.
func (r *room) left() (int64, error) {
	available, err := r.available()
	if err != nil {
		return 0, err
	}
	return min(r.capacity.MemoryMiB<<20-r.memory, available), nil
}

func (r *room) status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Status{Capacity: r.capacity, Running: r.running, Draining: r.draining, Free: Capacity{DiskMiB: r.capacity.DiskMiB}}
	if r.draining {
		return s
	}
	left, err := r.left()
	if err != nil {
		return s // nothing is free that nobody can count
	}
	s.Free.CPUs, s.Free.MemoryMiB, s.Free.Sandboxes = max(0, r.capacity.CPUs-r.cpus), max(0, left>>20), r.capacity.Sandboxes-r.running
	return s
}

func (r *room) drain(ctx context.Context) error {
	for {
		r.mu.Lock()
		r.draining = true
		running, change := r.running, r.change
		r.mu.Unlock()
		if running == 0 {
			return nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return fmt.Errorf("%d sandboxes are still there: %w", running, context.Cause(ctx))
		}
	}
}

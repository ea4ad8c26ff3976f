package guest

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// reaper starts child processes and collects every exit status exactly once.
//
// As PID 1 the agent inherits orphans, so it has to wait for any child; a
// second waiter for single children (os/exec) would then race with it for
// their statuses. So all children are started here, with syscall.ForkExec.
// Starting holds mu for reading from before the fork until the child is
// registered, and reaping holds it for writing: a child that ends at once is
// never reaped before it is known, and a known pid that is not yet reaped
// cannot be another process, which makes signalling by pid safe.
type reaper struct {
	all bool

	mu       sync.RWMutex
	childMu  sync.Mutex
	children map[int]chan<- syscall.WaitStatus

	signals chan os.Signal
	done    chan struct{}
	stopped chan struct{}
}

// newReaper makes a reaper. With all set it collects every child of this
// process and every orphan that comes to it; without, only what it started,
// for use inside a program that has children of its own.
func newReaper(all bool) *reaper {
	r := &reaper{
		all:      all,
		children: make(map[int]chan<- syscall.WaitStatus),
		done:     make(chan struct{}),
		stopped:  make(chan struct{}),
	}
	if !all {
		close(r.stopped)
		return r
	}
	r.signals = make(chan os.Signal, 1)
	signal.Notify(r.signals, unix.SIGCHLD)
	go r.loop()
	return r
}

func (r *reaper) close() {
	close(r.done)
	<-r.stopped
}

// start runs argv and returns its pid and where its status will come.
func (r *reaper) start(path string, argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	status := make(chan syscall.WaitStatus, 1)
	r.mu.RLock()
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		r.mu.RUnlock()
		return 0, nil, err
	}
	r.childMu.Lock()
	r.children[pid] = status
	r.childMu.Unlock()
	r.mu.RUnlock()
	if !r.all {
		go r.waitOne(pid)
	}
	return pid, status, nil
}

// alive calls f while pid is a child that has not been reaped, and says
// whether it was one.
func (r *reaper) alive(pid int, f func()) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	r.childMu.Lock()
	_, ok := r.children[pid]
	r.childMu.Unlock()
	if ok {
		f()
	}
	return ok
}

func (r *reaper) loop() {
	defer close(r.stopped)
	defer signal.Stop(r.signals)
	for {
		r.collect()
		select {
		case <-r.signals:
		case <-r.done:
			return
		}
	}
}

// collect reaps every child that has ended. Signals of the same kind merge,
// so one SIGCHLD may stand for a thousand of them.
func (r *reaper) collect() {
	for {
		var status syscall.WaitStatus
		r.mu.Lock()
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			r.mu.Unlock()
			continue
		}
		if err != nil || pid <= 0 {
			r.mu.Unlock()
			return
		}
		r.deliver(pid, status)
		r.mu.Unlock()
	}
}

// waitOne collects one child. It peeks first, without the lock, and reaps
// under it.
func (r *reaper) waitOne(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	var status syscall.WaitStatus
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if _, err := syscall.Wait4(pid, &status, 0, nil); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	r.deliver(pid, status)
}

// deliver hands a status to whoever started the child; an orphan has nobody.
func (r *reaper) deliver(pid int, status syscall.WaitStatus) {
	r.childMu.Lock()
	defer r.childMu.Unlock()
	if ch, ok := r.children[pid]; ok {
		delete(r.children, pid)
		ch <- status
	}
}

package guest

import (
	"context"
	"sync"
	"time"

	"ravi/internal/guestapi/process"
)

// output passes what a process writes to all that are attached to it.
//
// Every reader gets every chunk from when it attached, and the slowest sets
// the pace: publish waits for it. While nobody is attached chunks go to the
// spool; when that is full, publish waits too, so that the pipe fills and the
// process blocks. Nothing is ever dropped but by discard.
type output struct {
	publishing sync.Mutex // held by the one publisher, so that order holds

	mu      sync.Mutex
	spool   spool
	readers map[*outputReader]struct{}
	owner   *outputReader // the reader that drains the spool
	change  chan struct{} // closed, and made anew, when a publisher should look again
	end     *process.ProcessEvent_EndEvent
	ended   chan struct{}
	dropped bool // discard was called
	seen    bool // somebody was told of the end
}

func newOutput(spoolDir string, spoolLimit int64) *output {
	return &output{
		spool:   spool{dir: spoolDir, limit: spoolLimit},
		readers: make(map[*outputReader]struct{}),
		change:  make(chan struct{}),
		ended:   make(chan struct{}),
	}
}

// outputReader is one attached reader.
type outputReader struct {
	out    *output
	chunks chan chunk // without a buffer: a chunk is taken or still the publisher's
	gone   chan struct{}
}

// attach adds a reader. The first one to come gets what was kept.
func (o *output) attach() *outputReader {
	r := &outputReader{out: o, chunks: make(chan chunk), gone: make(chan struct{})}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.readers[r] = struct{}{}
	if o.owner == nil && !o.spool.empty() {
		o.owner = r
	}
	o.changed()
	return r
}

// detach removes the reader. Of what it took, undelivered is put back if
// nobody else is there to have got it.
func (r *outputReader) detach(undelivered *chunk) {
	o := r.out
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.readers, r)
	if undelivered != nil && !undelivered.kept && (o.owner == r || len(o.readers) == 0) && !o.dropped {
		o.spool.unread(*undelivered)
	}
	if o.owner == r {
		// The others are past what is left of the spool. It waits for the next.
		o.owner = nil
	}
	close(r.gone)
	o.changed()
}

func (o *output) changed() {
	close(o.change)
	o.change = make(chan struct{})
}

// publish delivers c. It returns when every attached reader has taken it, or
// it is kept, or the output was discarded.
func (o *output) publish(c chunk) {
	o.publishing.Lock()
	defer o.publishing.Unlock()
	for {
		o.mu.Lock()
		if o.dropped {
			o.mu.Unlock()
			return
		}
		change := o.change
		live := make([]*outputReader, 0, len(o.readers))
		for r := range o.readers {
			if r != o.owner {
				live = append(live, r)
			}
		}
		done := false
		if o.owner != nil || len(o.readers) == 0 {
			// A file that cannot grow (a full disk) holds the process up just
			// as a full spool does: until somebody reads.
			if err := o.spool.append(c); err != nil {
				o.mu.Unlock()
				<-change
				continue
			}
			done = true
			o.changed()
		}
		o.mu.Unlock()

		c.kept = done
		for _, r := range live {
			select {
			case r.chunks <- c:
				done = true
			case <-r.gone:
			}
		}
		if done {
			return
		}
	}
}

// finish says that there is no more output and how the process ended.
func (o *output) finish(end *process.ProcessEvent_EndEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.end = end
	close(o.ended)
}

// discard frees what is kept and lets every publisher go on.
func (o *output) discard() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dropped = true
	o.spool.close()
	o.owner = nil
	o.changed()
}

// next returns the next chunk or, after the last, the end; neither when wake
// fires first.
func (r *outputReader) next(ctx context.Context, wake <-chan time.Time) (c *chunk, end *process.ProcessEvent_EndEvent, err error) {
	o := r.out
	for {
		o.mu.Lock()
		if o.owner == r {
			kept, ok, err := o.spool.next()
			if err != nil {
				o.mu.Unlock()
				return nil, nil, err
			}
			if ok {
				o.changed()
				o.mu.Unlock()
				return &kept, nil, nil
			}
			o.owner = nil
			o.changed()
		}
		change := o.change
		o.mu.Unlock()
		select {
		case c := <-r.chunks:
			return &c, nil, nil
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-wake:
			return nil, nil, nil
		case <-change:
			// Perhaps this reader owns the spool now.
		case <-o.ended:
			return nil, o.end, nil
		}
	}
}

// markSeen notes that somebody was told of the end.
func (o *output) markSeen() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen = true
}

// wasSeen says whether somebody was told of the end.
func (o *output) wasSeen() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen
}

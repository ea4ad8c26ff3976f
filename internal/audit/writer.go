package audit

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"ravi/internal/store"
)

// ErrClosed refuses rows for a Writer that was closed.
var ErrClosed = errors.New("the audit's writer was closed")

const (
	// mostRows bounds one transaction.
	mostRows = 1000
	// floodEvery is how long equal denials are counted before they are written.
	floodEvery = time.Minute
	// checkpointEvery is after how many transactions the database's log is moved into it: each adds some 20 KB.
	checkpointEvery = 400
)

// Writer appends for many at once: what has gathered while one transaction was made durable goes into the next. Each
// caller waits for its own rows only. It is safe for concurrent use, and other processes may append meanwhile.
type Writer struct {
	log  Log
	conn *store.AuditConn

	mu      sync.Mutex
	queue   []*waiting
	closed  bool
	wake    chan struct{} // holds a value if the queue may not be empty
	drained chan struct{}

	flood     *flood
	floodErr  error // of the last flush; guarded by mu
	floodStop chan struct{}
	floodDone chan struct{}
}

// waiting is a caller's rows, all or none.
type waiting struct {
	rows []Record
	done chan error // takes one value
}

// NewWriter starts a writer, which is to be closed before the store.
func NewWriter(l Log) *Writer {
	w := &Writer{
		log: l, conn: l.Store.AuditConn(), wake: make(chan struct{}, 1), drained: make(chan struct{}),
		flood: newFlood(), floodStop: make(chan struct{}), floodDone: make(chan struct{}),
	}
	go w.write()
	go w.count()
	return w
}

// Append adds records, all or none, and returns when they and a head of them are durable. If ctx ends before, it returns
// without knowing whether they will be.
func (w *Writer) Append(ctx context.Context, records ...Record) error {
	rows, err := prepare(records)
	if err != nil || len(rows) == 0 {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	entry, err := w.enqueue(rows, false)
	if err != nil {
		return err
	}
	select {
	case err := <-entry.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *Writer) enqueue(rows []Record, last bool) (*waiting, error) {
	entry := &waiting{rows, make(chan error, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed && !last {
		return nil, ErrClosed
	}
	w.queue = append(w.queue, entry)
	if len(w.queue) == 1 {
		w.signal()
	}
	return entry, nil
}

func (w *Writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// write makes transactions until the writer is closed and the queue is empty.
func (w *Writer) write() {
	defer close(w.drained)
	since := 0
	for range w.wake {
		for batch := w.gather(); len(batch) > 0; batch = w.gather() {
			groups := make([][]Record, len(batch))
			for i, entry := range batch {
				groups[i] = entry.rows
			}
			errs, err := w.log.commit(context.Background(), w.conn, groups)
			for i, entry := range batch {
				if err != nil {
					entry.done <- err
				} else {
					entry.done <- errs[i]
				}
			}
			if since++; since >= checkpointEvery && w.conn.Checkpoint(context.Background()) == nil {
				since = 0 // else the next transaction, which tells whoever waits for it what is wrong, tries again
			}
		}
	}
}

// gather takes what is to be written next. Those who are about to ask are let ahead: a transaction costs as much for one
// row as for many.
func (w *Writer) gather() []*waiting {
	for before := -1; ; runtime.Gosched() {
		w.mu.Lock()
		n := len(w.queue)
		w.mu.Unlock()
		if n <= max(before, 1) || n >= mostRows {
			return w.take()
		}
		before = n
	}
}

func (w *Writer) take() []*waiting {
	w.mu.Lock()
	defer w.mu.Unlock()
	rows, n := 0, 0
	for n < len(w.queue) && (n == 0 || rows+len(w.queue[n].rows) <= mostRows) {
		rows += len(w.queue[n].rows)
		n++
	}
	batch := w.queue[:n:n]
	if w.queue = w.queue[n:]; len(w.queue) == 0 {
		w.queue = nil
	}
	return batch
}

// Close writes what was asked for and the denials that were only counted, and ends the writer. Its error means that these
// have no row.
func (w *Writer) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil
	}
	w.closed = true
	w.mu.Unlock()
	close(w.floodStop)
	<-w.floodDone
	err := w.flush(true)
	w.mu.Lock()
	close(w.wake) // nobody signals anymore
	w.mu.Unlock()
	<-w.drained
	return errors.Join(err, w.conn.Close())
}

// Denied adds a denial, as Append does. Of many that are alike in caller, action and reason only the first ones of a
// minute get rows of their own; the others are counted, and share a row at its end.
func (w *Writer) Denied(ctx context.Context, r Record) error {
	r.Decision = store.Denied
	rows, err := prepare([]Record{r})
	if err != nil {
		return err
	}
	own, err := w.takeDenial(rows[0])
	if own {
		return w.Append(ctx, rows[0])
	}
	return err
}

func (w *Writer) takeDenial(r Record) (own bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false, ErrClosed
	}
	if w.flood.take(r) {
		return true, nil
	}
	// It is counted. As long as that cannot be written, nobody is told that it was.
	return false, w.floodErr
}

// count writes each minute what was counted, until the writer is closed.
func (w *Writer) count() {
	defer close(w.floodDone)
	tick := time.NewTicker(floodEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.floodStop:
			return
		case <-tick.C:
			_ = w.flush(false) // Denied tells it, and the next one tries again
		}
	}
}

// flush writes what was counted; what could not be written stays counted.
func (w *Writer) flush(last bool) error {
	due := w.flood.due()
	err := w.appendCounted(due, last)
	if err == nil {
		w.flood.written(due)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.floodErr = err
	return err
}

func (w *Writer) appendCounted(due []counted, last bool) error {
	records := make([]Record, len(due))
	for i, c := range due {
		records[i] = c.record
	}
	rows, err := prepare(records)
	if err != nil || len(rows) == 0 {
		return err
	}
	entry, err := w.enqueue(rows, last)
	if err != nil {
		return err
	}
	return <-entry.done
}

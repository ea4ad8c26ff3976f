package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
)

// Journal is what a loop has done, written down so that it can go on after a crash: a file of one entry a line, in which a
// call stands before it is done, and its result before anybody acts on it. One that stands there without a result was
// perhaps done, and is never done again.
type Journal struct {
	mu     sync.Mutex
	f      *os.File
	size   int64
	most   int64 // beyond which it could not be read again
	failed error // what was written half is not written behind
	past   []entry
	// redact takes secrets out of a line; what it puts in their place has no character that JSON escapes. nil: nothing does.
	redact func(string) string
}

// entry is a line. One field is set.
type entry struct {
	Message *Message `json:"message,omitempty"` // an assistant's comes with its usage
	Usage   *Usage   `json:"usage,omitempty"`
	Cut     bool     `json:"cut,omitempty"`   // the message was
	Begun   string   `json:"begun,omitempty"` // a call
	Result  *Result  `json:"result,omitempty"`
	Sub     *Report  `json:"sub,omitempty"`   // of a sub-agent
	Spawn   string   `json:"spawn,omitempty"` // one that was begun
	End     *Outcome `json:"end,omitempty"`
}

// ErrJournal says that a journal cannot be read.
var ErrJournal = errors.New("the loop's journal is damaged")

// ErrJournalFull says that a journal has no room for what the loop would write down next.
var ErrJournalFull = errors.New("the loop's journal is full")

const mostJournal = 256 << 20

// OpenJournal opens a journal, or begins one. Only one loop may have it.
func OpenJournal(path string) (*Journal, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	j := &Journal{f: f, most: mostJournal}
	if err := j.read(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return j, nil
}

func (j *Journal) read() error {
	if err := syscall.Flock(int(j.f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("another loop has the journal %s: %w", j.f.Name(), err)
	}
	data, err := io.ReadAll(io.LimitReader(j.f, mostJournal+1))
	if err != nil {
		return err
	}
	if len(data) > mostJournal {
		return fmt.Errorf("%w: %s has more than %d bytes", ErrJournal, j.f.Name(), mostJournal)
	}
	// What stands behind the last line's end was being written when the loop ended: nobody acted on it.
	end := bytes.LastIndexByte(data, '\n') + 1
	for n, line := range bytes.Split(data[:max(end-1, 0)], []byte("\n")) {
		if end == 0 {
			break
		}
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("%w: line %d of %s: %w", ErrJournal, n+1, j.f.Name(), err)
		}
		j.past = append(j.past, e)
	}
	if err := j.f.Truncate(int64(end)); err != nil {
		return err
	}
	j.size, err = j.f.Seek(int64(end), io.SeekStart)
	return err
}

// append writes entries down. They are on the disk when it returns. A nil journal keeps nothing.
func (j *Journal) append(entries ...entry) error {
	if j == nil {
		return nil
	}
	var b []byte
	for _, e := range entries {
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if j.redact != nil {
			line = []byte(j.redact(string(line)))
		}
		b = append(append(b, line...), '\n')
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		return j.failed
	}
	if j.size+int64(len(b)) > j.most {
		j.failed = fmt.Errorf("%w: %s has %d bytes and takes %d at most; go on in a new run", ErrJournalFull, j.f.Name(), j.size, j.most)
		return j.failed
	}
	n, err := j.f.Write(b)
	j.size += int64(n)
	if err == nil {
		err = syscall.Fdatasync(int(j.f.Fd()))
	}
	if err != nil {
		j.failed = fmt.Errorf("writing the loop's journal: %w", err)
	}
	return j.failed
}

// Close ends it.
func (j *Journal) Close() error {
	if j == nil {
		return nil
	}
	return j.f.Close()
}

// past is a conversation as a journal has it.
type past struct {
	messages []Message
	usage    Usage // of the turn that has not ended
	asked    int
	// open are the calls of the last message that have no result; begun says of which it is not known whether they were done.
	open    []Call
	results []Result
	begun   map[string]bool
	// unfinished says that a turn has not ended.
	unfinished bool
	lost       []string // sub-agents that had not reported
	reports    []Report // of which the model was not told
	spawned    int      // ever
	cut        bool     // the last message was
}

// recall puts the past together.
func recall(entries []entry) (past, error) {
	p := past{begun: map[string]bool{}}
	running := map[string]bool{}
	var order []string
	for n, e := range entries {
		switch {
		case e.Message != nil && e.Message.Role == Assistant:
			if !p.unfinished {
				return p, fmt.Errorf("%w: entry %d answers nobody", ErrJournal, n+1)
			}
			p.messages = append(p.messages, *e.Message)
			p.open, p.results, p.begun = e.Message.Calls, nil, map[string]bool{}
			p.asked++
			p.cut = e.Cut && len(p.open) == 0
			if e.Usage != nil {
				p.usage.Input += e.Usage.Input
				p.usage.Output += e.Usage.Output
			}
		case e.Message != nil:
			if !p.unfinished {
				p.usage, p.asked = Usage{}, 0
			}
			p.messages, p.unfinished = append(p.messages, *e.Message), true
			p.open, p.results, p.reports, p.cut = nil, nil, nil, false
		case e.Begun != "":
			p.begun[e.Begun] = true
		case e.Result != nil:
			p.results = append(p.results, *e.Result)
		case e.Spawn != "":
			running[e.Spawn] = true
			p.spawned++
			order = append(order, e.Spawn)
		case e.Sub != nil:
			delete(running, e.Sub.ID)
			p.reports = append(p.reports, *e.Sub)
		case e.End != nil:
			p.unfinished, p.reports = false, nil
			running, order = map[string]bool{}, nil
		}
	}
	for _, id := range order {
		if running[id] {
			p.lost = append(p.lost, id)
		}
	}
	return p, nil
}

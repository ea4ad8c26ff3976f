package broker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	maxAnswer = 64 << 20 // bytes of an answer
	maxError  = 1 << 20  // and of one that is an error
	// atHand is what an answer may keep in memory without asking whether there is room.
	atHand = 1 << 20
	// grace is how long the end of an answer may come after all that matters.
	grace = 2 * time.Second
)

// watch reads an answer as it comes, and ends the call when nothing comes for too long. The time that the agent takes to
// read does not count.
type watch struct {
	c     *call
	src   io.Reader
	first *time.Timer
	next  *time.Timer // nil before the first byte
	left  int64
}

func newWatch(c *call) *watch {
	w := &watch{c: c, left: maxAnswer}
	w.first = time.AfterFunc(c.b.firstByte, func() { c.cancel(errFirstByte) })
	return w
}

func (w *watch) Read(p []byte) (int, error) {
	switch {
	case w.next == nil:
	case w.c.tally.ended:
		w.next.Reset(grace)
	default:
		w.next.Reset(w.c.b.idle)
	}
	n, err := w.src.Read(p)
	if w.left -= int64(n); w.left < 0 {
		return 0, errTooLong // also of what is nothing but compression
	}
	switch {
	case w.next != nil:
		w.next.Stop()
	case n > 0:
		w.first.Stop()
		w.next = time.AfterFunc(w.c.b.idle, func() { w.c.cancel(errIdle) })
		w.next.Stop()
	}
	return n, err
}

func (w *watch) stop() {
	w.first.Stop()
	if w.next != nil {
		w.next.Stop()
	}
}

// limited ends what is too long.
type limited struct {
	src  io.Reader
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errTooLong
	}
	n, err := l.src.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}

// kept is what is kept of an answer, with room asked for where it is much.
type kept struct {
	bytes.Buffer
	b     *Broker
	taken int64
}

func (k *kept) add(p []byte) error {
	for int64(k.Len()+len(p)) > atHand+k.taken {
		if !k.b.answers.grab(atHand) {
			return errRoom
		}
		k.taken += atHand
	}
	k.Write(p)
	return nil
}

func (k *kept) free() {
	k.b.answers.give(k.taken)
	k.taken = 0
	k.Reset()
	if k.Cap() > 64<<10 {
		k.Buffer = bytes.Buffer{} // such a one is not carried along through a long stream
	}
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 4<<10) }}

// readAll reads an answer to its end.
func (k *kept) readAll(in io.Reader) error {
	r := readers.Get().(*bufio.Reader)
	r.Reset(in)
	defer func() {
		r.Reset(nil)
		readers.Put(r)
	}()
	for {
		if _, err := r.Peek(1); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		p, err := r.Peek(r.Buffered())
		if err != nil {
			return err
		}
		if err := k.add(p); err != nil {
			return err
		}
		if _, err := r.Discard(len(p)); err != nil {
			return err
		}
	}
}

// whole hands on an answer that comes in one piece, when it is there and found to be one.
func (c *call) whole(res *http.Response, in io.Reader) *refusal {
	k := &kept{b: c.b}
	defer k.free()
	if err := k.readAll(in); err != nil {
		return c.unreachable(c.ctx, err)
	}
	if !c.tally.read(k.Bytes()) {
		return c.unreachable(c.ctx, errNoJSON)
	}
	c.remember()
	c.settle()
	c.head(res, http.StatusOK, "application/json")
	return c.clean(k.Bytes())
}

// handOnError hands on the provider's own error.
func (c *call) handOnError(res *http.Response, in io.Reader) *refusal {
	c.Failed = fmt.Sprintf("the provider answered %d", res.StatusCode)
	status := res.StatusCode
	switch {
	case refusedStatus(status):
		return &refusal{status: http.StatusForbidden, failed: c.Failed, message: fmt.Sprintf("the model provider %s asks for a key (it answered %d), and the operator of Ravi has given none for it; "+
			"nothing is wrong with this run's lease", c.p.Name, status)}
	case status < 400:
		return &refusal{status: http.StatusBadGateway, failed: c.Failed, message: fmt.Sprintf("the model provider %s answered %d, which is no answer to a model call "+
			"and is not followed; the operator of Ravi should look at its base_url", c.p.Name, status)}
	}
	k := &kept{b: c.b}
	defer k.free()
	err := k.readAll(&limited{src: in, left: maxError})
	if c.ctx.Err() != nil {
		return c.unreachable(c.ctx, c.ctx.Err())
	}
	if err != nil || !isJSON(kind(res)) || !json.Valid(k.Bytes()) {
		c.handed(res)
		return &refusal{status: status, failed: c.Failed, message: fmt.Sprintf("the model provider %s answered %d, without an error of its own form", c.p.Name, status)}
	}
	c.settle()
	c.head(res, status, "application/json")
	return c.clean(k.Bytes())
}

// head begins the answer to the agent.
func (c *call) head(res *http.Response, status int, kind string) {
	c.handed(res)
	c.w.Header().Set("Content-Type", kind)
	c.Status = status
	c.FirstByte = c.b.now().Sub(c.began)
	c.wrote = true
	c.w.WriteHeader(status)
}

// clean writes a whole body without the keys.
func (c *call) clean(body []byte) *refusal {
	out := c.b.redactor.Writer(c.w)
	_, err := out.Write(body)
	if err == nil {
		err = out.Close()
	}
	if err != nil {
		return gone()
	}
	return nil
}

func gone() *refusal { return &refusal{status: statusGone, message: "the agent went away"} }

// remember notes the id of a response, from which this lease may go on.
func (c *call) remember() {
	if c.to.endpoint == responses && c.tally.id != "" {
		c.b.ids.add(c.p.Name + " " + c.tally.id)
	}
}

// stream hands on an answer event by event, each at once. An event that is not whole is no use to the agent, so it is
// waited for: thus no key is cut in two, and what cannot be read is not handed on.
func (c *call) stream(res *http.Response, in io.Reader, w *watch) *refusal {
	r := readers.Get().(*bufio.Reader)
	r.Reset(in)
	defer func() {
		r.Reset(nil)
		readers.Put(r)
	}()
	flush := http.NewResponseController(c.w)
	k := &kept{b: c.b}
	defer k.free()
	for {
		err := k.readEvent(r)
		if err != nil && err != io.EOF {
			if cause := context.Cause(c.ctx); c.tally.ended && (cause == nil || errors.Is(cause, errIdle)) {
				return nil // all that matters had come
			}
			return c.unreachable(c.ctx, err)
		}
		if k.Len() > 0 {
			if fault := c.handOn(res, k.Bytes(), flush, err == io.EOF); fault != nil {
				return fault
			}
			k.free()
		}
		switch {
		case c.tally.closed:
			c.drain(r, w)
			return nil
		case err == io.EOF && c.tally.ended:
			return nil
		case err == io.EOF:
			return c.unreachable(c.ctx, errHalf)
		}
	}
}

// handOn hands on one event.
func (c *call) handOn(res *http.Response, event []byte, flush *http.ResponseController, last bool) *refusal {
	data := dataOf(event)
	if len(bytes.TrimSpace(data)) > 0 {
		if !c.tally.read(data) {
			if last {
				return c.unreachable(c.ctx, errHalf)
			}
			return c.unreachable(c.ctx, errNoJSON)
		}
		c.remember()
		if c.hideUsage && c.tally.onlySum {
			return nil
		}
	}
	if c.tally.closed {
		c.settle()
	}
	if !c.wrote {
		c.head(res, http.StatusOK, "text/event-stream")
	}
	text := c.b.redactor.String(string(event))
	if last {
		text += "\n\n" // the blank line that ends an event did not come
	}
	if _, err := io.WriteString(c.w, text); err != nil {
		return gone()
	}
	if err := flush.Flush(); err != nil {
		return gone()
	}
	return nil
}

// drain reads the end of an answer behind the last event, so that the connection can be used again. It is short.
func (c *call) drain(r io.Reader, w *watch) {
	w.stop()
	cut := time.AfterFunc(100*time.Millisecond, func() { c.cancel(nil) })
	defer cut.Stop()
	_, _ = io.CopyN(io.Discard, r, 4<<10) // what is there is not needed
}

// readEvent reads lines up to an empty one, all with their ends. The error is io.EOF if the answer ends, perhaps behind
// an event to which the empty line is missing.
func (k *kept) readEvent(r *bufio.Reader) error {
	start := true
	for {
		line, err := r.ReadSlice('\n')
		if addErr := k.add(line); addErr != nil {
			return addErr
		}
		if err == bufio.ErrBufferFull {
			start = false
			continue
		}
		if err != nil {
			return err
		}
		if start && len(bytes.TrimRight(line, "\r\n")) == 0 {
			return nil
		}
		start = true
	}
}

// dataOf is what an event carries.
func dataOf(event []byte) []byte {
	var data []byte
	found := 0
	for line := range bytes.Lines(event) {
		rest, ok := bytes.CutPrefix(bytes.TrimRight(line, "\r\n"), []byte("data:"))
		if !ok {
			continue
		}
		rest = bytes.TrimPrefix(rest, []byte(" "))
		if found++; found == 1 {
			data = rest
			continue
		}
		data = append(append(data[:len(data):len(data)], '\n'), rest...)
	}
	return data
}

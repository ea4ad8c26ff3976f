package redact

import (
	"io"
)

// chunk is how much is read, or put together for writing, at once.
const chunk = 32 << 10

// Reader is a stream without the secrets. It hands on every byte as soon as it cannot be part of a secret any more, so
// what waits in it is never more than the beginning of one; see Even for who must not see that. It is for one goroutine.
type Reader struct {
	r     *Redactor
	src   io.Reader
	tally tally

	look    *search // for what, since data was read
	buf     []byte
	data    []byte // of buf: what was read and not handed on
	plain   int    // so much of data may be handed on
	next    *form  // what follows that
	instead string // what goes out before data
	err     error  // of src; it ends the stream

	// Of a Reader that is even.
	ends   func([]byte) int
	end    int  // so much of data is before the last end
	behind bool // what is behind that was not looked at
}

// Reader takes the secrets out of src. When src ends or fails, what was held back comes out before its error does.
func (r *Redactor) Reader(src io.Reader) *Reader { return &Reader{r: r, src: src} }

// Even has what waits in r depend on nothing but lengths, so that nobody who can choose what is in src, and sees when it
// comes out, learns how a secret begins. As much waits as may be the beginning of one, or looks nothing like it, and comes
// out with what follows. ends says how many bytes of what was just read come before the last place that no secret can
// lie across: what is before that place never waits. Nil: any control character but the tabulator is such a place, as in
// lines of text.
func (r *Reader) Even(ends func(read []byte) int) *Reader {
	if r.ends = ends; ends == nil {
		r.ends = r.lines
	}
	return r
}

// lines looks no farther back than it has to: what is before that does not wait anyhow.
func (r *Reader) lines(read []byte) int {
	for i := len(read); i > max(0, len(read)-r.r.Longest()); i-- {
		if c := read[i-1]; c < ' ' && c != '\t' || c == 0x7f {
			return i
		}
	}
	return 0
}

// Hits is how many secrets were taken out so far.
func (r *Reader) Hits() int { return r.tally.hits }

// Found are the names of the secrets that were taken out so far, each once.
func (r *Reader) Found() []string { return r.tally.names() }

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if r.look == nil {
		if r.look = r.r.search(); r.look == nil {
			n, err := r.src.Read(p)
			if r.look = r.r.search(); r.look == nil {
				if r.ends != nil {
					r.ends(p[:n])
				}
				return n, err
			}
			r.buf = append(make([]byte, 0, n+chunk), p[:n]...)
			r.filled(0, n, err)
		}
	}
	for empty := 0; ; empty++ {
		n := r.take(p)
		switch {
		case n > 0:
			return n, nil
		case r.err != nil:
			return 0, r.err
		case empty == 100:
			return 0, io.ErrNoProgress
		}
		if r.fill() > 0 {
			empty = 0
		}
	}
}

// take hands on what is decided.
func (r *Reader) take(p []byte) (n int) {
	for n < len(p) {
		switch {
		case r.instead != "":
			k := copy(p[n:], r.instead)
			n, r.instead = n+k, r.instead[k:]
		case r.plain > 0:
			k := copy(p[n:], r.data[:r.plain])
			n, r.plain = n+k, r.plain-k
			r.skip(k)
		case r.next != nil:
			pair := r.tally.add(r.look, r.next)
			r.instead = pair.Instead
			r.skip(len(r.next.text))
			r.scan()
		case r.behind:
			r.scan()
		default:
			return n
		}
	}
	return n
}

func (r *Reader) skip(n int) { r.data, r.end = r.data[n:], max(0, r.end-n) }

// scan decides on what may be handed on.
func (r *Reader) scan() {
	final := r.err != nil
	r.behind = r.ends != nil && r.end > 0 && !final
	switch {
	case r.behind:
		// What begins before the end is whole or nothing.
		r.plain, r.next = r.look.scan(r.data[:r.end], true)
	default:
		r.plain, r.next = r.look.scan(r.data, final)
		if r.ends == nil || final {
			return
		}
		if most := max(0, len(r.data)-r.look.longest+1); r.plain > most {
			r.plain, r.next = most, nil
		}
	}
}

// fill reads more of src behind the data that waits.
func (r *Reader) fill() int {
	if need := max(len(r.data), r.look.longest) + chunk; len(r.buf) < need {
		r.buf = append(make([]byte, 0, need), r.data...)[:need]
		r.data = r.buf[:len(r.data)]
	}
	held := copy(r.buf, r.data)
	n, err := r.src.Read(r.buf[held:])
	r.look = r.r.search() // it may have waited for long
	r.filled(held, n, err)
	return n
}

// filled looks at what was read behind what was held.
func (r *Reader) filled(held, n int, err error) {
	r.data, r.err = r.buf[:held+n], err
	if r.ends != nil {
		if end := r.ends(r.data[held:]); end > 0 {
			r.end = held + end
		}
	}
	r.scan()
}

// Writer takes the secrets out of what is written to it. It is for one goroutine, and must be closed.
type Writer struct {
	r     *Redactor
	dst   io.Writer
	tally tally
	held  []byte // the beginning of a secret, perhaps
	err   error  // of dst, or closed
}

// Writer takes the secrets out of what goes to dst.
func (r *Redactor) Writer(dst io.Writer) *Writer { return &Writer{r: r, dst: dst} }

// Hits is how many secrets were taken out so far.
func (w *Writer) Hits() int { return w.tally.hits }

// Found are the names of the secrets that were taken out so far, each once.
func (w *Writer) Found() []string { return w.tally.names() }

// Write hands on to dst what cannot be part of a secret any more, and keeps the rest for the next call. After an error
// of dst nothing more is written; how much of p arrived is then not known.
func (w *Writer) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	if len(w.held) == 0 && w.r.search() == nil {
		return w.dst.Write(p)
	}
	for rest := p; len(rest) > 0; {
		if len(w.held) == 0 {
			// p is looked at where it is, and only what waits is copied.
			w.held = append(w.held, w.pass(rest, false)...)
			break
		}
		n := min(len(rest), chunk)
		w.held, rest = append(w.held, rest[:n]...), rest[n:]
		w.held = w.held[:copy(w.held, w.pass(w.held, false))]
	}
	if w.err != nil {
		return 0, w.err
	}
	return len(p), nil
}

// Close hands on what was held back. It does not close dst. A second one does nothing.
func (w *Writer) Close() error {
	if w.err == io.ErrClosedPipe {
		return nil
	}
	if len(w.held) > 0 {
		w.pass(w.held, true)
		w.held = nil
	}
	err := w.err
	w.err = io.ErrClosedPipe
	return err
}

// pass writes what is decided of data, and gives back the rest.
func (w *Writer) pass(data []byte, final bool) []byte {
	look := w.r.search() // there is one: nothing would have been held back
	for {
		n, f := look.scan(data, final)
		w.write(data[:n])
		data = data[n:]
		if f == nil {
			return data
		}
		pair := w.tally.add(look, f)
		w.write([]byte(pair.Instead))
		data = data[len(f.text):]
	}
}

func (w *Writer) write(p []byte) {
	if w.err != nil || len(p) == 0 {
		return
	}
	n, err := w.dst.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	w.err = err
}

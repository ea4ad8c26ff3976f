package guard

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// response is what a handler writes to. It has no Hijack: whoever takes a connection away takes it away from the guard.
// As with any ResponseWriter, one goroutine uses it at a time.
type response struct {
	w       http.ResponseWriter
	control *http.ResponseController
	server  *Server
	body    *body
	wrote   bool               // the header is out
	mute    bool               // what the handler writes is not the answer
	lifted  bool               // each write has a time of its own
	let     context.CancelFunc // of the context that Lift gave
}

var _ interface {
	http.ResponseWriter
	http.Flusher
} = (*response)(nil)

func (o *response) Header() http.Header { return o.w.Header() }

func (o *response) WriteHeader(status int) {
	if o.wrote {
		return
	}
	if status >= 100 && status < 200 {
		if status != http.StatusSwitchingProtocols {
			o.w.WriteHeader(status)
		}
		return
	}
	o.wrote = true
	o.extend()
	if o.body != nil && o.body.over.Load() {
		// Whatever the handler made of a body that was cut off: it was too large.
		o.mute = true
		clear(o.Header())
		o.seal()
		tooLarge := o.server.tooLarge()
		WriteError(o.w, tooLarge.status, tooLarge.code, tooLarge.message, tooLarge.hint)
		return
	}
	o.seal()
	o.w.WriteHeader(status)
}

// seal sets the headers that every answer has, and removes those that none may have.
func (o *response) seal() {
	h := o.Header()
	for name := range h {
		if strings.HasPrefix(strings.ToLower(name), "access-control-") {
			delete(h, name)
		}
	}
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
}

func (o *response) Write(p []byte) (int, error) {
	o.WriteHeader(http.StatusOK)
	if o.mute {
		return len(p), nil
	}
	o.extend()
	defer o.settle()
	return o.w.Write(p)
}

// Flush sends what was written.
func (o *response) Flush() {
	_ = o.FlushError() // who wants the error calls the other
}

// FlushError is Flush for http.ResponseController.
func (o *response) FlushError() error {
	o.WriteHeader(http.StatusOK)
	o.extend()
	defer o.settle()
	return o.control.Flush()
}

// EnableFullDuplex is for http.ResponseController.
func (o *response) EnableFullDuplex() error { return o.control.EnableFullDuplex() }

// extend gives the next write of a lifted response its time.
func (o *response) extend() {
	if o.lifted {
		// It fails only where there is no connection left, which the write says.
		_ = o.control.SetWriteDeadline(time.Now().Add(o.server.opts.StallTimeout))
	}
}

// settle ends that time: with HTTP/2 it would go on, and cut a stream that has nothing to say.
func (o *response) settle() {
	if o.lifted {
		_ = o.control.SetWriteDeadline(time.Time{}) // as above
	}
}

// finish is called when the handler is done.
func (o *response) finish() {
	if o.let != nil {
		o.let()
	}
	switch {
	case o.wrote:
	case o.body != nil && o.body.over.Load():
		o.WriteHeader(http.StatusRequestEntityTooLarge)
	default:
		o.seal()
	}
	o.extend() // net/http writes what it kept
}

// Lift frees a response from the times of the server, for streams and for what takes long. From then on each write has
// Options.StallTimeout, so that a client which stops reading holds nothing for long. The context ends with the request
// (the client has gone, or the handler returned), and when the server begins to shut down, with ErrShutdown as its cause:
// then the handler says goodbye and returns.
func Lift(w http.ResponseWriter, r *http.Request) (context.Context, error) {
	for {
		if out, ok := w.(*response); ok {
			return out.lift(r)
		}
		wrapped, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return nil, errors.New("this response is not one of the guarded listener's")
		}
		w = wrapped.Unwrap()
	}
}

func (o *response) lift(r *http.Request) (context.Context, error) {
	// A body may come slowly, too.
	if err := o.control.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	if err := o.control.SetWriteDeadline(time.Time{}); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(o.server.closing, func() { cancel(ErrShutdown) })
	before := o.let
	o.lifted, o.let = true, func() {
		stop()
		cancel(nil)
		if before != nil {
			before()
		}
	}
	return ctx, nil
}

// body is a request's body, which remembers that it was cut off.
type body struct {
	io.ReadCloser
	over atomic.Bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		b.over.Store(true)
	}
	return n, err
}

// leave has net/http answer without waiting for a body that nobody reads, as it does otherwise, and close the connection,
// with a moment for the client to read the answer. It does so after a body that was too large, so it is shown one. Even
// then it reads on for a while, but not for longer than this.
func leave(w http.ResponseWriter) {
	_, _ = http.MaxBytesReader(w, io.NopCloser(strings.NewReader("x")), 0).Read(make([]byte, 1))
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(500 * time.Millisecond)) // no connection, no reading
}

package intercept

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ravi/internal/network/inject"
)

// Trailers that would say how a message is to be read come too late.
var noTrailers = []string{"Transfer-Encoding", "Content-Length", "Host", "Trailer", "Content-Type", "Content-Encoding",
	"Content-Range", "Authorization", "Cookie", "Set-Cookie", "Connection", "Te", "Upgrade", "Expect"}

// Room for a piece of a body, and what frames it.
var writers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 33<<10) }}

// forward sends a body piece by piece, each as soon as it is there.
func forward(w *bufio.Writer, body io.Reader, chunked bool, n *atomic.Int64, trailer func() http.Header) (rerr, werr error) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	var dst io.Writer = w
	var chunks io.WriteCloser
	if chunked {
		chunks = httputil.NewChunkedWriter(w)
		dst = chunks
	}
	for {
		got, err := body.Read(*buf)
		if got > 0 {
			n.Add(int64(got))
			if _, werr := dst.Write((*buf)[:got]); werr != nil {
				return nil, werr
			}
			if werr := w.Flush(); werr != nil {
				return nil, werr
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err, nil
		}
	}
	if chunked {
		chunks.Close()
		t := trailer().Clone()
		for _, name := range noTrailers {
			t.Del(name)
		}
		t.Write(w)
		fmt.Fprint(w, "\r\n")
	}
	return nil, w.Flush()
}

// relay hands the server's responses on until the last one of the request.
func (h *http1) relay(req *http.Request, old bool, wants []string) ending {
	w := writers.Get().(*bufio.Writer)
	w.Reset(h.guest)
	defer func() {
		w.Reset(nil)
		writers.Put(w)
	}()
	continued := false
	for {
		if why := h.response(); why != "" {
			return h.broken(why)
		}
		resp, err := http.ReadResponse(h.ur, req)
		if err != nil {
			return h.broken("the server's response cannot be read: " + err.Error())
		}
		h.usrc.left = -1
		switch {
		case resp.StatusCode == http.StatusSwitchingProtocols:
			if !slices.ContainsFunc(wants, func(t string) bool { return hasToken(resp.Header["Upgrade"], t) }) {
				return h.broken("the server changed to a protocol that was not asked for")
			}
			if h.redactor() != nil && len(resp.Header["Sec-Websocket-Extensions"]) > 0 {
				return h.broken("the server uses an extension of WebSocket that was not asked for, and a secret is bound to it")
			}
			return h.upgraded(w, resp)
		case resp.StatusCode < 200:
			continued = continued || resp.StatusCode == http.StatusContinue
			if !old {
				endToEnd(resp.Header)
				clean(h.redactor(), resp)
				statusLine(w, resp)
				resp.Header.Write(w)
				fmt.Fprint(w, "\r\n")
				if err := w.Flush(); err != nil {
					return h.gone(err)
				}
			}
			h.listen()
			continue
		}
		return h.final(w, req, resp, old, continued)
	}
}

// response waits for the server to begin a response; if it will not, why.
func (h *http1) response() string {
	silence := time.NewTimer(h.limits.CopyTimeout)
	defer silence.Stop()
	select {
	case <-h.heard.wait():
		switch err := h.heard.err; {
		case err == io.EOF:
			return "the server ended the connection without a response"
		case err != nil:
			return "the server's connection broke: " + err.Error()
		}
		return ""
	case <-silence.C:
		return errSilence.Error()
	case <-h.ctx.Done():
		return h.ctx.Err().Error()
	}
}

func isDone(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func statusLine(w io.Writer, resp *http.Response) {
	fmt.Fprintf(w, "HTTP/1.1 %s\r\n", resp.Status)
}

// final hands on the response that ends the exchange.
func (h *http1) final(w *bufio.Writer, req *http.Request, resp *http.Response, old, continued bool) ending {
	defer resp.Body.Close()
	h.ev.Status = resp.StatusCode
	// A guest that waits for the go-ahead and got an answer instead may send
	// its body or not. Only the end of the connection says which it was.
	waits := hasToken(req.Header["Expect"], "100-continue") && !continued && !isDone(h.turn.sent)
	chunked := isChunked(resp.TransferEncoding)
	end := req.Close || resp.Close || old || waits
	bare := resp.Body == http.NoBody || req.Method == http.MethodHead
	redactor := h.redactor()
	endToEnd(resp.Header)
	if redactor != nil && !bare {
		if err := searchable(resp); err != nil {
			return h.answer(&refusal{status: http.StatusBadGateway, why: err.Error()})
		}
		resp.Header.Del("Content-Length") // which may not be true any more
		chunked = true
	}
	clean(redactor, resp)
	statusLine(w, resp)
	resp.Header.Write(w)
	if end {
		fmt.Fprint(w, "Connection: close\r\n")
	}
	if chunked && !old {
		fmt.Fprint(w, "Transfer-Encoding: chunked\r\n")
		announce(w, resp.Trailer)
	}
	fmt.Fprint(w, "\r\n")
	if bare {
		if err := w.Flush(); err != nil {
			return h.gone(err)
		}
	} else {
		if h.ur.Buffered() == 0 { // else more goes out at once, with it
			if err := w.Flush(); err != nil {
				return h.gone(err)
			}
		}
		var in atomic.Int64
		rerr, werr := forward(w, h.reader(redactor, resp), chunked && !old, &in, func() http.Header {
			inject.RedactHeader(redactor, resp.Trailer)
			return resp.Trailer
		})
		h.ev.BytesIn = in.Load()
		if rerr != nil {
			return h.broken("the server's response ended early: " + rerr.Error())
		}
		if werr != nil {
			return h.gone(werr)
		}
	}
	if end {
		return endGently
	}
	h.listen()
	// The response may be there before the upload is over. What is left of it
	// goes to the server, unless that has had enough.
	idle := time.NewTimer(h.limits.IdleTimeout)
	defer idle.Stop()
	select {
	case <-h.turn.sent:
		return endNot
	case <-h.turn.done:
		if isDone(h.turn.sent) {
			return endNot
		}
	case <-h.heard.wait():
	case <-idle.C:
	case <-h.ctx.Done():
	}
	return endGently
}

// upgraded copies both ways from here on.
func (h *http1) upgraded(w *bufio.Writer, resp *http.Response) ending {
	h.ev.Proto, h.ev.Status = "upgrade", resp.StatusCode
	protocol := resp.Header.Get("Upgrade")
	redactor := h.redactor()
	endToEnd(resp.Header)
	clean(redactor, resp)
	statusLine(w, resp)
	resp.Header.Write(w)
	fmt.Fprintf(w, "Connection: Upgrade\r\nUpgrade: %s\r\n\r\n", protocol)
	if err := w.Flush(); err != nil {
		return h.gone(err)
	}
	out, in, err := copyBoth(h.guest, h.Secrets.Watch(afterTurn{h}, h.seen.found), h.up, withoutSecrets(redactor, h.ur), h.limits.CopyTimeout)
	h.out.Add(out)
	h.ev.BytesIn = in
	if err != nil {
		h.ev.Why = err.Error()
	}
	return endCut // for what is not closed yet
}

// afterTurn reads from the guest once follow does so no more.
type afterTurn struct{ *http1 }

func (a afterTurn) Read(p []byte) (int, error) {
	<-a.turn.done
	if a.turn.err != nil {
		return 0, a.turn.err
	}
	return a.gr.Read(p)
}

// gone is the end if the guest cannot be written to.
func (h *http1) gone(err error) ending {
	h.ev.Why = "the guest ended the connection: " + err.Error()
	return endCut
}

// broken is the end if the server fails in the middle of an exchange. What the
// guest has got of a response must not look complete.
func (h *http1) broken(why string) ending {
	if no := h.seen.refusal(); no != nil && h.ev.Status == 0 {
		return h.answer(no)
	}
	h.ev.Why = why
	switch {
	case h.ev.Status != 0:
		return endCut
	case h.requests == 1 && h.ctx.Err() == nil:
		h.ev.Status = http.StatusBadGateway
		h.write(&refusal{status: http.StatusBadGateway, why: why})
	}
	// On a connection that was used before, the server may have closed it
	// before the request came. A client knows what to do if it sees just that.
	return endGently
}

// answer answers from here.
func (h *http1) answer(no *refusal) ending {
	h.ev.Status, h.ev.Why, h.ev.Hint = no.status, no.why, no.hint
	h.ev.Allowed = !no.denied()
	if no.rule != "" {
		h.ev.Rule = no.rule
	}
	h.write(no)
	return endGently
}

func (h *http1) write(no *refusal) {
	text := no.text(h.flow, h.ev.Method, h.ev.Path)
	w := bufio.NewWriter(h.guest)
	fmt.Fprintf(w, "HTTP/1.1 %d %s\r\n", no.status, http.StatusText(no.status))
	no.header().Write(w)
	fmt.Fprintf(w, "Content-Length: %d\r\nConnection: close\r\n\r\n", len(text))
	if h.ev.Method != http.MethodHead {
		io.WriteString(w, text)
	}
	w.Flush() // a guest that is gone misses nothing
}

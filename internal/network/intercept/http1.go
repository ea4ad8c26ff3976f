package intercept

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// http1 is one HTTP/1 connection of the guest and, from the first request on or
// from before it, the one that belongs to it upstream.
type http1 struct {
	*flow
	guest net.Conn
	gsrc  *source
	gr    *bufio.Reader
	turn  *turn // the guest's side of the exchange under way, then of the next

	up    net.Conn
	usrc  *source
	ur    *bufio.Reader
	heard *turn // the server's next first byte

	ev       Event
	out      atomic.Int64 // bytes of the request's body
	seen     *stray       // in the request's body
	requests int
}

// turn is what one side does next. Until it is done, nobody else reads there.
type turn struct {
	sent chan struct{} // closed when the request's body went to the server
	done chan struct{} // closed when something more came
	err  error         // or the end of the connection; to be read after done
}

func (t *turn) wait() <-chan struct{} {
	if t == nil {
		return nil
	}
	return t.done
}

// ending says how a connection goes on after a request.
type ending int

const (
	endNot    ending = iota // with the next request
	endGently               // it ends, and the guest reads what was written to it
	endCut                  // it is cut off, so that a part is not taken for a whole
)

func (f *flow) serveHTTP1(guest, up net.Conn) {
	h := &http1{flow: f, guest: guest, gsrc: &source{conn: guest, left: -1}}
	h.gr = bufio.NewReader(h.gsrc)
	if up != nil {
		h.connected(up)
	}
	h.turn = h.follow(nil)
	var end ending
	for end == endNot && h.await() {
		end = h.exchange()
	}
	if h.up != nil {
		if end == endCut {
			reset(h.up)
		}
		h.up.Close()
		<-h.heard.wait()
	}
	switch end {
	case endGently:
		h.guest.SetReadDeadline(time.Unix(1, 0))
		<-h.turn.done
		closeGently(h.guest)
	case endCut:
		reset(h.guest)
	}
	h.guest.Close()
	<-h.turn.done
}

func (h *http1) connected(up net.Conn) {
	h.up, h.usrc = up, &source{conn: up}
	h.ur = bufio.NewReader(h.usrc)
	h.listen()
}

// listen waits for the server's next first byte. Until the head that it begins
// was read, what is read is bounded.
func (h *http1) listen() {
	h.usrc.left = h.limits.HeaderBytes
	t := &turn{done: make(chan struct{})}
	h.heard = t
	go func() {
		defer close(t.done)
		_, t.err = h.ur.Peek(1)
	}()
}

// follow sends a request's body, if there is one, then waits for what the guest
// does next. If the guest ends its side, the server's is ended likewise: a
// half-close stays one, and a reset a reset.
func (h *http1) follow(send func() error) *turn {
	t := &turn{sent: make(chan struct{}), done: make(chan struct{})}
	up := h.up
	go func() {
		defer close(t.done)
		if send != nil {
			if t.err = send(); t.err != nil {
				return
			}
		}
		close(t.sent)
		_, t.err = h.gr.Peek(1)
		switch {
		case up == nil || t.err == nil:
		case t.err == io.EOF:
			closeWrite(up)
		default:
			reset(up)
		}
	}()
	return t
}

// await waits for the next request. It is false when there will be none.
func (h *http1) await() bool {
	idle := time.NewTimer(h.limits.IdleTimeout)
	defer idle.Stop()
	select {
	case <-h.turn.done:
		return h.turn.err == nil
	case <-h.heard.wait():
		// The server ended the connection, or spoke without being asked.
		// Either way the guest's ends too, so that it sees what there was.
	case <-idle.C:
	case <-h.ctx.Done():
	}
	return false
}

// exchange serves one request, and reports it.
func (h *http1) exchange() ending {
	h.ev = Event{Time: time.Now(), Proto: protoHTTP1}
	h.out.Store(0)
	h.seen = &stray{flow: h.flow}
	h.requests++
	end := h.serveRequest()
	h.ev.BytesOut = h.out.Load()
	h.seen.note(&h.ev)
	h.event(h.ev)
	return end
}

func (h *http1) serveRequest() ending {
	h.guest.SetReadDeadline(time.Now().Add(h.limits.HeaderTimeout))
	head, err := readHead(h.gr, h.limits.HeaderBytes)
	h.guest.SetReadDeadline(time.Time{})
	if errors.Is(err, errHeadTooLarge) {
		return h.answer(&refusal{status: http.StatusRequestHeaderFieldsTooLarge,
			why: fmt.Sprintf("the request's head is larger than %d bytes", h.limits.HeaderBytes)})
	}
	if err != nil {
		h.ev.Why = "the guest did not finish its request: " + err.Error()
		return endCut
	}
	raw, err := parseRequestHead(head)
	h.ev.Method, h.ev.Path = raw.method, raw.target
	if path, _, found := strings.Cut(raw.target, "?"); found {
		h.ev.Path = path
	}
	if err != nil {
		return h.answer(malformed("%v", err))
	}
	what, verdict, no := h.admit(raw.method, raw.target, raw.host...)
	h.ev.Path, h.ev.Rule = what.path, verdict.Rule
	if no != nil {
		return h.answer(no)
	}
	h.gsrc.unread(h.gr, head)
	req, err := http.ReadRequest(h.gr)
	if err != nil {
		return h.answer(malformed("%v", err))
	}
	if no := h.putIn(&what, verdict, req.Header, req.Trailer, &h.ev); no != nil {
		return h.answer(no)
	}
	if no := h.acquire(); no != nil {
		return h.answer(no)
	}
	defer h.release()
	if h.up == nil {
		if h.dialErr == nil {
			var up net.Conn
			if up, h.dialErr = h.dial(); h.dialErr == nil {
				h.connected(up)
			} else {
				h.dialErr = fmt.Errorf("cannot connect to %s: %w", h.address(), h.dialErr)
			}
		}
		if h.dialErr != nil {
			return h.answer(&refusal{status: http.StatusBadGateway, why: h.dialErr.Error()})
		}
	}
	h.ev.Allowed = true
	wants := upgrades(req.Header, h.redactor() != nil)
	if err := h.sendHead(req, what, wants); err != nil {
		return h.broken("the server ended the connection: " + err.Error())
	}
	body := h.seen.body(req.Body, func() http.Header { return req.Trailer })
	h.turn = h.follow(func() error { return h.sendBody(req, body) })
	end := h.relay(req, raw.old, wants)
	what.unsigned(&h.ev)
	return end
}

// upgrades are the protocols that the guest wants to change to, and may.
// Another HTTP or TLS on the same connection would be seen by nobody. In others
// than WebSocket no secret would be found.
func upgrades(h http.Header, search bool) []string {
	if !hasToken(h["Connection"], "upgrade") {
		return nil
	}
	var out []string
	for _, line := range h["Upgrade"] {
		for token := range strings.SplitSeq(line, ",") {
			token = strings.TrimSpace(token)
			protocol, _, _ := strings.Cut(strings.ToLower(token), "/")
			if token == "" || slices.Contains([]string{"h2", "h2c", "h3", "http", "https", "tls"}, protocol) || search && protocol != "websocket" {
				continue
			}
			out = append(out, token)
		}
	}
	return out
}

func (h *http1) sendHead(req *http.Request, what asked, wants []string) error {
	trailers := hasToken(req.Header["Te"], "trailers")
	endToEnd(req.Header)
	w := bufio.NewWriter(h.up)
	fmt.Fprintf(w, "%s %s HTTP/1.1\r\nHost: %s\r\n", what.method, what.target, what.host)
	req.Header.Write(w)
	var options []string
	switch {
	case len(wants) > 0:
		options = append(options, "Upgrade")
		fmt.Fprintf(w, "Upgrade: %s\r\n", strings.Join(wants, ", "))
	case req.Close:
		options = append(options, "close")
	}
	if trailers {
		options = append(options, "TE")
		fmt.Fprint(w, "TE: trailers\r\n")
	}
	if len(options) > 0 {
		fmt.Fprintf(w, "Connection: %s\r\n", strings.Join(options, ", "))
	}
	if isChunked(req.TransferEncoding) {
		fmt.Fprint(w, "Transfer-Encoding: chunked\r\n")
		announce(w, req.Trailer)
	}
	fmt.Fprint(w, "\r\n")
	return w.Flush()
}

func isChunked(codings []string) bool { return len(codings) == 1 && codings[0] == "chunked" }

// announce names the trailers that the sender announced.
func announce(w io.Writer, trailer http.Header) {
	if len(trailer) > 0 {
		names := make([]string, 0, len(trailer))
		for name := range trailer {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(w, "Trailer: %s\r\n", strings.Join(names, ", "))
	}
}

// sendBody sends what the guest sends, as it comes. If the guest does not send
// what it announced, the server is cut off: it must not take a part for a whole.
func (h *http1) sendBody(req *http.Request, body io.Reader) error {
	if req.Body == http.NoBody {
		return nil
	}
	w := writers.Get().(*bufio.Writer)
	w.Reset(h.up)
	rerr, werr := forward(w, body, isChunked(req.TransferEncoding), &h.out, func() http.Header { return req.Trailer })
	w.Reset(nil)
	writers.Put(w)
	if rerr != nil {
		reset(h.up)
		return fmt.Errorf("the request's body: %w", rerr)
	}
	return werr
}

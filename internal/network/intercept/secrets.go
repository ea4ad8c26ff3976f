package intercept

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"ravi/internal/network/inject"
	"ravi/internal/redact"
)

// putIn has the secrets of a request put into it, or refuses it. Towards a host
// that a secret is bound to, the response must come as it is: what is compressed
// or cut into ranges cannot be searched for a value.
func (f *flow) putIn(what *asked, v Verdict, header, trailer http.Header, ev *Event) *refusal {
	r := &inject.Request{Host: f.name, Port: f.port, TLS: f.secure && !f.isIP, Method: what.method, Target: what.target,
		Header: header, Trailer: trailer, Inject: v.Inject}
	what.signed = f.Secrets.Signed(r)
	used, err := f.Secrets.PutIn(r)
	if err != nil {
		no := &refusal{status: http.StatusForbidden, why: err.Error(), rule: v.Rule}
		if refused := (*inject.Refused)(nil); errors.As(err, &refused) {
			no.hint, ev.Alarm = refused.Hint, refused.Alarm
		}
		return no
	}
	what.target, ev.Secrets = r.Target, used
	if f.redactor() != nil {
		for _, name := range notAskedFor {
			header.Del(name)
		}
		header.Set("Accept-Encoding", "identity")
	}
	return nil
}

// notAskedFor would have a response come in parts or compressed.
var notAskedFor = []string{"Range", "If-Range", "Request-Range", "X-Ms-Range", "A-Im", "Available-Dictionary", "Sec-Websocket-Extensions",
	"Grpc-Accept-Encoding", "Connect-Accept-Encoding"}

// redactor takes secrets out of what the flow's server answers. It is nil if none
// is bound to it.
func (f *flow) redactor() *redact.Redactor { return f.Secrets.Redactor(f.name) }

// reader reads a response's body without the secrets. What it holds back does not
// depend on them: a guest that can have a server repeat what it sends, a little at
// a time, would else find a value out by what comes late.
func (f *flow) reader(r *redact.Redactor, resp *http.Response) io.Reader {
	if r == nil {
		return resp.Body
	}
	var ends func([]byte) int
	kind := strings.ToLower(resp.Header.Get("Content-Type"))
	if strings.HasPrefix(kind, "application/grpc") || strings.HasPrefix(kind, "application/connect+") {
		ends = new(envelopes).ends
	}
	return r.Reader(resp.Body).Even(ends)
}

// envelopes are the messages of gRPC, each behind a byte of flags and its length.
type envelopes struct {
	head []byte
	left uint32
}

// ends says how many bytes of b come before the last end of a message in it. The
// flags that follow are a control character, which is in no secret.
func (e *envelopes) ends(b []byte) (end int) {
	for at := 0; at < len(b); {
		if e.left == 0 {
			e.head = append(e.head, b[at])
			at++
			if len(e.head) < 5 {
				continue
			}
			e.left = binary.BigEndian.Uint32(e.head[1:])
			e.head = e.head[:0]
		}
		n := min(uint64(e.left), uint64(len(b)-at))
		e.left -= uint32(n)
		if at += int(n); e.left == 0 {
			end = at
		}
	}
	return end
}

// searchable says why a response cannot be searched for secrets.
func searchable(resp *http.Response) error {
	for _, name := range []string{"Content-Encoding", "Grpc-Encoding", "Connect-Content-Encoding"} {
		for _, line := range resp.Header[name] {
			if line = strings.TrimSpace(line); line != "" && !strings.EqualFold(line, "identity") {
				return fmt.Errorf("the server compressed its response (%s) though it was asked not to, and a secret is bound to it", name)
			}
		}
	}
	if resp.StatusCode == http.StatusPartialContent {
		return errors.New("the server sent a part of its response that it was not asked for, and a secret is bound to it")
	}
	return nil
}

// clean takes secrets out of a response's head.
func clean(r *redact.Redactor, resp *http.Response) {
	if r != nil {
		resp.Status = r.String(resp.Status)
		inject.RedactHeader(r, resp.Header)
		inject.RedactHeader(r, resp.Trailer) // the names that are announced
	}
}

var errAstray = errors.New("cut, since a placeholder of a secret was sent to where it does not belong")

// stray is what was seen of placeholders in the body of one request, or on a
// connection that is copied.
type stray struct {
	*flow
	mu        sync.Mutex
	why, hint string
	alarm     bool
}

// found is told of a placeholder in what is sent as it is. To a host that has a
// secret it may go: such a host is trusted with more, and what a sandbox says to
// a model, say, repeats what it saw.
func (s *stray) found(secret string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	bound := s.Secrets.Bound(s.name, s.port)
	s.why, s.hint = inject.Told(secret, s.name, bound)
	if bound {
		return nil
	}
	s.alarm = true
	return errAstray
}

// refusal is the answer to the request, if it was cut.
func (s *stray) refusal() *refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.alarm {
		return nil
	}
	return &refusal{status: http.StatusForbidden, why: s.why, hint: s.hint}
}

// note has an event tell what was seen.
func (s *stray) note(e *Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.alarm:
		e.Allowed, e.Alarm, e.Why, e.Hint = false, true, s.why, s.hint
	case e.Why == "":
		e.Why, e.Hint = s.why, s.hint
	}
}

// lastly is a request's body that ends with trailers. They are looked at once
// they are there.
type lastly struct {
	io.Reader
	*stray
	trailer func() http.Header
}

func (l lastly) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	if err == io.EOF {
		if secret, found := l.Secrets.InTrailer(l.trailer()); found {
			if astray := l.found(secret); astray != nil {
				return n, astray
			}
		}
	}
	return n, err
}

// body watches what a request sends behind its head.
func (s *stray) body(src io.Reader, trailer func() http.Header) io.Reader {
	return lastly{s.Secrets.Watch(src, s.found), s, trailer}
}

// unsigned tells in an event why the server may have refused a request.
func (a asked) unsigned(e *Event) {
	if a.signed != "" && (e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden) && e.Why == "" {
		e.Why = "the server refused a request that is signed (" + a.signed + "): a signature that was made with a placeholder is a wrong one"
		e.Hint = "sign such requests outside; a secret can be sent, but not computed with"
	}
}

// withoutSecrets is where a server's bytes come from after it changed the protocol.
func withoutSecrets(r *redact.Redactor, src io.Reader) io.Reader {
	if r == nil {
		return src
	}
	return &frames{src: src, r: r}
}

package intercept

import (
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
func (f *flow) putIn(what *asked, v Verdict, header http.Header, ev *Event) *refusal {
	r := &inject.Request{Host: f.name, Port: f.port, TLS: f.secure && !f.isIP, Target: what.target, Header: header, Inject: v.Inject}
	used, err := f.Secrets.PutIn(r)
	if err != nil {
		no := &refusal{status: http.StatusForbidden, why: err.Error(), rule: v.Rule}
		if refused := (*inject.Refused)(nil); errors.As(err, &refused) {
			no.hint, ev.Alarm = refused.Hint, refused.Alarm
		}
		return no
	}
	what.target, ev.Secrets = r.Target, used
	if f.Secrets.Bound(f.name, f.port) {
		for _, name := range []string{"Range", "If-Range", "A-Im", "Available-Dictionary", "Sec-Websocket-Extensions"} {
			header.Del(name)
		}
		header.Set("Accept-Encoding", "identity")
	}
	return nil
}

// redactor takes secrets out of what the flow's server answers. It is nil if none
// is bound to it, and is asked for once the request is there: a secret may have
// got a new value since.
func (f *flow) redactor() *redact.Redactor { return f.Secrets.Redactor(f.name, f.port) }

// searchable says why a response cannot be searched for secrets.
func searchable(resp *http.Response) error {
	for _, line := range resp.Header["Content-Encoding"] {
		if line = strings.TrimSpace(line); line != "" && !strings.EqualFold(line, "identity") {
			return fmt.Errorf("the server compressed its response (%.40q) though it was asked not to, and a secret is bound to it", line)
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

// noSecret reads from a server after it changed the protocol, where nothing can
// be replaced: a value cuts the connection.
type noSecret struct{ *redact.Reader }

var errReflected = errors.New("cut, since the server sent back the value of a secret, in a protocol in which it cannot be replaced")

func (n noSecret) Read(p []byte) (int, error) {
	got, err := n.Reader.Read(p)
	if n.Hits() > 0 {
		return 0, errReflected
	}
	return got, err
}

// withoutSecrets is where a server's bytes come from after it changed the protocol.
func withoutSecrets(r *redact.Redactor, src io.Reader) io.Reader {
	if r == nil {
		return src
	}
	return noSecret{r.Reader(src)}
}

package intercept

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// refusal is an answer that comes from here and not from the server.
type refusal struct {
	status int
	why    string
	hint   string // the rule that would allow it, or what else would help
	rule   string
}

func malformed(format string, args ...any) *refusal {
	return &refusal{status: http.StatusBadRequest, why: fmt.Sprintf(format, args...)}
}

// text is what the guest gets to read.
func (r *refusal) text(f *flow, method, path string) string {
	var b strings.Builder
	what := "refused"
	if !r.denied() {
		what = "failed"
	}
	fmt.Fprintf(&b, "ravi: %s: ", what)
	if method != "" {
		fmt.Fprintf(&b, "%s %s of ", method, path)
	}
	fmt.Fprintf(&b, "%s: %s\n", f.address(), r.why)
	if r.hint != "" {
		fmt.Fprintf(&b, "would help: %s\n", r.hint)
	}
	return f.redactor().String(b.String()) // an error may quote what the server said
}

// denied says whether it was decided here, rather than upstream.
func (r *refusal) denied() bool { return r.status != http.StatusBadGateway }

// header is what an answer of ours has, besides its length.
func (r *refusal) header() http.Header {
	h := http.Header{"Content-Type": {"text/plain; charset=utf-8"}, "Cache-Control": {"no-store"}}
	if r.denied() {
		h.Set("X-Ravi-Refused", "1")
	}
	return h
}

// isAuthority says whether a Host or :authority means this flow's peer.
func (f *flow) isAuthority(sent string) bool {
	host, port := sent, ""
	if i := strings.LastIndexByte(sent, ':'); i >= 0 && !(f.isIP && strings.HasSuffix(sent, "]")) {
		host, port = sent[:i], sent[i+1:]
		if port != strconv.Itoa(int(f.port)) {
			return false
		}
	}
	if strings.HasPrefix(host, "[") && f.isIP {
		host = strings.TrimSuffix(host[1:], "]")
	} else {
		host = strings.TrimSuffix(host, ".")
	}
	// Names are ASCII. Folding more than that would let other letters through.
	if len(host) != len(f.name) {
		return false
	}
	for i := range len(host) {
		c := host[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != f.name[i] {
			return false
		}
	}
	return true
}

// authority is the normal form of one that isAuthority accepted.
func authority(sent string) string {
	sent = strings.ToLower(sent)
	host, port, found := strings.Cut(sent, ":")
	if !found || strings.HasPrefix(sent, "[") {
		return strings.TrimSuffix(sent, ".")
	}
	return strings.TrimSuffix(host, ".") + ":" + port
}

// asked is what a request line asks for.
type asked struct {
	method string
	target string // for the server: the bytes as sent, from the path on
	path   string // target without the query
	host   string // in normal form
	signed string // how, if it is and a secret is bound to the host
}

// admit checks the parts of a request that say where it goes, and has the
// decider judge the rest. hosts are all that the request gave, Host and
// :authority. What is returned is filled in as far as it was understood.
func (f *flow) admit(method, target string, hosts ...string) (asked, Verdict, *refusal) {
	a := asked{method: method, target: target}
	a.path, _, _ = strings.Cut(target, "?")
	if method == http.MethodConnect {
		return a, Verdict{}, &refusal{status: http.StatusForbidden, why: "CONNECT would hide where the connection goes",
			hint: "connect to the host itself: no proxy is needed"}
	}
	for i := range len(target) {
		if c := target[i]; c <= ' ' || c == 0x7f || c == '#' {
			return a, Verdict{}, malformed("the request's target has a byte %q, which has to be escaped", c)
		}
	}
	if scheme, rest, found := strings.Cut(target, "://"); found && !strings.HasPrefix(target, "/") {
		if want := f.scheme(); !strings.EqualFold(scheme, want) {
			return a, Verdict{}, &refusal{status: http.StatusForbidden, why: fmt.Sprintf("a request for scheme %q on a connection that is %s", scheme, want)}
		}
		end := strings.IndexAny(rest, "/?")
		if end < 0 {
			end = len(rest)
		}
		hosts = append(hosts, rest[:end])
		a.target = rest[end:]
		if !strings.HasPrefix(a.target, "/") {
			a.target = "/" + a.target
		}
		a.path, _, _ = strings.Cut(a.target, "?")
	}
	if !strings.HasPrefix(a.target, "/") && !(a.target == "*" && method == http.MethodOptions) {
		return a, Verdict{}, malformed("the request's target %q is not a path", a.target)
	}
	if len(hosts) == 0 {
		return a, Verdict{}, malformed("the request names no host")
	}
	for _, h := range hosts {
		if !f.isAuthority(h) {
			return a, Verdict{}, &refusal{status: http.StatusForbidden,
				why:  fmt.Sprintf("the request is for host %q, on a connection to %s", h, f.address()),
				hint: "--allow-net with that host, and a connection of its own"}
		}
	}
	a.host = authority(hosts[0])
	v := f.Decider.Request(f.name, f.port, f.secure, method, a.path)
	if !v.Allowed {
		why := v.Why
		if why == "" {
			why = "no rule allows it"
		}
		return a, v, &refusal{status: http.StatusForbidden, why: why, rule: v.Rule, hint: "--allow-net " + f.rule()}
	}
	return a, v, nil
}

func (f *flow) scheme() string {
	if f.secure {
		return "https"
	}
	return "http"
}

// acquire takes a place among the requests under way.
func (f *flow) acquire() *refusal {
	select {
	case f.slots <- struct{}{}:
		return nil
	default:
		return &refusal{status: http.StatusServiceUnavailable,
			why: fmt.Sprintf("this sandbox has %d requests under way, which is the most", cap(f.slots))}
	}
}

func (f *flow) release() { <-f.slots }

// Of one connection only, and not to be handed on.
var hopHeaders = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Te", "Trailer", "Upgrade", "Http2-Settings"}

// endToEnd removes from h what is of one connection only.
func endToEnd(h http.Header) {
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			// A length that vanished would change where the message ends, and a
			// coding how it comes.
			if name != "Content-Length" && name != "Host" && name != "Accept-Encoding" && name != "Content-Encoding" {
				h.Del(name)
			}
		}
	}
	for _, name := range hopHeaders {
		h.Del(name)
	}
}

// hasToken says whether a list header holds the token.
func hasToken(lines []string, token string) bool {
	for _, line := range lines {
		for t := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
	}
	return false
}

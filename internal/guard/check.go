package guard

import (
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"
)

// refusal is a request that does not reach the handler.
type refusal struct {
	status              int
	code, message, hint string
}

func denied(hint, format string, args ...any) *refusal {
	return &refusal{http.StatusForbidden, CodeDenied, fmt.Sprintf(format, args...), hint}
}

func malformed(hint, format string, args ...any) *refusal {
	return &refusal{http.StatusBadRequest, CodeUsage, fmt.Sprintf(format, args...), hint}
}

func (s *Server) allowed() string { return strings.Join(s.opts.Methods, ", ") }

// check says why a request is refused, or nil.
func (s *Server) check(r *http.Request) *refusal {
	if s.closing.Err() != nil {
		return &refusal{http.StatusServiceUnavailable, CodeUnavailable, "the server shuts down", "try again in a few seconds"}
	}
	if refused := checkTarget(ConnOf(r.Context()).Door, r); refused != nil {
		return refused
	}
	if refused := checkOrigin(s.opts.Origins, r.Header); refused != nil {
		return refused
	}
	if !slices.Contains(s.opts.Methods, r.Method) {
		return &refusal{http.StatusMethodNotAllowed, CodeMethod, fmt.Sprintf("%s is not a method that is answered here", quoted(r.Method)),
			"use one of " + s.allowed()}
	}
	return s.checkBody(r)
}

// checkTarget holds a request to the names of the door that it came through. A web page whose name's address was changed
// to this machine's (DNS rebinding) reaches the door, but its browser says the page's name. The names are compared as
// they are: whoever writes one otherwise (in capitals, with a dot at the end) is no client of ours.
func checkTarget(door *Door, r *http.Request) *refusal {
	if !strings.HasPrefix(r.RequestURI, "/") || r.URL.Host != "" || r.URL.Scheme != "" || r.URL.User != nil {
		return denied("ask for the path alone; this is no proxy", "the request names a server in its first line, or no path")
	}
	if door == nil || !door.names[r.Host] {
		return denied("use one of the names that this listener was given in the configuration, with its port",
			"this listener is not called %s", quoted(r.Host))
	}
	return nil
}

// checkOrigin refuses what a browser sent for a page that was not expected. Programs that are no browsers send neither
// of the two headers.
func checkOrigin(allowed []string, h http.Header) *refusal {
	const hint = "web pages cannot ask here; use a program, such as ravi or curl"
	if origins, present := h["Origin"]; present && (len(origins) != 1 || !slices.Contains(allowed, origins[0])) {
		return denied(hint, "the request comes from a web page of the origin %s, which is not allowed", quoted(strings.Join(origins, ", ")))
	}
	for _, site := range h["Sec-Fetch-Site"] {
		if site != "same-origin" && site != "none" {
			return denied(hint, "the request comes from a web page of another site (Sec-Fetch-Site: %s)", quoted(site))
		}
	}
	return nil
}

// checkBody refuses a body that is too large by its own account, or of a kind that is not expected: a browser sends
// forms and plain text anywhere without asking, but JSON only after it asked, and the asking (OPTIONS) is refused.
func (s *Server) checkBody(r *http.Request) *refusal {
	if r.ContentLength > s.opts.MaxBody {
		return s.tooLarge()
	}
	if r.ContentLength != 0 && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		return malformed("send it with POST", "%s has no body", r.Method)
	}
	types, present := r.Header["Content-Type"]
	switch {
	case !present && r.ContentLength == 0:
		return nil
	case len(types) == 1:
		kind, params, err := mime.ParseMediaType(types[0])
		charset, named := params["charset"]
		if err == nil && slices.Contains(s.opts.ContentTypes, kind) && (!named || strings.EqualFold(charset, "utf-8")) {
			return nil
		}
	}
	return malformed("send Content-Type: "+s.opts.ContentTypes[0],
		"the body's type is %s, which is not understood here", quoted(strings.Join(types, ", ")))
}

func (s *Server) tooLarge() *refusal {
	return &refusal{http.StatusRequestEntityTooLarge, CodeTooLarge,
		fmt.Sprintf("the request's body has more than %d bytes", s.opts.MaxBody), "send less at once"}
}

// quoted is what a stranger wrote, cut and without anything that a terminal would obey.
func quoted(s string) string {
	const most = 100
	if len(s) > most {
		s = s[:most] + "…"
	}
	return fmt.Sprintf("%+q", s)
}

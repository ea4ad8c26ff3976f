package inject

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Request is the head of a request that the policy allows.
type Request struct {
	// Host and Port are who it goes to: the name that SNI, Host and the
	// connection's address agree on, or an address.
	Host   string
	Port   uint16
	TLS    bool // the request came inside TLS that was ended here
	Method string
	// Target is the path and the query, as sent.
	Target string
	Header http.Header
	// Trailer has the names that the guest announced for what follows the body.
	Trailer http.Header
	// Inject are names of secrets that a rule sends unasked.
	Inject []string
}

// Refused says why a request must not be sent.
type Refused struct {
	// Alarm: a placeholder was sent to where it does not belong.
	Alarm     bool
	Why, Hint string
}

// maxTimes bounds how often values are put into one request: a head can hold
// thousands of placeholders, and a value may be long.
const maxTimes = 16

func (r *Refused) Error() string { return r.Why }

// Unwrap is for errors.Is.
func (r *Refused) Unwrap() error {
	if r.Alarm {
		return errAstray
	}
	return nil
}

// PutIn puts values in the place of placeholders, and gives the names of the
// secrets that were. What it returns as an error is a *Refused, and the request
// must then not be sent.
func (s *Set) PutIn(r *Request) (used []string, err error) {
	now := s.now.Load()
	if now == nil || len(now.all) == 0 {
		if len(r.Inject) > 0 {
			return nil, &Refused{Why: fmt.Sprintf("the rule injects the secret %s, which this sandbox was not given", r.Inject[0]), Hint: "--secret " + r.Inject[0]}
		}
		return nil, nil
	}
	var here []*bound // may be put into this request
	for _, b := range now.all {
		if r.TLS && b.binds(r.Host, r.Port) {
			here = append(here, b)
		}
	}
	use := func(b *bound) error {
		if b.Value == "" {
			return &Refused{Why: fmt.Sprintf("the secret %s has no value any more: its source gave none in time", b.Name), Hint: "ravi secrets show " + b.Name + " --check"}
		}
		if !slices.Contains(used, b.Name) {
			used = append(used, b.Name)
		}
		return nil
	}
	times := 0
	put := func(b *bound, text string) (string, error) {
		if times += strings.Count(text, b.Placeholder); times > maxTimes {
			return "", &Refused{Why: fmt.Sprintf("the request's head has more than %d placeholders of secrets", maxTimes), Hint: "send each once"}
		}
		return strings.ReplaceAll(text, b.Placeholder, string(b.Value)), use(b)
	}
	// What rules send comes first, so that it cannot be added to.
	done := map[string]bool{}
	for _, name := range r.Inject {
		i := slices.IndexFunc(here, func(b *bound) bool { return b.Name == name })
		switch {
		case i < 0:
			return nil, &Refused{Why: fmt.Sprintf("the rule injects the secret %s, which is not bound to %s", name, r.Host), Hint: fmt.Sprintf("ravi secrets set %s --host %s", name, r.Host)}
		case len(here[i].headers) == 0:
			return nil, &Refused{Why: fmt.Sprintf("the rule injects the secret %s, which has no header", name), Hint: fmt.Sprintf("ravi secrets set %s --header '%s'", name, DefaultHeader)}
		}
		if err := use(here[i]); err != nil {
			return nil, err
		}
		t := here[i].headers[0]
		done[t.name] = true
		r.Header[t.name] = []string{t.before + string(here[i].Value) + t.after}
	}
	for _, b := range here {
		for _, t := range b.headers {
			if done[t.name] {
				continue
			}
			for i, v := range r.Header[t.name] {
				if r.Header[t.name][i], err = b.replaceHeader(v, put); err != nil {
					return nil, err
				}
			}
		}
		if r.Target, err = b.replaceQuery(r.Target, put); err != nil {
			return nil, err
		}
	}
	// What is left of placeholders is where none belongs.
	if b, where := now.left(r, done); b != nil {
		return nil, b.refuse(r, where)
	}
	return used, nil
}

// refuse is the answer to a placeholder that is left in a request.
func (b *bound) refuse(r *Request, where string) *Refused {
	if !b.binds(r.Host, r.Port) {
		return &Refused{Alarm: true,
			Why: fmt.Sprintf("the placeholder of the secret %s is in %s of a request to %s, which the secret is not bound to", b.Name, where, r.Host),
			Hint: fmt.Sprintf("if %s is meant to get it: ravi secrets set %s --host %s, besides the hosts that it has (%s)", r.Host, b.Name, r.Host,
				strings.Join(b.Hosts, ", "))}
	}
	if !r.TLS {
		return &Refused{Why: fmt.Sprintf("the placeholder of the secret %s is in %s of a request without TLS, in which no secret is sent", b.Name, where),
			Hint: "use https://" + r.Host}
	}
	return &Refused{Why: fmt.Sprintf("the placeholder of the secret %s is in %s, and the secret may stand in %s only", b.Name, where, b.at()),
		Hint: fmt.Sprintf("send it there, or bind it anew with ravi secrets set %s --header or --query", b.Name)}
}

// left finds a placeholder that is still in the head. The values of the headers
// that were just set hold none: a value is nobody's placeholder.
func (s *secrets) left(r *Request, done map[string]bool) (*bound, string) {
	if b := s.find(r.Method); b != nil {
		return b, "the method"
	}
	for _, text := range spellings(r.Target) {
		if b := s.find(text); b != nil {
			return b, "the address"
		}
	}
	if b, where := s.inHeader(r.Header, done); b != nil {
		return b, where
	}
	return s.inHeader(r.Trailer, nil)
}

func (s *secrets) inHeader(h http.Header, done map[string]bool) (*bound, string) {
	for name, values := range h {
		if done[name] {
			continue
		}
		if b := s.find(name); b != nil {
			return b, "a header's name"
		}
		for _, v := range values {
			texts := spellings(v)
			if _, plain, ok := basic(v); ok {
				texts = append(texts, plain)
			}
			for _, text := range texts {
				if b := s.find(text); b != nil {
					return b, "the header " + name
				}
			}
		}
	}
	return nil, ""
}

// spellings are a text and what it means to one who unescapes it.
func spellings(text string) []string {
	texts := []string{text}
	if strings.Contains(text, "%") {
		for range 2 { // escaped once, or an escape of an escape
			plain := unescape(texts[len(texts)-1])
			if plain == texts[len(texts)-1] {
				break
			}
			texts = append(texts, plain)
		}
	}
	return texts
}

// unescape undoes every %XX that there is, and leaves what is none.
func unescape(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '%' && i+2 < len(text) {
			if plain, err := url.PathUnescape(text[i : i+3]); err == nil {
				b.WriteString(plain)
				i += 2
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

// signatures are schemes of the header Authorization that prove that somebody has
// a key, without sending it.
var signatures = []string{"AWS4-", "Digest", "HMAC", "Hawk", "Signature", "SharedKey", "OAuth", "TC3-HMAC-SHA256", "ACS3-HMAC-SHA256", "GOOG4-"}

// Signed says by which scheme a request is signed that goes to a host which a
// secret is bound to, or nothing. A signature that was made with a placeholder is
// a wrong one, and no placeholder is to be seen in it.
func (s *Set) Signed(r *Request) string {
	if !s.Bound(r.Host, r.Port) {
		return ""
	}
	for _, v := range r.Header["Authorization"] {
		scheme, _, _ := strings.Cut(v, " ")
		for _, known := range signatures {
			if len(scheme) >= len(known) && strings.EqualFold(scheme[:len(known)], known) {
				return known
			}
		}
	}
	if _, query, _ := strings.Cut(r.Target, "?"); strings.Contains(query, "X-Amz-Signature=") {
		return "AWS4-"
	}
	return ""
}

// basic undoes the encoding of a credential of the scheme Basic (RFC 7617), whose
// value is user:password in base64.
func basic(value string) (scheme, plain string, ok bool) {
	scheme, encoded, found := strings.Cut(value, " ")
	if !found || !strings.EqualFold(scheme, "basic") {
		return "", "", false
	}
	encoded = strings.TrimRight(strings.TrimSpace(encoded), "=")
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		if b, err := enc.DecodeString(encoded); err == nil {
			return scheme, string(b), true
		}
	}
	return "", "", false
}

// replaceHeader puts the value into a header's value.
func (b *bound) replaceHeader(v string, put func(*bound, string) (string, error)) (string, error) {
	if strings.Contains(v, b.Placeholder) {
		return put(b, v)
	}
	scheme, plain, ok := basic(v)
	if !ok || !strings.Contains(plain, b.Placeholder) {
		return v, nil
	}
	plain, err := put(b, plain)
	return scheme + " " + base64.StdEncoding.EncodeToString([]byte(plain)), err
}

// replaceQuery puts the value into its parameter. All else stays byte for byte.
func (b *bound) replaceQuery(target string, put func(*bound, string) (string, error)) (string, error) {
	path, query, has := strings.Cut(target, "?")
	if b.Query == "" || !has {
		return target, nil
	}
	parts := strings.Split(query, "&")
	for i, part := range parts {
		key, value, _ := strings.Cut(part, "=")
		if plain, err := url.QueryUnescape(key); err != nil || plain != b.Query {
			continue
		}
		plain, err := url.QueryUnescape(value)
		if err != nil || !strings.Contains(plain, b.Placeholder) {
			continue
		}
		if plain, err = put(b, plain); err != nil {
			return "", err
		}
		parts[i] = key + "=" + url.QueryEscape(plain)
	}
	return path + "?" + strings.Join(parts, "&"), nil
}

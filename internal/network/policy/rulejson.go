package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"ravi/internal/strictjson"
)

// object is a rule with more to say than a word can.
type object struct {
	Host    string      `json:"host"`
	Ports   []portRange `json:"ports,omitempty"`
	Methods []string    `json:"methods,omitempty"`
	Paths   []string    `json:"paths,omitempty"`
	TLS     TLSMode     `json:"tls,omitempty"`
	Inject  []string    `json:"inject,omitempty"`
	// Protocol is "tcp", which is meant when it is missing, or "udp".
	Protocol string `json:"protocol,omitempty"`
}

var (
	methodForm = regexp.MustCompile(`^[A-Z][A-Z0-9_-]{0,31}$`)
	secretForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
)

// UnmarshalJSON reads a word (see ParseRule) or an object {host, ports, methods, paths, tls, inject, protocol}.
func (r *Rule) UnmarshalJSON(data []byte) error {
	data = bytes.TrimSpace(data)
	if len(data) > 0 && data[0] == '"' {
		var text string
		if err := strictjson.Decode(data, &text); err != nil {
			return located(data, err)
		}
		parsed, err := ParseRule(text)
		if err != nil {
			return err
		}
		*r = parsed
		return nil
	}
	if len(data) == 0 || data[0] != '{' {
		return refused(string(data), errors.New(`a rule is a word such as "example.com:8443" or an object such as {"host": "example.com", "methods": ["GET"]}`))
	}
	var o object
	if err := strictjson.Decode(data, &o); err != nil {
		return located(data, err)
	}
	parsed, err := o.rule()
	if err != nil {
		var short bytes.Buffer
		if json.Compact(&short, data) != nil {
			short.Reset()
			short.Write(data)
		}
		return fmt.Errorf("%w %s: %w", ErrRule, quoteJSON(short.String()), err)
	}
	*r = parsed
	return nil
}

// located keeps the place in the document and adds the rule to the message.
func located(data []byte, err error) error {
	var e *strictjson.Error
	if !errors.As(err, &e) {
		return refused(string(data), err)
	}
	moved := *e
	moved.Message = fmt.Sprintf("%v %s: %s", ErrRule, quoteJSON(string(data)), e.Message)
	moved.Err = fmt.Errorf("%w: %w", ErrRule, err)
	return &moved
}

// quoteJSON is quote, without escaping the quotes of a document that needs no escapes.
func quoteJSON(s string) string {
	const most = 240
	if strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) >= 0 {
		return quote(s)
	}
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

func (o object) rule() (Rule, error) {
	if o.Host == "" {
		return Rule{}, errors.New(`"host" is missing`)
	}
	host, port, err := splitPort(o.Host)
	if err != nil {
		return Rule{}, err
	}
	if port != "" {
		return Rule{}, fmt.Errorf(`the port stands in "ports": {"host": %s, "ports": [%s]}`, quote(host), port)
	}
	r, err := parseHost(host)
	if err != nil {
		return Rule{}, err
	}
	for _, part := range []struct {
		name  string
		given bool
		count int
	}{
		{"ports", o.Ports != nil, len(o.Ports)},
		{"methods", o.Methods != nil, len(o.Methods)},
		{"paths", o.Paths != nil, len(o.Paths)},
		{"inject", o.Inject != nil, len(o.Inject)},
	} {
		if part.given && part.count == 0 {
			return Rule{}, fmt.Errorf(`"%s": [] is ambiguous: leave it out, or fill it`, part.name)
		}
		if part.count > maxParts {
			return Rule{}, fmt.Errorf(`"%s" has %d entries, more than %d`, part.name, part.count, maxParts)
		}
	}
	for _, method := range o.Methods {
		method = strings.ToUpper(method)
		switch {
		case method == "CONNECT":
			return Rule{}, errors.New("CONNECT is never allowed: a rule that names the host and port opens the connection itself")
		case !methodForm.MatchString(method):
			return Rule{}, fmt.Errorf("%s is no HTTP method", quote(method))
		}
		r.methods = append(r.methods, method)
	}
	for _, path := range o.Paths {
		if err := checkPath(path); err != nil {
			return Rule{}, fmt.Errorf("the path %s: %w", quote(path), err)
		}
	}
	for _, name := range o.Inject {
		if !secretForm.MatchString(name) {
			return Rule{}, fmt.Errorf("%s is no name of a secret", quote(name))
		}
	}
	switch o.Protocol {
	case "", "tcp":
	case "udp":
		r.udp = true
	default:
		return Rule{}, fmt.Errorf(`"protocol" is "tcp" or "udp", not %s`, quote(o.Protocol))
	}
	r.ports, r.paths, r.inject, r.tls = o.Ports, o.Paths, o.Inject, o.TLS
	if err := r.consistent(); err != nil {
		return Rule{}, err
	}
	r.text = r.format()
	return r, nil
}

// consistent refuses promises that cannot be kept together.
func (r Rule) consistent() error {
	switch {
	case !r.udp:
	case len(r.ports) == 0:
		return errors.New("a rule about UDP names its port, as in ntp.example.com:123/udp")
	case r.bounded() || r.tls != "" || len(r.inject) > 0:
		return errors.New("of UDP nothing is seen but where it goes, so there can be no methods, paths, tls or inject")
	}
	switch r.tls {
	case "", Intercept:
	case Passthrough:
		if r.bounded() || len(r.inject) > 0 {
			return errors.New("with passthrough no request is seen, so there can be no methods, paths or inject")
		}
	default:
		return fmt.Errorf(`"tls" is "intercept" or "passthrough", not %s`, quote(string(r.tls)))
	}
	if len(r.inject) > 0 && r.host == "" {
		return errors.New("a secret is injected for a host name, not for an address")
	}
	return nil
}

// MarshalJSON writes what UnmarshalJSON reads.
func (r Rule) MarshalJSON() ([]byte, error) {
	if r.text == "" {
		return nil, fmt.Errorf("%w: it is empty", ErrRule)
	}
	if r.word() {
		return json.Marshal(r.text)
	}
	return []byte(r.text), nil
}

// format is String, made once: it is asked for at every decision.
func (r Rule) format() string {
	if r.word() {
		if len(r.ports) == 1 {
			text := r.target() + ":" + strconv.Itoa(int(r.ports[0].first))
			if r.udp {
				text += udpSuffix
			}
			return text
		}
		return r.target()
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	// Strings and numbers that were checked cannot fail to encode.
	o := object{Host: r.target(), Ports: r.ports, Methods: r.methods, Paths: r.paths, TLS: r.tls, Inject: r.inject}
	if r.udp {
		o.Protocol = "udp"
	}
	_ = enc.Encode(o)
	return strings.TrimSpace(b.String())
}

// UnmarshalJSON reads 443, "443" or "8000-8100".
func (p *portRange) UnmarshalJSON(data []byte) error {
	text := string(data)
	if strings.HasPrefix(text, `"`) {
		if err := strictjson.Decode(data, &text); err != nil {
			return err
		}
	}
	low, high, isRange := strings.Cut(text, "-")
	if !isRange {
		high = low
	}
	if low == "" || high == "" {
		return fmt.Errorf(`a port is a number such as 443 or a range such as "8000-8100", not %s`, quote(text))
	}
	first, err := parsePort(low)
	if err != nil {
		return err
	}
	last, err := parsePort(high)
	if err != nil {
		return err
	}
	if first > last {
		return fmt.Errorf("the port range %s runs backwards", quote(text))
	}
	*p = portRange{first, last}
	return nil
}

// MarshalJSON writes what UnmarshalJSON reads.
func (p portRange) MarshalJSON() ([]byte, error) {
	if p.first == p.last {
		return []byte(strconv.Itoa(int(p.first))), nil
	}
	return json.Marshal(p.String())
}

func (p portRange) String() string {
	if p.first == p.last {
		return strconv.Itoa(int(p.first))
	}
	return fmt.Sprintf("%d-%d", p.first, p.last)
}

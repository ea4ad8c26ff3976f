package secret

import (
	"errors"
	"fmt"
	"net/netip"
	"net/textproto"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/idna"
	"golang.org/x/net/publicsuffix"
)

// Placeholder is what stands for the value in the template of a header.
const Placeholder = "{}"

// DefaultHeader is where a value goes when nothing else is said.
const DefaultHeader = "Authorization: Bearer " + Placeholder

// Binding says where a value may go. One that the store gives is complete and in the form that is compared: host names
// in lower case and ASCII, without the port when that is 443; headers in canonical case.
type Binding struct {
	// Hosts are host, host:port, *.host and *.host:port. The port is 443 when none is named.
	Hosts []string `json:"hosts"`
	// Headers are templates such as "Authorization: Bearer {}", where {} is the value. It may stand in these headers; what
	// stands around it is how it is sent when nothing else is said.
	Headers []string `json:"headers"`
	// Query is the parameter of a query that the value may stand in as well; empty is none.
	Query string `json:"query,omitempty"`
	// Env are the variables of a sandbox that stand for the secret.
	Env []string `json:"env"`
}

// The most of anything that a person writes by hand.
const (
	maxList   = 64
	maxHeader = 512 // bytes of a template
)

// check brings a binding to its form, or refuses it. Empty lists get their defaults, which need the secret's name.
func (b Binding) check(name string) (Binding, error) {
	out := Binding{Query: b.Query}
	if len(b.Hosts) == 0 {
		return out, refuse(ErrBinding, "name the hosts that it is for, such as api.github.com",
			"%s is bound to no host, so it could go nowhere", name)
	}
	var err error
	if out.Hosts, err = each("host", b.Hosts, normalHost); err != nil {
		return out, err
	}
	if out.Headers, err = each("header", orDefault(b.Headers, DefaultHeader), normalHeader); err != nil {
		return out, err
	}
	if out.Env, err = each("variable", orDefault(b.Env, name), normalEnv); err != nil {
		return out, err
	}
	if b.Query != "" && !queryForm.MatchString(b.Query) {
		return out, refuse(ErrBinding, "write the name alone, such as api_key", "what is given for the query is not the name of a parameter")
	}
	return out, nil
}

func orDefault(list []string, otherwise string) []string {
	if len(list) == 0 {
		return []string{otherwise}
	}
	return list
}

// each brings the parts of a list to their form, and leaves out what is there twice. What is refused is not repeated:
// somebody may have written the value into it.
func each(what string, list []string, normal func(string) (string, error)) ([]string, error) {
	if len(list) > maxList {
		return nil, refuse(ErrBinding, "", "there are %d of one %s each; %d is the most", len(list), what, maxList)
	}
	out := make([]string, 0, len(list))
	for i, text := range list {
		one, err := normal(text)
		if err != nil {
			which := ""
			if len(list) > 1 {
				which = fmt.Sprintf(" number %d", i+1)
			}
			return nil, refuse(ErrBinding, "", "the %s%s: %s", what, which, err)
		}
		if !slices.Contains(out, one) {
			out = append(out, one)
		}
	}
	return out, nil
}

// The bounds of a host name (RFC 1035).
const (
	maxHost  = 253
	maxLabel = 63
)

// international maps what people write to what is asked on the wire; the characters are checked here afterwards.
var international = idna.New(idna.MapForLookup(), idna.Transitional(false), idna.BidiRule(), idna.StrictDomainName(false), idna.CheckHyphens(false))

// splitHost divides a pattern into name and port.
func splitHost(pattern string) (name string, port uint16, err error) {
	name, text, named := strings.Cut(pattern, ":")
	if !named {
		return name, 443, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || text[0] == '0' {
		return "", 0, errors.New("after : stands a port from 1 to 65535")
	}
	return name, uint16(n), nil
}

// normalHost is a pattern of hosts in its form. Addresses in any spelling are refused: a certificate that could prove
// who answers there is for a name.
func normalHost(pattern string) (string, error) {
	switch {
	case len(pattern) > 4*maxHost:
		return "", fmt.Errorf("a host name has at most %d bytes", maxHost)
	case !utf8.ValidString(pattern):
		return "", errors.New("a host name is UTF-8 text")
	case strings.Contains(pattern, "://") || strings.Contains(pattern, "/"):
		return "", errors.New("write the host alone, with its port if that is not 443: api.example.com:8443")
	case pattern == "*":
		return "", errors.New("a secret for every host is a secret of every host; name those that it is for")
	}
	if isAddress(pattern) {
		return "", errors.New("a secret is bound to names, not to addresses")
	}
	name, port, err := splitHost(pattern)
	if err != nil {
		return "", err
	}
	name, below := strings.CutPrefix(name, "*.")
	if strings.Contains(name, "*") {
		return "", errors.New("* stands for whole parts at the start only, as in *.example.com")
	}
	if name, err = hostName(name); err != nil {
		return "", err
	}
	if below {
		// Whoever registers a name there would be sent the value.
		if suffix, _ := publicsuffix.PublicSuffix(name); suffix == name {
			return "", fmt.Errorf("anybody can have a name below %s; name the hosts that are yours", name)
		}
		name = "*." + name
	}
	if port != 443 {
		name += ":" + strconv.Itoa(int(port))
	}
	return name, nil
}

func isAddress(pattern string) bool {
	if strings.HasPrefix(pattern, "[") {
		return true
	}
	if _, err := netip.ParseAddr(pattern); err == nil {
		return true
	}
	_, err := netip.ParseAddrPort(pattern)
	return err == nil
}

// hostName is a name in lower case ASCII without the trailing dot.
func hostName(name string) (string, error) {
	name, err := international.ToASCII(name)
	if err != nil {
		return "", errors.New("this is not a valid host name")
	}
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	if name == "" {
		return "", errors.New("the host name is empty")
	}
	if len(name) > maxHost {
		return "", fmt.Errorf("a host name has at most %d bytes", maxHost)
	}
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
		return "", errors.New("a host name is made of letters, digits, hyphens and dots")
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		switch {
		case label == "":
			return "", errors.New("two dots stand together, or one in front")
		case len(label) > maxLabel:
			return "", fmt.Errorf("a part of a host name has at most %d bytes", maxLabel)
		}
		last = label
	}
	// A resolver takes such a name for an address: 127.1, 0x7f.1, 2130706433.
	hex, isHex := strings.CutPrefix(last, "0x")
	if strings.Trim(last, "0123456789") == "" || isHex && strings.Trim(hex, "0123456789abcdef") == "" {
		return "", errors.New("a secret is bound to names, not to addresses")
	}
	return name, nil
}

// splitHeader takes a template apart: the header's name, and what stands before and after the value.
func splitHeader(template string) (name, before, after string, err error) {
	name, value, ok := strings.Cut(template, ":")
	if !ok {
		return "", "", "", errors.New(`write the header's name, a colon and what it holds, such as "Authorization: Bearer {}"`)
	}
	before, after, ok = strings.Cut(strings.TrimSpace(value), Placeholder)
	if !ok || strings.Contains(after, Placeholder) {
		return "", "", "", errors.New("{} stands in it exactly once; the value itself is not written there")
	}
	return textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)), before, after, nil
}

// frames are headers that say where a request goes and where it ends; a value has no business there.
var frames = []string{
	"Host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "Te", "Trailer", "Expect", "Keep-Alive", "Proxy-Connection",
	"Proxy-Authorization", "Range", "If-Range", "Accept-Encoding", "Http2-Settings",
}

func normalHeader(template string) (string, error) {
	if len(template) > maxHeader {
		return "", fmt.Errorf("it has more than %d bytes", maxHeader)
	}
	name, before, after, err := splitHeader(template)
	switch {
	case err != nil:
		return "", err
	case !httpguts.ValidHeaderFieldName(name):
		return "", errors.New("what stands before the colon is not the name of a header")
	case slices.Contains(frames, name):
		return "", fmt.Errorf("%s steers the request, and holds no credential", name)
	}
	for _, c := range []byte(before + after) {
		if c < ' ' || c > '~' {
			return "", errors.New("around {} stands plain ASCII text")
		}
	}
	return name + ": " + before + Placeholder + after, nil
}

var (
	queryForm = regexp.MustCompile(`^[A-Za-z0-9._~\[\]-]{1,64}$`)
	envForm   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)
)

func normalEnv(name string) (string, error) {
	if !envForm.MatchString(name) {
		return "", errors.New("a variable's name is made of letters, digits and _, and begins with no digit")
	}
	return name, nil
}

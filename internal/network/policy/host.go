package policy

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// maxName is the length of the longest host name, in bytes and without the trailing dot (RFC 1035).
const maxName = 253

// maxLabel is the length of the longest part between two dots, in bytes.
const maxLabel = 63

// international maps what people write to what is asked on the wire. Underscores (service names) and hyphens in the third and
// fourth place (of real video hosts) are let through; the characters are checked here afterwards.
var international = idna.New(idna.MapForLookup(), idna.Transitional(false), idna.BidiRule(), idna.StrictDomainName(false), idna.CheckHyphens(false))

// Host is a host name that a person wrote in the one form that is compared: lower case, in ASCII (xn--), without the
// trailing dot. Addresses in any spelling are refused.
func Host(name string) (string, error) {
	if len(name) > 4*maxName {
		return "", fmt.Errorf("a host name has at most %d bytes", maxName)
	}
	if !utf8.ValidString(name) {
		return "", errors.New("a host name is UTF-8 text")
	}
	if ascii(name) && !strings.Contains(strings.ToLower(name), "xn--") {
		return WireHost(name)
	}
	mapped, err := international.ToASCII(name)
	if err != nil {
		return "", fmt.Errorf("not a valid international host name: %s", strconv.QuoteToASCII(err.Error()))
	}
	// Mapping can make dots and digits out of other characters, so it is the result that is checked.
	return WireHost(mapped)
}

// WireHost is a host name that came from a guest in the form that is compared. Other than Host it maps nothing: what
// is not plain ASCII is no name on the wire, and two spellings must not become one name there.
func WireHost(name string) (string, error) {
	name = strings.TrimSuffix(name, ".")
	switch {
	case name == "":
		return "", errors.New("the host name is empty")
	case len(name) > maxName:
		return "", fmt.Errorf("a host name has at most %d bytes", maxName)
	}
	lower := []byte(name)
	for i, c := range lower {
		switch {
		case 'A' <= c && c <= 'Z':
			lower[i] = c + 'a' - 'A'
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		default:
			return "", fmt.Errorf("%s cannot stand in a host name", strconv.QuoteToASCII(string(rune(c))))
		}
	}
	name = string(lower)
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
	if number(last) {
		return "", errors.New("the name ends in a number: an address is written like 192.0.2.1 or [2001:db8::1]")
	}
	return name, nil
}

// number says that a resolver could take the last label, and with it the whole name, for an address: decimal, octal or
// hexadecimal.
func number(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

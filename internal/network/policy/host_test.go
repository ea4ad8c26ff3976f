package policy

import (
	"strings"
	"testing"
)

func TestHost(t *testing.T) {
	long := strings.Repeat("a.", 126) + "a" // 253 bytes
	label := strings.Repeat("a", 63)
	for in, want := range map[string]string{
		"example.com":              "example.com",
		"EXAMPLE.Com.":             "example.com",
		"localhost":                "localhost",
		"_dmarc.example.com":       "_dmarc.example.com",
		"a_b.example.com":          "a_b.example.com",
		"r3---sn-x.example.com":    "r3---sn-x.example.com",
		"1.2.3.4.example.com":      "1.2.3.4.example.com",
		"4chan.org":                "4chan.org",
		"x.0xzz":                   "x.0xzz",
		"bücher.example":           "xn--bcher-kva.example",
		"BÜCHER.example":           "xn--bcher-kva.example",
		"xn--bcher-kva.example":    "xn--bcher-kva.example",
		"XN--BCHER-KVA.example":    "xn--bcher-kva.example",
		"straße.example":           "xn--strae-oqa.example",
		"ｅｘａｍｐｌｅ．ｃｏｍ":              "example.com",
		"example。com":              "example.com",
		long:                       long,
		long + ".":                 long,
		label + ".example":         label + ".example",
		"例え.テスト":                   "xn--r8jz45g.xn--zckzah",
		"a_b.bücher.example":       "a_b.xn--bcher-kva.example",
		"r3---sn-x.bücher.example": "r3---sn-x.xn--bcher-kva.example",
	} {
		got, err := Host(in)
		if err != nil || got != want {
			t.Errorf("Host(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}

// Every way to write an address that is no name, and every name that could be taken for something else.
var noHosts = map[string]string{
	"empty":                 "",
	"a dot":                 ".",
	"two dots at the end":   "example.com..",
	"an empty part":         "a..b",
	"a dot in front":        ".example.com",
	"too long":              strings.Repeat("a.", 127) + "a",
	"a part too long":       strings.Repeat("a", 64) + ".example",
	"an address":            "127.0.0.1",
	"an address, dot":       "127.0.0.1.",
	"decimal":               "2130706433",
	"octal":                 "0177.0.0.1",
	"octal, one number":     "017700000001",
	"hexadecimal":           "0x7f000001",
	"hexadecimal, capitals": "0X7F000001",
	"hexadecimal, parts":    "0x7f.0x0.0x0.0x1",
	"hexadecimal, empty":    "0x",
	"short":                 "127.1",
	"short, mixed":          "example.0x7f",
	"last part numeric":     "example.1",
	"too many parts":        "1.2.3.4.5",
	"wide digits":           "１２７.０.０.１",
	"wide dots":             "127。0。0。1",
	"circled digits":        "①②⑦.⓪.⓪.①",
	"mapped to a slash":     "example.com℀",
	"IPv6":                  "::1",
	"IPv6 in brackets":      "[::1]",
	"mapped":                "::ffff:127.0.0.1",
	"a port":                "example.com:443",
	"a tab":                 "example.com\t",
	"a space":               "example .com",
	"a newline":             "example.com\n",
	"a zero byte":           "example.com\x00.evil.test",
	"an escape":             "example.com\x1b[31m",
	"a user":                "user@example.com",
	"a path":                "example.com/x",
	"a percent sign":        "example%2ecom",
	"a star":                "*.example.com",
	"a comma":               "a,b",
	"not UTF-8":             "ex\xffample.com",
	"broken punycode":       "xn--\x80.example",
	"punycode of nothing":   "xn--.example",
	"punycode of ASCII":     "xn--example-.com",
	"punycode of a slash":   "xn--a/b-",
	"a direction mark":      "exam\u202eple.com\u202c",
}

func TestHostRefuses(t *testing.T) {
	for name, in := range noHosts {
		t.Run(name, func(t *testing.T) {
			if got, err := Host(in); err == nil {
				t.Errorf("Host(%q) = %q", in, got)
			}
			if _, err := ParseRule(in); err == nil && name != "an address" && name != "IPv6 in brackets" && name != "a port" && name != "a star" {
				t.Errorf("ParseRule(%q) was not refused", in)
			}
		})
	}
}

// What comes from a guest is compared as it is: no character becomes another.
func TestWireHost(t *testing.T) {
	for in, want := range map[string]string{"EXAMPLE.com.": "example.com", "xn--BCHER-kva.example": "xn--bcher-kva.example", "_x.y": "_x.y"} {
		if got, err := WireHost(in); err != nil || got != want {
			t.Errorf("WireHost(%q) = %q, %v", in, got, err)
		}
	}
	for name, in := range noHosts {
		if strings.Contains(name, "punycode") {
			continue // bytes on the wire, which no rule equals
		}
		if got, err := WireHost(in); err == nil {
			t.Errorf("%s: WireHost(%q) = %q", name, in, got)
		}
	}
	for _, in := range []string{"bücher.example", "ｅxample.com", "example。com", "exa\u00admple.com", "\u212aube.example"} {
		if got, err := WireHost(in); err == nil {
			t.Errorf("WireHost(%q) = %q", in, got)
		}
	}
}

// FuzzHost holds that what comes out is stable, short, and of the characters that a name has.
func FuzzHost(f *testing.F) {
	for _, in := range noHosts {
		f.Add(in)
	}
	for _, in := range []string{"example.com", "bücher.example", "ＥXAMPLE。com", "xn--bcher-kva.example", "1.2.3.4.example", "ß.de", "a\u200db.de", "٣.٤"} {
		f.Add(in)
	}
	f.Fuzz(func(t *testing.T, in string) {
		name, err := Host(in)
		if err != nil {
			return
		}
		if name == "" || len(name) > 253 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
			t.Fatalf("Host(%q) = %q", in, name)
		}
		last := name[strings.LastIndexByte(name, '.')+1:]
		if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") && strings.Trim(last[2:], "0123456789abcdef") == "" {
			t.Fatalf("Host(%q) = %q ends in a number", in, name)
		}
		if again, err := WireHost(strings.ToUpper(name) + "."); err != nil || again != name {
			t.Fatalf("WireHost of %q = %q, %v", name, again, err)
		}
		if again, err := Host(name); err != nil || again != name {
			t.Fatalf("Host(%q) = %q, and then %q, %v", in, name, again, err)
		}
		r, err := ParseRule(name)
		if err != nil || r.String() != name {
			t.Fatalf("the rule of %q is %q, %v", name, r, err)
		}
	})
}

package secret

import (
	"reflect"
	"strings"
	"testing"
)

func TestHosts(t *testing.T) {
	for in, want := range map[string]string{
		"api.github.com":      "api.github.com",
		"API.GitHub.com.":     "api.github.com",
		"api.github.com:443":  "api.github.com",
		"a.example:8443":      "a.example:8443",
		"*.corp.example":      "*.corp.example",
		"*.corp.example:8443": "*.corp.example:8443",
		"localhost:8080":      "localhost:8080",
		"bücher.example":      "xn--bcher-kva.example",
		"a_b.example":         "a_b.example",
		"a.example:65535":     "a.example:65535",
		"*.sub.github.io":     "*.sub.github.io",
		"1.2.3.4.example":     "1.2.3.4.example",
	} {
		if got, err := normalHost(in); err != nil || got != want {
			t.Errorf("%q: got %q, %v", in, got, err)
		}
	}
	for name, in := range map[string]string{
		"empty": "", "every host": "*", "star in the middle": "a.*.example", "two stars": "*.*.example", "a star alone": "*.", "a part of a label": "a*.example",
		"all of a top-level domain": "*.com", "all of a registry": "*.co.uk", "all of a host of pages": "*.github.io", "all of a private top level": "*.corp",
		"IPv4": "192.0.2.1", "IPv4, port": "192.0.2.1:443", "IPv6": "2001:db8::1", "IPv6, brackets": "[2001:db8::1]", "IPv6, port": "[2001:db8::1]:443",
		"IPv4, short": "127.1", "IPv4, decimal": "2130706433", "IPv4, hexadecimal": "0x7f.1", "IPv4, wide": "１２７.０.０.１", "IPv4, mapped": "::ffff:127.0.0.1",
		"below an address": "*.0.0.1",
		"a URL":            "https://a.example", "a path": "a.example/x", "a user": "u@a.example", "a space": "a .example", "a line break": "a.example\n",
		"port 0": "a.example:0", "port too large": "a.example:65536", "no port": "a.example:", "port with a zero": "a.example:0443", "port with a sign": "a.example:+443",
		"two ports": "a.example:1:2", "no name": ":443", "two dots": "a..example", "a dot in front": ".a.example", "not UTF-8": "a\xff.example",
		"a NUL": "a\x00.example", "too long": strings.Repeat("a.", 130) + "example", "a long part": strings.Repeat("a", 64) + ".example", "endless": strings.Repeat("a", 1<<20),
	} {
		got, err := normalHost(in)
		if err == nil || strings.HasPrefix(name, "IP") != strings.Contains(err.Error(), "not to addresses") && name != "below an address" {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}

func TestHeaders(t *testing.T) {
	for in, want := range map[string]string{
		"Authorization: Bearer {}":   "Authorization: Bearer {}",
		"authorization:Bearer {}":    "Authorization: Bearer {}",
		"Authorization: Basic {}":    "Authorization: Basic {}",
		"x-api-key: {}":              "X-Api-Key: {}",
		"PRIVATE-TOKEN:   {}  ":      "Private-Token: {}",
		`X-Auth: id="a", token="{}"`: `X-Auth: id="a", token="{}"`,
		"Cookie: session={}; x=y":    "Cookie: session={}; x=y",
		"X-A: a:{}":                  "X-A: a:{}",
	} {
		got, err := normalHeader(in)
		if err != nil || got != want {
			t.Errorf("%q: got %q, %v", in, got, err)
		}
		if again, err := normalHeader(got); err != nil || again != got {
			t.Errorf("%q: then %q, %v", got, again, err)
		}
	}
	for name, in := range map[string]string{
		"empty": "", "no colon": "Authorization {}", "no place": "Authorization: Bearer", "two places": "X-A: {}{}", "no name": ": {}", "a space in the name": "X A: {}",
		"a place in the name": "X-{}: {}", "a line break": "X-A: {}\r\nHost: evil.test", "a line break in front": "X-A: a\n{}", "a NUL": "X-A: \x00{}", "not ASCII": "X-A: ü{}",
		"Host": "Host: {}", "length": "content-length: {}", "encoding": "Transfer-Encoding: {}", "upgrade": "Upgrade: {}", "range": "range: {}", "proxy": "proxy-authorization: Basic {}",
		"too long": "X-A: " + strings.Repeat("a", maxHeader) + "{}",
	} {
		if got, err := normalHeader(in); err == nil {
			t.Errorf("%s: got %q", name, got)
		}
	}
	name, before, after, err := splitHeader("x-auth: id {} end")
	if err != nil || name != "X-Auth" || before != "id " || after != " end" {
		t.Errorf("got %q, %q, %q, %v", name, before, after, err)
	}
}

func TestBindingCheck(t *testing.T) {
	got, err := Binding{Hosts: []string{"B.example", "b.example:443", "a.example"}, Query: "api_key", Env: []string{"T", "T", "U"}}.check("NAME")
	want := Binding{Hosts: []string{"b.example", "a.example"}, Headers: []string{DefaultHeader}, Query: "api_key", Env: []string{"T", "U"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	many := make([]string, maxList+1)
	for i := range many {
		many[i] = strings.Repeat("a", 1+i%60) + ".example"
	}
	for name, b := range map[string]Binding{
		"no hosts":      {},
		"many hosts":    {Hosts: many},
		"a bad host":    {Hosts: []string{"a.example", "*"}},
		"a bad header":  {Hosts: []string{"a.example"}, Headers: []string{"x"}},
		"a bad query":   {Hosts: []string{"a.example"}, Query: "a=b"},
		"a long query":  {Hosts: []string{"a.example"}, Query: strings.Repeat("a", 65)},
		"a bad env":     {Hosts: []string{"a.example"}, Env: []string{"A-B"}},
		"an empty env":  {Hosts: []string{"a.example"}, Env: []string{""}},
		"a digit first": {Hosts: []string{"a.example"}, Env: []string{"1A"}},
	} {
		if got, err := b.check("NAME"); err == nil {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

// FuzzHost holds that what is accepted is stable, and no address.
func FuzzHost(f *testing.F) {
	for _, in := range []string{"a.example", "*.corp.example:8443", "bücher.example", "127.0.0.1", "[::1]:443", "a.example:443", "ＥXAMPLE。com", "x.0xzz", "*.com"} {
		f.Add(in)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got, err := normalHost(in)
		if err != nil {
			return
		}
		if again, err := normalHost(got); err != nil || again != got {
			t.Fatalf("%q, then %q, %v", got, again, err)
		}
		name, _, err := splitHost(got)
		if err != nil || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.*") != "" {
			t.Fatalf("%q: %v", got, err)
		}
		if isAddress(name) {
			t.Fatalf("%q is an address", got)
		}
	})
}

package policy

import (
	"net/netip"
	"strings"
	"testing"
)

func TestHostRules(t *testing.T) {
	p := list(t, "example.com", "*.sub.example", "db.example:5432", "192.0.2.7", "10.2.0.0/16:5432", "[fd01::/16]:5432")
	for _, c := range []struct {
		name    string
		addr    string
		port    uint16
		allowed bool
		opaque  bool
	}{
		{"example.com", "198.18.0.1", 443, true, false},
		{"EXAMPLE.com.", "198.18.0.1", 80, true, false},
		{"example.com", "198.18.0.1", 22, false, false},
		{"example.com", "198.18.0.1", 0, false, false},
		{"random.example.com", "198.18.0.1", 443, false, false},
		{"xexample.com", "198.18.0.1", 443, false, false},
		{"example.com.evil.test", "198.18.0.1", 443, false, false},
		{"evil.test", "198.18.0.1", 443, false, false},
		{"sub.example", "198.18.0.1", 443, false, false},
		{"a.sub.example", "198.18.0.1", 443, true, false},
		{"a.b.c.sub.example", "198.18.0.1", 443, true, false},
		{"asub.example", "198.18.0.1", 443, false, false},
		{".sub.example", "198.18.0.1", 443, false, false},
		{"db.example", "198.18.0.1", 5432, true, true},
		{"db.example", "198.18.0.1", 443, false, false},
		{"", "192.0.2.7", 443, true, false},
		{"", "::ffff:192.0.2.7", 443, true, false},
		{"", "192.0.2.7", 22, false, false},
		{"", "192.0.2.8", 443, false, false},
		{"", "10.2.3.4", 5432, true, true},
		{"", "10.3.3.4", 5432, false, false},
		{"", "10.2.3.4", 5433, false, false},
		{"", "fd01::1", 5432, true, true},
		{"", "fd02::1", 5432, false, false},
		{"", "198.18.0.1", 443, false, false},
		{"192.0.2.7", "192.0.2.7", 443, false, false},
		// A rule for an address is none for a name, wherever the name leads.
		{"evil.test", "192.0.2.7", 443, false, false},
		{"evil.test", "10.2.3.4", 5432, false, false},
	} {
		d := p.Connect(c.name, addr(c.addr), c.port)
		if d.Allowed != c.allowed || d.Opaque != c.opaque || d.Why == "" || d.Allowed != (d.Rule != "") {
			t.Errorf("Connect(%q, %s, %d) = %+v", c.name, c.addr, c.port, d)
		}
		if d.Allowed && d.TLS != Intercept {
			t.Errorf("Connect(%q, %s, %d): TLS is %q", c.name, c.addr, c.port, d.TLS)
		}
	}
	for name, allowed := range map[string]bool{
		"example.com": true, "Example.COM.": true, "random.example.com": false, "a.sub.example": true, "sub.example": false, "db.example": true,
		"192.0.2.7": false, "": false, ".": false, "example.com:443": false, "example.com\t": false, "evil.test": false, "ｅxample.com": false,
	} {
		if d := p.Resolve(name); d.Allowed != allowed || d.Why == "" {
			t.Errorf("Resolve(%q) = %+v", name, d)
		}
	}
	if d := p.Connect("", netip.Addr{}, 443); d.Allowed {
		t.Errorf("neither name nor address: %+v", d)
	}
}

// What the issue lists as to be refused, as far as it is a matter of names: asked as a request's Host under a list.
func TestRequestHosts(t *testing.T) {
	p := list(t, "example.com", "192.0.2.7", "127.0.0.1:80", "[fd01::1]:80")
	for host, allowed := range map[string]bool{
		"example.com": true, "EXAMPLE.com": true, "example.com.": true, "192.0.2.7": true, "127.0.0.1": true, "fd01::1": true, "[fd01::1]": true,
		"example.com..": false, "example.com:80": false, "example.com\t": false, " example.com": false, "example.com\x00": false, "": false, ".": false,
		"random.example.com": false, "2130706433": false, "0x7f000001": false, "017700000001": false, "127.1": false, "0177.0.0.1": false,
		"127.0.0.1.": false, "127.0.0.01": false, "::ffff:127.0.0.1": false, "[::ffff:7f00:1]": false, "[127.0.0.1]": false, "[fd01::1": false, "fd01::1]": false,
		"fd01:0::1": false, "[fd01::1%eth0]": false, "[[fd01::1]]": false, "user@example.com": false, "example.com/": false, "evil.test@example.com": false,
	} {
		if d := p.Request(host, 80, false, "GET", "/"); d.Allowed != allowed || d.Why == "" {
			t.Errorf("Request(%q) = %+v", host, d)
		}
	}
}

func TestRequests(t *testing.T) {
	p := parse(t, `[
		{"host":"api.example","methods":["GET","HEAD"],"paths":["/v1/*","/exact"]},
		{"host":"api.example","methods":["POST"],"paths":["/upload"],"inject":["token"]},
		{"host":"open.example","inject":["token"]},
		{"host":"raw.example","ports":[443,"9000-9010"],"tls":"passthrough"},
		{"host":"odd.example","ports":[8443],"methods":["GET"]},{"host":"bound.example","ports":[443],"inject":["token"]}]`)
	for _, c := range []struct {
		host, method, path string
		port               uint16
		tls, allowed       bool
		inject             int
	}{
		{"api.example", "GET", "/v1/a", 443, true, true, 0},
		{"api.example", "GET", "/v1/", 443, true, true, 0},
		{"api.example", "GET", "/v1", 443, true, false, 0},
		{"api.example", "HEAD", "/exact", 443, true, true, 0},
		{"api.example", "HEAD", "/exact?q=/../%2e", 443, true, true, 0},
		{"api.example", "GET", "/exact/", 443, true, false, 0},
		{"api.example", "GET", "/Exact", 443, true, false, 0},
		{"api.example", "get", "/exact", 443, true, false, 0},
		{"api.example", "", "/exact", 443, true, false, 0},
		{"api.example", "DELETE", "/v1/a", 443, true, false, 0},
		{"api.example", "POST", "/v1/a", 443, true, false, 0},
		{"api.example", "POST", "/upload", 443, true, true, 1},
		// A secret never leaves in the clear.
		{"api.example", "POST", "/upload", 80, false, true, 0},
		{"open.example", "PUT", "/a//b/../c", 443, true, true, 1},
		{"open.example", "CONNECT", "/", 443, true, false, 0},
		{"open.example", "GET", "/", 8443, true, false, 0},
		{"raw.example", "GET", "/", 9010, true, true, 0},
		{"raw.example", "GET", "/", 9011, true, false, 0},
		{"raw.example", "GET", "/", 80, false, false, 0},
		{"odd.example", "GET", "/", 8443, true, true, 0},
	} {
		d := p.Request(c.host, c.port, c.tls, c.method, c.path)
		if d.Allowed != c.allowed || len(d.Inject) != c.inject || d.Why == "" {
			t.Errorf("Request(%q, %d, %v, %q, %q) = %+v", c.host, c.port, c.tls, c.method, c.path, d)
		}
	}
	for _, c := range []struct {
		host   string
		port   uint16
		tls    TLSMode
		opaque bool
	}{
		{"api.example", 443, Intercept, false}, {"open.example", 443, Intercept, false},
		{"raw.example", 443, Passthrough, false}, {"raw.example", 9005, Passthrough, true}, {"odd.example", 8443, Intercept, false}, {"bound.example", 443, Intercept, false},
	} {
		if d := p.Connect(c.host, addr("198.18.0.1"), c.port); !d.Allowed || d.TLS != c.tls || d.Opaque != c.opaque || d.Inject != nil {
			t.Errorf("Connect(%q, %d) = %+v", c.host, c.port, d)
		}
	}
}

// No path that a server could take for another one is matched by a rule with paths.
func TestHostilePaths(t *testing.T) {
	p := parse(t, `[{"host":"a.b","paths":["/open/*"]}]`)
	for _, path := range []string{"/open/x", "/open/", "/open/a%20b", "/open/%41", "/open/100%25", "/open/%2541", "/open/a;v=1", "/open/...", "/open/.well-known", "/open/a..b", "/open/~x!$&'()*+,=:@", "/open/x?a=//&b=/../%2f"} {
		if d := p.Request("a.b", 443, true, "GET", path); !d.Allowed {
			t.Errorf("%q: %s", path, d.Why)
		}
	}
	for _, path := range []string{
		"", "*", "open/x", "http://a.b/open/x", "//open/x", "/open//x", "/open/../x", "/open/./x", "/open/..", "/open/.", "/open/..;/x", "/open/.;a=b/x", "/x/../open/y",
		"/open/%2e%2e/x", "/open/%2E./x", "/open/.%2e/x", "/open/%2fx", "/open/..%2Fx", "/open/%5cx", `/open/..\x`, `/open\x`, "/open/%252e%252e/x", "/open/%25252fx",
		"/open/%00", "/open/%c0%ae", "/open/%C1%9c", "/open/%", "/open/%2", "/open/%zz", "/open/x#y", "/open/x y", "/open/\tx", "/open/x\x00", "/open/\x7f", "/open/é", "/open/\xff",
		"/Open/x", "/opens/x", "/ope", "/", "/%6fpen/x",
	} {
		if d := p.Request("a.b", 443, true, "GET", path); d.Allowed {
			t.Errorf("%q was allowed", path)
		}
	}
}

func TestEverything(t *testing.T) {
	p := All()
	for _, c := range []struct {
		name, addr string
		allowed    bool
	}{
		{"example.com", "198.18.0.1", true}, {"", "1.1.1.1", true}, {"", "2606:4700::1111", true},
		{"127.0.0.1", "198.18.0.1", false}, {"2130706433", "198.18.0.1", false},
		{"", "127.0.0.1", false}, {"", "10.0.0.1", false}, {"", "169.254.169.254", false}, {"", "168.63.129.16", false}, {"", "198.18.0.9", false},
		{"", "::ffff:10.0.0.1", false}, {"", "64:ff9b::a00:1", false}, {"", "::1", false},
	} {
		d := p.Connect(c.name, addr(c.addr), 22)
		if d.Allowed != c.allowed || d.Allowed && (d.TLS != Passthrough || !d.Opaque) {
			t.Errorf("Connect(%q, %s) = %+v", c.name, c.addr, d)
		}
	}
	if p.Names(addr("10.0.0.1"), 443) {
		t.Error("the whole internet names a private address")
	}
	if d := p.Connect("example.com", netip.Addr{}, 0); d.Allowed {
		t.Errorf("port 0: %+v", d)
	}
	if d := p.Connect("", netip.Addr{}, 443); d.Allowed {
		t.Errorf("neither name nor address: %+v", d)
	}
	for host, allowed := range map[string]bool{"1.1.1.1": true, "[2606:4700::1111]": true, "::ffff:1.1.1.1": false, "[fe80::1%eth0]": false, "[2606:4700::1111%eth0]": false, "10.0.0.1": false} {
		if d := p.Request(host, 443, true, "GET", "/"); d.Allowed != allowed {
			t.Errorf("Request(%q) = %+v", host, d)
		}
	}
	if d := p.Request("example.com", 443, true, "CONNECT", "/"); d.Allowed {
		t.Errorf("CONNECT: %+v", d)
	}
}

func TestNothing(t *testing.T) {
	var p Policy
	for _, d := range []Decision{p.Resolve("a.b"), p.Connect("a.b", addr("1.1.1.1"), 443), p.Connect("", addr("1.1.1.1"), 443), p.Request("a.b", 443, true, "GET", "/")} {
		if d.Allowed || d.Why == "" {
			t.Errorf("%+v", d)
		}
	}
}

// A refusal says what it was about and what would allow it, and nothing that a guest sends reaches a terminal.
func TestWhy(t *testing.T) {
	p := parse(t, `["a.b", {"host":"api.b","methods":["GET"],"paths":["/v1/*"]}]`)
	for want, d := range map[string]Decision{
		`no rule names evil.test; allow "evil.test:8443"`:                                             p.Connect("evil.test", netip.Addr{}, 8443),
		`no rule names evil.test; allow "evil.test"`:                                                  p.Resolve("evil.test"),
		`no rule names 1.1.1.1; allow "1.1.1.1"`:                                                      p.Connect("", addr("1.1.1.1"), 443),
		`no rule names 2606::1; allow "[2606::1]:53"`:                                                 p.Connect("", addr("2606::1"), 53),
		`the rule a.b allows the ports 80 and 443, not 22; allow "a.b:22"`:                            p.Connect("a.b", netip.Addr{}, 22),
		`the rule {"host":"api.b","methods":["GET"],"paths":["/v1/*"]} allows GET only, not "POST"`:   p.Request("api.b", 443, true, "POST", "/v1/a"),
		`the rule {"host":"api.b","methods":["GET"],"paths":["/v1/*"]} does not allow the path "/v2"`: p.Request("api.b", 443, true, "GET", "/v2"),
		`the sandbox has no network; to reach a.b allow "a.b:22"`:                                     Policy{}.Connect("a.b", netip.Addr{}, 22),
	} {
		if d.Why != want {
			t.Errorf("got  %s\nwant %s", d.Why, want)
		}
	}
	for _, hostile := range []string{"\x1b[31m", "\u009b31m", "a\u202eb", strings.Repeat("x", 9000)} {
		for _, d := range []Decision{p.Resolve(hostile), p.Connect(hostile, netip.Addr{}, 443), p.Request(hostile, 443, true, "GET", "/"), p.Request("api.b", 443, true, hostile, "/v1/a"), p.Request("api.b", 443, true, "GET", "/v1/"+hostile+"?")} {
			if strings.IndexFunc(d.Why, func(r rune) bool { return r < ' ' || r > '~' && r != '…' }) >= 0 || len(d.Why) > 2000 {
				t.Errorf("%q", d.Why)
			}
		}
	}
}

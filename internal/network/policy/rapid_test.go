package policy

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Few values, so that rules and questions meet often.
var (
	someHosts = rapid.SampledFrom([]string{"a.test", "*.a.test", "b.a.test", "c_d.test", "bücher.test", "*.test", "192.0.2.1", "10.0.0.0/8", "[fd00::1]", "[fd00::/8]"})
	somePorts = rapid.SampledFrom([]uint16{22, 80, 443, 8000, 8050, 8100, 65535})
	somePaths = rapid.SampledFrom([]string{"/", "/*", "/a", "/a/*", "/a/b", "/a%20b"})
	someVerbs = rapid.SampledFrom([]string{"GET", "POST", "PROPFIND"})
)

func drawRule(t *rapid.T) any {
	host := someHosts.Draw(t, "host")
	network := strings.Contains(host, "/")
	if rapid.Bool().Draw(t, "word") {
		if network || rapid.Bool().Draw(t, "port") {
			return host + ":" + rapid.SampledFrom([]string{"22", "80", "443", "8050"}).Draw(t, "number")
		}
		return host
	}
	o := map[string]any{"host": host}
	if network || rapid.Bool().Draw(t, "ports") {
		o["ports"] = rapid.SampledFrom([]any{[]any{443}, []any{"443"}, []any{22, "8000-8100"}, []any{"1-65535"}}).Draw(t, "list")
	}
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		o["tls"] = "passthrough"
	case 1:
		o["methods"] = rapid.SliceOfN(someVerbs, 1, 2).Draw(t, "methods")
	case 2:
		o["paths"] = rapid.SliceOfN(somePaths, 1, 2).Draw(t, "paths")
		if !strings.ContainsAny(host, "/[") && host != "192.0.2.1" {
			o["inject"] = []string{"token"}
		}
	}
	return o
}

func drawPolicy(t *rapid.T) Policy {
	var doc any = rapid.Bool().Draw(t, "all")
	if rapid.IntRange(0, 9).Draw(t, "what") > 0 {
		doc = rapid.SliceOfN(rapid.Custom(drawRule), 1, 5).Draw(t, "rules")
	}
	raw, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Parse(raw)
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return p
}

type question struct {
	name         string
	addr         netip.Addr
	port         uint16
	tls          bool
	method, path string
}

func drawQuestion(t *rapid.T) question {
	return question{
		name:   rapid.SampledFrom([]string{"", "a.test", "A.test.", "b.a.test", "x.b.a.test", "c_d.test", "xn--bcher-kva.test", "test", "192.0.2.1"}).Draw(t, "name"),
		addr:   rapid.SampledFrom([]netip.Addr{addr("192.0.2.1"), addr("::ffff:192.0.2.1"), addr("10.1.2.3"), addr("fd00::1"), addr("fd12::1"), addr("1.1.1.1"), {}}).Draw(t, "addr"),
		port:   somePorts.Draw(t, "port"),
		tls:    rapid.Bool().Draw(t, "tls"),
		method: someVerbs.Draw(t, "method"),
		path:   rapid.SampledFrom([]string{"/", "/a", "/a/", "/a/b?c", "/a/../b", "/a%20b", "/A"}).Draw(t, "path"),
	}
}

// asker is what Policy and Effective have in common.
type asker interface {
	Resolve(string) Decision
	Connect(string, netip.Addr, uint16) Decision
	Request(string, uint16, bool, string, string) Decision
	Names(netip.Addr, uint16) bool
}

var (
	_ asker = Policy{}
	_ asker = Effective{}
)

// decisions are the answers about connection and request.
func (q question) decisions(a asker) []Decision {
	return []Decision{a.Connect(q.name, q.addr, q.port), a.Request(q.name, q.port, q.tls, q.method, q.path)}
}

// answers are all that can be asked.
func (q question) answers(a asker) []any {
	return []any{a.Resolve(q.name), q.decisions(a), a.Names(q.addr, q.port)}
}

// A policy that was written down and read again decides the same.
func TestMarshalledPolicyDecidesEqually(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		raw, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(raw)
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		if !reflect.DeepEqual(p, again) {
			t.Fatalf("%s is %+v, was %+v", raw, again, p)
		}
		for range 8 {
			q := drawQuestion(t)
			if was, is := q.answers(p), q.answers(again); !reflect.DeepEqual(was, is) {
				t.Fatalf("%s, %+v: %+v, was %+v", raw, q, is, was)
			}
		}
	})
}

// An exact rule allows one name, in its spellings, and no other that a guest could send.
func TestExactRuleAllowsOneName(t *testing.T) {
	label := rapid.StringMatching(`[a-z_][a-z0-9_-]{0,8}`)
	rapid.Check(t, func(t *rapid.T) {
		name := strings.Join(rapid.SliceOfN(label, 1, 4).Draw(t, "name"), ".")
		r, err := ParseRule(name)
		if err != nil {
			t.Skip(err)
		}
		p := Policy{rules: []Rule{r}}
		if !p.Resolve(strings.ToUpper(name) + ".").Allowed {
			t.Fatalf("%s does not allow itself", name)
		}
		other := rapid.OneOf(
			rapid.Custom(func(t *rapid.T) string { return label.Draw(t, "more") + "." + name }),
			rapid.Custom(func(t *rapid.T) string { return label.Draw(t, "more") + name }),
			rapid.Custom(func(t *rapid.T) string { return name + "." + label.Draw(t, "more") }),
			rapid.Custom(func(t *rapid.T) string { return name + label.Draw(t, "more") }),
			rapid.Custom(func(t *rapid.T) string {
				at := rapid.IntRange(0, len(name)).Draw(t, "at")
				return name[:at] + rapid.String().Draw(t, "put in") + name[at:]
			}),
			rapid.String(), rapid.StringMatching(`[a-z_.]{0,12}`),
		).Draw(t, "other")
		same := strings.EqualFold(ascii7(strings.TrimSuffix(other, ".")), name)
		got := []bool{
			p.Resolve(other).Allowed, other != "" && p.Connect(other, addr("198.18.0.1"), 443).Allowed, p.Request(other, 443, true, "GET", "/").Allowed,
		}
		for i, allowed := range got {
			if allowed != same {
				t.Fatalf("the rule %s, asked about %q: answer %d is %v", name, other, i, allowed)
			}
		}
	})
}

// ascii7 is s, or what equals no name: EqualFold holds ſ and s, or K and k, for the same.
func ascii7(s string) string {
	if !ascii(s) {
		return "?"
	}
	return s
}

// No policy on no floor is allowed more than the floor gives, and what is denied is denied.
func TestFloorHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, bound, gifts, denials := drawPolicy(t), drawPolicy(t), drawPolicy(t), drawPolicy(t)
		f := Floor{Max: &bound, AlwaysAllow: gifts.rules, AlwaysDeny: denials.rules}
		e := f.Apply(p)
		for range 8 {
			q := drawQuestion(t)
			got, gift, denied := q.decisions(e), q.decisions(Policy{rules: gifts.rules}), q.decisions(Policy{rules: denials.rules})
			asked, limit := q.decisions(p), q.decisions(bound)
			for i := range got {
				if got[i].Allowed && !gift[i].Allowed && !(asked[i].Allowed && limit[i].Allowed) {
					t.Fatalf("question %d of %+v is allowed by nobody", i, q)
				}
				if got[i].Allowed && denied[i].Allowed {
					t.Fatalf("question %d of %+v is denied, and allowed", i, q)
				}
			}
		}
	})
}

// FuzzParse holds that what is read can be written, read again, and says the same; that a refusal is an ErrRule; and
// that neither prints what controls a terminal.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"true", "false", "null", "[]", `["a.b"]`, `["a.b:443","*.c.d","10.0.0.0/8:1","[fd00::/8]:2","1.2.3.4"]`, `[{"host":"a.b","ports":[443,"8000-8100"],"methods":["get"],"paths":["/a/*"],"inject":["x"]}]`,
		`[{"host":"*.b","tls":"passthrough"}]`, `["\u001b[31m"]`, `["ＡＢ。com"]`, `[{"host":"a","Host":"b"}]`, `["[::ffff:1.2.3.4]:80"]`, `["0x7f.1"]`, `["198.18.0.1"]`, `[{"host":"a","ports":["1-2-3"]}]`,
		`["0.0.0.0/0:443"]`, `[{"host":"a","paths":["/%2e%2e/"]}]`, `["[::"]`, `["]:443"]`, `["a:443:"]`, `[[[[`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := Parse(raw)
		if err != nil {
			for _, r := range err.Error() {
				if r < ' ' || r == 0x7f || 0x80 <= r && r < 0xa0 {
					t.Fatalf("the refusal %q controls the terminal", err)
				}
			}
			return
		}
		out, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(out)
		if err != nil || !reflect.DeepEqual(p, again) {
			t.Fatalf("%s became %s: %v", raw, out, err)
		}
		for _, r := range p.Rules() {
			if strings.IndexFunc(r.String(), func(r rune) bool { return r < ' ' || r > '~' }) >= 0 {
				t.Fatalf("the rule %q", r)
			}
			if d := p.Connect("2130706433", netip.Addr{}, 443); d.Allowed {
				t.Fatalf("%s allows a number", out)
			}
		}
		a := nowhere()
		if err := a.Check(addr("198.18.0.1"), p.Names(addr("198.18.0.1"), 443)); err == nil {
			t.Fatalf("%s opens our own range", out)
		}
		imds := addr("169.254.169.254")
		if named := p.Names(imds, 443); named && !slices.ContainsFunc(p.Rules(), func(r Rule) bool { return strings.Contains(r.String(), imds.String()) }) {
			t.Fatalf("%s names a metadata address by the way", out)
		}
	})
}

// FuzzRequest holds that no host but the rule's, and no path that is not under the rule's, is allowed.
func FuzzRequest(f *testing.F) {
	for _, s := range noHosts {
		f.Add(s, "/open/a")
	}
	for _, s := range []string{"/open/../x", "/open/%2e%2e/x", "/open/%252e", "/open//", "/open/a?b=/../", `/open/\..`, "/open/..;/", "//open/"} {
		f.Add("a.b", s)
	}
	p, err := Parse(json.RawMessage(`[{"host":"a.b","paths":["/open/*"]}]`))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, host, path string) {
		d := p.Request(host, 443, true, "GET", path)
		if strings.IndexFunc(d.Why, func(r rune) bool { return r < ' ' || r > '~' && r != '…' }) >= 0 {
			t.Fatalf("the reason %q", d.Why)
		}
		if !d.Allowed {
			return
		}
		if !strings.EqualFold(strings.TrimSuffix(host, "."), "a.b") {
			t.Fatalf("%q was allowed", host)
		}
		before, _, _ := strings.Cut(path, "?")
		lower := strings.ToLower(before)
		for _, bad := range []string{"//", "/./", "/../", "%2e", "%2f", "%5c", `\`, "%00"} {
			if strings.Contains(lower+"/", bad) && !strings.HasSuffix(before, "/") || strings.Contains(lower, bad) {
				t.Fatalf("%q was allowed", path)
			}
		}
		if !strings.HasPrefix(before, "/open/") {
			t.Fatalf("%q was allowed", path)
		}
	})
}

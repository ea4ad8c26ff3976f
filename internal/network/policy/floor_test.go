package policy

import (
	"encoding/json"
	"errors"
	"net/netip"
	"reflect"
	"testing"

	"ravi/internal/strictjson"
)

func floor(t testing.TB, raw string) Floor {
	t.Helper()
	var f Floor
	if err := strictjson.Decode([]byte(raw), &f); err != nil {
		t.Fatal(err)
	}
	if err := f.Validate(); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFloor(t *testing.T) {
	f := floor(t, `{"always_deny":["evil.test","*.evil.test","part.test:8080","10.6.0.0/16","9.9.9.9"],"alwaysAllow":["mirror.test","part.test:8080","evil.test","10.7.0.0/16:443"],
		"max":["mirror.test","*.ok.test","evil.test","10.0.0.0/8:443",{"host":"read.test","methods":["GET"]},{"host":"raw.test","tls":"passthrough"}]}`)
	wide := All()
	lists := list(t, "a.ok.test", "a.ok.test:8443", "b.test", "evil.test", "10.8.0.1:443", "10.6.0.1:443", "read.test", "raw.test:443")
	for _, c := range []struct {
		policy  Policy
		name    string
		addr    string
		port    uint16
		allowed bool
	}{
		// Denied before anything.
		{wide, "evil.test", "198.18.0.1", 443, false}, {wide, "evil.test", "198.18.0.1", 9999, false}, {wide, "EVIL.test.", "198.18.0.1", 443, false}, {wide, "x.evil.test", "198.18.0.1", 22, false},
		{lists, "evil.test", "198.18.0.1", 443, false}, {lists, "", "10.6.0.1", 443, false}, {lists, "part.test", "198.18.0.1", 8080, false},
		// A denied address is denied behind a name, too, and in every form.
		{lists, "a.ok.test", "9.9.9.9", 443, false}, {lists, "a.ok.test", "::ffff:9.9.9.9", 443, false}, {lists, "a.ok.test", "64:ff9b::9.9.9.9", 443, false}, {lists, "a.ok.test", "1.1.1.1", 443, true},
		// Allowed whatever the policy says.
		{Policy{}, "mirror.test", "198.18.0.1", 443, true}, {Policy{}, "", "10.7.0.1", 443, true}, {Policy{}, "a.ok.test", "198.18.0.1", 443, false},
		// Within the bound only.
		{wide, "a.ok.test", "198.18.0.1", 443, true}, {wide, "b.test", "198.18.0.1", 443, false}, {lists, "b.test", "198.18.0.1", 443, false}, {lists, "a.ok.test", "198.18.0.1", 8443, false},
		{lists, "", "10.8.0.1", 443, true}, {lists, "", "10.8.0.2", 443, false}, {wide, "", "1.1.1.1", 443, false},
	} {
		d := f.Apply(c.policy).Connect(c.name, addr(c.addr), c.port)
		if d.Allowed != c.allowed || d.Why == "" {
			t.Errorf("Connect(%q, %s, %d) = %+v", c.name, c.addr, c.port, d)
		}
	}
	for name, allowed := range map[string]bool{"evil.test": false, "x.evil.test": false, "part.test": true, "mirror.test": true, "b.test": false, "c.ok.test": true, "": false, "1.1.1.1": false} {
		if d := f.Apply(wide).Resolve(name); d.Allowed != allowed {
			t.Errorf("Resolve(%q) = %+v", name, d)
		}
	}
	e := f.Apply(lists)
	if d := e.Request("read.test", 443, true, "POST", "/"); d.Allowed {
		t.Errorf("the bound's methods: %+v", d)
	}
	if d := e.Request("read.test", 443, true, "GET", "/"); !d.Allowed {
		t.Errorf("the bound's methods: %+v", d)
	}
	if d := e.Request("evil.test", 443, true, "GET", "/"); d.Allowed {
		t.Errorf("denied: %+v", d)
	}
	if d := e.Request("9.9.9.9", 443, true, "GET", "/"); d.Allowed {
		t.Errorf("denied: %+v", d)
	}
}

// Where the bound looks at requests, no policy takes the sight away.
func TestStricterAnswerHolds(t *testing.T) {
	for _, c := range []struct {
		policy, max string
		tls         TLSMode
		opaque      bool
	}{
		{`true`, `["a.b"]`, Intercept, false}, {`true`, `["a.b:443"]`, Intercept, false}, {`[{"host":"a.b","tls":"passthrough"}]`, `["a.b"]`, Intercept, false},
		{`[{"host":"a.b","tls":"passthrough"}]`, `[{"host":"a.b","tls":"passthrough"}]`, Passthrough, false}, {`["a.b"]`, `true`, Intercept, false}, {`["a.b:443"]`, `true`, Intercept, false},
		{`true`, `true`, Passthrough, true}, {`["a.b:443"]`, `["a.b"]`, Intercept, false}, {`true`, `[{"host":"a.b","ports":[443],"methods":["GET"]}]`, Intercept, false},
	} {
		bound := parse(t, c.max)
		d := Floor{Max: &bound}.Apply(parse(t, c.policy)).Connect("a.b", netip.Addr{}, 443)
		if !d.Allowed || d.TLS != c.tls || d.Opaque != c.opaque {
			t.Errorf("%s within %s: %+v", c.policy, c.max, d)
		}
	}
	for policy, max := range map[string]string{`true`: `["a.b:22"]`, `["a.b:22"]`: `true`} {
		bound := parse(t, max)
		if d := (Floor{Max: &bound}).Apply(parse(t, policy)).Connect("a.b", netip.Addr{}, 22); !d.Allowed || !d.Opaque {
			t.Errorf("%s within %s: %+v", policy, max, d)
		}
	}
	nothing := Policy{}
	if d := (Floor{Max: &nothing}).Apply(All()).Resolve("a.b"); d.Allowed {
		t.Errorf("a bound of nothing: %+v", d)
	}
	if d := (Effective{}).Resolve("a.b"); d.Allowed {
		t.Errorf("the zero value: %+v", d)
	}
}

// The final address decides, at the dial: what a name leads to is refused though the name is allowed.
func TestDial(t *testing.T) {
	a := nowhere()
	f := floor(t, `{"always_deny":["9.9.9.9"],"always_allow":["10.7.0.0/16:443"],"max":null}`)
	e := f.Apply(list(t, "a.test", "10.1.0.5:443", "169.254.0.0/16:80"))
	for _, c := range []struct {
		name, addr string
		port       uint16
		want       error
	}{
		{"a.test", "1.1.1.1", 443, nil}, {"a.test", "127.0.0.1", 443, ErrClosed}, {"a.test", "10.0.0.1", 443, ErrClosed}, {"a.test", "169.254.169.254", 80, ErrClosed},
		{"a.test", "8.8.4.4", 443, ErrClosed}, {"a.test", "::ffff:8.8.4.4", 443, ErrClosed}, {"a.test", "::ffff:127.0.0.1", 443, ErrClosed}, {"a.test", "64:ff9b::7f00:1", 443, ErrClosed},
		{"a.test", "198.18.0.5", 443, ErrClosed}, {"a.test", "10.1.0.5", 443, nil}, {"a.test", "10.1.0.5", 80, ErrClosed}, {"a.test", "10.7.1.1", 443, nil}, {"a.test", "9.9.9.9", 443, ErrDenied},
		{"a.test", "1.1.1.1", 22, ErrDenied}, {"b.test", "1.1.1.1", 443, ErrDenied}, {"", "1.1.1.1", 443, ErrDenied}, {"", "10.7.1.1", 443, nil}, {"", "169.254.169.254", 80, ErrClosed}, {"", "169.254.1.1", 80, nil},
	} {
		if err := e.Dial(a, c.name, addr(c.addr), c.port); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("Dial(%q, %s, %d): %v", c.name, c.addr, c.port, err)
		}
	}
	bound := All()
	e = Floor{Max: &bound}.Apply(list(t, "a.test", "10.1.0.5:443"))
	if err := e.Dial(a, "a.test", addr("10.1.0.5"), 443); !errors.Is(err, ErrClosed) {
		t.Errorf("the public internet as a bound opens no private address: %v", err)
	}
}

func TestFloorRefusals(t *testing.T) {
	for _, raw := range []string{
		`{"always_deny":[{"host":"a.b","paths":["/x"]}]}`, `{"always_deny":[{"host":"a.b","methods":["GET"]}]}`, `{"always_deny":[{"host":"a.b","tls":"passthrough"}]}`,
		`{"always_deny":[{"host":"a.b","inject":["x"]}]}`, `{"always_allow":["10.0.0.0/8"]}`,
	} {
		var f Floor
		if err := strictjson.Decode([]byte(raw), &f); err != nil {
			t.Fatal(err)
		}
		if err := f.Validate(); !errors.Is(err, ErrRule) {
			t.Errorf("%s: %v", raw, err)
		}
		// Unvalidated, such a rule denies the more.
		if d := f.Apply(All()).Request("a.b", 443, true, "POST", "/y"); d.Allowed && len(f.AlwaysDeny) > 0 {
			t.Errorf("%s: %+v", raw, d)
		}
	}
	var f Floor
	refusedWith(t, strictjson.Decode([]byte(`{"always_deny":["a.b:x"]}`), &f), "always_deny[0]", `"a.b:x"`)
	refusedWith(t, strictjson.Decode([]byte(`{"max":["a.b",{"host":"c","prots":[1]}]}`), &f), "max[1]", "did you mean ports?")
}

// A floor and a policy go from process to process as JSON.
func TestFloorAsJSON(t *testing.T) {
	for _, f := range []Floor{{}, floor(t, `{"always_deny":["10.0.0.0/8","a.b"],"always_allow":[{"host":"c","ports":["1-9"]}],"max":false}`), floor(t, `{"max":["a.b"]}`)} {
		raw, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		var again Floor
		if err := json.Unmarshal(raw, &again); err != nil || !reflect.DeepEqual(f, again) {
			t.Errorf("%s became %+v, %v", raw, again, err)
		}
	}
}

// Only where every name is allowed, and none denied, does it not matter which one is meant.
func TestAnything(t *testing.T) {
	for _, c := range []struct {
		floor  string
		policy Policy
		want   bool
	}{
		{`{}`, All(), true}, {`{"max":true}`, All(), true}, {`{"always_deny":["a.b"]}`, All(), false}, {`{"max":["x.test"]}`, All(), false},
		{`{"always_allow":[{"host":"x.test","tls":"passthrough"}]}`, Policy{}, false}, {`{}`, list(t, "x.test"), false}, {`{"always_allow":["x.test"]}`, All(), false},
	} {
		if d := floor(t, c.floor).Apply(c.policy).Connect("x.test", addr("198.18.0.1"), 443); d.Anything != c.want {
			t.Errorf("%s: %+v", c.floor, d)
		}
	}
}

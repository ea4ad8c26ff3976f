package policy

import (
	"encoding/json"
	"errors"
	"net/netip"
	"testing"
)

func places(t *testing.T, texts ...string) (p Places) {
	t.Helper()
	for _, text := range texts {
		r, err := ParseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		p = append(p, r)
	}
	return p
}

func TestPlaces(t *testing.T) {
	p := places(t, "*.corp.example", "git.example:8443", "10.0.0.0/8", "[2001:db8::7]")
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		name, addr string
		port       uint16
		want       bool
	}{
		{"a.corp.example", "", 22, true},
		{"corp.example", "", 443, false},
		{"git.example", "", 8443, true},
		{"git.example", "", 443, false},
		{"", "10.1.2.3", 5432, true},
		{"", "::ffff:10.1.2.3", 5432, true},
		{"other.example", "10.1.2.3", 443, true},
		{"other.example", "192.0.2.1", 443, false},
		{"", "2001:db8::7", 443, true},
		{"", "2001:db8::8", 443, false},
		{"", "", 443, false},
		{"not a name", "", 443, false},
	} {
		addr, _ := netip.ParseAddr(c.addr)
		if got := p.Contain(c.name, addr, c.port); got != c.want {
			t.Errorf("%q at %q, port %d: %v", c.name, c.addr, c.port, got)
		}
	}
	if (Places)(nil).Contain("a.example", netip.Addr{}, 443) {
		t.Error("no places contain something")
	}
}

func TestPlacesSayOnlyWhere(t *testing.T) {
	for _, text := range []string{
		`[{"host":"a.example","methods":["GET"]}]`, `[{"host":"a.example","paths":["/x"]}]`,
		`[{"host":"a.example","tls":"passthrough"}]`, `[{"host":"a.example","inject":["T"]}]`,
	} {
		var p Places
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			t.Fatal(err)
		}
		if err := p.Validate(); !errors.Is(err, ErrRule) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := (Places{Rule{}}).Validate(); !errors.Is(err, ErrRule) {
		t.Errorf("an empty rule: %v", err)
	}
}

package policy

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
)

// parse reads allow_net as it stands in a configuration.
func parse(t testing.TB, raw string) Policy {
	t.Helper()
	p, err := Parse(json.RawMessage(raw))
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return p
}

// list is the policy of rules that are words.
func list(t testing.TB, words ...string) Policy {
	t.Helper()
	p, err := FromRules(rules(t, words...))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func rules(t testing.TB, words ...string) []Rule {
	t.Helper()
	var out []Rule
	for _, word := range words {
		r, err := ParseRule(word)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func refusedWith(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("nothing was refused")
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
}

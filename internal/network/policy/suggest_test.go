package policy

import (
	"net/netip"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

func TestSuggest(t *testing.T) {
	for name, c := range map[string]struct {
		events []Event
		want   []string
	}{
		"nothing":           {nil, nil},
		"allowed":           {[]Event{{Name: "a.b", Port: 443, Allowed: true}}, nil},
		"the question":      {[]Event{{Name: "a.b"}, {Name: "A.b."}}, []string{"a.b"}},
		"both web ports":    {[]Event{{Name: "a.b", Port: 80}, {Name: "a.b", Port: 443}, {Name: "a.b", Port: 443, Method: "GET", Path: "/"}}, []string{"a.b"}},
		"a port":            {[]Event{{Name: "a.b"}, {Name: "a.b", Port: 5432}}, []string{"a.b:5432"}},
		"a port, then":      {[]Event{{Name: "a.b", Port: 5432}, {Name: "a.b"}}, []string{"a.b:5432"}},
		"both":              {[]Event{{Name: "a.b", Port: 5432}, {Name: "a.b", Port: 443}}, []string{"a.b", "a.b:5432"}},
		"addresses":         {[]Event{{Addr: addr("::ffff:1.1.1.1"), Port: 443}, {Addr: addr("10.0.0.5"), Port: 22}, {Addr: addr("2a00::1"), Port: 53}}, []string{"1.1.1.1", "10.0.0.5:22", "[2a00::1]:53"}},
		"a closed address":  {[]Event{{Name: "db.corp", Addr: addr("10.0.0.5"), Port: 5432}}, []string{"10.0.0.5:5432", "db.corp:5432"}},
		"a synthetic one":   {[]Event{{Name: "a.b", Addr: addr("198.18.0.7"), Port: 443}, {Addr: addr("198.18.0.9"), Port: 443}}, []string{"a.b"}},
		"metadata":          {[]Event{{Addr: addr("169.254.169.254"), Port: 80}, {Name: "a.b", Addr: addr("168.63.129.16"), Port: 80}}, []string{"a.b"}},
		"what nobody dials": {[]Event{{Addr: addr("224.0.0.1"), Port: 80}, {Addr: addr("0.0.0.0"), Port: 80}, {Addr: addr("255.255.255.255"), Port: 80}, {Addr: addr("64:ff9b::1"), Port: 80}, {Addr: addr("1.1.1.1")}, {}}, nil},
		"what is no name":   {[]Event{{Name: "127.1", Port: 80}, {Name: "a b"}, {Name: "\x1b[31m"}, {Name: "xn--.b"}, {Name: "..."}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Suggest(c.events); !reflect.DeepEqual(got, c.want) && len(got)+len(c.want) > 0 {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// What is suggested allows every denied event, and nothing can be left out.
func TestSuggestIsEnoughAndSmallest(t *testing.T) {
	names := rapid.SampledFrom([]string{"", "a.test", "b.test", "c.a.test"})
	addrs := rapid.SampledFrom([]netip.Addr{addr("1.1.1.1"), addr("10.0.0.1"), addr("2a00::1")})
	ports := rapid.SampledFrom([]uint16{80, 443, 22, 8443})
	rapid.Check(t, func(t *rapid.T) {
		events := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Event {
			e := Event{Name: names.Draw(t, "name"), Port: ports.Draw(t, "port"), Allowed: rapid.Bool().Draw(t, "allowed")}
			if e.Name == "" {
				e.Addr = addrs.Draw(t, "addr")
			}
			return e
		}), 1, 12).Draw(t, "events")
		words := Suggest(events)
		enough := func(words []string) bool {
			var all []Rule
			for _, word := range words {
				r, err := ParseRule(word)
				if err != nil {
					t.Fatalf("%q is suggested: %v", word, err)
				}
				all = append(all, r)
			}
			p := Policy{rules: all}
			for _, e := range events {
				if !e.Allowed && !p.Connect(e.Name, e.Addr, e.Port).Allowed {
					return false
				}
			}
			return true
		}
		if !enough(words) {
			t.Fatalf("%q is not enough for %+v", words, events)
		}
		for i := range words {
			if enough(append(append([]string{}, words[:i]...), words[i+1:]...)) {
				t.Fatalf("%q is more than is needed for %+v", words, events)
			}
		}
	})
}

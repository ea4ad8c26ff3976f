package network

import (
	"testing"

	"ravi/internal/network/inject"
)

// A name with a placeholder is not answered, though a rule allows every name there, and rings the alarm.
func TestPlaceholderInAName(t *testing.T) {
	g := gateway(t, "*.allowed.test")
	holder := inject.NewPlaceholder("T")
	if err := g.secrets.Replace([]inject.Secret{{Name: "T", Placeholder: holder, Value: "12345678", Hosts: []string{"api.allowed.test"}, Headers: []string{inject.DefaultHeader}}}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"api.allowed.test": true, holder + ".allowed.test": false, "x." + holder + ".allowed.test": false} {
		g.events.take()
		if _, ok := g.Resolve(name); ok != want {
			t.Errorf("%s: answered %t", name, ok)
		}
		if events, _, _ := g.events.take(); len(events) != 1 || events[0].Allowed != want || events[0].Alarm == want {
			t.Errorf("%s: told %+v", name, events)
		}
	}
}

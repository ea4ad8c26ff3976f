package run

import (
	"testing"

	"ravi/internal/network/inject"
	"ravi/internal/secret"
)

// What the store accepts, the gateway takes: two packages check a binding, and neither knows the other.
func TestStoredBindingsAreTaken(t *testing.T) {
	st, err := secret.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	change := secret.Change{
		Hosts:   []string{"API.example.com", "*.corp.example", "git.example.com:8443", "bücher.example", "*.deep.corp.example:1", "single"},
		Headers: []string{"authorization: token {}", "Cookie: a=b; session={}; c", "X-Api-Key: {}", "Private-Token:{}"},
		Source:  &secret.Source{Value: secret.NewValue("a value, with ünusual ✓ characters")},
	}
	query := "api_key"
	change.Query = &query
	kept, err := st.Set(t.Context(), "Name_1", change)
	if err != nil {
		t.Fatal(err)
	}
	l, err := st.Lease(t.Context(), "Name_1", secret.Scope{})
	if err != nil {
		t.Fatal(err)
	}
	value, _, err := l.Value(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	set := &inject.Set{}
	if err := set.Replace([]inject.Secret{{Name: kept.Name, Placeholder: inject.NewPlaceholder(kept.Name), Value: inject.Value(value), Hosts: kept.Hosts,
		Headers: kept.Headers, Query: kept.Query}}); err != nil {
		t.Fatal(err)
	}
	for host, port := range map[string]uint16{"api.example.com": 443, "a.b.corp.example": 443, "git.example.com": 8443, "xn--bcher-kva.example": 443, "x.deep.corp.example": 1, "single": 443} {
		if !set.Bound(host, port) {
			t.Errorf("%s:%d is not bound", host, port)
		}
	}
	for host, port := range map[string]uint16{"corp.example": 443, "git.example.com": 443, "x.single": 443, "api.example.com": 8443} {
		if set.Bound(host, port) {
			t.Errorf("%s:%d is bound", host, port)
		}
	}
}

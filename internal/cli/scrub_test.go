package cli

import (
	"strings"
	"testing"

	"ravi/internal/access"
	"ravi/internal/command"
	"ravi/internal/secret"
)

// What is written down holds no value of the store, also not of one that was set since.
func TestScrubber(t *testing.T) {
	home := t.TempDir()
	t.Setenv("RAVI_HOME", home)
	env := &command.Env{Caller: access.AsOperator()}
	failed := func(err error) { t.Error(err) }
	s, err := newScrubber(t.Context(), env, failed)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Now()("canary-value-1"); got != "canary-value-1" {
		t.Errorf("without secrets: %q", got)
	}
	vault, err := secret.Open(home)
	if err != nil {
		t.Fatal(err)
	}
	for i, value := range []string{"canary-value-1", "canary-value-22"} {
		name := []string{"FIRST", "SECOND"}[i]
		if _, err := vault.Set(t.Context(), name, secret.Change{Hosts: []string{"a.example"}, Source: &secret.Source{Value: secret.NewValue(value)}}); err != nil {
			t.Fatal(err)
		}
		if got := s.Now()("say " + value); strings.Contains(got, value) || !strings.Contains(got, name) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

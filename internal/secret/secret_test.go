package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/gob"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"ravi/internal/leaktest"
)

// No way of printing, encoding or logging shows a value, wherever it stands.
func TestNothingShowsAValue(t *testing.T) {
	defer leaktest.None(t)
	s, now := newStore(t)
	h := newHub(t, now)
	ctx := t.Context()
	app, program := h.source(nil), Source{Argv: script(t, "echo "+canary)}
	leases := []*Lease{lease(t, s, *stored(canary), Scope{}), lease(t, s, program, Scope{}), lease(t, s, app, Scope{Repository: "acme/web.site"})}
	for _, l := range leases {
		if got, _, err := l.Value(ctx); err != nil || !strings.Contains(got, canary) {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	set(t, s, "V", Change{Hosts: []string{"a.example"}, Source: stored(canary)})
	known, err := s.Known(ctx)
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.List(ctx)
	if err != nil || len(list) != 2 {
		t.Fatalf("got %v, %v", list, err)
	}
	doc, err := s.load()
	if err != nil {
		t.Fatal(err)
	}
	v := NewValue(canary)
	type wrapped struct {
		Shown  Value
		hidden Value
		deep   []any
	}
	w := wrapped{v, v, []any{v, &v, map[string]Value{"x": v}}}
	things := map[string]any{
		"value": v, "pointer": &v, "wrapped": w, "wrapped pointer": &w, "slice": []Value{v}, "key": map[string]any{"x": v}, "source": *stored(canary), "source pointer": stored(canary),
		"app": app, "change": Change{Source: stored(canary)}, "known": known, "list": list, "store": s, "leases": leases, "lease": *leases[0], "lease of app": *leases[2], "lease of command": leases[1],
	}
	forms := []string{canary, fmt.Sprintf("%x", canary), fmt.Sprintf("%X", canary), fmt.Sprintf("% x", canary), base64.StdEncoding.EncodeToString([]byte(canary))[:24],
		strings.Trim(fmt.Sprint([]byte(canary)), "[]"), appPEM()[100:160]}
	for name, thing := range things {
		var shown strings.Builder
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%d", "%c", "%U", "%T", "%p", "%t"} {
			fmt.Fprintf(&shown, verb+"\n", thing)
		}
		fmt.Fprintln(&shown, thing)
		var log bytes.Buffer
		slog.New(slog.NewTextHandler(&log, nil)).Info("it", "thing", thing)
		slog.New(slog.NewJSONHandler(&log, nil)).Info("it", "thing", thing)
		shown.Write(log.Bytes())
		b, _ := json.Marshal(thing)
		shown.Write(b)
		b, _ = xml.Marshal(thing)
		shown.Write(b)
		var g bytes.Buffer
		gob.NewEncoder(&g).Encode(thing)
		shown.Write(g.Bytes())
		for _, form := range forms {
			if strings.Contains(shown.String(), form) {
				t.Errorf("%s shows the value as %q:\n%s", name, form, shown.String())
			}
		}
	}
	for _, l := range leases {
		if err := l.End(ctx); err != nil {
			t.Error(err)
		}
	}
	// What is encrypted is encoded with its values, and is not printed with them.
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if got := fmt.Sprintf(verb, doc.Secrets); strings.Contains(got, canary) {
			t.Errorf("records show their values: %s", got)
		}
	}
	h.server.Close()
}

func TestZeroValue(t *testing.T) {
	var v Value
	if v.Reveal() != "" || !v.IsZero() || !NewValue("").IsZero() || NewValue("x").IsZero() || fmt.Sprint(v) != hidden {
		t.Errorf("got %v", v)
	}
}

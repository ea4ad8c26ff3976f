package sandbox

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"ravi/internal/keeper"
	"ravi/internal/network/inject"
)

// whole is a sandbox that has everything that can be kept.
func whole(t *testing.T) (*Sandbox, string) {
	t.Helper()
	cfg := Default()
	cfg.Backend, cfg.CPUs, cfg.AllowNet.Rules = BackendGVisor, 1.5, []string{"pypi.org", `{"host":"api.example.com","paths":["/v1/*"]}`}
	cfg.ExtraVolumes = []Volume{{Host: "/a", Guest: "/b", ReadOnly: true}}
	floor, err := readFloor(json.RawMessage(`{"always_deny":["evil.example"],"always_allow":["good.example"],"max":["*.example","pypi.org"]}`), BackendGVisor)
	if err != nil {
		t.Fatal(err)
	}
	out, err := readBeyond(options{proxy: &NetworkProxy{URL: "http://proxy.example:3128", AuthFile: "/auth", Direct: []string{"in.example"}}}, BackendGVisor)
	if err != nil {
		t.Fatal(err)
	}
	s := &Sandbox{ID: NewID(), backend: BackendGVisor, cfg: cfg, workspace: "/host/ws", root: guestWorkspace, volumes: cfg.ExtraVolumes, user: "user",
		context: guestContext, floor: floor, beyond: out, seed: "seed", network: true, serviceNames: []string{"gateway"}}
	if err := s.takeSecrets([]Secret{{Name: "TOKEN", Value: "the value itself", Hosts: []string{"api.example.com"}}}, nil); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), s.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return s, dir
}

// What is kept of a sandbox makes it again, and holds no secret's value.
func TestKept(t *testing.T) {
	s, dir := whole(t)
	b, err := s.keep(dir)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(b, []byte("the value itself")) || !bytes.Contains(b, []byte(s.Placeholders()["TOKEN"])) {
		t.Errorf("kept is %s", b)
	}
	if err := os.WriteFile(filepath.Join(dir, keeper.OwnerFile), b, 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := readKept(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(again.Placeholders(), s.Placeholders()) || len(again.secrets.all) != 0 {
		t.Errorf("the secrets are %v, were %v", again.Placeholders(), s.Placeholders())
	}
	p, err := s.cfg.AllowNet.Policy()
	if err != nil {
		t.Fatal(err)
	}
	was, err1 := s.networkJSON(p)
	is, err2 := again.networkJSON(p)
	if err1 != nil || err2 != nil || !bytes.Equal(was, is) {
		t.Errorf("the network would be\n%s (%v), was\n%s (%v)", is, err2, was, err1)
	}
	for what, pair := range map[string][2]any{
		"id": {s.ID, again.ID}, "backend": {s.backend, again.backend}, "config": {s.cfg, again.cfg}, "workspace": {s.workspace, again.workspace},
		"root": {s.root, again.root}, "volumes": {s.volumes, again.volumes}, "user": {s.user, again.user}, "context": {s.context, again.context},
		"network": {s.network, again.network},
	} {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			t.Errorf("%s: %+v, was %+v", what, pair[1], pair[0])
		}
	}
	if again.own {
		t.Error("whoever reads it owns it")
	}

	for what, spoil := range map[string]func(string) string{
		"another's id":        func(text string) string { return strings.ReplaceAll(text, s.ID, NewID()) },
		"another's directory": func(text string) string { return strings.ReplaceAll(text, dir, filepath.Dir(dir)) },
		"a configuration that is none": func(text string) string {
			return strings.Replace(text, `"memory_mib":2048`, `"memory_mib":-1`, 1)
		},
		"a backend's unknown key": func(text string) string { return strings.Replace(text, `"cpus":`, `"cpu":`, 1) },
	} {
		text := spoil(string(b))
		if text == string(b) {
			t.Fatalf("%s: the test changes nothing", what)
		}
		if err := os.WriteFile(filepath.Join(dir, keeper.OwnerFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readKept(dir); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
}

// A new owner brings all secrets or none, under the placeholders that there are, and no service that was not there.
func TestTakeOverIsChecked(t *testing.T) {
	s, _ := whole(t)
	placeholder, other := s.Placeholders()["TOKEN"], inject.NewPlaceholder("OTHER")
	fresh := func() *Sandbox {
		return &Sandbox{ID: s.ID, backend: s.backend, cfg: s.cfg, floor: s.floor, network: true, serviceNames: s.serviceNames,
			secrets: secrets{known: map[string]string{"TOKEN": placeholder, "OTHER": other}}}
	}
	secret := func(name string) Secret {
		return Secret{Name: name, Value: "another value", Hosts: []string{"api.example.com"}}
	}
	strange := secret("TOKEN")
	strange.Placeholder = "a placeholder of my own"
	for what, o := range map[string]options{
		"one of two":                   {secrets: []Secret{secret("TOKEN")}},
		"one more":                     {secrets: []Secret{secret("TOKEN"), secret("OTHER"), secret("THIRD")}},
		"another placeholder":          {secrets: []Secret{strange, secret("OTHER")}},
		"a service that was not there": {services: map[string]Service{"other": HTTPService(nil)}},
		"no service":                   {services: map[string]Service{"gateway": nil}},
	} {
		if err := fresh().takeOver(o); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
	next := fresh()
	if err := next.takeOver(options{secrets: []Secret{secret("OTHER"), secret("TOKEN")}, services: map[string]Service{"gateway": HTTPService(nil)}}); err != nil {
		t.Fatal(err)
	}
	if got := next.Placeholders(); got["TOKEN"] != placeholder || got["OTHER"] != other || len(got) != 2 {
		t.Errorf("the placeholders are %v", got)
	}
	if list := next.secrets.list(); len(list) != 2 || list[0].Value != "another value" {
		t.Errorf("the network's gateway is told of %d secrets", len(list))
	}
}

package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNetworkBlock(t *testing.T) {
	home := t.TempDir()
	type network struct {
		AlwaysDeny []string
		Lists      map[string][]string
	}
	for _, text := range []string{
		`{"network":{"always_deny":["a.example"],"lists":{"b_c":["d.example"]}}}`,
		`{"network":{"alwaysDeny":["a.example"],"lists":{"b_c":["d.example"]}},"tools":{}}`,
	} {
		must(t, os.WriteFile(filepath.Join(home, File), []byte(text), 0o600))
		c, err := Load(home)
		must(t, err)
		var n network
		must(t, c.Network(&n))
		if len(n.AlwaysDeny) != 1 || n.AlwaysDeny[0] != "a.example" || len(n.Lists["b_c"]) != 1 {
			t.Errorf("%s: got %+v", text, n)
		}
	}
	must(t, os.WriteFile(filepath.Join(home, File), []byte("{\n \"network\": {\"max\": 1}}"), 0o600))
	c, err := Load(home)
	must(t, err)
	if err := c.Network(&network{}); err == nil || !strings.Contains(err.Error(), File+":2:14: network.max: unknown key") {
		t.Errorf("got %v", err)
	}
}

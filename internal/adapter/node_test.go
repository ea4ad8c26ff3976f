package adapter

import (
	"errors"
	"strings"
	"testing"
)

func TestCheckNode(t *testing.T) {
	for said, want := range map[string]string{
		"v20.0.0\n": "", "v24.11.1": "", "v20.1.0-nightly2023\n": "",
		"v18.20.4\n":       "no fitting Node.js: Gemini CLI needs release 20 or newer, and there is v18.20.4",
		"v9.99.0":          "there is v9.99.0",
		"":                 "and there is none",
		"usage: node FILE": `what there is says "usage: node FILE"`,
		"20.1.0":           "what there is says",
		"\x1b[2Jv99.0.0":   `"\x1b[2Jv99.0.0"`,
	} {
		err := gemini.CheckNode(said)
		if (err == nil) != (want == "") || err != nil && (!errors.Is(err, ErrNode) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", said, err, want)
		}
	}
	if err := claude.CheckNode(""); err != nil {
		t.Errorf("a program of its own: %v", err)
	}
}

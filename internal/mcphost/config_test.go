package mcphost

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The block of config.json is read in both spellings; how a server is spoken with follows from what is there.
func TestServersAreRead(t *testing.T) {
	var got Servers
	err := json.Unmarshal([]byte(`{
		"b": {"url": "https://mcp.example/v1/sse", "headers": {"Authorization": "Bearer ${TOKEN}"}, "startTimeout": 5},
		"a": {"command": "npx", "args": ["-y", "x"], "env": {"A": "1"}, "tool_timeout": 90},
		"c": {"type": "streamableHttp", "url": "http://localhost:8080/sse"},
		"d": {"url": "https://mcp.example/mcp"}
	}`), &got)
	if err != nil {
		t.Fatal(err)
	}
	want := Servers{
		{Name: "a", Command: "npx", Args: []string{"-y", "x"}, Env: map[string]string{"A": "1"}, ToolTimeout: 90 * time.Second},
		{Name: "b", URL: "https://mcp.example/v1/sse", Headers: map[string]string{"Authorization": "Bearer ${TOKEN}"}, StartTimeout: 5 * time.Second},
		{Name: "c", Transport: HTTP, URL: "http://localhost:8080/sse"},
		{Name: "d", URL: "https://mcp.example/mcp"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for i, kind := range []string{Stdio, SSE, HTTP, HTTP} {
		if got[i].Kind() != kind {
			t.Errorf("%s is %s, want %s", got[i].Name, got[i].Kind(), kind)
		}
	}
}

func TestServersThatCannotBe(t *testing.T) {
	for text, says := range map[string]string{
		`{"a":{"comand":"x"}}`:    "comand",
		`{"a":{}}`:                "neither a command nor a url",
		`{"a b":{"command":"x"}}`: "letters, digits",
		`{"` + strings.Repeat("a", 33) + `":{"command":"x"}}`:     "at most 32",
		`{"a":{"command":"x","url":"https://a.example/"}}`:        "one or the other",
		`{"a":{"url":"https://a.example/","env":{"A":"1"}}}`:      "one or the other",
		`{"a":{"type":"stdio","url":"https://a.example/"}}`:       "has no command",
		`{"a":{"type":"ws","command":"x"}}`:                       "must be stdio, http or sse",
		`{"a":{"url":"ftp://a.example/"}}`:                        "https://",
		`{"a":{"url":"https:///x"}}`:                              "a host",
		`{"a":{"url":"https://me:hunter2@a.example/"}}`:           "as ${NAME}",
		`{"a":{"url":"https://a.example/%zz"}}`:                   "its url is none",
		`{"a":{"command":"x","tool_timeout":0}}`:                  "seconds from 1 to 86400",
		`{"a":{"command":"x","tool_timeout":1,"toolTimeout":2}}`:  "tool",
		`{"a":{"command":"x","args":"-y"}}`:                       "args",
		`{"a":{"type":"http","url":"https://a.b","command":"x"}}`: "one or the other",
	} {
		var got Servers
		err := json.Unmarshal([]byte(text), &got)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
}

// Only secrets of the sandbox are put into a server's texts: Ravi's own environment is not.
func TestSecretsInTexts(t *testing.T) {
	t.Setenv("HOST_ONLY", "from the host")
	got, err := filled(map[string]string{"Authorization": "Bearer ${TOKEN}", "X": "$TOKEN {TOKEN}"}, map[string]string{"TOKEN": "holder"})
	if err != nil || got["Authorization"] != "Bearer holder" || got["X"] != "$TOKEN {TOKEN}" {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := filled(map[string]string{"A": "${HOST_ONLY}"}, nil); err == nil || !strings.Contains(err.Error(), "--secret HOST_ONLY") {
		t.Errorf("%v, %v", got, err)
	}
}

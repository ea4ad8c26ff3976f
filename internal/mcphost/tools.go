package mcphost

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Bounds of what a server offers.
const (
	maxTools       = 128
	maxPages       = 64
	maxRemote      = 256      // bytes of a tool's name
	maxDescription = 8 << 10  // bytes of its description; what is more is cut off
	maxSchema      = 64 << 10 // bytes of its schema
	maxSchemas     = 1 << 20  // of all schemas of a server
)

// maxName is how long a name may be for every provider of models.
const maxName = 64

// toolName is a name for a tool that providers take and that no other tool has. It is the same each time: what does not
// fit is replaced, and told apart by a part of a hash.
func toolName(server, remote string, taken func(string) bool) string {
	fit := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, "mcp_"+server+"_"+remote)
	if len(fit) <= maxName && strings.HasSuffix(fit, remote) && !taken(fit) {
		return fit
	}
	for n := 0; ; n++ {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d", server, remote, n))
		mark := "_" + hex.EncodeToString(sum[:4])
		name := fit[:min(len(fit), maxName-len(mark))] + mark
		if !taken(name) {
			return name
		}
	}
}

// listTools asks for a server's tools. What does not fit is left out, and told.
func listTools(ctx context.Context, session *sdk.ClientSession, server string, leftOut func(string)) ([]Tool, error) {
	var out []Tool
	seen := map[string]bool{}
	schemas := 0
	params := &sdk.ListToolsParams{}
	for range maxPages {
		page, err := session.ListTools(ctx, params)
		if err != nil {
			return nil, fmt.Errorf("asking for its tools: %w", err)
		}
		for _, t := range page.Tools {
			if t == nil || seen[t.Name] {
				continue
			}
			if len(out) == maxTools {
				leftOut(fmt.Sprintf("it has more than %d tools: the rest is left out", maxTools))
				return out, nil
			}
			schema, err := schemaOf(t, maxSchemas-schemas)
			if err != nil {
				leftOut(fmt.Sprintf("its tool %.80q is left out: %v", t.Name, err))
				continue
			}
			seen[t.Name] = true
			schemas += len(schema)
			out = append(out, Tool{Server: server, Remote: t.Name, Description: bounded(t.Description, maxDescription), InputSchema: schema})
		}
		if page.NextCursor == "" {
			return out, nil
		}
		params.Cursor = page.NextCursor
	}
	leftOut(fmt.Sprintf("its list of tools does not end: %d pages were read", maxPages))
	return out, nil
}

// schemaOf is what the tool's arguments are, as JSON.
func schemaOf(t *sdk.Tool, left int) (json.RawMessage, error) {
	if t.Name == "" || len(t.Name) > maxRemote {
		return nil, fmt.Errorf("its name is empty, or longer than %d bytes", maxRemote)
	}
	b, err := json.Marshal(t.InputSchema)
	if err != nil {
		return nil, err
	}
	switch {
	case !bytes.HasPrefix(b, []byte("{")):
		return nil, errors.New("the schema of its arguments is no object")
	case len(b) > maxSchema:
		return nil, fmt.Errorf("the schema of its arguments has %d bytes, more than %d", len(b), maxSchema)
	case len(b) > left:
		return nil, fmt.Errorf("the server's schemas have more than %d bytes", maxSchemas)
	}
	return taken(b)
}

// taken is a schema as providers of models take it, who refuse all of a request for one that they do not.
func taken(schema json.RawMessage) (json.RawMessage, error) {
	var top map[string]json.RawMessage
	if err := json.Unmarshal(schema, &top); err != nil {
		return nil, err
	}
	for _, key := range []string{"oneOf", "anyOf", "allOf", "enum", "not"} {
		if _, ok := top[key]; ok {
			return nil, fmt.Errorf("the schema of its arguments has %s at its top, which no provider takes", key)
		}
	}
	switch kind, ok := top["type"]; {
	case !ok: // it is meant
		top["type"] = json.RawMessage(`"object"`)
		return json.Marshal(top)
	case string(kind) != `"object"`:
		return nil, errors.New("the schema of its arguments is not of the type object")
	}
	return schema, nil
}

package mcphost

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// textOf is what a tool gave, as a text. What is no text is named, with its kind and size.
func textOf(r *sdk.CallToolResult) (text string, failed bool) {
	if r.NeedsInput() {
		return "(the MCP server asks for something before it goes on, which there is nobody to give)", true
	}
	var parts []string
	for _, c := range r.Content {
		parts = append(parts, partOf(c))
	}
	if len(parts) == 0 && r.StructuredContent != nil {
		if b, err := json.Marshal(r.StructuredContent); err == nil {
			parts = append(parts, string(b))
		}
	}
	text = strings.Join(parts, "\n")
	if strings.TrimSpace(text) == "" {
		text = "(no output)"
	}
	return middle(text, maxText), r.IsError
}

func partOf(c sdk.Content) string {
	switch c := c.(type) {
	case *sdk.TextContent:
		return c.Text
	case *sdk.ImageContent:
		return fmt.Sprintf("(an image, %s, %d bytes)", kindOf(c.MIMEType), len(c.Data))
	case *sdk.AudioContent:
		return fmt.Sprintf("(a sound, %s, %d bytes)", kindOf(c.MIMEType), len(c.Data))
	case *sdk.ResourceLink:
		return fmt.Sprintf("(a link to the resource %s, %s)", bounded(c.URI, 2000), kindOf(c.MIMEType))
	case *sdk.EmbeddedResource:
		switch {
		case c.Resource == nil:
			return "(a resource with nothing in it)"
		case c.Resource.Text != "":
			return fmt.Sprintf("(the resource %s)\n%s", bounded(c.Resource.URI, 2000), c.Resource.Text)
		default:
			return fmt.Sprintf("(the resource %s, %s, %d bytes)", bounded(c.Resource.URI, 2000), kindOf(c.Resource.MIMEType), len(c.Resource.Blob))
		}
	default:
		return "(something that is no text)"
	}
}

func kindOf(mime string) string {
	if mime == "" {
		return "of an unknown kind"
	}
	return bounded(mime, 100)
}

// middle is a text of at most about most bytes: of a longer one the beginning and the end, with a line in between that
// says how much is missing.
func middle(text string, most int) string {
	if len(text) <= most {
		return text
	}
	head, tail := most*3/4, len(text)-most/4
	for head > 0 && !utf8.RuneStart(text[head]) {
		head--
	}
	for tail < len(text) && !utf8.RuneStart(text[tail]) {
		tail++
	}
	return fmt.Sprintf("%s\n(%d bytes are left out here)\n%s", text[:head], tail-head, text[tail:])
}

// bounded is the beginning of a text, where it is longer than most bytes.
func bounded(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "…"
}

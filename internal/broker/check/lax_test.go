package check

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// lax reads JSON as a careless reader may: capitals, underscores and dashes in keys do not matter, and of a key that is
// there twice the first or the last counts.
func lax(dec *json.Decoder, first bool) any {
	tok, err := dec.Token()
	if err != nil {
		panic(err)
	}
	switch tok {
	case json.Delim('{'):
		m := map[string]any{}
		for dec.More() {
			key, err := dec.Token()
			if err != nil {
				panic(err)
			}
			item := lax(dec, first)
			name := strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(key.(string)))
			if _, ok := m[name]; !ok || !first {
				m[name] = item
			}
		}
		_, _ = dec.Token()
		return m
	case json.Delim('['):
		list := []any{}
		for dec.More() {
			list = append(list, lax(dec, first))
		}
		_, _ = dec.Token()
		return list
	}
	return tok
}

// reaching is what lax reads in a body that would have a provider reach out, remember or run something. It knows the
// places, and not the tables: what is inside of a schema, an input or a text is not for the provider.
func reaching(v any, in string) []string {
	var out []string
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			out = append(out, reaching(item, in)...)
		}
	case map[string]any:
		kind, _ := v["type"].(string)
		for _, word := range []string{"web_search", "web_fetch", "code_execution", "mcp", "file_search", "code_interpreter",
			"image_generation", "container", "item_reference", "advisor", "programmatic"} {
			if strings.HasPrefix(strings.ToLower(kind), word) {
				out = append(out, in+" of type "+kind)
			}
		}
		if in == "source" && kind != "base64" && kind != "text" && kind != "content" && kind != "" {
			out = append(out, "source of "+kind)
		}
		for key, item := range v {
			switch key {
			case "mcpservers", "container", "thread", "conversation", "prompt", "websearchoptions", "cachedcontent",
				"googlesearch", "googlesearchretrieval", "googlemaps", "urlcontext", "codeexecution", "filesearch",
				"fileid", "fileurl", "fileuri", "fallbacks", "executablecode":
				if list, ok := item.([]any); item != nil && (!ok || len(list) > 0) {
					out = append(out, key)
				}
			case "store", "background":
				if item != false && item != nil {
					out = append(out, key)
				}
			case "imageurl":
				if s, ok := item.(string); ok && !strings.HasPrefix(s, "data:") {
					out = append(out, "image at "+s)
				}
				out = append(out, reaching(item, key)...)
			case "url":
				if s, ok := item.(string); ok && !strings.HasPrefix(s, "data:") {
					out = append(out, "url "+s)
				}
			case "content", "messages", "tools", "input", "output", "source", "tool", "definition", "toolchanges",
				"system", "systeminstruction", "contents", "parts", "filedata", "functionresponse", "environment",
				"generatecontentrequest", "toolchoice", "allowedtools", "summary", "file", "inputaudio":
				// The input of a call is the tool's own.
				if key != "input" || kind == "" {
					out = append(out, reaching(item, key)...)
				}
			}
		}
	}
	return out
}

// hides says what a body that passed without a grant has in it all the same.
func hides(t interface {
	Fatalf(string, ...any)
	Helper()
}, body []byte, r Request, inPath bool) {
	t.Helper()
	for _, first := range []bool{true, false} {
		for name, doc := range map[string][]byte{"given": body, "forwarded": r.Body} {
			v := lax(json.NewDecoder(bytes.NewReader(doc)), first).(map[string]any)
			if m := v["model"]; !inPath && m != r.Model || inPath && m != nil && strings.TrimPrefix(m.(string), "models/") != r.Model {
				t.Fatalf("%s: the model is %v to some, and %q to the check: %s", name, m, r.Model, doc)
			}
			if s, _ := v["stream"].(bool); !inPath && s != r.Stream {
				t.Fatalf("%s: stream is %v to some, and %v to the check: %s", name, s, r.Stream, doc)
			}
			if found := reaching(v, "body"); len(found) > 0 {
				t.Fatalf("%s: it passes with %q: %s", name, found, doc)
			}
		}
	}
}

// seeds are bodies of a dialect: all that the other tests have.
func seeds(dialect string) [][]byte {
	var out [][]byte
	for _, c := range granting {
		if strings.HasPrefix(c.in, dialect) {
			out = append(out, []byte(strings.Replace(wraps[c.in].body, "@", c.what, 1)))
		}
	}
	return out
}

func fuzz(f *testing.F, dialect string, check func([]byte, Grants) (Request, *Refusal)) {
	for _, seed := range seeds(dialect) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := bytes.Clone(body)
		r, refused := check(body, nil)
		if !bytes.Equal(before, body) {
			t.Fatal("the body was changed")
		}
		if refused == nil {
			hides(t, body, r, dialect == "g")
		} else if refused.Message == "" || (refused.Status != 400) != (refused.Grant != "") {
			t.Fatalf("got %+v", refused)
		}
		// With everything granted it must end too, and never pass what is no JSON.
		if _, refused := check(body, all()); refused == nil && !json.Valid(body) {
			t.Fatalf("no JSON passes: %q", body)
		}
	})
}

func FuzzMessages(f *testing.F)    { fuzz(f, "a", Messages) }
func FuzzCountTokens(f *testing.F) { fuzz(f, "a", CountTokens) }
func FuzzResponses(f *testing.F)   { fuzz(f, "r", Responses) }
func FuzzChat(f *testing.F)        { fuzz(f, "c", Chat) }
func FuzzGemini(f *testing.F) {
	fuzz(f, "g", func(body []byte, g Grants) (Request, *Refusal) { return Gemini("gemini-3-pro", body, g) })
}
func FuzzGeminiCount(f *testing.F) {
	fuzz(f, "g", func(body []byte, g Grants) (Request, *Refusal) { return GeminiCount("gemini-3-pro", body, g) })
}

// TestLaxKnows says that lax sees what is refused: else the tests with it would prove nothing.
func TestLaxKnows(t *testing.T) {
	seen := 0
	for _, c := range granting {
		body := strings.Replace(wraps[c.in].body, "@", c.what, 1)
		if len(reaching(lax(json.NewDecoder(strings.NewReader(body)), true), "body")) > 0 {
			seen++
		}
	}
	if seen < len(granting)*2/3 {
		t.Fatalf("it sees %d of %d", seen, len(granting))
	}
}

// disguise writes a document anew with keys spelled otherwise, given twice, in another order.
func disguise(t *rapid.T, v any, b *bytes.Buffer) {
	switch v := v.(type) {
	case []any:
		b.WriteByte('[')
		for i, item := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			disguise(t, item, b)
		}
		b.WriteByte(']')
	case map[string]any:
		keys := []string{}
		for key := range v {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		keys = rapid.Permutation(keys).Draw(t, "order")
		b.WriteByte('{')
		n := 0
		put := func(key string, item any) {
			if n++; n > 1 {
				b.WriteByte(',')
			}
			switch rapid.IntRange(0, 40).Draw(t, "spelling") {
			case 0:
				key = strings.ToUpper(key[:1]) + key[1:]
			case 1:
				key = strings.ReplaceAll(key, "s", "ſ")
			case 2:
				key = strings.ReplaceAll(key, "_", "")
			case 3:
				key = strings.ReplaceAll(key, "_", "-")
			}
			quoted := fmt.Sprintf("%q", key)
			if rapid.IntRange(0, 20).Draw(t, "escape") == 0 && key[0] < 0x80 {
				quoted = fmt.Sprintf(`"\u%04x%s`, key[0], quoted[2:])
			}
			b.WriteString(quoted + ":")
			disguise(t, item, b)
		}
		for _, key := range keys {
			if key == "" {
				continue
			}
			put(key, v[key])
			if rapid.IntRange(0, 40).Draw(t, "twice") == 0 {
				put(key, rapid.SampledFrom([]any{nil, "x", []any{}, v[key]}).Draw(t, "other"))
			}
		}
		b.WriteByte('}')
	default:
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatalf("%v", err)
		}
		b.Write(raw)
	}
}

func TestDisguise(t *testing.T) {
	all := slices.Concat(seeds("a"), seeds("r"), seeds("c"), seeds("g"))
	passed := 0
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, len(all)-1).Draw(t, "body")
		var v any
		if err := json.Unmarshal(all[n], &v); err != nil {
			t.Fatalf("%v: %s", err, all[n])
		}
		// What is refused is taken out of one in two, so that bodies pass at all.
		if m := v.(map[string]any); rapid.Bool().Draw(t, "tame") {
			for key := range m {
				if key != "model" && key != "messages" && key != "contents" && key != "store" && key != "input" {
					delete(m, key)
				}
			}
		}
		var b bytes.Buffer
		disguise(t, v, &b)
		body := b.Bytes()
		for name, check := range map[string]checker{"a": messages, "r": responses, "c": chat, "g": gemini1} {
			if r, refused := check(string(body), nil); refused == nil {
				passed++
				hides(t, body, r, name == "g")
			}
		}
	})
	if passed == 0 {
		t.Fatal("nothing passed")
	}
}

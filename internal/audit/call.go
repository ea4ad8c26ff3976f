package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"ravi/internal/store"
)

const (
	// mostString is how many characters of each text of a call's input are kept.
	mostString = 500
	// mostDetail bounds the whole detail of a call, in bytes.
	mostDetail = 8 << 10
	// mostDepth bounds how deep an input is shown.
	mostDepth = 8
)

// Call is a command call, allowed or denied.
type Call struct {
	Caller    string // Operator, or the id of a key
	Action    string // CommandPrefix or OutcomePrefix, and the command's full name
	Object    string // what it is about
	Decision  store.Decision
	Reason    string
	Rule      string // that decided, such as a capability
	RunID     string // of the caller
	SandboxID string
	Took      time.Duration // 0 if it is not known yet
	// Input is what it was called with: anything that can be written as JSON.
	Input any
}

// Record is the call's row. scrub, which may be nil, takes secrets out of a text; keys are always taken out. It sees whole
// texts, which are cut afterwards, so that no half of a secret stays.
func (c Call) Record(scrub func(string) string) (Record, error) {
	clean := func(s string) string {
		s = strings.ToValidUTF8(s, "\uFFFD")
		if scrub != nil {
			s = scrub(s)
		}
		return withoutKeys(s)
	}
	short := func(s string) string { return cut(clean(s)) }
	detail, err := c.detail(clean)
	if err != nil {
		return Record{}, fmt.Errorf("the audit of %q: %w", c.Action, err)
	}
	return Record{
		Caller: short(c.Caller), Action: short(c.Action), Object: short(c.Object), Decision: c.Decision,
		RunID: short(c.RunID), SandboxID: short(c.SandboxID), Rule: short(c.Rule), Reason: short(c.Reason), Detail: detail,
	}, nil
}

// detail has at most mostDetail bytes. What does not fit gives way to a word about its size, the last ones first.
func (c Call) detail(clean func(string) string) (json.RawMessage, error) {
	input, err := plain(c.Input)
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	if c.Took > 0 {
		out["ms"] = json.Number(fmt.Sprintf("%.3f", c.Took.Seconds()*1000))
	}
	switch v := bounded(input, clean, mostDepth).(type) {
	case nil:
	case map[string]any:
		if len(v) > 0 {
			out["input"] = fitting(v)
		}
	default:
		out["input"] = fitting(map[string]any{"": v})
	}
	if len(out) == 0 {
		return nil, nil
	}
	return encode(out)
}

// plain makes of anything what JSON has.
func plain(v any) (any, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var out any
	return out, d.Decode(&out)
}

// bounded cleans and cuts every text in v, names included.
func bounded(v any, clean func(string) string, depth int) any {
	switch v := v.(type) {
	case string:
		return cutString(clean(v))
	case json.Number:
		return json.Number(cutNumber(v.String()))
	case []any:
		if depth == 0 {
			return fmt.Sprintf("… %d more", len(v))
		}
		out := make([]any, len(v))
		for i := range v {
			out[i] = bounded(v[i], clean, depth-1)
		}
		return out
	case map[string]any:
		if depth == 0 {
			return fmt.Sprintf("… %d more", len(v))
		}
		out := make(map[string]any, len(v))
		for name, value := range v {
			out[cutString(clean(name))] = bounded(value, clean, depth-1)
		}
		return out
	}
	return v
}

// fitting keeps of an input what has room in a detail.
func fitting(inputs map[string]any) map[string]any {
	const around = 200 // for what else a detail has, and how much was left out
	room := mostDetail - around
	out := map[string]any{}
	left := 0
	for _, name := range slices.Sorted(maps.Keys(inputs)) {
		entry, err := encode(map[string]any{name: inputs[name]})
		if err == nil && len(entry) > room {
			inputs[name] = fmt.Sprintf("… %d bytes", len(entry))
			entry, err = encode(map[string]any{name: inputs[name]})
		}
		if err != nil || len(entry) > room {
			left++
			continue
		}
		out[name] = inputs[name]
		room -= len(entry)
	}
	if left > 0 {
		out["…"] = fmt.Sprintf("%d more", left)
	}
	return out
}

// encode writes JSON as it is hashed: compact, and as readable as it can be.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func cutString(s string) string {
	if utf8.RuneCountInString(s) <= mostString {
		return s
	}
	n := 0
	for i := range s {
		if n++; n > mostString {
			return s[:i] + "…"
		}
	}
	return s
}

// cutNumber gives up on numbers that are texts in truth.
func cutNumber(s string) string {
	if len(s) > 40 {
		return "0"
	}
	return s
}

var (
	// key is a context key, also where a byte of it is written in a URL's way.
	key     = regexp.MustCompile(`(?i)rctx(_|%5f)[A-Za-z0-9_%-]+`)
	keyMark = "rctx_…"
)

// withoutKeys takes context keys out of a text. No row ever has one.
func withoutKeys(s string) string {
	if !strings.Contains(strings.ToLower(s), "rctx") {
		return s
	}
	return key.ReplaceAllString(s, keyMark)
}

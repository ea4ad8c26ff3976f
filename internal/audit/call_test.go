package audit

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ravi/internal/store"
)

func scrub(s string) string { return strings.ReplaceAll(s, "hunter2", "[secret]") }

func TestCallRecord(t *testing.T) {
	long := strings.Repeat("é", 600)
	const keyText = "rctx_AAAAbbbb-_cccc"
	r, err := Call{
		Caller: "ctx_1", Action: CommandPrefix + "tasks.comment", Object: "tsk1 hunter2", Decision: store.Denied,
		Reason: "hunter2 and " + keyText, Rule: "write:tasks@" + keyText, RunID: "run1", SandboxID: "sbx1", Took: 1234567 * time.Nanosecond,
		Input: map[string]any{
			"text": "it is hunter2", "long": long, "edge": strings.Repeat("a", 495) + "hunter2", "key": "a" + keyText + " and RCTX%5fabc", "n": 3, "big": json.Number("12345678901234567890"),
			"list": []string{"hunter2", keyText}, "map": map[string]string{keyText: "hunter2"}, "none": nil, "<tag>": true,
		},
	}.Record(scrub)
	if err != nil {
		t.Fatal(err)
	}
	if r.Caller != "ctx_1" || r.Action != "command.tasks.comment" || r.Object != "tsk1 [secret]" || r.Decision != store.Denied || r.Reason != "[secret] and rctx_…" || r.Rule != "write:tasks@rctx_…" || r.RunID != "run1" || r.SandboxID != "sbx1" {
		t.Errorf("%+v", r)
	}
	want := `{"input":{"<tag>":true,"big":12345678901234567890,"edge":"` + strings.Repeat("a", 495) + `[secr…","key":"arctx_… and rctx_…","list":["[secret]","rctx_…"],"long":"` + long[:1000] + `…","map":{"rctx_…":"[secret]"},"n":3,"none":null,"text":"it is [secret]"},"ms":1.235}`
	if string(r.Detail) != want {
		t.Errorf("got  %s\nwant %s", r.Detail, want)
	}
	for name, c := range map[string]struct {
		call Call
		want string
	}{
		"nothing": {Call{}, ""}, "empty": {Call{Input: struct{}{}}, ""}, "time": {Call{Took: time.Second}, `{"ms":1000.000}`}, "no object": {Call{Input: []int{1}}, `{"input":{"":[1]}}`},
	} {
		if r, err := c.call.Record(nil); err != nil || string(r.Detail) != c.want {
			t.Errorf("%s: %s, %v", name, r.Detail, err)
		}
	}
	if _, err := (Call{Input: func() {}}).Record(nil); err == nil {
		t.Error("a function was written")
	}
}

// Whatever a call was made with, its row is bounded, can be written, and holds neither a secret nor a key.
func TestCallRecordIsBounded(t *testing.T) {
	l, _ := newLog(t)
	text := rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{"hunter2", "rctx_Key", "a", "é", "\x00", "\xff", `"`, "<", "\u2028", strings.Repeat("b", 499)}), 0, 6),
		func(parts []string) string { return strings.Join(parts, "") })
	var value func(depth int) *rapid.Generator[any]
	value = func(depth int) *rapid.Generator[any] {
		plain := rapid.OneOf(rapid.Map(text, func(s string) any { return s }), rapid.Map(rapid.Int(), func(n int) any { return n }))
		if depth == 0 {
			return plain
		}
		return rapid.OneOf(plain,
			rapid.Map(rapid.SliceOfN(value(depth-1), 0, 30), func(v []any) any { return v }),
			rapid.Map(rapid.MapOfN(text, value(depth-1), 0, 30), func(v map[string]any) any { return v }))
	}
	rapid.Check(t, func(t *rapid.T) {
		r, err := Call{Action: "command.a.b", Decision: store.Allowed, Took: time.Hour, Input: value(3).Draw(t, "input"), Reason: text.Draw(t, "reason"), Object: text.Draw(t, "object")}.Record(scrub)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Detail) > mostDetail {
			t.Fatalf("%d bytes", len(r.Detail))
		}
		for _, s := range []string{string(r.Detail), r.Reason, r.Object} {
			if strings.Contains(s, "hunter2") || strings.Contains(s, "rctx_K") {
				t.Fatal(s)
			}
		}
	})
	var deep, deepNames any = "end", "end"
	for range 1500 { // small, and deeper than SQLite goes
		deep, deepNames = []any{deep}, map[string]any{"": deepNames}
	}
	many := map[string]any{}
	for i := range 100_000 {
		many[fmt.Sprint("key", i)] = i
	}
	for name, input := range map[string]any{"deep": deep, "deep names": deepNames, "many": many, "large": map[string]any{"a": strings.Repeat("a", 2<<20), "b": make([]int, 100_000)}} {
		r, err := Call{Caller: "ctx_1", Action: "command.a.b", Decision: store.Allowed, Input: input}.Record(scrub)
		if err != nil || len(r.Detail) > mostDetail {
			t.Errorf("%s: %d bytes, %v", name, len(r.Detail), err)
		}
		if err := l.Append(t.Context(), r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	r, err := Call{Action: "command.a.b", Decision: store.Allowed, Input: map[string]any{"a": "small", "b": make([]int, 100_000), "c": "small too"}}.Record(scrub)
	if err != nil || string(r.Detail) != `{"input":{"a":"small","b":"… 200007 bytes","c":"small too"}}` {
		t.Errorf("%s, %v", r.Detail, err)
	}
}

package strictjson

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// plain is the value as encoding/json with UseNumber gives it.
func plain(v Value) any {
	switch v.Kind() {
	case Object:
		m := map[string]any{}
		for key, item := range v.Members() {
			m[key] = plain(item)
		}
		return m
	case Array:
		list := []any{}
		for _, item := range v.Items() {
			list = append(list, plain(item))
		}
		return list
	case String:
		return v.Text()
	case Number:
		return json.Number(v.Text())
	case Bool:
		return v.Text() == "true"
	}
	return nil
}

func TestReadRefuses(t *testing.T) {
	deep := strings.Repeat("[", MaxDepth+1) + strings.Repeat("]", MaxDepth+1)
	many := `{"a":[` + strings.Repeat("1,", MaxValues) + "1]}"
	wide := `{`
	for _, c := range "abcdefghijklmnopqrstuvwxyz" {
		wide += `"` + string(c) + `":1,`
	}
	for name, c := range map[string]struct{ doc, want string }{
		"empty":              {" ", "there is no JSON"},
		"no JSON":            {`{"a":}`, "not valid JSON"},
		"trailing":           {`{} x`, "not valid JSON"},
		"two values":         {`{}{}`, "not valid JSON"},
		"NaN":                {`[NaN]`, "not valid JSON"},
		"byte order mark":    {"\xef\xbb\xbf{}", "byte order mark"},
		"not UTF-8":          {"[\"\xff\"]", "not UTF-8"},
		"twice":              {`{"a":{"b":1,"c":2,"b":3}}`, "a.b: given twice"},
		"twice, escaped":     {`{"a":1,"\u0061":2}`, "a: given twice"},
		"twice among many":   {wide + `"m":2}`, "m: given twice"},
		"twice, deep":        {`[[{"x":[{"k":1,"k":1}]}]]`, "[0][0].x[0].k: given twice"},
		"high half":          {`["\ud83d"]`, "surrogate"},
		"high half, capital": {`["\uD83Dx"]`, "surrogate"},
		"low half":           {`["\ude00"]`, "surrogate"},
		"halves swapped":     {`["\ude00\ud83d"]`, "surrogate"},
		"half at the end":    {`["a\\\ud83d"]`, "surrogate"},
		"half in a key":      {`{"\ud83d":1}`, "surrogate"},
		"too deep":           {deep, "inside each other"},
		"too many":           {many, "values"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Read([]byte(c.doc)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestReadTakes(t *testing.T) {
	for _, doc := range []string{
		`null`, ` {} `, `[]`, `"a\"b\\"`, `"\\"`, `"\\\""`, `["\\ud83d", "\ud83d\ude00", "\\\ud83d\ude00"]`,
		`{"a":1,"A":2,"b":[true,false,null,1e400,12345678901234567890.5],"":{"x y":"<&>"}}`,
		"\t{\n\"a\" : [ 1 , 2 ,[ ] , { } ] ,\r\n \"b\":\"c\" }\n",
		strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth),
	} {
		same(t, []byte(doc))
	}
}

// same says that Read gives what encoding/json gives, and that the values' places are theirs.
func same(t *testing.T, doc []byte) {
	t.Helper()
	v, err := Read(doc)
	if err != nil {
		t.Fatalf("%.200q: %v", doc, err)
	}
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	var want any
	if err := dec.Decode(&want); err != nil {
		t.Fatal(err)
	}
	if got := plain(v); !reflect.DeepEqual(got, want) {
		t.Fatalf("%.200q\ngot  %#v\nwant %#v", doc, got, want)
	}
	if start, end := v.Span(); !bytes.Equal(doc[start:end], bytes.TrimSpace(doc)) {
		t.Fatalf("%.200q: the place is %d to %d", doc, start, end)
	}
}

func TestGet(t *testing.T) {
	v, err := Read([]byte(`{"a":{"b":"in"},"b":"out"}`))
	if err != nil {
		t.Fatal(err)
	}
	b, ok := v.Get("b")
	if !ok || b.Text() != "out" || string(b.Raw()) != `"out"` {
		t.Fatalf("got %v %v", b, ok)
	}
	if _, ok := v.Get("c"); ok {
		t.Fatal("a key that is not there was found")
	}
	if _, ok := b.Get("b"); ok {
		t.Fatal("a string has members")
	}
	for range b.Items() {
		t.Fatal("a string has items")
	}
}

func FuzzRead(f *testing.F) {
	for _, seed := range []string{`{"a":[1,{"b":"c\u0041\\"}],"d":null}`, `["\ud83d\ude00"]`, `{"a":1,"\u0061":2}`, ` [ 1 , "x" ] `} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		if _, err := Read(doc); err == nil {
			same(t, doc)
		} else if !json.Valid(doc) {
			return
		} else if m := err.Error(); !strings.Contains(m, "twice") && !strings.Contains(m, "surrogate") &&
			!strings.Contains(m, "UTF-8") && !strings.Contains(m, "inside each other") {
			t.Fatalf("valid JSON was refused: %v", err)
		}
	})
}

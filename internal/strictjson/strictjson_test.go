package strictjson

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

type inner struct {
	Backend   string      `json:"backend"`
	MemoryMiB int         `json:"memory_mib"`
	Disk      *int        `json:"disk_size_gb"`
	Volumes   [][3]string `json:"extra_volumes"`
	Ratio     float64     `json:"ratio"`
	Small     uint8       `json:"small"`
	Wait      time.Duration
	Tags      map[string]string
	Free      any
	hidden    int
	Skipped   string `json:"-"`
}

type doc struct {
	Tools struct {
		Sandbox inner `json:"sandbox"`
	} `json:"tools"`
	Own picky `json:"own"`
}

// A field that is not exported is no key.
var _ = inner{hidden: 0}

// picky decodes itself by way of Decode, as the public configuration does.
type picky struct{ Level int }

func (p *picky) UnmarshalJSON(data []byte) error {
	type plain picky
	if err := Decode(data, (*plain)(p)); err != nil {
		return err
	}
	if p.Level > 9 {
		return errors.New("level is above 9")
	}
	return nil
}

func TestDecode(t *testing.T) {
	got := doc{}
	got.Tools.Sandbox.Backend = "kept"
	err := Decode([]byte(`{"tools":{"sandbox":{"memoryMib":7,"disk_size_gb":null,"extraVolumes":[["/a","/b","ro"]],
		"ratio":0.5,"small":255,"wait":"90s","tags":{"X y":"1"},"free":[1,{"a":null}]}},"own":{"level":3}}`), &got)
	if err != nil {
		t.Fatal(err)
	}
	s := got.Tools.Sandbox
	if s.Backend != "kept" || s.MemoryMiB != 7 || s.Disk != nil || s.Volumes[0] != [3]string{"/a", "/b", "ro"} ||
		s.Ratio != 0.5 || s.Small != 255 || s.Wait != 90*time.Second || s.Tags["X y"] != "1" || got.Own.Level != 3 ||
		!reflect.DeepEqual(s.Free, []any{1.0, map[string]any{"a": nil}}) {
		t.Fatalf("got %+v", got)
	}
}

func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"empty":            {" \n", "line 1, column 1: there is no JSON here; the smallest valid document is {}"},
		"syntax":           {"{\n  \"tools\": {,}\n}", "line 2, column 13: not valid JSON: invalid character ',' looking for beginning of object key string"},
		"cut off":          {`{"tools":`, "line 1, column 10: not valid JSON: unexpected end of JSON input"},
		"trailing":         {`{} {}`, "line 1, column 4: not valid JSON: invalid character '{' after top-level value"},
		"comment":          {"{ // no\n}", "line 1, column 3: not valid JSON: invalid character '/' looking for beginning of object key string"},
		"not utf-8":        {"{\"a\":\"\xff\"}", "line 1, column 7: this is not UTF-8 text"},
		"bom":              {"\ufeff{}", "line 1, column 1: the file starts with a byte order mark; save it as plain UTF-8"},
		"unknown, near":    {`{"tools":{"sandbox":{"backnd":1}}}`, "line 1, column 22: tools.sandbox.backnd: unknown key; did you mean backend?"},
		"unknown, spelt":   {`{"tools":{"sandbox":{"memoryMiB":1}}}`, "line 1, column 22: tools.sandbox.memoryMiB: unknown key; did you mean memory_mib?"},
		"unknown, far":     {`{"zzzzzzzz":1}`, "line 1, column 2: zzzzzzzz: unknown key; known here: tools, own"},
		"case matters":     {`{"Tools":{}}`, "line 1, column 2: Tools: unknown key; did you mean tools?"},
		"unexported":       {`{"tools":{"sandbox":{"hidden":1}}}`, "line 1, column 22: tools.sandbox.hidden: unknown key; known here: backend, memory_mib, disk_size_gb, extra_volumes, ratio, small, wait, tags, free"},
		"dash":             {`{"tools":{"sandbox":{"skipped":1}}}`, "line 1, column 22: tools.sandbox.skipped: unknown key; known here: backend, memory_mib, disk_size_gb, extra_volumes, ratio, small, wait, tags, free"},
		"twice":            {"{\"own\":{},\n\"own\":{}}", "line 2, column 1: own: given twice: keep one of them"},
		"twice, spellings": {`{"tools":{"sandbox":{"memory_mib":1,"memoryMib":2}}}`, "line 1, column 37: tools.sandbox.memoryMib: given twice, as memory_mib and as memoryMib: keep one of them"},
		"twice, in a map":  {`{"tools":{"sandbox":{"tags":{"a":"1","a":"2"}}}}`, "line 1, column 38: tools.sandbox.tags.a: given twice: keep one of them"},
		"type":             {"{\"tools\":\n {\"sandbox\":{\"backend\":1}}}", "line 2, column 24: tools.sandbox.backend: expected a string, got a number"},
		"null":             {`{"tools":{"sandbox":{"memory_mib":null}}}`, "line 1, column 35: tools.sandbox.memory_mib: expected an integer, got null"},
		"fraction":         {`{"tools":{"sandbox":{"memory_mib":1.0}}}`, "line 1, column 35: tools.sandbox.memory_mib: expected an integer, got 1.0"},
		"range":            {`{"tools":{"sandbox":{"small":256}}}`, "line 1, column 30: tools.sandbox.small: 256 is out of range"},
		"infinite":         {`{"tools":{"sandbox":{"ratio":1e999}}}`, "line 1, column 30: tools.sandbox.ratio: 1e999 is out of range"},
		"negative":         {`{"tools":{"sandbox":{"small":-1}}}`, "line 1, column 30: tools.sandbox.small: expected an integer of 0 or more, got -1"},
		"duration":         {`{"tools":{"sandbox":{"wait":90}}}`, `line 1, column 29: tools.sandbox.wait: expected a duration such as "30s" or "2h", got a number`},
		"bad duration":     {`{"tools":{"sandbox":{"wait":"soon"}}}`, `line 1, column 29: tools.sandbox.wait: "soon" is not a duration: write it like "30s", "5m" or "2h"`},
		"array length":     {`{"tools":{"sandbox":{"extra_volumes":[["/a","/b"]]}}}`, "line 1, column 39: tools.sandbox.extra_volumes[0]: expected a list of 3, got 2"},
		"array item":       {`{"tools":{"sandbox":{"extra_volumes":[["/a","/b",true]]}}}`, "line 1, column 50: tools.sandbox.extra_volumes[0][2]: expected a string, got true or false"},
		"top":              {`[]`, "line 1, column 1: expected an object, got a list"},
		"own, inside":      {"{\"own\":\n{\n \"level\":\"x\"}}", "line 3, column 10: own.level: expected an integer, got a string"},
		"own, itself":      {`{"own":{"level":10}}`, "line 1, column 8: own: level is above 9"},
		"hostile key":      {`{"a\u001b[31m":1}`, `line 1, column 2: ["a\x1b[31m"]: unknown key; known here: tools, own`},
		"characters":       {`{"own":{"é":1}}`, `line 1, column 9: own["\u00e9"]: unknown key; known here: level`},
		"after characters": {`{"tools":{"sandbox":{"tags":{"é":"ü"},"x":1}}}`, "line 1, column 39: tools.sandbox.x: unknown key; known here: backend, memory_mib, disk_size_gb, extra_volumes, ratio, small, wait, tags, free"},
	} {
		t.Run(name, func(t *testing.T) {
			got := doc{}
			got.Own.Level = 5
			err := Decode([]byte(c.in), &got)
			if err == nil || err.Error() != c.want {
				t.Fatalf("got  %v\nwant %v", err, c.want)
			}
			if want := (doc{Own: picky{Level: 5}}); !reflect.DeepEqual(got, want) {
				t.Fatalf("a refused document changed the value: %+v", got)
			}
		})
	}
}

func TestErrorKeepsCause(t *testing.T) {
	sentinel := errors.New("level is above 9")
	var e *Error
	err := Decode([]byte(`{"own":{"level":10}}`), &doc{})
	if !errors.As(err, &e) || e.Err == nil || e.Err.Error() != sentinel.Error() {
		t.Fatalf("got %#v", err)
	}
}

func TestNotAPointer(t *testing.T) {
	if err := Decode([]byte(`{}`), doc{}); err == nil || !strings.Contains(err.Error(), "pointer") {
		t.Fatalf("got %v", err)
	}
}

func TestSpellings(t *testing.T) {
	for in, want := range map[string]string{"MemoryMib": "memory_mib", "HTTPPort": "http_port", "allow_net": "allow_net", "ID": "id", "ImageID": "image_id", "a": "a"} {
		if got := Snake(in); got != want {
			t.Errorf("Snake(%q) = %q, want %q", in, got, want)
		}
		if got := Snake(Camel(want)); got != want {
			t.Errorf("Snake(Camel(%q)) = %q", want, got)
		}
	}
}

func TestNearest(t *testing.T) {
	names := []string{"backend", "image", "cpus", "memory_mib"}
	for in, want := range map[string]string{"imgae": "image", "cpu": "cpus", "memory-mib": "memory_mib", "network": "", "": ""} {
		if got := Nearest(in, names); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", in, got, want)
		}
	}
}

// FuzzDecode holds the decoder against encoding/json: what we accept it accepts too, with the same meaning, and what
// we refuse is refused with a place inside the document.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":[1,2,{"b":null}]}`, `{"a":1,"a":2}`, `[`, `"\ud800"`, "\"\xff\"", `1e999`, ` {"é" : "\n" } `, `[[[[]]]]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var got any
		err := Decode(data, &got)
		var e *Error
		if err != nil {
			if !errors.As(err, &e) || e.Line < 1 || e.Column < 1 || e.Offset < 0 || e.Offset > len(data) {
				t.Fatalf("no place in %#v", err)
			}
		} else {
			var want any
			if err := json.Unmarshal(data, &want); err != nil {
				if !strings.Contains(err.Error(), "cannot unmarshal number") {
					t.Fatalf("accepted what is not JSON: %v", err)
				}
			} else if !reflect.DeepEqual(got, want) {
				t.Fatalf("got %#v, want %#v", got, want)
			}
		}
		var d doc
		if err := Decode(data, &d); err != nil && !errors.As(err, &e) {
			t.Fatalf("not an *Error: %v", err)
		}
	})
}

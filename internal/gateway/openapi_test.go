package gateway

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"ravi/internal/contextkey"
)

// readOpenAPI reads a document and has it validated. The validator is a library for Go, in tests only: one from npm would
// need node and a lock file of its own for the same checks.
func readOpenAPI(t *testing.T, doc string) (*openapi3.T, error) {
	t.Helper()
	api, err := openapi3.NewLoader().LoadFromData([]byte(doc))
	if err != nil {
		return nil, err
	}
	return api, api.Validate(t.Context())
}

func TestOpenAPIIsValid(t *testing.T) {
	w := newWorld(t)
	some, _ := w.key(contextkey.Request{}, "read:notes.show@not1")
	none, _ := w.key(contextkey.Request{}, "read:other")
	for token, want := range map[string]int{"": 8, some: 1, none: 0} {
		r := w.do(http.MethodGet, "", Root+"_meta/openapi.json", token, "")
		api, err := readOpenAPI(t, r.body)
		if err != nil {
			t.Fatalf("%v in %s", err, r.body)
		}
		if !api.IsOpenAPI31OrLater() || api.Paths.Len() != want {
			t.Errorf("version %s with %d paths, want %d", api.OpenAPI, api.Paths.Len(), want)
		}
		if again := w.do(http.MethodGet, "", Root+"_meta/openapi.json", token, ""); again.body != r.body {
			t.Error("it is not twice the same")
		}
	}
	// The validator sees what is wrong.
	doc := w.do(http.MethodGet, "", Root+"_meta/openapi.json", "", "").body
	for _, c := range [][2]string{{`"type":"integer"`, `"type":"int"`}, {`"description":"done"`, `"descriptions":"done"`}, {`#/components/schemas/Error`, `#/components/schemas/Gone`}, {`"notes.ls"`, `"notes.show"`}} {
		if _, err := readOpenAPI(t, strings.ReplaceAll(doc, c[0], c[1])); err == nil {
			t.Errorf("%s is as good as %s", c[1], c[0])
		}
	}
}

type embedded struct {
	Name string `json:"name"`
	Kept string `json:"kept,omitempty"`
}

func TestSchemas(t *testing.T) {
	type all struct {
		embedded
		Name  int               `json:"name"` // instead of the one above
		Wait  time.Duration     `json:"wait,omitempty"`
		At    *time.Time        `json:"at"`
		Bytes []byte            `json:"bytes,omitzero"`
		Pairs map[string]uint16 `json:"pairs"`
		Any   any               `json:"any"`
		Raw   json.RawMessage   `json:"raw,omitempty"`
		Plain bool
		skip  bool
		Gone  bool `json:"-"`
	}
	var _ = all{}.skip
	b, err := json.Marshal(answerSchema(reflect.TypeFor[[]all]()))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"items":{"properties":{"Plain":{"type":"boolean"},"any":{},"at":{"format":"date-time","type":["string","null"]},` +
		`"bytes":{"contentEncoding":"base64","type":["string","null"]},"kept":{"type":"string"},"name":{"type":"integer"},` +
		`"pairs":{"additionalProperties":{"minimum":0,"type":"integer"},"type":["object","null"]},"raw":{},"wait":{"description":"nanoseconds","type":"integer"}},` +
		`"required":["Plain","any","at","name","pairs"],"type":"object"},"type":"array"}`
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
}

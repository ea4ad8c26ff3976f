package broker

import (
	"net/http"
	"testing"
)

// What codex says of its bodies goes on, and no other word of its.
func TestCodexHeader(t *testing.T) {
	w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, `{"id":"resp_1","object":"response","status":"completed","output":[],"usage":{"input_tokens":1,"output_tokens":1}}`)
	}, nil)
	body := `{"model":"m","input":"hello","store":false}`
	for i, value := range []string{"true", "something else"} {
		w.post("/openai/v1/responses", body, codexLite, value, "X-Codex-Turn-Metadata", "installation")
		h := w.came()[i].header
		if got := h.Get(codexLite); got != map[string]string{"true": "true"}[value] || h.Get("X-Codex-Turn-Metadata") != "" {
			t.Errorf("%s: %q, %q", value, got, h.Get("X-Codex-Turn-Metadata"))
		}
	}
}

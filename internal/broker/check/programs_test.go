package check

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPrograms says that what the agent programs send passes without a grant. The bodies are theirs, with the texts
// taken out and repetitions left away; a file is named by its dialect, its program and a number.
func TestPrograms(t *testing.T) {
	checks := map[string]func([]byte, Grants) (Request, *Refusal){
		"messages": Messages, "responses": Responses, "chat": Chat,
		"gemini": func(body []byte, g Grants) (Request, *Refusal) { return Gemini("gemini-3-pro", body, g) },
	}
	files, err := filepath.Glob(filepath.Join("testdata", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no bodies: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		t.Run(name, func(t *testing.T) {
			body, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			dialect, _, _ := strings.Cut(name, "-")
			r, refused := checks[dialect](body, nil)
			if refused != nil {
				t.Fatal(refused)
			}
			if r.Model == "" || !r.HideUsage && !bytes.Equal(r.Body, body) {
				t.Fatalf("got %q, %s", r.Model, r.Body)
			}
			hides(t, body, r, dialect == "gemini")
		})
	}
}

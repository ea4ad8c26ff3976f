package sandbox_test

import (
	"os"
	"path/filepath"
	"testing"

	"ravi/sandbox"
)

// A context in Ravi's home is seen where it is, though the home is not, and cannot
// be written.
func TestSealedContext(t *testing.T) {
	home := t.TempDir()
	dir := filepath.Join(home, "runs", "run1", "context")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "f"), filepath.Join(home, "runs", "run1", "task.json")} {
		if err := os.WriteFile(path, []byte("given"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sb := sealed(t, home, "", sandbox.WithContext(dir))
	if out := sh(t, sb, "cat "+sb.ContextDir()+"/f; ls "+filepath.Dir(dir)); out != "givencontext\n" {
		t.Errorf("it sees %q", out)
	}
	if out := sh(t, sb, "cd "+sb.ContextDir()+"; (echo x >f; touch new; rm -f f) 2>/dev/null; ls; cat f"); out != "f\ngiven" {
		t.Errorf("it wrote: %q", out)
	}
}

package remote

import (
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkMeasure is what it takes to know the digest of an agent program of usual size.
func BenchmarkMeasure(b *testing.B) {
	dir := b.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "program"), make([]byte, 200<<20), 0o700); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, _, err := measure(b.Context(), dir); err != nil {
			b.Fatal(err)
		}
	}
}

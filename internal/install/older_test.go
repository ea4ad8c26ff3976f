package install

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"ravi/internal/filelock"
)

// Older versions go when a newer one is there, but for those that a run uses; these go the next time.
func TestRemoveOlder(t *testing.T) {
	home := t.TempDir()
	place := filepath.Join(home, "agents", "tool")
	for _, version := range []string{"2.1.9", "2.1.10", "2.1.30", "2.9", "3.0.0", "2.1.x", "2"} {
		if err := os.MkdirAll(filepath.Join(place, version, "node_modules", "x"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(place, version, "node_modules", "x", "y"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(place, lockFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	used, err := os.Open(filepath.Join(place, "2.1.9"))
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := filelock.Try(used, syscall.LOCK_SH); !ok || err != nil {
		t.Fatal(ok, err)
	}
	for range 2 {
		if err := removeOlder(place, "2.1.30"); err != nil {
			t.Fatal(err)
		}
		onlyWhole(t, home, "2.1.9", "2.1.30", "2.9", "2.1.x", "3.0.0")
	}
	used.Close()
	if err := removeOlder(place, "2.1.30"); err != nil {
		t.Fatal(err)
	}
	onlyWhole(t, home, "2.1.30", "2.9", "2.1.x", "3.0.0")
}

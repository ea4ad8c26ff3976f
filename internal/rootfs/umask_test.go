package rootfs

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// prepareIn has this test only make an image beneath the folder that it names.
const prepareIn = "RAVI_TEST_PREPARE_IN"

// Whoever uses a sandbox can read its image, whatever umask the process had that made it.
func TestUmask(t *testing.T) {
	if dir := os.Getenv(prepareIn); dir != "" {
		if _, err := Prepare(dir, HostImage); err != nil {
			t.Fatal(err)
		}
		return
	}
	modes := func(umask string) map[string]fs.FileMode {
		home := t.TempDir()
		// A umask is the whole process's, so it is another process that has it.
		cmd := exec.Command("sh", "-c", `umask "$0" && exec "$@"`, umask, os.Args[0], "-test.run=^TestUmask$")
		cmd.Env = append(os.Environ(), prepareIn+"="+home)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("umask %s: %v\n%s", umask, err, out)
		}
		root, err := Prepare(home, HostImage)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]fs.FileMode{}
		if err := filepath.WalkDir(root.Dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			st, err := d.Info()
			if err == nil && st.Mode()&fs.ModeSymlink == 0 {
				found[p[len(root.Dir):]] = st.Mode()
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return found
	}
	want, got := modes("022"), modes("077")
	if want["/etc/passwd"].Perm() != 0o644 || want["/etc"].Perm() != 0o755 || len(got) != len(want) {
		t.Errorf("%d and %d files, /etc/passwd %v, /etc %v", len(want), len(got), want["/etc/passwd"], want["/etc"])
	}
	for name, mode := range want {
		if got[name] != mode {
			t.Errorf("%s has mode %v with umask 077, and %v with 022", name, got[name], mode)
		}
	}
}

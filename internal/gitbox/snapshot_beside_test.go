package gitbox

import (
	"errors"
	"os"
	"testing"
)

// What this program keeps in a work tree is not taken along, tracked or not, however its folder is called.
func TestOwnFolderIsLeft(t *testing.T) {
	r := newRepo(t)
	r.write("f", "x")
	r.write(".own/tracked", "as it was committed\n")
	r.commit("first")
	r.write(".own/tracked", "a secret\n")
	r.write(".own/deep/db", "a secret\n")
	r.write(".owner", "not inside\n")
	link := t.TempDir() + "/link"
	must(t, os.Symlink(r.path(".own"), link))
	for _, folder := range []string{r.path(".own"), link} {
		repo, err := Open(t.Context(), r.dir)
		must(t, err)
		dir := t.TempDir() + "/out"
		b, err := repo.Export(t.Context(), "", dir, Limits{Beside: folder})
		must(t, err)
		if b.Left.Count != 1 || b.Left.First[0] != ".own" || b.Dirty.Added != 1 || b.Dirty.Modified != 0 {
			t.Errorf("%s: %+v %+v", folder, b.Left, b.Dirty)
		}
	}
	repo, err := Open(t.Context(), r.dir)
	must(t, err)
	if _, err := repo.Export(t.Context(), "", t.TempDir()+"/out", Limits{Beside: r.dir}); !errors.Is(err, ErrRefused) {
		t.Errorf("its own folder as a repository: %v", err)
	}
	if b, err := repo.Export(t.Context(), "", t.TempDir()+"/out", Limits{Beside: t.TempDir()}); err != nil || b.Dirty.Added != 2 {
		t.Errorf("a folder elsewhere: %+v, %v", b, err)
	}
}

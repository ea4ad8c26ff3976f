package beneath

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

func TestIsGit(t *testing.T) {
	for _, name := range []string{".git", ".GIT", ".Git", ".git.", ".git ", ".git. .", "git~1", "GIT~1", "git~27", ".g\u200cit", "\ufeff.git", ".gi\u00adt", ".gi\u034ft", ".git\ufe0f",
		".git:x", ".git::$INDEX_ALLOCATION", `.git\config`, `x\.git`, `a\GIT~1\b`, ".git :x"} {
		if !isGit(name) {
			t.Errorf("%q is taken for a name like others", name)
		}
	}
	for _, name := range []string{".gitignore", ".gitattributes", ".github", "git", ".gitx", "a.git", "git~", "git~x", "git~1x", ".git~", "..git", ".gi", ". git", "", "gıt"} {
		if isGit(name) {
			t.Errorf("%q is taken for .git", name)
		}
	}
}

// What belongs to git is not written to in any way, on any level, however it is spelled.
func TestGitIsReadOnly(t *testing.T) {
	p, ctx := newPlace(t), t.Context()
	for _, name := range []string{".git/hooks/post-checkout", "sub/.git/config", "a/b/c/.git/x", "sub/.GIT/config", "sub/.git./config", "sub/GIT~1/config", "./sub//.git/config", p.dir + "/sub/.git/config", `sub/.git\config`} {
		put(t, p.at("sub/.git/config"), "c")
		before := tree(t, p.dir)
		for what, err := range map[string]error{"write": p.WriteFile(ctx, name, []byte("x")), "mkdir": p.MakeDir(ctx, name), "remove": p.Remove(ctx, name)} {
			wantError(t, what+" "+name, err, ErrReadOnly, "belongs to git")
		}
		if len(tree(t, p.dir)) != len(before) {
			t.Errorf("%s: something was made", name)
		}
	}
	if got, err := p.ReadFile(ctx, "sub/.git/config", 9); err != nil || string(got) != "c" {
		t.Errorf("%q, %v", got, err)
	}
	// A hard link to what is in there is replaced, and leads there no more.
	must(t, os.Link(p.at("sub/.git/config"), p.at("alias")))
	must(t, p.WriteFile(ctx, "alias", []byte("x")))
	wantFile(t, p.at("sub/.git/config"), "c")
}

// Whatever the name: a file is written where its name says, below the root and not in .git, or nowhere.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"a", "a/b", "../a", "/etc/passwd", "a/../../b", ".git/x", "a/.GIT/x", "", ".", "/", "//", "a//b/", "\x00", "\xff\xfe", "a\nb", "ROOT/x", "ROOT/../x", "ROOT", "rootx", "~/x",
		strings.Repeat("d/", 600) + "x", strings.Repeat("x", 300), "link/x", ".git\u200c/x", "...", "..a/b", `..\x`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		p := newPlace(t)
		must(t, os.Symlink(p.outside, p.at("link")))
		name = strings.ReplaceAll(name, "ROOT", p.dir)
		err := p.WriteFile(t.Context(), name, []byte("text"))
		p.outsideIsUntouched(t)
		above, rerr := os.ReadDir(filepath.Dir(p.dir))
		if rerr != nil || len(above) != 2 {
			t.Fatalf("beside the workspace: %v, %v", above, rerr)
		}
		if err != nil {
			if err.Error() == "" || errors.Is(err, os.ErrExist) {
				t.Errorf("%q: %v", name, err)
			}
			return
		}
		file := name
		if !path.IsAbs(name) {
			file = p.dir + "/" + name
		}
		wantFile(t, file, "text")
		rel, err := filepath.Rel(p.dir, file)
		must(t, err)
		for _, part := range strings.Split(rel, "/") {
			if part == ".." || strings.EqualFold(part, ".git") {
				t.Errorf("%q was written", name)
			}
		}
		if got, err := p.ReadFile(t.Context(), name, 9); err != nil || string(got) != "text" {
			t.Errorf("%q: %q, %v", name, got, err)
		}
		must(t, p.Remove(t.Context(), name))
	})
}

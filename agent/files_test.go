package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	var numbered strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&numbered, "line %d\n", i+1)
	}
	put(t, dir, "long", numbered.String())
	put(t, dir, "short", "one\ntwo\r\nthree")
	put(t, dir, "empty", "")
	put(t, dir, "wide", strings.Repeat("é", 5000)+"\nnext\n")
	put(t, dir, "binary", "a\x00b")
	put(t, dir, "large", strings.Repeat("x", mostFile+1))
	put(t, dir, ".git/config", "[core]\n")
	put(t, filepath.Dir(dir), "outside", "not for you\n")
	if err := os.Symlink("short", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	const most = 1<<63 - 1
	c := Config{Hands: HandsOf(onHost(t, dir)), Limits: Limits{Output: 1 << 20}}
	for name, x := range map[string]struct {
		args   object
		failed bool
		has    []string
		hasNot string
	}{
		"all":             {object{"path": "short"}, false, []string{"     1\tone\n     2\ttwo\n     3\tthree\n"}, "of 3)"},
		"absolute":        {object{"path": dir + "/short"}, false, []string{"one"}, ""},
		"a range":         {object{"path": "short", "offset": 2, "limit": 1}, false, []string{"     2\ttwo\n(lines 2 to 2 of 3)"}, "one"},
		"to the end":      {object{"path": "short", "offset": 3, "limit": 100}, false, []string{"     3\tthree\n"}, "two"},
		"numbers at most": {object{"path": "short", "offset": 2, "limit": int64(most)}, false, []string{"     2\ttwo\n     3\tthree\n"}, "one"},
		"beyond":          {object{"path": "short", "offset": int64(most)}, false, []string{"has 3 lines"}, "three"},
		"before":          {object{"path": "short", "offset": -5, "limit": -5}, false, []string{"     1\tone"}, ""},
		"many lines":      {object{"path": "long"}, false, []string{"  2000\tline 2000\n(lines 1 to 2000 of 3000)"}, "line 2001"},
		"a wide line":     {object{"path": "wide"}, false, []string{"left out", "     2\tnext"}, strings.Repeat("é", 1001)},
		"empty":           {object{"path": "empty"}, false, []string{"has 0 lines"}, ""},
		"git's":           {object{"path": ".git/config"}, false, []string{"[core]"}, ""},
		"binary":          {object{"path": "binary"}, true, []string{"no text", "3 bytes"}, ""},
		"too large":       {object{"path": "large"}, true, []string{"large"}, "xxxx"},
		"none":            {object{"path": "none"}, true, []string{"none"}, ""},
		"a folder":        {object{"path": ".git"}, true, []string{".git"}, ""},
		"no name":         {object{"path": ""}, true, []string{"name"}, ""},
		"a link":          {object{"path": "link"}, true, []string{"symbolic link"}, "two"},
		"outside":         {object{"path": "../outside"}, true, []string{"outside"}, "not for you"},
		"outside by name": {object{"path": filepath.Dir(dir) + "/outside"}, true, []string{"outside"}, "not for you"},
		"system":          {object{"path": "/etc/passwd"}, true, []string{"outside"}, "root:"},
		"no arguments":    {nil, true, []string{"lack path"}, ""},
		"others":          {object{"path": "short", "lines": 1}, true, []string{"lines"}, "one"},
	} {
		t.Run(name, func(t *testing.T) {
			text, failed := done(t, c, "read", x.args)
			if failed != x.failed || x.hasNot != "" && strings.Contains(text, x.hasNot) {
				t.Errorf("%v: %.1000q", failed, text)
			}
			mentions(t, text, x.has...)
		})
	}
}

func TestWriteAndEdit(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(filepath.Dir(dir), "outside")
	put(t, filepath.Dir(dir), "outside", "untouched")
	put(t, dir, ".git/config", "untouched")
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	c := Config{Hands: HandsOf(onHost(t, dir))}
	large := strings.Repeat("x", 500<<10)
	for _, x := range []struct {
		what, tool string
		args       object
		failed     bool
		says       string
		file, want string
	}{
		{"a new file", "write", object{"path": "a/b/c", "content": "one one two"}, false, "wrote 11 bytes to a/b/c", "a/b/c", "one one two"},
		{"without content", "write", object{"path": "a/b/c"}, true, "lack content", "a/b/c", "one one two"},
		{"the same twice", "edit", object{"path": "a/b/c", "old": "one", "new": "1"}, true, "2 times", "a/b/c", "one one two"},
		{"all", "edit", object{"path": "a/b/c", "old": "one", "new": "1", "all": true}, false, "replaced 2", "a/b/c", "1 1 two"},
		{"once", "edit", object{"path": "a/b/c", "old": "two", "new": ""}, false, "replaced 1", "a/b/c", "1 1 "},
		{"not there", "edit", object{"path": "a/b/c", "old": "two", "new": "2"}, true, "not in a/b/c", "a/b/c", "1 1 "},
		{"for nothing", "edit", object{"path": "a/b/c", "old": "", "new": "2"}, true, "empty", "a/b/c", "1 1 "},
		{"the same", "edit", object{"path": "a/b/c", "old": "1", "new": "1"}, true, "the same", "a/b/c", "1 1 "},
		{"without new", "edit", object{"path": "a/b/c", "old": "1 1"}, true, "lack new", "a/b/c", "1 1 "},
		{"no file", "edit", object{"path": "none", "old": "1", "new": "2"}, true, "none", "", ""},
		{"grows", "edit", object{"path": "a/b/c", "old": " ", "new": large, "all": true}, false, "replaced 2", "a/b/c", "1" + large + "1" + large},
		{"grows too much", "edit", object{"path": "a/b/c", "old": "x", "new": "xxxxxxxxxx", "all": true}, true, "at most 4194304", "a/b/c", "1" + large + "1" + large},
		{"empty", "write", object{"path": "a/b/c", "content": ""}, false, "wrote 0 bytes", "a/b/c", ""},
		{"outside", "write", object{"path": "../outside", "content": "bad"}, true, "outside", "../outside", "untouched"},
		{"through a link", "write", object{"path": "link/x", "content": "bad"}, true, "link", "../outside", "untouched"},
		{"in git's", "write", object{"path": ".git/config", "content": "bad"}, true, "read-only", ".git/config", "untouched"},
		{"in git's, edited", "edit", object{"path": ".git/config", "old": "un", "new": "bad"}, true, "read-only", ".git/config", "untouched"},
		{"in another's", "write", object{"path": "sub/.GIT/hooks/x", "content": "bad"}, true, "read-only", "", ""},
		{"no name", "write", object{"path": "", "content": "bad"}, true, "name", "", ""},
		{"a folder", "write", object{"path": "a/b", "content": "bad"}, true, "folder", "a/b/c", ""},
	} {
		t.Run(x.what, func(t *testing.T) {
			text, failed := done(t, c, x.tool, x.args)
			if failed != x.failed {
				t.Errorf("%.500q", text)
			}
			mentions(t, text, x.says)
			if x.file == "" {
				return
			}
			if got, err := os.ReadFile(filepath.Join(dir, x.file)); err != nil || string(got) != x.want {
				t.Errorf("%s has %.200q, %v", x.file, got, err)
			}
		})
	}
	if _, err := os.Lstat(filepath.Join(dir, "sub")); err == nil {
		t.Error("a folder of git's was made")
	}
}

// A workspace for list and search.
func planted(t *testing.T) string {
	dir := t.TempDir()
	put(t, dir, "a.go", "package a\n\nfunc Alpha() {}\n// alphabet\n")
	put(t, dir, "sub/b.go", "package b\nfunc beta(x int) {}\n\tAlpha()\n")
	put(t, dir, "sub/deep/c.txt", "Alpha\r\nno end")
	put(t, dir, "empty", "")
	put(t, dir, "binary", "Alpha\x00\n")
	put(t, dir, ".git/found", "Alpha\n")
	if err := os.Symlink("/etc", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestList(t *testing.T) {
	dir := planted(t)
	c := Config{Hands: HandsOf(onHost(t, dir)), Limits: Limits{Output: 1 << 20}}
	for name, x := range map[string]struct {
		args   object
		failed bool
		want   string
	}{
		"the workspace": {nil, false, ".git/\na.go (39 bytes)\nbinary (7 bytes)\nempty (0 bytes)\nlink (symlink)\nsub/"},
		"deeper":        {object{"path": "sub", "depth": 2}, false, "sub/b.go (39 bytes)\nsub/deep/\nsub/deep/c.txt (13 bytes)"},
		"too deep":      {object{"path": "sub", "depth": 100}, false, "sub/b.go (39 bytes)\nsub/deep/\nsub/deep/c.txt (13 bytes)"},
		"outside":       {object{"path": ".."}, true, ""},
		"a link":        {object{"path": "link"}, true, ""},
		"a file":        {object{"path": "a.go"}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			text, failed := done(t, c, "list", x.args)
			if failed != x.failed || x.want != "" && text != x.want {
				t.Errorf("%v: %q", failed, text)
			}
		})
	}
	put(t, dir, "one/x", "")
	if err := os.Remove(filepath.Join(dir, "one/x")); err != nil {
		t.Fatal(err)
	}
	if text, _ := done(t, c, "list", object{"path": "one"}); text != "(it is empty)" {
		t.Errorf("of an empty folder is said %q", text)
	}
	for i := range mostListed + 1 {
		put(t, dir, fmt.Sprintf("one/%d", i), "")
	}
	text, _ := done(t, c, "list", object{"path": "one"})
	mentions(t, text, "(there are more than 1000)")
	if n := strings.Count(text, "\n"); n != mostListed {
		t.Errorf("%d are listed", n)
	}
}

// A search finds the same on the host and in a sandbox: here both look at one folder.
func TestSearch(t *testing.T) {
	dir := planted(t)
	sb := onHost(t, dir)
	host, err := openHostFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer host.close()
	for name, x := range map[string]struct{ pattern, path, glob, want string }{
		"a word":        {"Alpha", "", "", "a.go:3:func Alpha() {}\nsub/b.go:3:\tAlpha()\nsub/deep/c.txt:1:Alpha\r"},
		"in one file":   {"Alpha", "a.go", "", "a.go:3:func Alpha() {}"},
		"in a folder":   {"Alpha", "sub", "*.go", "sub/b.go:3:\tAlpha()"},
		"by name":       {"Alpha", "", "*.txt", "sub/deep/c.txt:1:Alpha\r"},
		"extended":      {`^(func|package) (a|beta)\b`, "", "", "a.go:1:package a\nsub/b.go:2:func beta(x int) {}"},
		"classes":       {`[[:upper:]]\w+\(\)`, "", "", "a.go:3:func Alpha() {}\nsub/b.go:3:\tAlpha()"},
		"counts":        {"p{2}|l{1,2}phab", "", "", "a.go:4:// alphabet"},
		"no line":       {"^$", "", "", "a.go:2:"},
		"without end":   {"no end$", "", "", "sub/deep/c.txt:2:no end"},
		"nothing":       {"Omega", "", "", ""},
		"like a flag":   {"-r", "", "", ""},
		"an other glob": {"Alpha", "", "[a-b].go", "a.go:3:func Alpha() {}\nsub/b.go:3:\tAlpha()"},
	} {
		t.Run(name, func(t *testing.T) {
			for where, fs := range map[string]files{"on the host": host, "in a sandbox": guestFiles{sb}} {
				got, err := fs.search(t.Context(), x.pattern, x.path, x.glob)
				if err != nil || strings.TrimSuffix(got, "\n") != x.want {
					t.Errorf("%s it finds %q, %v", where, got, err)
				}
			}
		})
	}
	for where, fs := range map[string]files{"on the host": host, "in a sandbox": guestFiles{sb}} {
		if found, err := fs.search(t.Context(), "(", "", ""); err == nil {
			t.Errorf("%s a pattern that is none finds %q", where, found)
		}
		if found, err := fs.search(t.Context(), "a", "none", ""); err == nil {
			t.Errorf("%s a folder that is none has %q", where, found)
		}
	}
	c := Config{Hands: HandsOf(sb)}
	for says, args := range map[string]object{
		"(nothing matches)": {"pattern": "Omega"}, "no pattern": {"pattern": ""}, "zero byte": {"pattern": "a\x00"}, "outside": {"pattern": "root", "path": "/etc"}, "a.go:3": {"pattern": "Alpha"},
	} {
		text, _ := done(t, c, "search", args)
		mentions(t, text, says)
	}
	// What is not searched is said.
	put(t, dir, "large", strings.Repeat("Alpha\n", mostFile/6+1))
	text, _ := done(t, c, "search", object{"pattern": "Alpha"})
	mentions(t, text, "a.go:3", "1 files and folders could not be read")
}

// Files of a guest are named as a tool takes them again.
func TestGuestFiles(t *testing.T) {
	dir := planted(t)
	g := guestFiles{onHost(t, dir)}
	lines, more, err := g.list(t.Context(), "sub", 2)
	if err != nil || more || strings.Join(lines, "\n") != "sub/b.go (39 bytes)\nsub/deep/\nsub/deep/c.txt (13 bytes)" {
		t.Errorf("%q, %v, %v", lines, more, err)
	}
	if err := g.write(t.Context(), "new/file", []byte("text")); err != nil {
		t.Error(err)
	}
	if data, err := g.read(t.Context(), dir+"/new/file"); err != nil || string(data) != "text" {
		t.Errorf("%q, %v", data, err)
	}
	if err := g.write(t.Context(), "large", make([]byte, mostFile+1)); err == nil {
		t.Error("a file of any size is written")
	}
	put(t, dir, "large", strings.Repeat("x", mostFile+1))
	if _, err := g.read(t.Context(), "large"); err == nil {
		t.Error("a file of any size is read")
	}
}

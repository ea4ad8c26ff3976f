package gitbox

import (
	"bytes"
	"os/exec"
	"path"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const anOID = "0123456789abcdef0123456789abcdef01234567"

func FuzzRefs(f *testing.F) {
	for _, s := range []string{"ref: refs/heads/main\n", anOID + "\n", "ref: ../../x", anOID + " refs/heads/x\n^" + anOID + "\n", "# pack-refs with: peeled\n", "ref:\x00", anOID + " refs/heads/../../x\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		safe := func(name string) {
			if !strings.HasPrefix(name, "refs/") || path.Clean(name) != name || strings.ContainsAny(name, "\x00\n *?[") {
				t.Errorf("accepted %q", name)
			}
		}
		if oid, target, err := parseRef(sha1Format, data); err == nil {
			if (oid == "") == (target == "") || oid != "" && len(oid) != 40 {
				t.Errorf("%q %q", oid, target)
			}
			if target != "" {
				safe(target)
			}
		}
		_ = parsePacked(sha1Format, bytes.NewReader(data), 100, func(n ref) {
			safe(n.name)
			if !validOID(sha1Format, n.oid) {
				t.Errorf("%+v", n)
			}
		}, func(string) {})
		if list, err := parseShallow(sha1Format, data); err == nil {
			for _, oid := range list {
				if len(oid) != 40 {
					t.Errorf("%q", oid)
				}
			}
		}
	})
}

func FuzzGitFile(f *testing.F) {
	f.Add([]byte("gitdir: ../.git/modules/x\n"))
	f.Add([]byte("gitdir: \x00"))
	f.Add([]byte("gitdir: a\nb"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, err := parseGitFile(data); err == nil && (p == "" || strings.ContainsAny(p, "\x00\n")) {
			t.Errorf("%q", p)
		}
	})
}

func FuzzDiff(f *testing.F) {
	f.Add("1\t2\ta\x00")
	f.Add("1\t2\t\x00old\x00new\x00-\t-\tbin\x00")
	f.Add(":100644 100644 " + anOID + " " + anOID + " R100\x00a\x00b\x00")
	f.Add(":100644 100644 x y M\x00")
	f.Fuzz(func(t *testing.T, s string) {
		if stats, err := parseNumstat(s); err == nil {
			for _, n := range stats {
				if n.ins < 0 || n.del < 0 {
					t.Errorf("%+v", n)
				}
			}
		}
		if list, err := parseRaw(s); err == nil {
			for _, c := range list {
				if c.Status == "" {
					t.Errorf("%+v", c)
				}
			}
		}
		parseAttr(s)
	})
}

func FuzzPath(f *testing.F) {
	for _, s := range []string{"a", "../a", "a/../b", ".git", ".GiT/x", "git~1", ".g\u200cit", "a/.git./b", "/a", "a//b", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if unsafePath(s) != "" {
			return
		}
		if path.IsAbs(s) || path.Clean(s) != s || s == ".." || strings.HasPrefix(s, "../") || strings.IndexByte(s, 0) >= 0 {
			t.Errorf("accepted %q", s)
		}
		for p := range strings.SplitSeq(s, "/") {
			if strings.EqualFold(p, ".git") {
				t.Errorf("accepted %q", s)
			}
		}
		if p := printable(s); strings.ContainsAny(p, "\x1b\r\n\x00\x07") {
			t.Errorf("%q", p)
		}
	})
}

// TestRefNamesAsGit compares the rules with git's own.
func TestRefNamesAsGit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := "refs/" + strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "heads", "/", ".", "..", ".lock", "@{", "@", "~", " ", "*", "[", "\\", "é", "-", ":", "\x7f", "x.lock", "{"}), 1, 6).Draw(t, "parts"), "")
		git := exec.Command("git", "check-ref-format", name).Run() == nil
		if got := validRef(name); got != git {
			t.Fatalf("%q: %v, git says %v", name, got, git)
		}
	})
}

// TestQuoting has git read what we quote.
func TestQuoting(t *testing.T) {
	t.Parallel()
	if got := cquote("/a \"b\"\\\n\xff#:"); got != `"/a \042b\042\134\012\377#:"` {
		t.Error(got)
	}
}

package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ravi/internal/adapter"
	"ravi/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	if err := sandboxtest.UseProgram(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func step(t *testing.T) func(string) func(error) {
	return func(name string) func(error) {
		start := time.Now()
		return func(err error) { t.Logf("%s: %v, %v", name, time.Since(start).Round(time.Millisecond), err) }
	}
}

// contents are the paths beneath a folder; what is in agents/tool but the lock and whole installations is left over.
func contents(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, name)
		names = append(names, rel)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func onlyWhole(t *testing.T, home string, versions ...string) {
	t.Helper()
	found, err := os.ReadDir(filepath.Join(home, "agents", "tool"))
	if err != nil {
		t.Fatal(err)
	}
	want := append([]string{lockFile}, versions...)
	slices.Sort(want)
	var got []string
	for _, e := range found {
		got = append(got, e.Name())
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("agents/tool has %v, want %v", got, want)
	}
}

// A package that means harm is installed by the real npm in a real sandbox: it is there and found, none of its scripts
// ran, and nothing of this machine was touched. Two first runs at once install it once, and a second installation does
// nothing. Then one fails, and the one before stays.
func TestInstall(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	tgz := archive(t, about,
		entry{name: "package/bin/tool", content: "#!/bin/sh\necho tool\n", mode: 0o4755},
		entry{name: "package/private", content: "x", mode: 0o600},
		entry{name: "package/out", link: "/etc"},
		entry{name: "package/out/escaped-by-link", content: "x", mode: 0o644},
		entry{name: "package/up", link: "../../../../../../.."},
		entry{name: "package/../../../../../../../../../.." + outside, content: "x", mode: 0o644},
		entry{name: outside, content: "x", mode: 0o644},
		entry{name: "package/../../../ravi.json", content: `{"program": "tool", "path": "evil"}`, mode: 0o644},
	)
	r := newRegistry(t, tgz)
	p := tool("bin/tool")
	home := t.TempDir()
	var notes []string
	o := Options{Home: home, Registry: r.URL + "/", Step: step(t), Note: func(s string) { notes = append(notes, s) }, locks: lockOf(integrity(tgz))}

	if _, err := Find(home, p); !errors.Is(err, ErrMissing) || errors.Is(err, ErrDamaged) {
		t.Errorf("before: %v", err)
	}
	// One that was killed left this, and an older Ravi another.
	for _, left := range []string{"new-dead", "1.2.2"} {
		if err := os.MkdirAll(filepath.Join(home, "agents", "tool", left, "node_modules"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	both := make([]Installed, 2)
	errs := make([]error, 2)
	var wait sync.WaitGroup
	for i := range both {
		o := o
		o.Note = nil
		wait.Go(func() { both[i], errs[i] = Install(t.Context(), p, o) })
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	i := both[0]
	if i != both[1] || r.count(tarball) != 1 {
		t.Errorf("two at once gave %+v and fetched it %d times", both, r.count(tarball))
	}
	if found, err := Find(home, p); err != nil || found != i {
		t.Errorf("found %+v, %v; installed %+v", found, err, i)
	}
	onlyWhole(t, home, toolVersion)

	for _, name := range contents(t, i.Dir) {
		st, err := os.Lstat(filepath.Join(i.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		mode := st.Mode()
		switch {
		case strings.Contains(name, "ran-"):
			t.Errorf("a script ran: %s", name)
		case mode.Type() == fs.ModeSymlink:
			if real, err := filepath.EvalSymlinks(filepath.Join(i.Dir, name)); err != nil || !strings.HasPrefix(real, i.Dir+"/") {
				t.Errorf("%s leads to %s, %v", name, real, err)
			}
		case mode.IsDir() && mode != fs.ModeDir|0o755, mode.IsRegular() && mode != 0o644 && mode != 0o755, !mode.IsDir() && !mode.IsRegular():
			t.Errorf("%s has the mode %s", name, mode)
		}
	}
	if b, err := os.ReadFile(filepath.Join(i.Dir, i.Path)); err != nil || !strings.Contains(string(b), "echo tool") {
		t.Errorf("the program is %q, %v", b, err)
	}
	for _, name := range []string{outside, "/etc/escaped-by-link", "/etc/ravi.json", filepath.Join(home, "ravi.json")} {
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there: %v", name, err)
		}
	}

	before := r.total()
	if again, err := Install(t.Context(), p, o); err != nil || again != i || r.total() != before {
		t.Errorf("a second time: %+v, %v, and %d questions", again, err, r.total()-before)
	}

	// The registry has something else under the same version: npm tells, and what is there stays.
	o.Again, o.locks = true, lockOf(integrity([]byte("something else")))
	_, err := Install(t.Context(), p, o)
	if err == nil || !strings.Contains(err.Error(), "EINTEGRITY") || !strings.Contains(err.Error(), integrity(tgz)) {
		t.Errorf("another hash: %v", err)
	}
	onlyWhole(t, home, toolVersion)
	if found, err := Find(home, p); err != nil || found != i {
		t.Errorf("after one that failed: %+v, %v", found, err)
	}
	if len(notes) > 0 {
		t.Errorf("noted %q", notes)
	}
}

// A registry that says its packages are at another host has nobody go there: one on loopback is asked itself, and from
// another one nothing is had, though what is at the other host would fit.
func TestInstallFromAnotherHost(t *testing.T) {
	tgz := archive(t, about, entry{name: "package/bin/tool", content: "#!/bin/sh\n", mode: 0o755})
	install := func(t *testing.T, address string) (r *registry, err error) {
		r, other := newRegistryAt(t, address, tgz), newRegistryAt(t, address, tgz)
		r.tarball = other.URL + tarball
		home, p := t.TempDir(), tool("bin/tool")
		_, err = Install(t.Context(), p, Options{Home: home, Registry: r.URL, Step: step(t), locks: lockOf(integrity(tgz))})
		if other.total() != 0 {
			t.Errorf("the other host was asked %d times", other.total())
		}
		if _, found := Find(home, p); (found == nil) != (err == nil) {
			t.Errorf("%v, %v", err, found)
		}
		return r, err
	}
	t.Run("loopback", func(t *testing.T) {
		if r, err := install(t, "127.0.0.1"); err != nil || r.count(tarball) != 1 {
			t.Errorf("%v, and it was asked for the package %d times", err, r.count(tarball))
		}
	})
	t.Run("elsewhere", func(t *testing.T) {
		if r, err := install(t, ownAddress(t)); err == nil || !strings.Contains(err.Error(), "npm could not install it") || r.total() == 0 {
			t.Errorf("%v, after %d questions", err, r.total())
		}
	})
}

// ownAddress is an address of this machine that is not loopback.
func ownAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && ip.IP.IsGlobalUnicast() {
			return ip.IP.String()
		}
	}
	t.Skip("THIS MACHINE HAS NO ADDRESS BUT LOOPBACK: a registry elsewhere cannot be tried")
	return ""
}

// What is named as the program is a folder, so it is none, and nothing stays.
func TestInstallNoProgram(t *testing.T) {
	tgz := archive(t, about, entry{name: "package/bin/tool/x", content: "x", mode: 0o755})
	r := newRegistry(t, tgz)
	home := t.TempDir()
	_, err := Install(t.Context(), tool("bin/tool"), Options{Home: home, Registry: r.URL, Step: step(t), locks: lockOf(integrity(tgz))})
	if err == nil || !strings.Contains(err.Error(), "the package @trial/tool@1.2.3 has no program at node_modules/@trial/tool/bin/tool") {
		t.Errorf("got %v", err)
	}
	onlyWhole(t, home)
	if _, err := Find(home, tool("bin/tool")); !errors.Is(err, ErrMissing) {
		t.Errorf("found: %v", err)
	}
}

// The first installation fails with npm's own words, and nothing stays.
func TestInstallRefused(t *testing.T) {
	tgz := archive(t, about)
	r := newRegistry(t, tgz)
	r.serves = false
	home := t.TempDir()
	_, err := Install(t.Context(), tool("bin/tool"), Options{Home: home, Registry: r.URL, Step: step(t), locks: lockOf(integrity(tgz))})
	if err == nil || !strings.Contains(err.Error(), "npm could not install it (exit code 1):\nnpm error code E403") || r.total() == 0 {
		t.Errorf("got %v after %d questions", err, r.total())
	}
	onlyWhole(t, home)
}

// None of these makes a folder or asks anybody.
func TestInstallUsage(t *testing.T) {
	r := newRegistry(t, nil)
	host := strings.TrimPrefix(r.URL, "http://")
	good, without := tool("bin/tool"), tool("bin/tool")
	without.Package = ""
	unlocked := good
	unlocked.Name = "other"
	elsewhere := good
	elsewhere.Bin = "node_modules/@trial/tool-for-another-machine/tool"
	for name, c := range map[string]struct {
		p        adapter.Program
		registry string
		want     string
	}{
		"a user":             {good, "http://maria:hunter22@" + host, "is no URL such as https://registry.npmjs.org/, or has a user in it"},
		"a broken user":      {good, "http://maria:hunter22@[::1", "is no URL such as"},
		"a user alone":       {good, "http://maria@" + host, "is no URL such as"},
		"a file":             {good, "file:///srv/packages", "is no URL such as"},
		"git":                {good, "git+ssh://" + host, "is no URL such as"},
		"no scheme":          {good, host, "is no URL such as"},
		"no host":            {good, "http://", "is no URL such as"},
		"a flag":             {good, "--ignore-scripts=false", "is no URL such as"},
		"no URL":             {good, "http://[::1", "is no URL such as"},
		"not of npm":         {without, r.URL, "tool is not of npm, and cannot be installed"},
		"no lock file":       {unlocked, r.URL, "there is no lock file for other"},
		"of another machine": {elsewhere, r.URL, "Tool 1.2.3 cannot be installed on linux/"},
	} {
		home := t.TempDir()
		_, err := Install(t.Context(), c.p, Options{Home: home, Registry: c.registry, Step: step(t), locks: lockOf(integrity(nil))})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter22") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if found := contents(t, home); len(found) != 1 {
			t.Errorf("%s: made %v", name, found)
		}
	}
	if r.total() != 0 {
		t.Errorf("%d questions", r.total())
	}
}

// Every user of a sandbox can read an installation, and none but its owner change it.
func TestReadable(t *testing.T) {
	dir, away := t.TempDir(), filepath.Join(t.TempDir(), "away")
	err := errors.Join(os.Mkdir(filepath.Join(dir, "d"), 0o700), os.WriteFile(away, nil, 0o600), os.Symlink(away, filepath.Join(dir, "d", "link")))
	for name, mode := range map[string]fs.FileMode{"text": 0o600, "program": 0o700, "open": 0o666, "odd": 0o777 | fs.ModeSetuid} {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, "d", name), nil, 0o600), os.Chmod(filepath.Join(dir, "d", name), mode))
	}
	if err := errors.Join(err, os.Chmod(dir, 0o700), readable(dir)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{".": 0o755 | fs.ModeDir, "d": 0o755 | fs.ModeDir, "d/text": 0o644, "d/program": 0o755, "d/open": 0o644, "d/odd": 0o755, "d/link": 0o600} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode() != want {
			t.Errorf("%s: %v, %v, want %s", name, st.Mode(), err, want)
		}
	}
}

// Loopback inside is the sandbox's own, so a registry there is reached by a service, and nothing is opened.
func TestReach(t *testing.T) {
	for text, want := range map[string]string{
		"http://10.1.2.3/":                "[--registry http://10.1.2.3/] [10.1.2.3:80] 0",
		"http://[fd00::1]:4873/":          "[--registry http://[fd00::1]:4873/] [[fd00::1]:4873] 0",
		"http://localhost:4873/x":         "[--registry http://registry.ravi.internal/x --replace-registry-host always] [] 1",
		"https://127.0.0.2/":              "[--registry http://registry.ravi.internal/ --replace-registry-host always] [] 1",
		"http://[::ffff:127.0.0.1]:4873/": "[--registry http://registry.ravi.internal/ --replace-registry-host always] [] 1",
		"http://LOCALHOST:4873/":          "[--registry http://registry.ravi.internal/ --replace-registry-host always] [] 1",
		"http://[::1]:4873/":              "[--registry http://registry.ravi.internal/ --replace-registry-host always] [] 1",
	} {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		w, err := reach(t.Context(), u, nil)
		if got := fmt.Sprint(w.npm, w.rules, len(w.options)); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
	}
}

// Whoever waits for another installation can stop waiting.
func TestHold(t *testing.T) {
	name := filepath.Join(t.TempDir(), lockFile)
	free, err := hold(t.Context(), name, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var notes []string
	if _, err := hold(ctx, name, func(s string) { notes = append(notes, s); stop() }); !errors.Is(err, context.Canceled) || len(notes) != 1 {
		t.Errorf("got %v, noted %q", err, notes)
	}
	free()
	free, err = hold(t.Context(), name, nil)
	if err != nil {
		t.Fatal(err)
	}
	free()
}

// What is found is what was installed: not a folder that somebody or something changed.
func TestFind(t *testing.T) {
	p := tool("bin/tool")
	const manifest = `{"program": "tool", "version": "1.2.3", "path": "node_modules/@trial/tool/bin/tool"}`
	for name, c := range map[string]struct {
		manifest string
		change   func(bin string) error
		want     string // empty: it is found
	}{
		"whole":           {manifest, nil, ""},
		"no JSON":         {`{"program": "tool"`, nil, "what is there is damaged"},
		"empty":           {``, nil, "what is there is damaged"},
		"another program": {strings.Replace(manifest, `"tool"`, `"claude"`, 1), nil, "ravi.json is of another program"},
		"another version": {strings.Replace(manifest, "1.2.3", "1.2.2", 1), nil, "ravi.json is of another program"},
		"another path":    {strings.Replace(manifest, "node_modules/@trial/tool/bin/tool", "../../../../bin/sh", 1), nil, "ravi.json is of another program"},
		"no program":      {manifest, os.Remove, "no such file"},
		"a folder":        {manifest, func(bin string) error { return errors.Join(os.Remove(bin), os.Mkdir(bin, 0o755)) }, "is no program, but drwx"},
		"a link":          {manifest, func(bin string) error { return errors.Join(os.Remove(bin), os.Symlink("/bin/sh", bin)) }, "is no program, but Lrwx"},
		"not executable":  {manifest, func(bin string) error { return os.Chmod(bin, 0o644) }, "is no program, but -rw-"},
		"beneath a link":  {manifest, beneathLink, "what is there is damaged"},
		"a pipe":          {manifest, func(bin string) error { return errors.Join(os.Remove(bin), syscall.Mkfifo(bin, 0o755)) }, "is no program, but prwx"},
	} {
		home := t.TempDir()
		dir := filepath.Join(home, "agents", "tool", toolVersion)
		bin := filepath.Join(dir, p.Bin)
		err := errors.Join(os.MkdirAll(filepath.Dir(bin), 0o755), os.WriteFile(bin, nil, 0o755), os.WriteFile(filepath.Join(dir, manifestFile), []byte(c.manifest), 0o644))
		if err == nil && c.change != nil {
			err = c.change(bin)
		}
		if err != nil {
			t.Fatal(err)
		}
		i, err := Find(home, p)
		if c.want == "" {
			if err != nil || i.Dir != dir || i.Path != p.Bin {
				t.Errorf("%s: %+v, %v", name, i, err)
			}
			continue
		}
		if !errors.Is(err, ErrMissing) || !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// beneathLink puts a folder of this machine's in the place of the one that the program lies in.
func beneathLink(bin string) error {
	other := filepath.Join(filepath.Dir(filepath.Dir(bin)), "other")
	folder := filepath.Dir(bin)
	away, err := os.MkdirTemp("", "away-")
	if err != nil {
		return err
	}
	return errors.Join(os.Rename(folder, other), os.WriteFile(filepath.Join(away, "tool"), nil, 0o755), os.Symlink(away, folder))
}

// A script for Node.js needs no leave to be executed.
func TestFindScript(t *testing.T) {
	dir := t.TempDir()
	p := adapter.Program{Bin: "main.js", Node: 20}
	if err := os.WriteFile(filepath.Join(dir, p.Bin), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := checkBin(dir, p); err != nil {
		t.Error(err)
	}
}

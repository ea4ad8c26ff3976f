package install

import (
	"encoding/base64"
	"encoding/json"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"ravi/internal/adapter"
)

// absent are the programs that npm had none of for a machine when their lock file was made.
var absent = map[string][]string{"opencode": {"arm64"}}

// machineForms are how makers call a machine in their packages' names and paths.
var machineForms = strings.NewReplacer("linux-x64-baseline", "linux-arm64", "linux-x64", "linux-arm64", "x86_64", "aarch64")

type lockedPackage struct {
	Version      string            `json:"version"`
	Integrity    string            `json:"integrity"`
	Resolved     string            `json:"resolved"`
	Link         bool              `json:"link"`
	CPU          []string          `json:"cpu"`
	OS           []string          `json:"os"`
	Libc         []string          `json:"libc"`
	Dependencies map[string]string `json:"dependencies"`
}

// Each program that is installed has a lock file that names it, at its version, and every package by its hash.
func TestLocks(t *testing.T) {
	sha512 := regexp.MustCompile(`^sha512-[A-Za-z0-9+/]{86}==$`)
	for _, p := range adapter.Programs() {
		if p.Package == "" {
			continue
		}
		var lock struct {
			Version  int                      `json:"lockfileVersion"`
			Packages map[string]lockedPackage `json:"packages"`
		}
		var about struct {
			Dependencies map[string]string `json:"dependencies"`
		}
		for name, into := range map[string]any{lockName: &lock, "package.json": &about} {
			b, err := locks.ReadFile(path.Join("locks", p.Name, name))
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(b, into); err != nil {
				t.Fatalf("%s of %s: %v", name, p.Name, err)
			}
		}
		root := lock.Packages[""]
		if lock.Version != 3 || len(about.Dependencies) != 1 || len(root.Dependencies) != 1 {
			t.Errorf("%s: version %d, wanted %v and locked %v", p.Name, lock.Version, about.Dependencies, root.Dependencies)
		}
		for name, version := range about.Dependencies {
			// The package, or, where that is a launcher alone, the one with the program.
			if name != p.Package && !strings.HasPrefix(p.Bin, "node_modules/"+name+"/") || version != p.Version || root.Dependencies[name] != version || lock.Packages["node_modules/"+name].Version != version {
				t.Errorf("%s %s: %s@%s is wanted, %s locked", p.Name, p.Version, name, version, lock.Packages["node_modules/"+name].Version)
			}
		}
		for name, l := range lock.Packages {
			if name == "" {
				continue
			}
			sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(l.Integrity, "sha512-"))
			if !sha512.MatchString(l.Integrity) || err != nil || len(sum) != 64 {
				t.Errorf("%s: %s has the hash %q", p.Name, name, l.Integrity)
			}
			if l.Resolved != "" || l.Link || l.Version == "" || strings.ContainsAny(l.Version, ":/") {
				t.Errorf("%s: %s is taken from elsewhere: %+v", p.Name, name, l)
			}
		}
		bins := map[string]string{"arm64": machineForms.Replace(p.Bin)}
		if runtime.GOARCH == "amd64" {
			bins["x64"] = p.Bin
		}
		for arch, bin := range bins {
			if found := hasBin(lock.Packages, bin, arch); found == slices.Contains(absent[p.Name], arch) {
				t.Errorf("%s: that the lock file has %s for %s is %v", p.Name, bin, arch, found)
			}
		}
	}
}

// hasBin says whether the package that a program lies in is there, for a machine with glibc.
func hasBin(packages map[string]lockedPackage, bin, arch string) bool {
	for name, l := range packages {
		if name != "" && strings.HasPrefix(bin, name+"/") {
			return (l.CPU == nil || slices.Contains(l.CPU, arch)) && (l.OS == nil || slices.Contains(l.OS, "linux")) && (l.Libc == nil || slices.Contains(l.Libc, "glibc"))
		}
	}
	return false
}

package install

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"ravi/internal/adapter"
)

// entry is one of an archive.
type entry struct {
	name, content, link string
	mode                int64
}

// archive packs a package as npm does, but with whatever names and modes it is told.
func archive(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: tar.TypeReg, Mode: e.mode, Size: int64(len(e.content))}
		if e.link != "" {
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []interface{ Close() error }{w, z} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func integrity(tgz []byte) string {
	sum := sha512.Sum512(tgz)
	return "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
}

const (
	toolPackage, toolVersion = "@trial/tool", "1.2.3"
	toolDir                  = "node_modules/" + toolPackage
)

// registry serves one package as npm's registry does, and counts what it was asked.
type registry struct {
	*httptest.Server
	tgz []byte

	// tarball is where it says that the package is; empty: at itself.
	tarball string

	mu     sync.Mutex
	asked  map[string]int
	serves bool
}

func newRegistry(t *testing.T, tgz []byte) *registry {
	t.Helper()
	return newRegistryAt(t, "127.0.0.1", tgz)
}

// newRegistryAt is one at an address of this machine.
func newRegistryAt(t *testing.T, address string, tgz []byte) *registry {
	t.Helper()
	r := &registry{tgz: tgz, asked: map[string]int{}, serves: true}
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	r.Server = &httptest.Server{Listener: l, Config: &http.Server{Handler: r}}
	r.Start()
	t.Cleanup(r.Close)
	return r
}

const tarball = "/" + toolPackage + "/-/tool-" + toolVersion + ".tgz"

func (r *registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	at, err := url.PathUnescape(q.URL.EscapedPath())
	r.mu.Lock()
	r.asked[at]++
	serves := r.serves
	r.mu.Unlock()
	switch {
	case err != nil || !serves:
		http.Error(w, "out of order", http.StatusForbidden)
	case at == "/"+toolPackage:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"name": toolPackage, "dist-tags": map[string]string{"latest": toolVersion},
			"versions": map[string]any{toolVersion: map[string]any{
				"name": toolPackage, "version": toolVersion, "hasInstallScript": true, "bin": map[string]string{"tool": "bin/tool"},
				// It says itself where its packages are, and what their hash is. What the lock file says counts.
				"dist": map[string]string{"tarball": cmp.Or(r.tarball, r.URL+tarball), "integrity": integrity(r.tgz)},
			}},
		})
	case at == tarball:
		_, _ = w.Write(r.tgz)
	default:
		http.NotFound(w, q)
	}
}

func (r *registry) count(path string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked[path]
}

func (r *registry) total() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.asked {
		n += c
	}
	return n
}

// tool is a program in the package.
func tool(bin string) adapter.Program {
	return adapter.Program{Name: "tool", Title: "Tool", Package: toolPackage, Version: toolVersion, Bin: toolDir + "/" + bin}
}

// lockOf is a lock file that wants a hash of the package.
func lockOf(hash string) fs.FS {
	return fstest.MapFS{
		"locks/tool/package.json": {Data: fmt.Appendf(nil, `{"private": true, "dependencies": {%q: %q}}`, toolPackage, toolVersion)},
		"locks/tool/package-lock.json": {Data: fmt.Appendf(nil, `{"name": "tool", "lockfileVersion": 3, "requires": true, "packages": {
			"": {"dependencies": {%[1]q: %[2]q}},
			%[3]q: {"version": %[2]q, "integrity": %[4]q, "hasInstallScript": true, "bin": {"tool": "bin/tool"}}}}`,
			toolPackage, toolVersion, toolDir, hash)},
	}
}

const marker = "a script ran"

// about is the package's package.json, with every script that npm may run.
var about = entry{name: "package/package.json", mode: 0o644, content: `{"name": "` + toolPackage + `", "version": "` + toolVersion + `", "bin": {"tool": "bin/tool"},
	"scripts": {` + strings.Join([]string{script("preinstall"), script("install"), script("postinstall"), script("prepare")}, ", ") + `}}`}

func script(name string) string {
	return fmt.Sprintf(`%q: "echo %s > ran-%s"`, name, marker, name)
}

// Package programs finds the programs that a sandbox is made with: ravi itself,
// which contains gVisor, and the small ravi-guest and ravi-keeper inside it.
//
// The program ravi registers what it has embedded. Any other program that
// imports package sandbox asks an installed ravi to lay its parts out. The
// package writes only beneath lib in Ravi's home.
package programs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// Set is where the programs are.
type Set struct {
	Ravi   string `json:"ravi"`
	Guest  string `json:"guest"`
	Keeper string `json:"keeper"`
}

// ListName is the name under which ravi, started as such with Ravi's home as
// its argument, prints its Set as JSON.
const ListName = "ravi-programs"

// EnvProgram names the ravi program to use.
const EnvProgram = "RAVI_PROGRAM"

// ErrMissing says that no ravi program was found, or one without its parts.
var ErrMissing = errors.New("the ravi program is not complete")

var (
	mu       sync.Mutex
	embedded fs.FS
	found    = map[string]Set{}
)

// Register gives the file system that holds ravi-guest and ravi-keeper. Only
// cmd/ravi calls it.
func Register(f fs.FS) { embedded = f }

// Find returns the programs, laid out beneath home.
func Find(ctx context.Context, home string) (Set, error) {
	mu.Lock()
	defer mu.Unlock()
	if s, ok := found[home]; ok {
		return s, nil
	}
	var s Set
	var err error
	if embedded != nil {
		s, err = layOut(home)
	} else {
		s, err = ask(ctx, home)
	}
	if err == nil {
		found[home] = s
	}
	return s, err
}

// layOut writes the embedded programs to a folder named by their content.
func layOut(home string) (s Set, err error) {
	if s.Ravi, err = os.Executable(); err != nil {
		return s, err
	}
	sum := sha256.New()
	contents := map[string][]byte{}
	for _, name := range []string{"ravi-guest", "ravi-keeper"} {
		b, err := fs.ReadFile(embedded, name)
		if err != nil {
			return s, fmt.Errorf("%w: it was built without %s: run `make build`", ErrMissing, name)
		}
		contents[name] = b
		sum.Write(b)
	}
	lib := filepath.Join(home, "lib")
	dir := filepath.Join(lib, hex.EncodeToString(sum.Sum(nil)[:8]))
	s.Guest, s.Keeper = filepath.Join(dir, "ravi-guest"), filepath.Join(dir, "ravi-keeper")
	if complete(dir, contents) {
		return s, nil
	}
	if err := os.MkdirAll(lib, 0o700); err != nil {
		return s, err
	}
	tmp, err := os.MkdirTemp(lib, "new-")
	if err != nil {
		return s, fmt.Errorf("laying out Ravi's programs: %w", err)
	}
	defer os.RemoveAll(tmp)
	for name, b := range contents {
		if err := os.WriteFile(filepath.Join(tmp, name), b, 0o755); err != nil {
			return s, fmt.Errorf("laying out Ravi's programs: %w", err)
		}
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return s, err
	}
	// Another process may have been first; then its copy is as good.
	if err := os.Rename(tmp, dir); err != nil && !complete(dir, contents) {
		return s, fmt.Errorf("laying out Ravi's programs: %w", err)
	}
	return s, nil
}

func complete(dir string, contents map[string][]byte) bool {
	for name, b := range contents {
		have, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Equal(have, b) {
			return false
		}
	}
	return true
}

// ask finds an installed ravi and lets it lay out its parts.
func ask(ctx context.Context, home string) (s Set, err error) {
	path := os.Getenv(EnvProgram)
	if path == "" {
		if path, err = exec.LookPath("ravi"); err != nil {
			return s, fmt.Errorf("%w: there is no ravi in PATH; install it, or set %s to its path", ErrMissing, EnvProgram)
		}
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Args = []string{ListName, home}
	out, err := cmd.Output()
	if err != nil {
		return s, fmt.Errorf("%w: asking %s for its parts: %w", ErrMissing, path, err)
	}
	if err := json.Unmarshal(out, &s); err != nil {
		return s, fmt.Errorf("%w: asking %s for its parts: %w", ErrMissing, path, err)
	}
	return s, nil
}

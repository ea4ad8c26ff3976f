// Package programs finds the programs that a sandbox is made with: ravi-kernel,
// which is gVisor, and the small ravi-keeper, ravi-relay, ravi-gateway and
// ravi-guest.
//
// The program ravi contains them all, and lays them out beneath its home when
// they are first needed. Any other program that imports package sandbox asks an
// installed ravi to do so. The package writes only beneath lib in Ravi's home.
package programs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Set is where the programs are.
type Set struct {
	Kernel  string `json:"kernel"`
	Keeper  string `json:"keeper"`
	Relay   string `json:"relay"`
	Gateway string `json:"gateway"`
	Guest   string `json:"guest"`
}

// sums is the file that `make build` embeds beside the programs: for each a line
// of its SHA-256 and its name, as sha256sum writes them. It stands for them all,
// so that they need not be read each time to be known.
const sums = "SHA256SUMS"

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
	apart    bool
	found    = map[string]Set{}
)

// Register gives the file system that holds the programs and their sums. Only
// cmd/ravi calls it.
func Register(f fs.FS) { embedded = f }

// LayOutApart has this process leave the laying out to one of its own making: what is read for it, all of the
// programs, stays in a process's memory, and this one is to last.
func LayOutApart() {
	mu.Lock()
	defer mu.Unlock()
	apart = true
}

// Find returns the programs, laid out beneath home.
func Find(ctx context.Context, home string) (Set, error) {
	mu.Lock()
	defer mu.Unlock()
	if s, ok := found[home]; ok {
		return s, nil
	}
	var s Set
	var err error
	switch {
	case embedded == nil:
		s, err = ask(ctx, home)
	case apart:
		s, err = askProgram(ctx, "/proc/self/exe", home)
	default:
		s, err = layOut(home)
	}
	if err == nil {
		found[home] = s
	}
	return s, err
}

// laidOut is the time stamp of what was laid out. Another one says that somebody
// has written to it since. It is no defence against one who means harm, who is
// this user and can change ravi just as well.
var laidOut = time.Unix(1_000_000_000, 0)

// layOut writes the embedded programs to a folder named by their content.
func layOut(home string) (s Set, err error) {
	list, err := fs.ReadFile(embedded, sums)
	if err != nil {
		return s, fmt.Errorf("%w: it was built without its programs: run `make build`", ErrMissing)
	}
	sum := sha256.Sum256(list)
	lib := filepath.Join(home, "lib")
	dir := filepath.Join(lib, hex.EncodeToString(sum[:8]))
	s = Set{
		Kernel: filepath.Join(dir, "ravi-kernel"), Keeper: filepath.Join(dir, "ravi-keeper"),
		Relay: filepath.Join(dir, "ravi-relay"), Gateway: filepath.Join(dir, "ravi-gateway"),
		Guest: filepath.Join(dir, "ravi-guest"),
	}
	want := map[string]string{} // the sum of each program
	for line := range strings.Lines(string(list)) {
		if f := strings.Fields(line); len(f) == 2 {
			want[f[1]] = f[0]
		}
	}
	for _, path := range []string{s.Kernel, s.Keeper, s.Relay, s.Gateway, s.Guest} {
		if name := filepath.Base(path); want[name] == "" {
			return Set{}, fmt.Errorf("%w: it was built without %s: run `make build`", ErrMissing, name)
		}
	}
	if complete(dir, want) {
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
	for name, sum := range want {
		if err := write(filepath.Join(tmp, name), name, sum); err != nil {
			return s, fmt.Errorf("laying out Ravi's programs: %w", err)
		}
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return s, err
	}
	if err := os.Rename(tmp, dir); err == nil || complete(dir, want) {
		return s, nil // if another process was first, its copy is as good
	}
	// What is there was changed. It goes out of the way in one step.
	changed := tmp + "-changed"
	defer os.RemoveAll(changed)
	err = os.Rename(dir, changed)
	if err == nil {
		err = os.Rename(tmp, dir)
	}
	if err != nil && !complete(dir, want) {
		return s, fmt.Errorf("laying out Ravi's programs: %w", err)
	}
	return s, nil
}

// write lays out one program, and checks it against its sum.
func write(path, name, want string) error {
	from, err := embedded.Open(name)
	if err != nil {
		return fmt.Errorf("%w: it was built without %s: run `make build`", ErrMissing, name)
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	sum := sha256.New()
	_, err = io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(to, sum)}, from, make([]byte, 1<<20))
	if err = errors.Join(err, to.Close()); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != want {
		return fmt.Errorf("%w: %s in it is not the one that its sums name: run `make build`", ErrMissing, name)
	}
	// A umask is not asked for its opinion: another user's process runs these.
	return errors.Join(os.Chmod(path, 0o755), os.Chtimes(path, laidOut, laidOut))
}

// complete says whether all programs are there, as they were laid out.
func complete(dir string, want map[string]string) bool {
	for name := range want {
		have, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			return false
		}
		is, err := fs.Stat(embedded, name)
		if err != nil || have.Size() != is.Size() || have.Mode() != 0o755 || !have.ModTime().Equal(laidOut) {
			return false
		}
	}
	return true
}

// RemoveUnused removes the programs of other versions that no process runs, and
// what a lay-out that was cut off left. It returns how many versions went.
func RemoveUnused(ctx context.Context, home string) (int, error) {
	now, err := Find(ctx, home)
	if err != nil {
		return 0, err
	}
	lib := filepath.Join(home, "lib")
	entries, err := os.ReadDir(lib)
	if err != nil {
		return 0, err
	}
	removed := 0
	for _, e := range entries {
		dir := filepath.Join(lib, e.Name())
		if dir == filepath.Dir(now.Kernel) || recent(e) || inUse(dir) {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return removed, err
		}
		removed++
	}
	return removed, nil
}

// recent says that another process may be at work on this folder.
func recent(e fs.DirEntry) bool {
	st, err := e.Info()
	return err != nil || time.Since(st.ModTime()) < time.Minute
}

// inUse says whether a process runs one of a folder's programs. Their paths say
// nothing in a sandbox's own mount namespace, so the files are compared.
func inUse(dir string) bool {
	var files []fs.FileInfo
	entries, err := os.ReadDir(dir)
	if err != nil {
		return true
	}
	for _, e := range entries {
		if st, err := os.Stat(filepath.Join(dir, e.Name())); err == nil {
			files = append(files, st)
		}
	}
	exes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return true
	}
	for _, exe := range exes {
		st, err := os.Stat(exe)
		if err != nil {
			continue // it ended, or is another user's, who cannot run what is in here
		}
		if slices.ContainsFunc(files, func(f fs.FileInfo) bool { return os.SameFile(f, st) }) {
			return true
		}
	}
	return false
}

// ask finds an installed ravi and lets it lay out its parts.
func ask(ctx context.Context, home string) (s Set, err error) {
	path := os.Getenv(EnvProgram)
	if path == "" {
		if path, err = exec.LookPath("ravi"); err != nil {
			return s, fmt.Errorf("%w: there is no ravi in PATH; install it, or set %s to its path", ErrMissing, EnvProgram)
		}
	}
	return askProgram(ctx, path, home)
}

// askProgram lets a program that is ravi lay out its parts.
func askProgram(ctx context.Context, path, home string) (s Set, err error) {
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

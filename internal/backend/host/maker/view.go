package maker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// system are the folders of a host that hold what everybody needs, and no user's files.
var system = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "proc", "sys", "dev", "run", "nix", "gnu"}

// userFiles are the places that hold files of the host's users, and what of the system is not for everyone. home is this
// user's, which may lie anywhere.
func userFiles(home string) ([]string, error) {
	entries, err := os.ReadDir("/")
	if err != nil {
		return nil, err
	}
	paths := []string{"/usr/local/etc"}
	if home != "" {
		paths = append(paths, home)
	}
	for _, e := range entries {
		if !slices.Contains(system, e.Name()) {
			paths = append(paths, "/"+e.Name())
		}
	}
	var out []string
	for _, p := range paths {
		real, err := filepath.EvalSymlinks(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if real == "/" || slices.Contains(system, real[1:]) {
			return nil, fmt.Errorf("%s leads to %s, which cannot be hidden", p, real)
		}
		out = append(out, real)
	}
	closed, err := notForEveryone("/etc")
	return append(out, closed...), err
}

// mostClosed bounds how many of the files below a folder are covered one by one.
const mostClosed = 1000

// notForEveryone finds the files and folders below dir that this user may read, and not everyone: passwords and keys.
func notForEveryone(dir string) (out []string, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		forAll := fs.FileMode(0o004)
		if e.IsDir() {
			forAll = 0o005
		}
		if e.Type()&fs.ModeSymlink != 0 || info.Mode()&forAll == forAll || unix.Access(path, unix.R_OK) != nil {
			return nil
		}
		if out = append(out, path); len(out) > mostClosed {
			return fmt.Errorf("more than %d files below %s are not for everyone", mostClosed, dir)
		}
		if e.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
	return out, err
}

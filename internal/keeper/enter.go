package keeper

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// EnterCgroup makes the group in every hierarchy and moves this process there.
// It is for a maker that has nobody else to do that; Remove undoes it.
func EnterCgroup(path string) error {
	if err := checkCgroup(path); err != nil {
		return err
	}
	hs, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range hs {
		if err := h.enter(path); err != nil {
			return fmt.Errorf("making the control group %s: %w", filepath.Join(h.root, path), err)
		}
	}
	return nil
}

func (h hierarchy) enter(path string) error {
	dir := filepath.Join(h.root, path)
	parent := filepath.Dir(dir)
	for _, d := range []string{parent, dir} {
		if err := os.Mkdir(d, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		if h.v2 {
			continue
		}
		// In version 1 a new group has no processors and takes no process.
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
			if err := inherit(filepath.Join(d, name), filepath.Join(filepath.Dir(d), name)); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0)
}

// inherit gives an empty setting of a group the value of the group above.
func inherit(to, from string) error {
	have, err := os.ReadFile(to)
	if errors.Is(err, os.ErrNotExist) {
		return nil // another hierarchy
	}
	if err != nil || len(bytes.TrimSpace(have)) > 0 {
		return err
	}
	value, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, value, 0)
}

package gvisor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// savedFile stands beside a checkpoint's own files.
const savedFile = "ravi.json"

// saved is what is kept of the sandbox that was saved: what one restored from
// it must have in common with it, since the kernel refuses, or worse misreads,
// what differs; its link's token, and how many lanes it was born with.
type saved struct {
	Kernel string   `json:"kernel"`
	Image  string   `json:"image"`
	Memory int64    `json:"memory"`
	Mounts []string `json:"mounts"` // guest paths and kinds, in their order

	LinkToken string `json:"link_token"`
	Lanes     int    `json:"lanes,omitempty"`
}

func savedOf(r Request, kernel string) saved {
	s := saved{Kernel: kernel, Image: filepath.Base(r.Image), Memory: r.Memory, LinkToken: r.LinkToken, Lanes: r.Lanes}
	for _, m := range r.Mounts {
		s.Mounts = append(s.Mounts, fmt.Sprintf("%s read_only=%t overlay=%t", m.Guest, m.ReadOnly, m.Overlay))
	}
	return s
}

// Save writes down, in a checkpoint's directory, what it is of.
func Save(dir string, r Request, kernel string) error {
	b, err := json.Marshal(savedOf(r, kernel))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, savedFile), b, 0o600)
}

func readSaved(dir string) (s saved, err error) {
	b, err := os.ReadFile(filepath.Join(dir, savedFile))
	if err != nil {
		return s, fmt.Errorf("%s holds no checkpoint of Ravi's: %w", dir, err)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("the checkpoint in %s: %w", dir, err)
	}
	return s, nil
}

// CheckSaved refuses a checkpoint that does not fit the sandbox.
func CheckSaved(dir string, r Request, kernel string) error {
	have, err := readSaved(dir)
	if err != nil {
		return err
	}
	want := savedOf(r, kernel)
	if have.Kernel != want.Kernel || have.Image != want.Image || have.Memory != want.Memory || !slices.Equal(have.Mounts, want.Mounts) {
		return fmt.Errorf("the checkpoint in %s was made of another sandbox; restore it with the same image, memory and volumes, on the same version of Ravi", dir)
	}
	return nil
}

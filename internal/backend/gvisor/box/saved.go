package box

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"gvisor.dev/gvisor/runsc/version"

	"ravi/internal/backend/gvisor"
)

// savedFile stands beside a checkpoint's own files.
const savedFile = "ravi.json"

// saved is what a sandbox restored from a checkpoint must have in common with
// the one that was saved: the kernel refuses, or worse misreads, what differs.
type saved struct {
	Kernel string   `json:"kernel"`
	Image  string   `json:"image"`
	Memory int64    `json:"memory"`
	Mounts []string `json:"mounts"` // guest paths and kinds, in their order
}

func savedOf(r gvisor.Request) saved {
	s := saved{Kernel: version.Version(), Image: filepath.Base(r.Image), Memory: r.Memory}
	for _, m := range r.Mounts {
		s.Mounts = append(s.Mounts, fmt.Sprintf("%s read_only=%t overlay=%t", m.Guest, m.ReadOnly, m.Overlay))
	}
	return s
}

func save(dir string, r gvisor.Request) error {
	b, err := json.Marshal(savedOf(r))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, savedFile), b, 0o600)
}

// checkSaved refuses a checkpoint that does not fit the sandbox.
func checkSaved(dir string, r gvisor.Request) error {
	b, err := os.ReadFile(filepath.Join(dir, savedFile))
	if err != nil {
		return hinted{fmt.Errorf("%s holds no checkpoint of Ravi's: %w", dir, err), "give the directory that a checkpoint was written to"}
	}
	have, err := json.Marshal(savedOf(r))
	if err != nil {
		return err
	}
	if string(have) != string(b) {
		return hinted{
			fmt.Errorf("the checkpoint in %s was made of a different sandbox: saved %s, wanted %s", dir, b, have),
			"restore it with the same image, memory and volumes, on the same version of Ravi",
		}
	}
	return nil
}

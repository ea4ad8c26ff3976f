package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"ravi/internal/backend"
)

// socketDirs are where a host keeps the sockets of its services. A volume in
// them, or that holds them, is refused.
var socketDirs = []string{"/run", "/var/run", "/dev", "/proc", "/sys"}

// mounts checks the workspace and the volumes against the host, and describes
// them to the backend.
func (s *Sandbox) mounts(home, workspace string) ([]backend.Mount, error) {
	var out []backend.Mount
	if workspace != "" {
		real, err := s.hostPath(home, "workspace", workspace)
		if err != nil {
			return nil, err
		}
		st, err := os.Stat(real)
		if err != nil {
			return nil, err
		}
		if !st.IsDir() {
			return nil, &InitError{Stage: "workspace", Err: fmt.Errorf("the workspace %s is not a folder", workspace), Hint: "give the folder that it lies in"}
		}
		s.workspace = real
		if s.backend == BackendHost {
			s.root = real
		}
		out = append(out, backend.Mount{Host: real, Guest: s.root, Own: true, Real: true, Overlay: s.cfg.Workspace == WorkspaceOverlay})
	}
	for _, v := range s.cfg.ExtraVolumes {
		real, err := s.hostPath(home, "volume", v.Host)
		if err != nil {
			return nil, err
		}
		s.volumes = append(s.volumes, Volume{Host: real, Guest: filepath.Clean(v.Guest), ReadOnly: v.ReadOnly})
		out = append(out, backend.Mount{Host: real, Guest: filepath.Clean(v.Guest), ReadOnly: v.ReadOnly, Own: true, Real: true})
	}
	return out, nil
}

// hostPath resolves a path of the host and refuses those from which a sandbox
// could reach Ravi's own state or the host's sockets.
func (s *Sandbox) hostPath(home, what, path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return "", &InitError{Stage: "workspace", Err: fmt.Errorf("the %s %s: %w", what, path, unwrapPath(err)), Hint: "check the path"}
	}
	if s.realPaths && real != abs {
		return "", &InitError{Stage: "workspace", Err: fmt.Errorf("the %s %s leads elsewhere since it was checked", what, path), Hint: "try again, once nobody moves it"}
	}
	closed := append([]string{home}, socketDirs...)
	if x := os.Getenv("XDG_RUNTIME_DIR"); x != "" {
		closed = append(closed, filepath.Clean(x))
	}
	for _, c := range closed {
		if r, err := filepath.EvalSymlinks(c); err == nil {
			c = r
		}
		if overlaps(real, c) {
			return "", &InitError{Stage: "workspace",
				Err:  fmt.Errorf("the %s %s would let the sandbox reach %s", what, path, c),
				Hint: "share a folder that neither holds it nor lies in it"}
		}
	}
	return real, nil
}

func unwrapPath(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// guestDir is the working directory in the sandbox for dir, which is empty
// (the workspace), relative to the workspace, or a path of the host inside the
// workspace or a volume, or one of the guest inside them.
func (s *Sandbox) guestDir(dir string) (string, error) {
	switch {
	case dir == "":
		return s.root, nil
	case !filepath.IsAbs(dir):
		p := filepath.Join(s.root, dir)
		if !within(p, s.root) {
			return "", fmt.Errorf("%s is outside the workspace: %w", dir, ErrOutside)
		}
		return p, nil
	}
	clean := filepath.Clean(dir)
	real := clean
	if r, err := filepath.EvalSymlinks(clean); err == nil {
		real = r
	}
	for _, p := range []string{clean, real} {
		if s.workspace != "" && within(p, s.workspace) {
			return filepath.Join(s.root, strings.TrimPrefix(p, s.workspace)), nil
		}
		for _, v := range s.volumes {
			if within(p, v.Host) {
				return filepath.Join(v.Guest, strings.TrimPrefix(p, v.Host)), nil
			}
		}
	}
	if within(clean, guestWorkspace) || within(clean, s.root) {
		return s.guestPath(clean), nil
	}
	for _, v := range s.volumes {
		if within(clean, v.Guest) {
			return clean, nil
		}
	}
	return "", fmt.Errorf("%s is neither in the workspace nor in a volume: %w", dir, ErrOutside)
}

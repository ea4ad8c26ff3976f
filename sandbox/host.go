package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"ravi/internal/backend"
	"ravi/internal/backend/host"
)

// onHost sets up a sandbox of the host backend: commands run as the caller,
// with some of its environment, and paths are the host's own.
func (s *Sandbox) onHost(dir string) {
	s.user = host.User()
	s.root = filepath.Join(dir, host.WorkspaceDir)
	s.servicesDir = filepath.Join(dir, host.ServicesDir)
	env, _ := host.Environment(os.Environ()) // the backend tells what is withheld
	s.env = map[string]string{}
	for name, value := range env {
		if utf8.ValidString(name) && utf8.ValidString(value) {
			s.env[name] = value
		}
	}
}

// checkNet refuses what a backend cannot do about the network. The host
// backend cannot close it, and says so in its notes.
func checkNet(cfg Config, backendName string) error {
	switch {
	case backendName == BackendHost && len(cfg.AllowNet.Rules) > 0:
		return fmt.Errorf("allow_net: %w: on the host the network is open, and rules cannot be enforced", backend.ErrUnsupported)
	case backendName == BackendHost:
		return nil
	case cfg.AllowNet.closed():
		return nil
	}
	if _, err := cfg.AllowNet.Policy(); err != nil {
		return fmt.Errorf("allow_net: %w", err)
	}
	return nil
}

// guestPath is a path of the sandbox's as its guest agent knows it. On the host
// nothing can be laid at /workspace, so paths that begin there are translated
// to where the workspace is.
func (s *Sandbox) guestPath(path string) string {
	clean := filepath.Clean(path)
	if s.root == guestWorkspace || !within(clean, guestWorkspace) || within(clean, s.root) {
		return path
	}
	return s.root + strings.TrimPrefix(clean, guestWorkspace)
}

// checkUser refuses a user that commands cannot run as.
func (s *Sandbox) checkUser(name string) error {
	if s.backend != BackendHost {
		return nil
	}
	if err := host.CheckUser(name); err != nil {
		return fmt.Errorf("%w: %w", ErrBadCommand, err)
	}
	return nil
}

// baseEnv is what commands of a user's get besides what the call gives them.
func (s *Sandbox) baseEnv(user string) map[string]string {
	if user == "" || user == s.user {
		return s.env
	}
	return host.ForOther(s.env)
}

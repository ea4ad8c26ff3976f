package bench

import (
	"encoding/json"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// bundle makes a folder that tells runsc of a container with a command in it,
// and as little around that as runsc allows.
func (i image) bundle(dir string, argv []string) error {
	s := specs.Spec{
		Version: "1.2.0",
		Root:    &specs.Root{Path: i.dir},
		Process: &specs.Process{Args: argv, Cwd: "/", Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}},
		Mounts:  []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.NetworkNamespace},
		}},
	}
	for _, h := range i.host {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: h, Type: "bind", Source: h, Options: []string{"rbind", "ro"}})
	}
	if i.from != "" {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: i.to, Type: "bind", Source: i.from, Options: []string{"bind", "ro"}})
	}
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600)
}

package run

import (
	"path"
	"strings"

	"ravi/internal/adapter"
	"ravi/sandbox"
)

// spareHome is the program's home where a volume lies in its usual one. No volume can lie beneath /ravi.
const spareHome = "/ravi/home"

// agentHome is the program's home inside. On the host the user's own files are none of its business.
func (s *state) agentHome() string {
	switch {
	case s.sb.Backend() == sandbox.BackendHost:
		return path.Join(path.Dir(s.sb.Workspace()), "home")
	case s.homeTaken:
		return spareHome
	}
	return "/home/" + s.sb.User()
}

// settle says how the program is started, in a home of the sandbox's own.
func (s *state) settle(setup adapter.Setup) (adapter.Launch, error) {
	p := s.Agent.Program
	setup.Home = s.agentHome()
	l, err := p.Launch(setup)
	if err != nil {
		return l, err
	}
	at := volumeOver(setup.Home, p, l, s.Config.ExtraVolumes)
	if at == "" {
		return l, nil
	}
	s.homeTaken = true
	setup.Home = s.agentHome()
	s.note("the volume at %s lies where %s has files of its own: its home is %s instead, and nothing of that volume is its settings", at, p.Title, setup.Home)
	return p.Launch(setup)
}

// volumeOver finds a volume that lies where the program has files of its own, or above. One that is read-only would end
// the program, and in one that is not the user's files would be changed.
func volumeOver(home string, p adapter.Program, l adapter.Launch, volumes []sandbox.Volume) string {
	own := []string{p.StateDir}
	for _, f := range l.Files {
		own = append(own, f.Path)
	}
	for _, v := range volumes {
		at := path.Clean(v.Guest)
		for _, name := range own {
			if name == "" {
				continue
			}
			// Not only what lies in the folder: claude has a .claude.json beside .claude.
			if dir := path.Join(home, path.Dir(name)); strings.HasPrefix(at, dir) || strings.HasPrefix(dir, at+"/") {
				return at
			}
		}
	}
	return ""
}

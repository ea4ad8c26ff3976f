package maker

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"ravi/internal/keeper"
)

// mount is one line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
type mount struct {
	device string // of the file system, as major:minor
	root   string // what of the file system is seen
	point  string // and where
	kind   string
}

// mounts lists what is mounted in this process's namespace, later ones last.
func mounts() ([]mount, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMounts(string(b)), nil
}

func parseMounts(info string) []mount {
	var out []mount
	for line := range strings.Lines(info) {
		before, after, ok := strings.Cut(line, " - ")
		f, kind := strings.Fields(before), strings.Fields(after)
		if ok && len(f) > 4 && len(kind) > 0 {
			out = append(out, mount{device: f[2], root: keeper.Unescape(f[3]), point: keeper.Unescape(f[4]), kind: kind[0]})
		}
	}
	return out
}

// place is a path at which something is seen.
type place struct {
	path string
	// same is where the same is seen by the path that was asked for.
	same string
}

// places finds every path at which dir, or a part of it, is seen: one file
// system can be mounted more than once. With deep, what is mounted beneath dir
// counts as well. dir is a real path.
func places(all []mount, dir string, deep bool) []place {
	out := []place{{dir, dir}}
	look := func(path string) {
		at, ok := holder(all, path)
		if !ok {
			return
		}
		inside := filepath.Join(at.root, strings.TrimPrefix(path, at.point))
		for _, m := range all {
			if m.device != at.device {
				continue
			}
			var p place
			switch {
			case within(inside, m.root):
				p = place{filepath.Join(m.point, strings.TrimPrefix(inside, m.root)), path}
			case within(m.root, inside):
				p = place{m.point, filepath.Join(path, strings.TrimPrefix(m.root, inside))}
			default:
				continue
			}
			if !within(p.path, dir) && !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	look(dir)
	for _, m := range all {
		if deep && m.point != dir && within(m.point, dir) {
			look(m.point)
		}
	}
	return out
}

// holder is the mount that path is seen through.
func holder(all []mount, path string) (best mount, ok bool) {
	for _, m := range all {
		if within(path, m.point) && (!ok || len(m.point) >= len(best.point)) {
			best, ok = m, true
		}
	}
	return best, ok
}

// within says whether path is dir or lies in it; both are clean.
func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// there says whether something is seen at the place, and is what was asked for.
func (p place) there() bool {
	st, err := os.Stat(p.path)
	if err != nil {
		return false
	}
	same, err := os.Stat(p.same)
	// What is seen only here is no less a part of it.
	return err != nil || os.SameFile(st, same)
}

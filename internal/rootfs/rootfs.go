// Package rootfs turns the name of an image into a root file system.
//
// The image "host" is the host's own tools: its /usr (and /bin, /lib … where
// these are folders of their own) as they are, read-only, and an /etc made up
// here. Nothing else of the host is in it: no /home, /root, /opt, /var, and of
// /etc only what programs need to start. The package reads the host's /etc and
// writes beneath images in Ravi's home.
package rootfs

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// HostImage is the name of the image that is the host's own tools.
const HostImage = "host"

// ErrUnknownImage says that an image cannot be had.
var ErrUnknownImage = errors.New("unknown image")

// Root is a root file system: a folder to begin with, and folders of the host
// that are laid into it at their own paths.
type Root struct {
	Dir    string
	Host   []string
	Hidden []string
}

// version changes when what is made up here changes.
const version = "4"

// Prepare makes the image's root file system beneath home, or finds it made.
func Prepare(home, image string) (Root, error) {
	if image != HostImage {
		return Root{}, fmt.Errorf("%w %q: only %q is there; images from a registry come later", ErrUnknownImage, image, HostImage)
	}
	r := Root{Hidden: []string{"/usr/local/etc"}}
	var links []string
	for _, d := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		st, err := os.Lstat(d)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return r, err
		case st.IsDir():
			r.Host = append(r.Host, d)
		case st.Mode()&fs.ModeSymlink != 0:
			links = append(links, d)
		}
	}
	if len(r.Host) == 0 {
		return r, fmt.Errorf("%w: this host has no /usr to share", ErrUnknownImage)
	}
	key, err := fingerprint(append(links, r.Host...))
	if err != nil {
		return r, err
	}
	images := filepath.Join(home, "images")
	r.Dir = filepath.Join(images, "host-"+key)
	if _, err := os.Stat(r.Dir); err == nil {
		return r, nil
	}
	if err := os.MkdirAll(images, 0o700); err != nil {
		return r, err
	}
	tmp, err := os.MkdirTemp(images, "new-")
	if err != nil {
		return r, fmt.Errorf("making the image: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := build(tmp, links, r.Host); err != nil {
		return r, fmt.Errorf("making the image: %w", err)
	}
	if err := os.Rename(tmp, r.Dir); err != nil {
		if _, err2 := os.Stat(r.Dir); err2 != nil {
			return r, fmt.Errorf("making the image: %w", err)
		}
	}
	return r, nil
}

// copied are the parts of the host's /etc that programs need: where libraries
// are, which alternative of a program is meant, the roots of trust, the time
// zone, and what fonts, Java, Python and Perl read at their start. None is
// secret: each must be readable by everyone, or it is left out.
var copied = []string{
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "ssl/certs", "ssl/openssl.cnf",
	"ca-certificates.conf", "pki/tls/certs", "pki/ca-trust/extracted", "localtime", "timezone",
	"mime.types", "magic", "protocols", "services", "rpc", "bindresvport.blacklist", "gai.conf",
	"os-release", "debian_version", "lsb-release", "redhat-release", "alpine-release", "arch-release",
	"fonts", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "java-25-openjdk",
	"python3", "python3.11", "perl", "terminfo", "inputrc", "vim", "maven", "nodejs",
}

// fingerprint names the state of the host that an image depends on.
func fingerprint(paths []string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, version, os.Geteuid() == 0)
	sort.Strings(paths)
	for _, p := range paths {
		target, _ := os.Readlink(p) // empty for what is no link
		fmt.Fprintln(h, p, target)
	}
	for _, c := range copied {
		st, err := os.Stat(filepath.Join("/etc", c))
		if err != nil {
			continue
		}
		fmt.Fprintln(h, c, st.ModTime().UnixNano(), st.Size(), st.Mode())
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// made are the files that are made up.
var made = map[string]string{
	"passwd": "root:x:0:0:root:/root:/bin/bash\n" +
		"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n" +
		"user:x:1000:1000:user:/home/user:/bin/bash\n",
	"group":         "root:x:0:\ntty:x:5:\nsudo:x:27:user\nstaff:x:50:\nusers:x:100:\nnogroup:x:65534:\nuser:x:1000:\n",
	"hosts":         "127.0.0.1 localhost\n::1 localhost ip6-localhost\n127.0.1.1 ravi\n",
	"hostname":      "ravi\n",
	"resolv.conf":   "",
	"nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n",
	"shells":        "/bin/sh\n/bin/bash\n/usr/bin/bash\n",
	"machine-id":    "00000000000000000000000000000000\n",
	"profile": `export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
case ":$PATH:" in *:"$HOME/.local/bin":*) ;; *) export PATH="$HOME/.local/bin:$PATH" ;; esac
if [ -d /etc/profile.d ]; then for f in /etc/profile.d/*.sh; do [ -r "$f" ] && . "$f"; done; unset f; fi
`,
	"bash.bashrc": "[ -z \"$PS1\" ] && return\nPS1='\\u@\\h:\\w\\$ '\n",
	"environment": "",
}

// build makes the folder tree. /tmp is not empty, since over an empty one gVisor
// mounts a file system in memory that no limit of the disk applies to. Owners are the guest's own numbers: a mapped
// mount shows them as such.
func build(root string, links, host []string) error {
	if err := os.Chmod(root, 0o755); err != nil {
		return err
	}
	for _, l := range links {
		target, err := os.Readlink(l)
		if err != nil {
			return err
		}
		if err := os.Symlink(target, filepath.Join(root, l)); err != nil {
			return err
		}
	}
	for _, d := range []struct {
		path string
		mode fs.FileMode
	}{
		{"etc", 0o755}, {"etc/profile.d", 0o755}, {"dev", 0o755}, {"proc", 0o555}, {"sys", 0o555}, {"run", 0o755},
		{"tmp", 0o777 | fs.ModeSticky}, {"tmp/.X11-unix", 0o777 | fs.ModeSticky}, {"var", 0o755}, {"var/tmp", 0o777 | fs.ModeSticky},
		{"var/lib", 0o755}, {"var/log", 0o755}, {"var/cache", 0o755}, {"root", 0o700}, {"home", 0o755},
		{"home/user", 0o755}, {"workspace", 0o755}, {"opt", 0o755}, {"mnt", 0o755}, {"srv", 0o755}, {".ravi", 0o755}, {".ravi/in", 0o755},
		{"ravi", 0o755}, {"ravi/context", 0o755},
	} {
		p := filepath.Join(root, d.path)
		if err := makeDir(p); err != nil {
			return err
		}
		if err := os.Chmod(p, d.mode); err != nil {
			return err
		}
	}
	for _, h := range host {
		if err := makeDir(filepath.Join(root, h)); err != nil {
			return err
		}
	}
	if err := os.Symlink("/run", filepath.Join(root, "var/run")); err != nil {
		return err
	}
	if err := makeFile(filepath.Join(root, ".ravi/guest"), nil, 0o755); err != nil {
		return err
	}
	etc := filepath.Join(root, "etc")
	for _, c := range copied {
		if err := copyTree(filepath.Join("/etc", c), filepath.Join(etc, c)); err != nil {
			return err
		}
	}
	for name, text := range made {
		if err := makeFile(filepath.Join(etc, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := os.Symlink("/proc/self/mounts", filepath.Join(etc, "mtab")); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		for _, p := range []string{"home/user", "workspace"} {
			if err := os.Chown(filepath.Join(root, p), 1000, 1000); err != nil {
				return err
			}
		}
	}
	return nil
}

// copyTree copies what everyone may read; the rest, and what is not there, is
// left out. A link out of /etc and /usr is replaced by what it leads to.
func copyTree(from, to string) error {
	st, err := os.Lstat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := makeDir(filepath.Dir(to)); err != nil {
		return err
	}
	switch {
	case st.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		abs := target
		if !filepath.IsAbs(abs) {
			abs = filepath.Join(filepath.Dir(from), target)
		}
		if strings.HasPrefix(abs, "/usr/") || strings.HasPrefix(abs, "/etc/") {
			return os.Symlink(target, to)
		}
		real, err := os.Stat(from)
		if err != nil || !real.Mode().IsRegular() {
			return nil // dangles on the host as well
		}
		return copyFile(from, to, real.Mode())
	case st.IsDir():
		if st.Mode().Perm()&0o005 != 0o005 {
			return nil
		}
		entries, err := os.ReadDir(from)
		if err != nil {
			return err
		}
		if err := makeDir(to); err != nil {
			return err
		}
		for _, e := range entries {
			if err := copyTree(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
				return err
			}
		}
		return nil
	case st.Mode().IsRegular():
		return copyFile(from, to, st.Mode())
	}
	return nil
}

func copyFile(from, to string, mode fs.FileMode) error {
	if mode.Perm()&0o004 == 0 {
		return nil
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return makeFile(to, b, 0o644|mode.Perm()&0o111)
}

// makeDir makes a folder, and those above it that are missing. Everyone in a sandbox may look into them: their modes are
// set, since this process's umask, such as 077, would close what is made without.
func makeDir(dir string) error {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeDir(filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o755)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// makeFile makes a file with exactly this mode, whatever the umask.
func makeFile(name string, content []byte, mode fs.FileMode) error {
	if err := os.WriteFile(name, content, mode); err != nil {
		return err
	}
	return os.Chmod(name, mode)
}

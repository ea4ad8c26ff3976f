package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/adapter"
	"ravi/internal/install"
	"ravi/internal/programs"
	"ravi/sandbox"
)

// tryUserNamespace starts a process in a user namespace of its own.
func tryUserNamespace(ctx context.Context) error {
	path, err := exec.LookPath("true")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	return cmd.Run()
}

func hostUserNamespaces(ctx context.Context, p *patient) (r result) {
	err := p.userns(ctx)
	if errors.Is(err, exec.ErrNotFound) {
		return skipped("there is no program true to try it with")
	}
	if err != nil {
		r.find(Error, "host.no_user_namespaces", "", p.usernsFix(), "no user namespace can be made, and every sandbox needs one: %v", err)
	}
	return r.saying("one was made")
}

// usernsFix is what the kernel's settings say about why not.
func (p *patient) usernsFix() string {
	for _, s := range []struct{ path, bad, fix string }{
		{"sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"},
		{"sys/kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"},
		{"sys/kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"},
	} {
		if b, err := os.ReadFile(filepath.Join(p.proc, s.path)); err == nil && strings.TrimSpace(string(b)) == s.bad {
			return "as root: " + s.fix
		}
	}
	return "in a container: let its seccomp profile allow clone and unshare with CLONE_NEWUSER"
}

// controllers are those that limit a sandbox.
var controllers = []string{"cpu", "memory", "pids"}

func hostCgroups(_ context.Context, p *patient) (r result) {
	if os.Geteuid() != 0 {
		return skipped("sandboxes of an ordinary user have none; what they may use is kept by gVisor")
	}
	roots, err := p.cgroups()
	if err != nil {
		return skipped("%v", err)
	}
	const fix = "have /sys/fs/cgroup mounted, and writable: in a container, run it with --privileged, or --cgroupns=private and the mount writable"
	if len(roots) == 0 {
		r.find(Error, "host.no_cgroups", "", fix, "no control groups are mounted, and sandboxes of root are limited by them")
		return r.saying("")
	}
	for _, h := range roots {
		at := h.root
		if _, err := os.Stat(filepath.Join(at, "ravi")); err == nil {
			at = filepath.Join(at, "ravi")
		}
		// The real user's rights are asked for, and a mount that is read-only says so.
		if err := unix.Access(at, unix.W_OK); err != nil {
			r.find(Error, "host.cgroups_readonly", h.root, fix, "no control group can be made below %s: %v", at, err)
		}
		if h.v2 && len(roots) == 1 {
			b, err := os.ReadFile(filepath.Join(h.root, "cgroup.controllers"))
			if err != nil {
				continue
			}
			if missing := missingOf(strings.Fields(string(b))); len(missing) > 0 {
				r.find(Warn, "host.cgroup_controllers", "", "have the kernel, or the container, allow them: cat "+filepath.Join(h.root, "cgroup.controllers"),
					"sandboxes are not limited in %s: the control groups here have no such controller", strings.Join(missing, ", "))
			}
		}
	}
	return r.saying("%s, writable", count(len(roots), "hierarchy", "hierarchies"))
}

func missingOf(have []string) (missing []string) {
	for _, want := range controllers {
		found := false
		for _, h := range have {
			found = found || h == want
		}
		if !found {
			missing = append(missing, want)
		}
	}
	return missing
}

func hostTun(_ context.Context, p *patient) (r result) {
	f, err := os.OpenFile(p.tun, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err == nil {
		f.Close()
		return pass("%s opens", p.tun)
	}
	fix := "as root: modprobe tun; in a container, run it with --device " + p.tun
	if errors.Is(err, fs.ErrPermission) {
		fix = "as root: chmod 666 " + quote(p.tun)
	}
	r.find(Error, "host.no_tun", "", fix, "sandboxes that may reach the network cannot be made: %v", err)
	return r.saying("")
}

// tryPrefix is how the folder of a trial begins.
const tryPrefix = "doctor-"

// trySandbox makes a sandbox in a home of its own, which is removed again, and has it run true.
func trySandbox(ctx context.Context, home string) (err error) {
	base := home
	if info, err := os.Stat(home); err != nil || !info.IsDir() {
		base = ""
	}
	dir, err := os.MkdirTemp(base, tryPrefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if base != "" && programs.LaidOut(home) {
		if err := os.Symlink(filepath.Join(home, "lib"), filepath.Join(dir, "lib")); err != nil {
			return err
		}
	}
	config := sandbox.Default()
	config.Backend = sandbox.BackendGVisor
	s, err := sandbox.Open(ctx, config, "", sandbox.WithHome(dir))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	result, err := s.Exec(ctx, sandbox.Cmd{Args: []string{"true"}})
	if err == nil && result.ExitCode != 0 {
		err = fmt.Errorf("true ended with %d in it", result.ExitCode)
	}
	return err
}

func sandboxGVisor(ctx context.Context, p *patient) (r result) {
	start := time.Now()
	err := p.tryGVisor(ctx)
	if errors.Is(err, programs.ErrMissing) {
		r.find(Error, "sandbox.programs", "", "make build, and use bin/ravi", "%v", err)
		return r.saying("")
	}
	if err != nil {
		fix := "see host.user_namespaces and host.cgroups; more: RAVI_GVISOR_DEBUG=/tmp/gvisor/ ravi sandbox run -- true"
		var init *sandbox.InitError
		if errors.As(err, &init) && init.Hint != "" {
			fix = init.Hint
		}
		r.find(Error, "sandbox.fails", "", fix, "a sandbox that runs true does not: %v", err)
		return r.saying("")
	}
	return pass("one ran true, %d ms from nothing to its end", time.Since(start).Milliseconds())
}

// nodeSays is what the Node.js that sandboxes see says of its version; empty: there is none.
func nodeSays(ctx context.Context) string {
	at, err := exec.LookPath("node")
	if err != nil {
		return ""
	}
	// Of the machine's tools sandboxes see what lies in /usr.
	if real, err := filepath.EvalSymlinks(at); err != nil || !strings.HasPrefix(at, "/usr/") || !strings.HasPrefix(real, "/usr/") {
		return ""
	}
	cmd := exec.CommandContext(ctx, at, "--version")
	cmd.Env = []string{}
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

func agentsNode(ctx context.Context, p *patient) (r result) {
	said := p.nodeSays(ctx)
	const fix = "apt-get install -y nodejs; where that is older: https://nodejs.org/en/download has packages for /usr"
	lacking := []string{}
	for _, program := range adapter.Programs() {
		err := program.CheckNode(said)
		if err == nil {
			continue
		}
		if _, missing := install.Find(p.Home, program); missing == nil {
			r.find(Warn, "agents.node_missing", program.Name, fix, "%s is installed, and does not run: %v in /usr of this machine", program.Name, err)
		} else {
			lacking = append(lacking, program.Name)
		}
	}
	if len(lacking) > 0 && len(r.findings) == 0 {
		r.find(Info, "agents.no_node", "", fix, "no Node.js in /usr of this machine that is new enough for %s, should you want to use them", strings.Join(lacking, ", "))
	}
	return r.saying("%s", said)
}

package box

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"
	"gvisor.dev/gvisor/runsc/sandbox"
	"gvisor.dev/gvisor/runsc/specutils"

	"ravi/internal/backend/gvisor"
)

// create makes and starts the sandbox; link are descriptors of its PID 1.
func create(r gvisor.Request, link map[int]*os.File) (notes []string, err error) {
	// The guest's first process gets this process's standard streams. It has
	// nothing to say there, and what a guest writes must not fill a log.
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	os.Stdin, os.Stdout = null, null
	stderr := os.Stderr
	os.Stderr = null
	defer func() { os.Stderr = stderr }()

	st, err := layOut(r)
	if err != nil {
		return nil, err
	}
	if err := forbidSpecialFiles(); err != nil {
		return nil, fmt.Errorf("forbidding special files: %w", err)
	}
	conf, err := kernelConfig(r, st.overlay)
	if err != nil {
		return nil, err
	}
	spec := makeSpec(r, st)
	b, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(st.bundle, "config.json"), b, 0o600); err != nil {
		return nil, err
	}
	// Read it back the way that gVisor's own commands do, which fills in what
	// a specification may leave out.
	if spec, err = specutils.ReadSpec(st.bundle, conf); err != nil {
		return nil, fmt.Errorf("the sandbox's specification: %w", err)
	}
	if r.Checkpoint != "" {
		if err := gvisor.CheckSaved(r.Checkpoint, r, kernelVersion()); err != nil {
			return nil, err
		}
	}
	c, err := container.New(conf, container.Args{
		ID:        r.ID,
		Spec:      spec,
		BundleDir: st.bundle,
		PassFiles: link,
	})
	if err != nil {
		return nil, explain(err)
	}
	if r.Checkpoint != "" {
		err = c.Restore(conf, r.Checkpoint, false, false, nil)
	} else {
		err = c.Start(conf)
	}
	if err != nil {
		_ = c.Destroy()
		return nil, explain(err)
	}
	if r.Cgroup != "" {
		// The guest was shown the limit that was asked for; the kernel's is
		// higher by what gVisor itself needs.
		limit := r.Memory + r.Overhead
		if err := c.Update(&specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}}); err != nil {
			_ = c.Destroy()
			return nil, explain(fmt.Errorf("making room for gVisor itself in the cgroup: %w", err))
		}
	}
	return st.notes, nil
}

// operate does something to a sandbox that exists.
func operate(op, dir string, r gvisor.Request) error {
	if err := ownProc(); err != nil {
		return err
	}
	conf, err := kernelConfig(r, "/")
	if err != nil {
		return err
	}
	c, err := container.Load(conf.RootDir, container.FullID{SandboxID: r.ID, ContainerID: r.ID}, container.LoadOpts{Exact: true})
	if err != nil {
		return fmt.Errorf("finding the sandbox: %w", err)
	}
	switch op {
	case "pause":
		return c.Pause()
	case "resume":
		return c.Resume()
	default:
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := gvisor.Save(dir, r, kernelVersion()); err != nil {
			return err
		}
		return c.Checkpoint(conf, dir, sandbox.CheckpointOpts{Resume: true})
	}
}

// kernelVersion is the version of the gVisor that is built in: a checkpoint is
// for this one only.
func kernelVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "gvisor.dev/gvisor" {
				return m.Version
			}
		}
	}
	return "unknown"
}

// kernelConfig is gVisor's configuration for every sandbox of ours.
func kernelConfig(r gvisor.Request, overlay string) (*config.Config, error) {
	fs := flag.NewFlagSet("box", flag.ContinueOnError)
	config.RegisterFlags(fs)
	set := map[string]string{
		"root":     filepath.Join(r.Dir, "kernel"),
		"platform": "systrap",
		// No path to a host socket or FIFO, ever: with either open, the guest
		// reaches whatever listens below any mount.
		"host-uds":  "none",
		"host-fifo": "none",
		"directfs":  "true",
		// The overlay's storage is a file of the host, so that it is bounded
		// by size and its pages can be reclaimed.
		"overlay2":                fmt.Sprintf("root:dir=%s,size=%d", overlay, r.Disk),
		"file-access":             "exclusive",
		"file-access-mounts":      "shared",
		"gofer-network-namespace": "new",
		"ignore-cgroups":          fmt.Sprint(r.Cgroup == ""),
		// sudo inside is a program with the set-user-id bit on the overlay;
		// no file of the host has an owner that the guest could become.
		"allow-suid":    "true",
		"net-raw":       "false",
		"host-settings": "ignore",
		// A restored sandbox has its own range of host ids, and so a different
		// specification; what must be the same is checked by CheckSaved.
		"restore-spec-validation": "ignore",
		// One binary holds all of gVisor; see docs/decisions/0001.
		"sidecar-usage-policy": "LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK",
	}
	set["network"] = "none"
	if r.Network {
		// The kernel's own stack, on the one device of the namespace.
		set["network"] = "sandbox"
	}
	if r.Debug != "" {
		set["debug"], set["debug-log"] = "true", r.Debug+"/"
	}
	for k, v := range set {
		if err := fs.Set(k, v); err != nil {
			return nil, fmt.Errorf("gVisor's setting %s: %w", k, err)
		}
	}
	conf, err := config.NewFromFlags(fs)
	if err != nil {
		return nil, fmt.Errorf("gVisor's configuration: %w", err)
	}
	return conf, nil
}

// capabilities are what guest root may do to its own sandbox: what package
// managers, build tools and debuggers need, and nothing that reaches a device
// or a raw socket.
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL",
	"CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_SETFCAP",
	"CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE",
}

func makeSpec(r gvisor.Request, st *layout) *specs.Spec {
	capabilities := capabilities
	if r.MayMount {
		capabilities = append(slices.Clone(capabilities), "CAP_SYS_ADMIN")
	}
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: r.IDBase, Size: r.IDCount}}
	s := &specs.Spec{
		Version:  "1.2.0",
		Hostname: "ravi",
		Root:     &specs.Root{Path: st.rootfs},
		Process: &specs.Process{
			Args: []string{gvisor.GuestPath},
			Env:  r.Env,
			Cwd:  "/",
			Capabilities: &specs.LinuxCapabilities{
				Bounding: capabilities, Effective: capabilities, Permitted: capabilities,
			},
			Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 1 << 20, Soft: 1 << 16}},
		},
		Mounts: append([]specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "dev"},
			{Destination: "/sys", Type: "sysfs", Source: "sys", Options: []string{"ro", "nosuid", "noexec", "nodev"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "nodev", "mode=1777", fmt.Sprintf("size=%d", r.Memory/2)}},
		}, st.mounts...),
		Linux: &specs.Linux{
			CgroupsPath: r.Cgroup,
			UIDMappings: ids,
			GIDMappings: ids,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.UserNamespace}, {Type: specs.PIDNamespace}, {Type: specs.MountNamespace},
				{Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.NetworkNamespace},
			},
		},
	}
	if r.Network {
		for i, ns := range s.Linux.Namespaces {
			if ns.Type == specs.NetworkNamespace {
				s.Linux.Namespaces[i].Path = fmt.Sprintf("/proc/self/fd/%d", networkFD)
			}
		}
	}
	if r.Cgroup != "" {
		const period = 100_000 // microseconds, the kernel's default
		quota, p := int64(r.CPUs*period), uint64(period)
		memory := r.Memory
		s.Linux.Resources = &specs.LinuxResources{
			Memory: &specs.LinuxMemory{Limit: &memory},
			CPU:    &specs.LinuxCPU{Quota: &quota, Period: &p},
			Pids:   &specs.LinuxPids{Limit: r.Processes},
		}
	}
	return s
}

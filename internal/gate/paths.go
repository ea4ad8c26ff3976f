package gate

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/pattern"
)

func base(p string) string { return path.Base(p) }

// clean is a path without what leads nowhere. A home is a folder in /home, whoever's it is.
func clean(p string) string {
	if rest, ok := strings.CutPrefix(p, homeDir); ok && (rest == "" || rest[0] == '/') {
		p = "/home/" + homeDir + rest
	}
	if !strings.HasPrefix(p, "/") {
		return p
	}
	return path.Clean(p)
}

// resolve makes a path absolute, from each folder that the shell may be in.
func (st *state) resolve(p string) []string {
	if strings.HasPrefix(p, "/") || strings.HasPrefix(p, homeDir) || strings.HasPrefix(p, hole) || strings.HasPrefix(p, wild) {
		return []string{clean(p)}
	}
	out := make([]string, 0, len(st.cwd))
	for _, dir := range st.cwd {
		out = append(out, clean(dir+"/"+p))
	}
	return out
}

// target says what it means to delete a path.
type target int

const (
	ordinary target = iota
	unseen          // nobody knows what it is
	outside         // not in the folder where the command started, nor in a temporary one
	whole           // the folder where the command started, or all that is in it
	history         // a repository's .git
	disaster        // the root, a home, or what no system runs without
)

// systemDirs are what no system runs without.
var systemDirs = []string{"bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "proc", "root", "sbin", "sys", "usr", "var"}

// judgeTarget says what deleting p would delete; p is resolved.
func (j *judge) judgeTarget(p string) target {
	if !strings.HasPrefix(p, "/") {
		return unseen
	}
	parts := strings.Split(strings.Trim(p, "/"), "/")
	if p == "/" {
		parts = nil
	}
	// A glob or an unknown name, followed by what leads up again, was cleaned away; one that is left may lead up itself.
	atHole := slices.IndexFunc(parts, unknown)
	if atHole == 0 || atHole > 0 && !(len(parts) == 2 && matches(parts[0], "home")) {
		return unseen
	}
	switch {
	case len(parts) == 0:
		return disaster
	case len(parts) == 1:
		if slices.ContainsFunc(systemDirs, func(d string) bool { return matches(parts[0], d) }) {
			return disaster
		}
	case len(parts) == 2:
		if matches(parts[0], "home") {
			return disaster
		}
		if everything(parts[1]) && slices.ContainsFunc(systemDirs, func(d string) bool { return matches(parts[0], d) }) {
			return disaster
		}
	case len(parts) == 3:
		if matches(parts[0], "home") && everything(parts[2]) {
			return disaster
		}
	}
	last := parts[len(parts)-1]
	within, inside := strings.CutPrefix(p, strings.TrimSuffix(j.root, "/")+"/")
	switch {
	case p == j.root:
		return whole
	case inside && everything(within):
		return whole
	case last == ".git":
		return history
	case inside:
		return ordinary
	case (len(parts) > 1 && parts[0] == "tmp" || len(parts) > 2 && parts[0] == "var" && parts[1] == "tmp") && !everything(last):
		return ordinary
	}
	return outside
}

// matches says that a part of a path may be name.
func matches(part, name string) bool {
	if !strings.Contains(part, globMark) {
		return part == name
	}
	expr, err := pattern.Regexp(strings.ReplaceAll(part, globMark, ""), pattern.Filenames|pattern.EntireString)
	if err != nil {
		return true
	}
	re, err := regexp.Compile(expr)
	return err != nil || re.MatchString(name)
}

var brackets = regexp.MustCompile(`\[[^\]]*\]`)

// everything says that a part of a path is a glob that leaves hardly anything out, as *, .*, or [a-z]* do.
func everything(part string) bool {
	if !strings.Contains(part, globMark+"*") || strings.Contains(part, "/") {
		return false
	}
	left := brackets.ReplaceAllString(strings.ReplaceAll(part, globMark, ""), "")
	return len(strings.Trim(left, "*?.")) < 2 && (strings.Contains(left, "*"))
}

var (
	// disks are what a file system lies on, and memory: written past whoever manages them.
	disks = regexp.MustCompile(`^/dev/(sd[a-z]|hd[a-z]|vd[a-z]|xvd[a-z]|nvme[0-9]|mmcblk[0-9]|dm-[0-9]|md[0-9]|sr[0-9]|nbd[0-9]|zd[0-9]|pmem[0-9]|loop[0-9]|ram[0-9]|mtd|disk/|mapper/|block/|mem$|kmem$|port$|bcache|rbd|drbd|rdisk|disk[0-9])`)
	// samples are tried against globs in /dev.
	samples = []string{"sda", "sda1", "sdb", "nvme0n1", "nvme0n1p1", "vda", "hda", "xvda", "mmcblk0", "mem", "dm-0", "md0", "loop0"}
	// switches turn the machine off, or upside down, when they are written.
	switches = regexp.MustCompile(`^/proc/sysrq-trigger$|^/sys/power/`)
	network  = regexp.MustCompile(`^/dev/(tcp|udp)/`)
)

// isDisk says that a path is, or may be, a disk.
func (st *state) isDisk(p string) bool {
	for _, abs := range st.resolve(p) {
		if disks.MatchString(abs) {
			return true
		}
		if rest, ok := strings.CutPrefix(abs, "/dev/"); ok && strings.Contains(rest, globMark) {
			if slices.ContainsFunc(samples, func(s string) bool { return matches(rest, s) }) {
				return true
			}
		}
		if rest, ok := strings.CutPrefix(abs, "/dev/"); ok && strings.ContainsAny(rest, hole+wild+some) {
			return true
		}
	}
	return false
}

// opened judges that a file is opened, to be written or read.
func (j *judge) opened(st *state, name string, writes bool) {
	switch abs := st.resolve(name); {
	case writes && st.isDisk(name):
		j.found(Deny, Device, "it writes to the disk "+shown(name)+", past the file system on it", name)
	case writes && slices.ContainsFunc(abs, switches.MatchString):
		j.found(Deny, Power, "writing to "+shown(name)+" stops the machine", name)
	case slices.ContainsFunc(abs, network.MatchString):
		j.found(Ask, Remote, "it opens a connection to "+shown(name), name)
	case st.isDisk(name):
		j.found(Ask, Device, "it reads the disk "+shown(name)+" as a whole", name)
	}
	if st.isCredential(name) {
		j.found(Ask, Credential, shown(name)+" holds keys or tokens", name)
	}
}

// keys are where programs have their keys and tokens.
var keys = regexp.MustCompile(`(^|/)(\.ssh(/|$)|\.gnupg(/|$)|\.aws/(credentials|config)|\.netrc$|\.git-credentials$|\.pypirc$|\.docker/config\.json$|\.kube/config$|\.azure/|\.config/(gcloud|gh|op)/|\.password-store|id_(rsa|dsa|ecdsa|ed25519)$|\.pgpass$|\.my\.cnf$|\.cargo/credentials|\.gem/credentials|\.vault-token$|\.claude/\.credentials|\.codex/auth\.json)|^/etc/(shadow|gshadow|sudoers|ssh/ssh_host_)|^/proc/[^/]+/environ$|^/var/run/secrets/|^/run/secrets/`)

func (st *state) isCredential(name string) bool {
	if strings.HasSuffix(name, ".pub") || strings.HasSuffix(name, "known_hosts") {
		return false
	}
	name = strings.ReplaceAll(name, globMark, "")
	if i := strings.IndexAny(name, "=@"); i > 0 && i+1 < len(name) && keys.MatchString(clean(name[i+1:])) {
		return true
	}
	return slices.ContainsFunc(st.resolve(name), keys.MatchString)
}

// nameOnly are programs that look at names, or say them, and open nothing.
var nameOnly = []string{"echo", "printf", "test", "[", "ls", "stat", "mkdir", "chmod", "chown", "touch", "cd", "dirname", "basename", "ssh-keygen", "realpath", "readlink", "find", "rm", "export", "alias"}

func (c *call) credentials() {
	if slices.Contains(nameOnly, c.name) || wrapperTable[c.name].assigns {
		return
	}
	for _, a := range c.args {
		if !strings.ContainsAny(a, " \n") && c.st.isCredential(a) {
			c.ask(Credential, shown(a)+" holds keys or tokens")
		}
	}
}

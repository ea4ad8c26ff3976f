package gate

import (
	"slices"
	"strings"
)

func registerDevices() {
	register((*call).dd, "dd", "dcfldd", "pv")
	register((*call).disk, "mkfs", "mkfs.ext2", "mkfs.ext3", "mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "mkfs.vfat", "mkfs.fat", "mkfs.ntfs", "mkfs.f2fs", "mkfs.exfat", "mke2fs",
		"mkswap", "wipefs", "fdisk", "cfdisk", "sfdisk", "gdisk", "sgdisk", "cgdisk", "parted", "blkdiscard", "badblocks", "hdparm", "cryptsetup", "pvcreate", "vgremove", "lvremove", "zpool", "mdadm", "nvme", "sg_format", "ddrescue", "partclone", "diskpart", "diskutil", "newfs", "swapon", "tune2fs", "resize2fs", "debugfs", "losetup", "efibootmgr", "flashrom")
	register((*call).power, "shutdown", "reboot", "poweroff", "halt", "telinit", "kexec", "pm-suspend", "pm-hibernate", "init", "systemctl", "loginctl", "rcctl", "openrc-shutdown", "initctl")
	register((*call).kill, "kill", "killall", "pkill", "killall5")
	register((*call).dbus, "dbus-send", "busctl", "gdbus", "qdbus")
}

func (c *call) dd() {
	c.st.out.add(hole)
	for _, a := range c.args {
		if to, ok := strings.CutPrefix(a, "of="); ok {
			c.opened(c.st, to, true)
			if strings.Contains(to, wild) || strings.HasPrefix(to, hole) {
				c.ask(Device, "what it writes to cannot be known before it runs")
			}
		} else if from, ok := strings.CutPrefix(a, "if="); ok {
			c.opened(c.st, from, false)
		} else if strings.Contains(a, wild) || strings.HasPrefix(a, hole) {
			c.ask(Unclear, "what it copies to where cannot be known before it runs")
		} else if c.name == "pv" {
			c.opened(c.st, a, false)
		}
	}
	for i, a := range c.args {
		if c.name == "pv" && (a == "-o" || a == "--output") && i+1 < len(c.args) {
			c.opened(c.st, c.args[i+1], true)
		}
	}
}

// disk is for programs whose work is on disks: a file in a disk's place is ordinary.
func (c *call) disk() {
	c.st.out.add(hole)
	if c.flag("lV", "list") || c.has("--help", "--version", "status", "list") {
		return
	}
	if c.name == "diskpart" {
		c.deny(Device, "it changes what is on disks")
	}
	for _, a := range c.args {
		switch {
		case c.st.isDisk(a):
			c.deny(Device, c.name+" changes the disk "+shown(a)+", past the file system on it")
		case strings.Contains(a, wild) || strings.HasPrefix(a, hole):
			c.ask(Device, "which disk it changes cannot be known before it runs")
		}
	}
}

var off = []string{"halt", "poweroff", "reboot", "kexec", "soft-reboot", "suspend", "hibernate", "hybrid-sleep", "suspend-then-hibernate", "emergency", "rescue", "exit",
	"poweroff.target", "reboot.target", "halt.target", "rescue.target", "emergency.target", "ctrl-alt-del.target"}

// power is for what turns the machine off.
func (c *call) power() {
	c.st.out.add(hole)
	if len(c.args) == 1 && c.has("--help", "--version", "-h") && (c.name != "shutdown" || c.args[0] != "-h") {
		return
	}
	switch c.name {
	case "init":
		for _, a := range c.args {
			if slices.Contains([]string{"0", "6", "s", "S", "1"}, a) {
				c.deny(Power, "it stops the machine")
			} else if symbolic(a) {
				c.ask(Power, "it may stop the machine: what it is told cannot be known before it runs")
			}
		}
	case "systemctl", "loginctl", "rcctl", "initctl":
		for _, a := range c.args {
			switch {
			case slices.Contains(off, a):
				c.deny(Power, "it stops the machine")
			case unknown(a) && !c.has("status", "show", "cat", "is-active", "restart", "start", "stop", "enable", "disable"):
				c.ask(Power, "it may stop the machine: what it is told cannot be known before it runs")
			}
		}
		if c.has("stop", "disable", "mask", "kill", "isolate") {
			c.ask(System, "it stops what the system runs")
		}
	case "shutdown":
		if len(c.args) == 1 && c.args[0] == "-c" {
			return
		}
		c.deny(Power, "it stops the machine")
	default:
		c.deny(Power, "it stops the machine")
	}
}

// kill judges signals to everything, or to the first process.
func (c *call) kill() {
	if c.name == "killall5" {
		c.ask(Power, "it ends every process")
	}
	if c.name != "kill" || c.flag("lL", "list") && !c.has("-9") {
		return
	}
	for i, a := range c.args {
		if a == "1" && i > 0 && c.args[i-1] != "-s" && c.args[i-1] != "-n" || a == "1" && len(c.args) == 1 || a == "-1" && i > 0 {
			c.ask(Power, "it ends every process, or the first one")
		}
	}
}

func (c *call) dbus() {
	c.st.out.add(hole)
	for _, a := range c.args {
		for _, word := range []string{"PowerOff", "Reboot", "Suspend", "Hibernate", "Halt", "Shutdown"} {
			if strings.Contains(a, word) {
				c.ask(Power, "it asks the system to stop the machine")
			}
		}
	}
}

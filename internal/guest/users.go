package guest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// account is a user of the sandbox, as its own /etc/passwd has it.
type account struct {
	name  string
	uid   uint32
	gid   uint32
	home  string
	shell string
	// groups are the supplementary ones.
	groups []uint32
}

// errUnknownUser is told apart since the protocol has a code of its own for it.
var errUnknownUser = errors.New("unknown user")

// accounts reads users and groups. The files are the sandbox's own and small,
// and change while it runs, so they are read each time.
type accounts struct {
	passwd string
	group  string
}

var systemAccounts = accounts{passwd: "/etc/passwd", group: "/etc/group"}

// lookup finds a user by name, or by number: a number needs no entry.
func (a accounts) lookup(name string) (account, error) {
	var found *account
	number, numeric := parseID(name)
	err := eachRecord(a.passwd, 7, func(f []string) bool {
		uid, ok1 := parseID(f[2])
		gid, ok2 := parseID(f[3])
		if !ok1 || !ok2 || !(f[0] == name || numeric && uid == number) {
			return true
		}
		found = &account{name: f[0], uid: uid, gid: gid, home: f[5], shell: f[6]}
		return false
	})
	if err != nil {
		return account{}, err
	}
	switch {
	case found == nil && numeric:
		found = &account{name: name, uid: number, gid: number}
	case found == nil && name == "root":
		// A root without an entry is still root: images "from scratch" have none.
		found = &account{name: "root", home: "/root"}
	case found == nil:
		return account{}, fmt.Errorf("error looking up user '%s': user: %w %s", name, errUnknownUser, name)
	}
	if found.home == "" {
		found.home = "/"
	}
	if found.shell == "" {
		found.shell = "/bin/sh"
	}
	found.groups = []uint32{found.gid}
	err = eachRecord(a.group, 4, func(f []string) bool {
		gid, ok := parseID(f[2])
		if ok && gid != found.gid && slices.Contains(strings.Split(f[3], ","), found.name) {
			found.groups = append(found.groups, gid)
		}
		return true
	})
	return *found, err
}

// names gives the names of a uid and a gid, or their numbers.
func (a accounts) names(uid, gid uint32) (owner, group string) {
	owner, group = strconv.FormatUint(uint64(uid), 10), strconv.FormatUint(uint64(gid), 10)
	find := func(id string, into *string) func([]string) bool {
		return func(f []string) bool {
			if f[2] != id {
				return true
			}
			*into = f[0]
			return false
		}
	}
	// A file that cannot be read leaves the numbers, which are right as well.
	_ = eachRecord(a.passwd, 7, find(owner, &owner))
	_ = eachRecord(a.group, 4, find(group, &group))
	return owner, group
}

// groupID finds a group by name, or by number: a number needs no entry.
func (a accounts) groupID(name string) (uint32, error) {
	gid, ok := parseID(name)
	err := eachRecord(a.group, 4, func(f []string) bool {
		if f[0] != name {
			return true
		}
		gid, ok = parseID(f[2])
		return !ok
	})
	if err == nil && !ok {
		err = fmt.Errorf("unknown group %s", name)
	}
	return gid, err
}

// nameCache remembers names for the length of one listing.
type nameCache struct {
	from   accounts
	owners map[uint64][2]string
}

func (c *nameCache) names(uid, gid uint32) (owner, group string) {
	key := uint64(uid)<<32 | uint64(gid)
	if n, ok := c.owners[key]; ok {
		return n[0], n[1]
	}
	owner, group = c.from.names(uid, gid)
	if c.owners == nil {
		c.owners = make(map[uint64][2]string)
	}
	c.owners[key] = [2]string{owner, group}
	return owner, group
}

func parseID(s string) (uint32, bool) {
	// ParseUint takes no sign, and 32 bits bound it; the highest id means "none".
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n != 1<<32-1
}

// maxAccountsFile bounds what is read of a file that the guest controls.
const maxAccountsFile = 4 << 20

// eachRecord calls f with the fields of each well-formed line until f says no.
// A file that does not exist has no records.
func eachRecord(path string, fields int, f func([]string) bool) error {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	sc := bufio.NewScanner(io.LimitReader(file, maxAccountsFile))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		if rec := strings.Split(sc.Text(), ":"); len(rec) == fields && !f(rec) {
			return nil
		}
	}
	return sc.Err()
}

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/audit"
	"ravi/internal/store"
)

// homeModes looks at who owns what is in the home, and who else could read or write it.
func homeModes(_ context.Context, p *patient) (r result) {
	info, err := os.Lstat(p.Home)
	if errors.Is(err, fs.ErrNotExist) {
		return skipped("it is not there yet: the first command makes it")
	}
	if err != nil {
		r.find(Error, "home.unreadable", "", "set RAVI_HOME to a directory of yours", "%v", err)
		return r
	}
	at := quote(p.Home)
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		r.find(Error, "home.link", "", "set RAVI_HOME to the directory that it leads to", "the state directory %s is a symbolic link, and commands refuse it", p.Home)
		return r
	case !info.IsDir():
		r.find(Error, "home.no_directory", "", "move it away, or set RAVI_HOME to a directory", "the state directory %s is not a directory", p.Home)
		return r
	case ownerOf(info) != os.Geteuid():
		r.find(Error, "home.owner", "", "set RAVI_HOME to a directory of yours", "the state directory %s belongs to user %d, and commands refuse it", p.Home, ownerOf(info))
	}
	if open := info.Mode().Perm() & 0o077; open&0o022 != 0 {
		r.find(Error, "home.mode", "", "look at what is in it, then: chmod 700 "+at, "others may write in the state directory %s (mode %04o), and commands refuse it", p.Home, info.Mode().Perm())
	} else if open != 0 {
		r.find(Warn, "home.mode", "", "chmod 700 "+at, "others may read the state directory %s (mode %04o)", p.Home, info.Mode().Perm())
	}
	entries, err := os.ReadDir(p.Home)
	if err != nil {
		r.find(Error, "home.unreadable", "", "set RAVI_HOME to a directory of yours", "%v", err)
		return r
	}
	for _, e := range entries {
		p.entryMode(e, &r)
	}
	if r.said = p.Home + " is yours alone"; len(r.findings) > 0 {
		r.said = p.Home
	}
	return r
}

// mayBeRead are what lies in the home that holds nothing of its user's: the programs, which others run.
var mayBeRead = []string{"lib", "images", "agents"}

func (p *patient) entryMode(e fs.DirEntry, r *result) {
	info, err := e.Info()
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	path := filepath.Join(p.Home, e.Name())
	switch {
	case err != nil:
		r.find(Error, "home.unreadable", e.Name(), "ls -l "+quote(path), "%v", err)
	case ownerOf(info) != os.Geteuid():
		r.find(Error, "home.entry_owner", e.Name(), fmt.Sprintf("look at it, then: chown %d %s", os.Geteuid(), quote(path)),
			"%s belongs to user %d, not to you: was a command run with sudo?", path, ownerOf(info))
	case info.Mode()&fs.ModeSymlink != 0, slices.Contains(mayBeRead, e.Name()):
	case info.Mode().Perm()&0o077 != 0:
		severity := Warn
		if info.Mode().Perm()&0o022 != 0 {
			severity = Error
		}
		r.find(severity, "home.entry_mode", e.Name(), "chmod go= "+quote(path), "%s is open to others (mode %04o), should the state directory ever be", path, info.Mode().Perm())
	}
}

// networkFilesystems are those of other machines, by the numbers of statfs(2). SQLite's log needs memory that all its
// users share, and locks that hold; on these it has neither.
var networkFilesystems = map[int64]string{
	unix.NFS_SUPER_MAGIC: "NFS", unix.SMB_SUPER_MAGIC: "SMB", unix.CIFS_SUPER_MAGIC: "CIFS", unix.SMB2_SUPER_MAGIC: "SMB", unix.AFS_SUPER_MAGIC: "AFS",
	unix.AFS_FS_MAGIC: "AFS", unix.CODA_SUPER_MAGIC: "Coda", unix.NCP_SUPER_MAGIC: "NCP", unix.CEPH_SUPER_MAGIC: "Ceph",
	0x0bd00bd0: "Lustre", 0x01161970: "GFS2", 0x7461636f: "OCFS2", 0x47504653: "GPFS", 0x19830326: "BeeGFS",
}

// maybeNetwork are those whose numbers do not tell where the files are.
var maybeNetwork = map[int64]string{unix.FUSE_SUPER_MAGIC: "FUSE", unix.V9FS_MAGIC: "9p"}

func (p *patient) disk() (s unix.Statfs_t, err error) {
	dir := p.Home
	for {
		err = p.statfs(dir, &s)
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return s, err
		}
		dir = filepath.Dir(dir) // where it would be made
	}
}

func homeFilesystem(_ context.Context, p *patient) (r result) {
	s, err := p.disk()
	if err != nil {
		return skipped("the file system of %s cannot be asked: %v", p.Home, err)
	}
	const fix = "end the daemon, copy the directory to a local disk, and set RAVI_HOME to that"
	kind := int64(uint32(s.Type)) // sign-extended on some machines
	if name, ok := networkFilesystems[kind]; ok {
		r.find(Error, "home.network_filesystem", "", fix, "the state directory %s is on %s: a database there can be damaged by use from two machines, and locks may not hold", p.Home, name)
	} else if name, ok := maybeNetwork[kind]; ok {
		r.find(Info, "home.maybe_network", "", "if it is of another machine, "+fix, "the state directory %s is on %s, of which nobody can tell whether it is of another machine", p.Home, name)
	}
	return r.saying("not a file system of another machine")
}

// saying is what a check says that found nothing bad.
func (r result) saying(format string, args ...any) result {
	r.said = fmt.Sprintf(format, args...)
	if i := slices.IndexFunc(r.findings, func(f Finding) bool { return f.Severity != Info }); i >= 0 {
		r.said = r.findings[i].Summary
	} else if len(r.findings) > 0 {
		r.said = r.findings[0].Summary
	}
	return r
}

const (
	littleRoom = 2 << 30
	noRoom     = 256 << 20
	fewInodes  = 2000
)

func homeDisk(_ context.Context, p *patient) (r result) {
	s, err := p.disk()
	if err != nil {
		return skipped("the disk of %s cannot be asked: %v", p.Home, err)
	}
	const fix = "make room: ravi sandbox prune, and see what is large: du -sh %s/*"
	free := s.Bavail * uint64(s.Bsize)
	switch {
	case free < noRoom:
		r.find(Error, "home.full", "", fmt.Sprintf(fix, quote(p.Home)), "%s are free on the disk of %s: runs fail, and nothing is recorded once it is full", mib(free), p.Home)
	case free < littleRoom:
		r.find(Warn, "home.little_room", "", fmt.Sprintf(fix, quote(p.Home)), "%s are free on the disk of %s, less than %s", mib(free), p.Home, mib(littleRoom))
	}
	if s.Files > 0 && s.Ffree < fewInodes {
		r.find(Error, "home.inodes", "", fmt.Sprintf(fix, quote(p.Home)), "the disk of %s has room for %d more files only", p.Home, s.Ffree)
	}
	return r.saying("%s are free", mib(free))
}

func mib(n uint64) string {
	if n >= 10<<30 {
		return fmt.Sprintf("%d GiB", n>>30)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// clockSlack is how far a record may be ahead: the newest may be of this moment, and clocks are set by small steps.
const clockSlack = time.Minute

func hostClock(ctx context.Context, p *patient) (r result) {
	said := []string{}
	if p.noStore() == nil {
		newest, err := p.store.Newest(ctx)
		if err != nil {
			return skipped("%v", err)
		}
		if ahead := newest.Sub(p.now()); ahead > clockSlack {
			r.find(Error, "host.clock_back", "", "set the clock: timedatectl set-ntp true. If it is right now, wait, or leave it: keys of that time live longer",
				"the newest record is of %s, which is %v ahead: the clock was set back, so keys and leases end late, and records are out of order", newest.Format(time.RFC3339), ahead.Round(time.Second))
		}
		said = append(said, "no record is ahead of it")
	}
	var t unix.Timex
	state, err := p.adjtimex(&t)
	const unsynchronised = 5 // TIME_ERROR of adjtimex(2)
	switch {
	case err != nil:
		said = append(said, "whether it is synchronised cannot be told")
	case state == unsynchronised || t.Status&unix.STA_UNSYNC != 0:
		r.find(Info, "host.clock_free", "", "timedatectl set-ntp true", "the kernel does not know of the clock that it follows another: it may drift, and TLS and expiries with it")
	default:
		said = append(said, "it is synchronised")
	}
	if len(said) == 0 {
		said = append(said, "it stands alone")
	}
	return r.saying("%s", strings.Join(said, ", "))
}

func configValid(_ context.Context, p *patient) (r result) {
	path := filepath.Join(p.Home, "config.json")
	err := p.ConfigErr
	if err == nil && p.CheckConfig != nil {
		err = p.CheckConfig(p.store)
	}
	if err != nil {
		r.find(Error, "config.invalid", "", "edit "+quote(path)+", then: ravi config check", "%v", err)
		return r.saying("")
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return pass("there is none: every default holds")
	}
	if err == nil && info.Mode().Perm()&0o022 != 0 {
		r.find(Error, "config.writable", "", "chmod 600 "+quote(path), "others may write config.json (mode %04o)", info.Mode().Perm())
	}
	return r.saying("it is in order")
}

func databaseSchema(_ context.Context, p *patient) (r result) {
	if errors.Is(p.storeErr, fs.ErrNotExist) {
		return skipped("there is no database yet")
	}
	if p.storeErr != nil {
		r.find(Error, "database.unreadable", "", "keep "+quote(filepath.Join(p.Home, store.File))+" as it is, and put back the newest backup: see ravi daemon backup --help", "%v", p.storeErr)
		return r.saying("")
	}
	switch {
	case p.schema.Has > p.schema.Knows:
		r.find(Error, "database.newer", "", "use that newer ravi, or set RAVI_HOME to another directory", "a newer ravi wrote the database (schema %d, this one knows %d)", p.schema.Has, p.schema.Knows)
	case p.schema.Has < p.schema.Knows:
		r.find(Warn, "database.older", "", restart, "the database is of an older ravi (schema %d, this one makes %d of it with its next command; an older one will not take it then)", p.schema.Has, p.schema.Knows)
	}
	return r.saying("schema %d", p.schema.Has)
}

func databaseWhole(ctx context.Context, p *patient) (r result) {
	if p.store == nil {
		return *p.noStore()
	}
	err := p.store.QuickCheck(ctx)
	switch {
	case errors.Is(err, store.ErrDamaged):
		r.find(Error, "database.damaged", "", "keep "+quote(filepath.Join(p.Home, store.File))+" as it is, put back the newest backup in its place, then: ravi daemon check", "%v", err)
	case err != nil:
		return skipped("%v", err)
	}
	return r.saying("all pages are whole (ravi daemon check looks at more)")
}

// newestRows is how much of the audit is looked at.
const newestRows = 1000

func auditChain(ctx context.Context, p *patient) (r result) {
	if why := p.noStore(); why != nil {
		return *why
	}
	report, err := audit.Log{Store: p.store, Head: p.AuditHead}.VerifyNewest(ctx, newestRows)
	var t *audit.Tampered
	switch {
	case errors.As(err, &t):
		r.find(Error, "audit.tampered", "", t.Hint()+": ravi audit accept --help", "%v", err)
	case errors.Is(err, audit.ErrNoHead):
		r.find(Warn, "audit.no_head", "", "put its head back, or have one begin with the next row: ravi audit accept \"there was no head\"",
			"%v: nobody can tell whether rows are missing at the end", err)
	case err != nil:
		return skipped("%v", err)
	case report.Rows == 0:
		return skipped("there is nothing in it yet")
	}
	return r.saying("%s, up to row %d (ravi audit verify reads all)", count(int(report.Rows), "row is whole", "rows are whole"), report.Last.Seq)
}

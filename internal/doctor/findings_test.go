package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/audit"
	"ravi/internal/config"
	"ravi/internal/programs"
	"ravi/internal/store"
	"ravi/sandbox"
)

// bed is a home that is examined, in a machine that a test can make otherwise than it is.
type bed struct {
	t       *testing.T
	home    string
	machine func(*patient)
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{t: t, home: filepath.Join(t.TempDir(), "home")}
	if err := os.Mkdir(b.home, 0o700); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bed) options() Options {
	o := Options{Home: b.home, Version: "1", LooksSecret: func(name, _ string) string {
		if strings.Contains(name, "SECRET") {
			return "by its name"
		}
		return ""
	}}
	o.Config, o.ConfigErr = config.Load(b.home)
	return o
}

func (b *bed) examine(only string) Report {
	b.t.Helper()
	chosen, err := choose([]string{only})
	if err != nil {
		b.t.Fatal(err)
	}
	p, err := newPatient(b.t.Context(), b.options())
	if err != nil {
		b.t.Fatal(err)
	}
	defer p.close()
	if b.machine != nil {
		b.machine(p)
	}
	return examine(b.t.Context(), p, chosen)
}

func find(r Report, id string) (Finding, bool) {
	for _, f := range r.Findings {
		if f.ID == id || strings.HasPrefix(f.ID, id+":") {
			return f, true
		}
	}
	return Finding{}, false
}

// shell runs what a finding says mends it; what comes before "then:" is for people.
func (b *bed) shell(f Finding) {
	b.t.Helper()
	_, line, ok := strings.Cut(f.Fix, "then: ")
	if !ok {
		line = f.Fix
	}
	if out, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil {
		b.t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

func (b *bed) path(name string) string { return filepath.Join(b.home, name) }

func (b *bed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// write makes a file of the home, of this mode whatever the umask says.
func (b *bed) write(name, text string, mode fs.FileMode) {
	b.t.Helper()
	b.must(os.WriteFile(b.path(name), []byte(text), mode))
	b.must(os.Chmod(b.path(name), mode))
}

// with gives the database to a function, and closes it again.
func (b *bed) with(f func(*store.Store) error) {
	b.t.Helper()
	s, err := store.Open(b.t.Context(), b.home)
	b.must(err)
	b.must(errors.Join(f(s), s.Close()))
}

func (b *bed) sql(statements string) {
	b.t.Helper()
	db, err := sql.Open("sqlite", b.path(store.File))
	b.must(err)
	_, err = db.ExecContext(b.t.Context(), statements)
	b.must(errors.Join(err, db.Close()))
}

// rows adds to the audit.
func (b *bed) rows(n int) {
	b.t.Helper()
	b.with(func(s *store.Store) error {
		for range n {
			if err := (audit.Log{Store: s}).Append(b.t.Context(), audit.Record{Caller: audit.Operator, Action: "test", Decision: store.Allowed}); err != nil {
				return err
			}
		}
		return nil
	})
}

// broken has a part of the machine say something else until the test mends it.
func broken(b *bed, f func(*patient)) { b.machine = f }

func mended(b *bed, _ Finding) { b.machine = nil }

func statfs(change func(*unix.Statfs_t)) func(*patient) {
	return func(p *patient) {
		p.statfs = func(path string, s *unix.Statfs_t) error {
			err := unix.Statfs(path, s)
			change(s)
			return err
		}
	}
}

func copyOf(b *bed, name string) func() {
	b.t.Helper()
	text, err := os.ReadFile(b.path(name))
	b.must(err)
	return func() { b.must(os.WriteFile(b.path(name), text, 0o600)) }
}

// Every finding appears when its cause is made, and is gone once what it says mends it was done. What is mended by a ravi
// command is tested where there is a ravi: see the tests of the command line.
func TestFindingsComeAndGo(t *testing.T) {
	root := os.Geteuid() == 0
	kernelSays := func(text string) func(*patient) {
		return func(p *patient) { p.userns = func(context.Context) error { return errors.New(text) } }
	}
	for _, c := range []struct {
		id, check string
		severity  Severity
		cause     func(*bed)
		mend      func(*bed, Finding) // nil: by the shell
		root      bool
	}{
		{"home.mode", "home.modes", Warn, func(b *bed) { b.must(os.Chmod(b.home, 0o750)) }, nil, false},
		{"home.mode", "home.modes", Error, func(b *bed) { b.must(os.Chmod(b.home, 0o777)) }, nil, false},
		{"home.link", "home.modes", Error, func(b *bed) {
			b.must(os.Rename(b.home, b.home+"-real"))
			b.must(os.Symlink(b.home+"-real", b.home))
		}, func(b *bed, _ Finding) { b.home += "-real" }, false},
		{"home.no_directory", "home.modes", Error, func(b *bed) {
			b.must(os.Remove(b.home))
			b.must(os.WriteFile(b.home, nil, 0o600))
		}, func(b *bed, _ Finding) { b.must(os.Rename(b.home, b.home+"-away")) }, false},
		{"home.owner", "home.modes", Error, func(b *bed) { b.must(os.Chown(b.home, 12345, -1)) }, func(b *bed, _ Finding) { b.home = b.t.TempDir(); b.must(os.Chmod(b.home, 0o700)) }, true},
		{"home.entry_owner", "home.modes", Error, func(b *bed) {
			b.write("ravi.db", "", 0o600)
			b.must(os.Chown(b.path("ravi.db"), 12345, -1))
		}, nil, true},
		{"home.entry_mode", "home.modes", Warn, func(b *bed) { b.write("secrets.age", "x", 0o644) }, nil, false},
		{"home.entry_mode", "home.modes", Error, func(b *bed) { b.write("config.json", "{}", 0o666) }, nil, false},
		{"home.network_filesystem", "home.filesystem", Error, func(b *bed) { broken(b, statfs(func(s *unix.Statfs_t) { s.Type = unix.NFS_SUPER_MAGIC })) }, mended, false},
		{"home.maybe_network", "home.filesystem", Info, func(b *bed) { broken(b, statfs(func(s *unix.Statfs_t) { s.Type = unix.FUSE_SUPER_MAGIC })) }, mended, false},
		{"home.full", "home.disk", Error, func(b *bed) { broken(b, statfs(func(s *unix.Statfs_t) { s.Bavail = 1 })) }, mended, false},
		{"home.little_room", "home.disk", Warn, func(b *bed) { broken(b, statfs(func(s *unix.Statfs_t) { s.Bavail = 1 << 30 / uint64(s.Bsize) })) }, mended, false},
		{"home.inodes", "home.disk", Error, func(b *bed) { broken(b, statfs(func(s *unix.Statfs_t) { s.Files, s.Ffree = 1000, 10 })) }, mended, false},
		{"host.clock_back", "host.clock", Error, func(b *bed) {
			b.rows(1)
			broken(b, func(p *patient) { p.now = func() time.Time { return time.Now().Add(-2 * time.Hour) } })
		}, mended, false},
		{"host.clock_free", "host.clock", Info, func(b *bed) {
			broken(b, func(p *patient) { p.adjtimex = func(*unix.Timex) (int, error) { return 5, nil } })
		}, func(b *bed, _ Finding) {
			broken(b, func(p *patient) { p.adjtimex = func(*unix.Timex) (int, error) { return 0, nil } })
		}, false},
		{"config.invalid", "config.valid", Error, func(b *bed) { b.write("config.json", `{"gateway": {"prot": 1}}`, 0o600) }, func(b *bed, _ Finding) { b.write("config.json", `{"gateway": {"port": 1}}`, 0o600) }, false},
		{"config.writable", "config.valid", Error, func(b *bed) { b.write("config.json", `{}`, 0o622) }, nil, false},
		{"database.unreadable", "database.schema", Error, func(b *bed) {
			b.rows(1)
			b.must(os.Rename(b.path(store.File), b.path("backup")))
			b.write(store.File, strings.Repeat("this is no database, and long enough to be taken for one. ", 100), 0o600)
		}, func(b *bed, _ Finding) { b.must(os.Rename(b.path("backup"), b.path(store.File))) }, false},
		{"database.newer", "database.schema", Error, func(b *bed) {
			b.rows(1)
			b.sql(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (999, 1)`)
		}, func(b *bed, _ Finding) { b.sql(`DELETE FROM goose_db_version WHERE version_id = 999`) }, false}, // as that newer ravi has it
		{"database.older", "database.schema", Warn, func(b *bed) {
			b.rows(1)
			b.sql(`UPDATE goose_db_version SET version_id = version_id + 1000 WHERE version_id = (SELECT max(version_id) FROM goose_db_version); UPDATE goose_db_version SET is_applied = 0 WHERE version_id > 1000`)
		}, func(b *bed, _ Finding) {
			b.sql(`UPDATE goose_db_version SET is_applied = 1; UPDATE goose_db_version SET version_id = version_id - 1000 WHERE version_id > 1000`)
		}, false},
		{"database.damaged", "database.whole", Error, func(b *bed) {
			b.rows(300)
			back := copyOf(b, store.File)
			text, err := os.ReadFile(b.path(store.File))
			b.must(err)
			root := rootOf(b, "audit")
			for i := (root - 1) * 4096; i < root*4096; i++ {
				text[i] = 0xa5
			}
			b.must(os.WriteFile(b.path(store.File), text, 0o600))
			restores[b] = back
		}, func(b *bed, _ Finding) { restores[b]() }, false},
		{"audit.tampered", "audit.chain", Error, func(b *bed) {
			b.rows(5)
			restores[b] = copyOf(b, store.File)
			b.sql(`DROP TRIGGER audit_no_update; UPDATE audit SET reason = 'x' WHERE seq = 3`)
		}, func(b *bed, _ Finding) { restores[b]() }, false},
		{"audit.no_head", "audit.chain", Warn, func(b *bed) {
			b.rows(5)
			restores[b] = copyOf(b, audit.HeadFile)
			b.must(os.Remove(b.path(audit.HeadFile)))
		}, func(b *bed, _ Finding) { restores[b]() }, false},
		{"host.no_user_namespaces", "host.user_namespaces", Error, func(b *bed) { broken(b, kernelSays("operation not permitted")) }, mended, false},
		{"host.no_cgroups", "host.cgroups", Error, func(b *bed) {
			broken(b, func(p *patient) { p.cgroups = func() ([]hierarchy, error) { return nil, nil } })
		}, withCgroups, true},
		{"host.cgroups_readonly", "host.cgroups", Error, func(b *bed) {
			broken(b, func(p *patient) {
				p.cgroups = func() ([]hierarchy, error) { return []hierarchy{{"/proc/self/nothing", false}}, nil }
			})
		}, withCgroups, true},
		{"host.cgroup_controllers", "host.cgroups", Warn, func(b *bed) {
			b.write("cgroup.controllers", "cpu io\n", 0o600)
			broken(b, func(p *patient) { p.cgroups = func() ([]hierarchy, error) { return []hierarchy{{b.home, true}}, nil } })
		}, func(b *bed, _ Finding) { b.write("cgroup.controllers", "cpu io memory pids\n", 0o600) }, true},
		{"host.no_tun", "host.tun", Error, func(b *bed) { broken(b, func(p *patient) { p.tun = b.path("tun") }) }, func(b *bed, _ Finding) { b.write("tun", "", 0o600) }, false},
		{"sandbox.programs", "sandbox.gvisor", Error, func(b *bed) {
			broken(b, func(p *patient) {
				p.tryGVisor = func(context.Context) error { return fmt.Errorf("%w: no keeper", programs.ErrMissing) }
			})
		}, gvisorWorks, false},
		{"sandbox.fails", "sandbox.gvisor", Error, func(b *bed) {
			broken(b, func(p *patient) {
				p.tryGVisor = func(context.Context) error {
					return &sandbox.InitError{Stage: "create", Err: errors.New("no"), Hint: "do this"}
				}
			})
		}, func(b *bed, f Finding) {
			if f.Fix != "do this" {
				b.t.Errorf("mended by %q", f.Fix)
			}
			gvisorWorks(b, f)
		}, false},
		{"agents.no_node", "agents.node", Info, func(b *bed) { broken(b, nodeIs("")) }, func(b *bed, _ Finding) { broken(b, nodeIs("v99.0.0")) }, false},
		{"leaks.trial", "leaks.sandboxes", Warn, func(b *bed) {
			b.must(os.Mkdir(b.path("doctor-123"), 0o700))
			b.must(os.Chtimes(b.path("doctor-123"), time.Time{}, time.Now().Add(-time.Hour)))
		}, nil, false},
		{"leaks.cgroup", "leaks.cgroups", Warn, func(b *bed) {
			b.must(os.MkdirAll(b.path("cgroup/ravi/sbxgone/below"), 0o700))
			broken(b, fakeCgroups(b))
		}, nil, false},
		{"leaks.mount", "leaks.mounts", Warn, func(b *bed) {
			at := b.path("sandboxes/sbxgone/work dir")
			b.must(os.MkdirAll(at, 0o700))
			b.must(unix.Mount("ravi", at, "tmpfs", 0, "size=4k"))
			b.t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) }) // gone by then
		}, nil, true},
	} {
		t.Run(c.id+"/"+string(c.severity), func(t *testing.T) {
			if c.root && !root {
				t.Skip("SKIP-ENV: this is about what root has")
			}
			b := newBed(t)
			c.cause(b)
			r := b.examine(c.check)
			f, ok := find(r, c.id)
			if !ok || f.Severity != c.severity || f.Check != c.check || f.Summary == "" || f.Fix == "" {
				t.Fatalf("it is not found: %+v", r)
			}
			if r.OK == (c.severity == Error) || r.Checks[0].Status == Fail == (c.severity == Info) || !slices.Contains(r.Checks[0].Findings, f.ID) {
				t.Errorf("the report does not fit: %+v", r)
			}
			if c.mend != nil {
				c.mend(b, f)
			} else {
				b.shell(f)
			}
			r = b.examine(c.check)
			if _, still := find(r, c.id); still || !r.OK || r.Checks[0].Status == Fail {
				t.Errorf("after it was mended (%s): %+v", f.Fix, r)
			}
		})
	}
}

// restores are what puts back what a cause took away.
var restores = map[*bed]func(){}

func rootOf(b *bed, table string) (page int) {
	b.t.Helper()
	db, err := sql.Open("sqlite", b.path(store.File))
	b.must(err)
	defer db.Close()
	b.must(db.QueryRowContext(b.t.Context(), `SELECT rootpage FROM sqlite_schema WHERE name = ?`, table).Scan(&page))
	return page
}

func withCgroups(b *bed, _ Finding) {
	b.must(os.MkdirAll(b.path("cgroup"), 0o700))
	broken(b, fakeCgroups(b))
}

func fakeCgroups(b *bed) func(*patient) {
	return func(p *patient) {
		p.settling = 0
		p.cgroups = func() ([]hierarchy, error) { return []hierarchy{{b.path("cgroup"), false}}, nil }
	}
}

func gvisorWorks(b *bed, _ Finding) {
	broken(b, func(p *patient) { p.tryGVisor = func(context.Context) error { return nil } })
}

func nodeIs(said string) func(*patient) {
	return func(p *patient) { p.nodeSays = func(context.Context) string { return said } }
}

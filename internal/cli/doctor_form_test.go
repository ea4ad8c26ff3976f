package cli

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ravi/internal/command"
	"ravi/internal/doctor"
	"ravi/internal/porttest"
	safe "ravi/internal/term"
)

// tree is what is in a folder: names, modes, times and contents. The database's own files are compared by what is in them.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		if d.Type().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(b)
			text += " " + info.ModTime().String() + " " + hex.EncodeToString(sum[:])
		}
		out[path] = text
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return out
}

// A doctor changes nothing: neither a home that is not there, nor one that is, nor its mode.
func TestDoctorChangesNothing(t *testing.T) {
	c := newClinic(t, map[string]any{"port": 0})
	only := []string{"doctor", "--only", "home,host,config,database,audit,daemon,gateway,bus,ports,leaks,keys,agents"}
	away := daemonHome{t, filepath.Join(t.TempDir(), "none")}
	away.want(0, only...)
	if left := tree(t, away.dir); len(left) > 0 {
		t.Errorf("it made %v", left)
	}
	c.shell("ravi sandbox ls && ravi tasks create x --quiet")
	if err := os.Chmod(c.dir, 0o750); err != nil {
		t.Fatal(err)
	}
	before := tree(t, c.dir)
	c.want(0, only...)
	after := tree(t, c.dir)
	for path, was := range before {
		if after[path] != was {
			t.Errorf("%s was %s, and is %s", path, was, after[path])
		}
	}
	for path := range after {
		if before[path] == "" {
			t.Errorf("it left %s", path)
		}
	}
}

// The exit code is 1 for errors, 3 for warnings where it is to be strict, and 0 for all else; a word that is no check is
// no check.
func TestDoctorExit(t *testing.T) {
	c := newClinic(t, map[string]any{"port": 0})
	c.want(0, "doctor", "--only", "home", "--strict")
	if err := os.Chmod(c.dir, 0o750); err != nil {
		t.Fatal(err)
	}
	c.want(0, "doctor", "--only", "home")
	c.want(exitWarned, "doctor", "--only", "home", "--strict")
	if err := os.Chmod(c.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	c.want(1, "doctor", "--only", "home")
	c.want(1, "doctor", "--only", "home.modes", "--strict")
	c.want(0, "doctor", "--only", "home.disk", "--strict")
	_, stderr := c.want(2, "doctor", "--only", "hom")
	if !strings.Contains(stderr, "home.modes") {
		t.Errorf("it does not say which there are: %s", stderr)
	}
}

// The document is of the form that is promised, and the table fits a terminal of 80 columns.
func TestDoctorForm(t *testing.T) {
	c := newClinic(t, map[string]any{"port": porttest.Free(t)})
	c.shell("ravi daemon start")
	// All but what is about the whole machine, where other tests may have left something just now, and a sandbox.
	const only = "home,host,config,database,audit,daemon,gateway,bus,ports,keys,agents"
	wanted := slices.DeleteFunc(doctor.Names(), func(id string) bool { return strings.HasPrefix(id, "leaks.") || strings.HasPrefix(id, "sandbox.") })
	stdout, _ := c.want(0, "doctor", "--json", "--only", only)
	var doc map[string]json.RawMessage
	if err := json.Unmarshal([]byte(stdout), &doc); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"generated_at", "ok", "summary", "findings", "checks"} {
		if doc[key] == nil {
			t.Errorf("there is no %s", key)
		}
		delete(doc, key)
	}
	if len(doc) > 0 {
		t.Errorf("there is more: %v", doc)
	}
	var r doctor.Report
	dec := json.NewDecoder(strings.NewReader(stdout))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		t.Error(err)
	}
	if time.Since(r.GeneratedAt) > 10*time.Minute || len(r.Checks) != len(wanted) {
		t.Errorf("%v, %d checks", r.GeneratedAt, len(r.Checks))
	}
	for _, check := range r.Checks {
		if check.Title == "" || check.Said == "" || check.Findings == nil || check.DurationMS < 0 || check.Status == doctor.Fail {
			t.Errorf("%+v", check)
		}
	}
	table, _ := c.want(0, "doctor", "--only", only)
	lines := strings.Split(table, "\n")
	for _, line := range lines[:len(r.Checks)+1] {
		if safe.Width(line) > 80 || line == "" {
			t.Errorf("%d columns: %s", safe.Width(line), line)
		}
	}
	quiet, _ := c.want(0, "doctor", "--quiet", "--only", "config")
	if quiet != "" {
		t.Errorf("quiet: %q", quiet)
	}
	var b bytes.Buffer
	err := printDoctor(&command.Env{StdoutTerminal: true}, &b, doctorReport{Report: doctor.Report{Findings: []doctor.Finding{
		{ID: "x", Severity: doctor.Error, Summary: "one\nerror: no, two", Fix: "a\x1b[2J", Evidence: []string{"b\nc"}}}}})
	if err != nil || strings.Contains(b.String(), "\x1b[2J") || strings.Contains(b.String(), "\nerror: no") || strings.Contains(b.String(), "\nc") {
		t.Errorf("what is found repaints: %q, %v", b.String(), err)
	}
}

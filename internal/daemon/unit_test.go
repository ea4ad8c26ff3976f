package daemon

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestServiceFiles(t *testing.T) {
	for name, c := range map[string]struct {
		s    Service
		make func(Service) (string, error)
	}{
		"user.service":   {Service{Program: "/opt/ravi/bin/ravi", Home: "/home/u/.ravi"}, Service.Unit},
		"system.service": {Service{Program: `/opt/a "b" $c %d\e/ravi`, Home: `/srv/a "b" $c %d\e`, System: true}, Service.Unit},
		"launchd.plist":  {Service{Program: "/opt/<a> & b/ravi", Home: "/Users/u/.ravi"}, Service.Plist},
	} {
		got, err := c.make(c.s)
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		for _, bad := range []Service{{Program: "ravi", Home: "/h"}, {Program: "/ravi", Home: "h"}, {Program: "/ravi", Home: "/h\nExecStartPre=/bin/evil"}} {
			if _, err := c.make(bad); err == nil {
				t.Errorf("%s: %+v is taken", name, bad)
			}
		}
	}
}

func TestPlistIsXML(t *testing.T) {
	text, err := Service{Program: "/opt/<a> & b/ravi", Home: "/h"}.Plist()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if word, ok := token.(xml.CharData); ok && string(word) == "/opt/<a> & b/ravi" {
			found = true
		}
	}
	if !found {
		t.Error("the program is not in it")
	}
}

// What systemd itself says of the unit.
func TestUnitIsVerified(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("SKIP-FEATURE: there is no systemd-analyze")
	}
	// The program has to be there.
	dir := filepath.Join(t.TempDir(), "a $b %c")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "ravi")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, system := range []bool{false, true} {
		text, err := Service{Program: program, Home: dir, System: system}.Unit()
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), UnitName)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		args := []string{"verify", "--man=no", file}
		if !system {
			args = append([]string{"--user"}, args...)
		}
		cmd := exec.Command("systemd-analyze", args...)
		cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), UnitName) {
			t.Errorf("system %v: %v\n%s", system, err, out)
		}
	}
}

package daemon

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"path/filepath"
	"strings"
	"unicode"
)

// Service says how a service manager is to run the daemon.
type Service struct {
	Program string // absolute
	Home    string // Ravi's, absolute
	System  bool   // for the machine, not for one user's time there
}

// UnitName is what systemd calls the daemon, and PlistName what launchd does.
const (
	UnitName  = "ravi.service"
	PlistName = "dev.ravi.daemon"
)

// Mark is in every file that Unit or Plist made.
const Mark = "Written by ravi daemon install"

// check refuses what cannot be written down in one line.
func (s Service) check() error {
	for _, path := range []string{s.Program, s.Home} {
		if !filepath.IsAbs(path) || strings.ContainsFunc(path, unicode.IsControl) {
			return fmt.Errorf("the path %q cannot stand in a service's file", path)
		}
	}
	return nil
}

// Unit is the unit for systemd. Runs and sandboxes are processes that outlive the daemon, so neither its end nor the
// death of one of them for want of memory may end the others; and no name space of its own, since the daemon knows the
// operator by sharing the operator's.
func (s Service) Unit() (string, error) {
	if err := s.check(); err != nil {
		return "", err
	}
	wantedBy := "default.target"
	if s.System {
		wantedBy = "multi-user.target"
	}
	return fmt.Sprintf(`# %s; ravi daemon uninstall removes it.
[Unit]
Description=The daemon of Ravi
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=exec
ExecStart=%s daemon run --keep-sandboxes
Environment=%s
Restart=on-failure
RestartSec=1
UMask=0077
KillMode=process
OOMPolicy=continue
TimeoutStopSec=90

[Install]
WantedBy=%s
`, Mark, quoteUnit(s.Program), quoteUnit("RAVI_HOME="+s.Home), wantedBy), nil
}

// quoteUnit writes a text as one word of a unit. In neither place that it is used for has $ a meaning.
func quoteUnit(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `%`, `%%`).Replace(text) + `"`
}

// Plist is the property list for launchd.
func (s Service) Plist() (string, error) {
	if err := s.check(); err != nil {
		return "", err
	}
	text := func(s string) string {
		var b bytes.Buffer
		_ = xml.EscapeText(&b, []byte(s)) // writing to memory cannot fail
		return b.String()
	}
	return fmt.Sprintf(`<?xml version="1.0" encoding="UTF-8"?>
<!-- %s; ravi daemon uninstall removes it. -->
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
	<key>Label</key>
	<string>%s</string>
	<key>ProgramArguments</key>
	<array>
		<string>%s</string>
		<string>daemon</string>
		<string>run</string>
		<string>--keep-sandboxes</string>
	</array>
	<key>EnvironmentVariables</key>
	<dict>
		<key>RAVI_HOME</key>
		<string>%s</string>
	</dict>
	<key>RunAtLoad</key>
	<true/>
	<key>KeepAlive</key>
	<dict>
		<key>SuccessfulExit</key>
		<false/>
	</dict>
	<key>Umask</key>
	<integer>63</integer>
	<key>AbandonProcessGroup</key>
	<true/>
	<key>ProcessType</key>
	<string>Background</string>
	<key>StandardErrorPath</key>
	<string>%s</string>
</dict>
</plist>
`, Mark, PlistName, text(s.Program), text(s.Home), text(filepath.Join(s.Home, LogFile))), nil
}

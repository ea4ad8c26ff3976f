package gitbox

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// scpLike is the short form for ssh: user@host:path.
var scpLike = regexp.MustCompile(`^(?:[A-Za-z0-9._-]+@)?[A-Za-z0-9][A-Za-z0-9.-]*:[^:]`)

// IsURL tells whether a --repo value is meant as a URL rather than a path. An existing path wins, as with git.
func IsURL(s string) bool {
	if _, err := os.Lstat(s); err == nil {
		return false
	}
	head, _, _ := strings.Cut(s, "/")
	return strings.Contains(s, "://") || strings.Contains(s, "::") || strings.Contains(head, ":") && scpLike.MatchString(s)
}

// remote is a URL with its credentials apart.
type remote struct {
	url    string // without credentials, fit for logs, arguments and files
	header string // an Authorization header, or empty
	secret []string
}

func parseRemote(s string) (*remote, error) {
	refuse := func(why string) error {
		return fmt.Errorf("%w: the repository's URL %s; use https://… or ssh://…", ErrRefused, why)
	}
	if strings.HasPrefix(s, "-") || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return nil, refuse("holds blanks or begins with '-'")
	}
	if strings.Contains(s, "::") && !strings.Contains(s, "://") {
		return nil, refuse("names a transport helper")
	}
	if !strings.Contains(s, "://") {
		if !scpLike.MatchString(s) {
			return nil, refuse("is not one")
		}
		return &remote{url: s}, nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" {
		return nil, refuse("cannot be read") // the cause would repeat it, password and all
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return nil, refuse("has a query or fragment, which may be a credential")
	}
	if strings.HasPrefix(u.Host, "-") || strings.Contains(u.User.Username(), "\n") {
		return nil, refuse("has an unusable host or user")
	}
	rm := &remote{}
	switch u.Scheme {
	case "https":
	case "http":
		// Only where nobody is on the way.
		if ip := net.ParseIP(u.Hostname()); u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return nil, refuse("would go over the network in the clear")
		}
	case "ssh":
		if _, has := u.User.Password(); has {
			return nil, refuse("has a password, which ssh takes from its agent")
		}
		if strings.HasPrefix(u.User.Username(), "-") {
			return nil, refuse("has an unusable user")
		}
		rm.url = u.String()
		return rm, nil
	default:
		return nil, refuse("has the scheme " + printable(u.Scheme))
	}
	if u.User != nil {
		// A user name alone is, as often as not, a token.
		password, _ := u.User.Password()
		rm.header = "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password))
		for _, v := range []string{u.User.Username(), password} {
			if len(v) > 3 {
				rm.secret = append(rm.secret, v, url.QueryEscape(v), url.PathEscape(v))
			}
		}
		u.User = nil
	}
	rm.url = u.String()
	return rm, nil
}

// RedactURL is the URL without what may be a credential, for records and logs.
func RedactURL(s string) string {
	rm, err := parseRemote(s)
	if err != nil {
		return "(unusable URL)"
	}
	return rm.url
}

// webURL and scpURL are the forms of a URL that name a repository on a host.
var (
	webURL = regexp.MustCompile(`^(?:https|ssh|git)://(?:[^/@\s\\]*@)?([A-Za-z0-9.-]+)(?::[0-9]+)?/([A-Za-z0-9._~/-]+?)(?:\.git)?/?$`)
	scpURL = regexp.MustCompile(`^(?:[A-Za-z0-9._-]+@)?([A-Za-z0-9.-]+):([A-Za-z0-9._~-][A-Za-z0-9._~/-]*?)(?:\.git)?/?$`)
)

// Hosted is a repository's host and its path there, as github.com/owner/name, from a URL in any of the usual forms; empty
// if it is in none. Nobody vouches for it: it is what the URL says.
func Hosted(url string) string {
	form := scpURL
	if strings.Contains(url, "://") {
		form = webURL
	}
	m := form.FindStringSubmatch(url)
	if m == nil {
		return ""
	}
	return strings.ToLower(m[1]) + "/" + strings.Trim(m[2], "/")
}

// CloneURL fetches a repository into dir, which must not exist, as a bare one that Open takes. It is the operator's own
// git that does it: with their configuration, credential helpers and ssh, so that their rights apply, but without hooks,
// templates, submodules, or transports other than https and ssh. A credential in the URL goes to git through its
// environment and is neither an argument nor written anywhere.
func CloneURL(ctx context.Context, rawURL, dir string) error {
	if err := needGit(ctx, minGit); err != nil {
		return err
	}
	rm, err := parseRemote(rawURL)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "git",
		"-c", "protocol.allow=never", "-c", "protocol.https.allow=always", "-c", "protocol.ssh.allow=always", "-c", "protocol.http.allow=always",
		"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "submodule.recurse=false", "-c", "transfer.bundleURI=false",
		"-c", "fetch.recurseSubmodules=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "clone.rejectShallow=false",
		"clone", "--bare", "--template=", "--quiet", "--no-local", "--", rm.url, dir)
	cmd.Dir = filepath.Dir(dir)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case "GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSH_VARIANT", "GIT_ASKPASS", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_SSL_CAINFO", "GIT_HTTP_USER_AGENT":
			return false
		}
		return strings.HasPrefix(name, "GIT_") // what points at another repository, or traces secrets
	})
	cmd.Env = append(cmd.Env, "GIT_TERMINAL_PROMPT=0", "LC_ALL=C")
	if rm.header != "" {
		u, _ := url.Parse(rm.url)
		cmd.Env = append(cmd.Env, "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http."+u.Scheme+"://"+u.Host+"/.extraHeader", "GIT_CONFIG_VALUE_0="+rm.header)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var stderr tail
	cmd.Stderr = &stderr
	if err := gitFailed(ctx, "clone", cmd.Run(), rm.scrub(stderr.String())); err != nil {
		return errors.Join(fmt.Errorf("fetching %s: %w", printable(rm.url), err), os.RemoveAll(dir))
	}
	// Nothing of the transfer is needed any more, an insteadOf rule with a token included.
	config, err := os.ReadFile(dir + "/config")
	if err != nil {
		return err
	}
	text := "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
	if bytes.Contains(bytes.ToLower(config), []byte("objectformat = sha256")) {
		text = "[core]\n\trepositoryformatversion = 1\n\tbare = true\n[extensions]\n\tobjectformat = sha256\n"
	}
	return os.WriteFile(dir+"/config", []byte(text), 0o600)
}

func (rm *remote) scrub(s string) string {
	for _, v := range rm.secret {
		s = strings.ReplaceAll(s, v, "***")
	}
	return userInfo.ReplaceAllString(s, "://***@") // one that an insteadOf rule of the operator's put in
}

var userInfo = regexp.MustCompile(`://[^/@\s'"]+@`)

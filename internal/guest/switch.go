package guest

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Nothing of an image's own sudo or su can work in a sandbox: they want PAM, a
// password that nobody has, and files that belong to the host's root. Scripts
// call them all the same. So links of those names lead to this program, which
// lets everybody in the sandbox be anybody in it. What keeps the sandbox in is
// outside, and root inside is nobody there.
//
// To become root a program must have the set-user-id bit, and so a copy of its
// own in the sandbox. It is made when it is first asked for, over a socket:
// most sandboxes never need it.

// switchNames are the programs that are stood in for.
var switchNames = []string{"sudo", "su"}

// clientName is the client of Ravi's gateway, which is this program as well.
// An image may have a ravi of its own, as the host's tools do where Ravi is
// installed: inside, that one would find neither its state nor a kernel to use.
const clientName = "ravi"

const (
	switchSocket = "switch.sock"
	switchCopy   = "switch"
	defaultRun   = "/run/ravi"
)

// switchExit is what sudo exits with when it fails itself.
const switchExit = 1

// Switch stands in for sudo and su, and returns what to exit with if it could
// not become the command.
func Switch(name string, args []string) int {
	err := runSwitch(name, args)
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	switch {
	case errors.Is(err, errNoCommand):
		return 127
	case errors.Is(err, errNotExec):
		return 126
	}
	return switchExit
}

func runSwitch(name string, args []string) error {
	var call switchCall
	var err error
	if name == "su" {
		call, err = parseSu(args)
	} else {
		call, err = parseSudo(args)
	}
	if err != nil || call.nothing {
		return err
	}
	if os.Geteuid() != 0 {
		return becomeRoot(name, args)
	}
	return call.exec(systemAccounts)
}

// becomeRoot starts this program again from the copy that is root's.
func becomeRoot(name string, args []string) error {
	conn, err := net.DialTimeout("unix", filepath.Join(defaultRun, switchSocket), 5*time.Second)
	if err != nil {
		return fmt.Errorf("cannot become root in this sandbox: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	answer, err := io.ReadAll(io.LimitReader(conn, 4096))
	if err != nil {
		return fmt.Errorf("cannot become root in this sandbox: %w", err)
	}
	path, ok := strings.CutPrefix(string(answer), "ok ")
	if !ok {
		return fmt.Errorf("cannot become root in this sandbox: %s", answer)
	}
	if os.Getenv(onceMark) != "" {
		return errors.New("cannot become root in this sandbox: its file system ignores the set-user-id bit")
	}
	return syscall.Exec(path, append([]string{name}, args...), append(os.Environ(), onceMark+"=1"))
}

// onceMark keeps a program whose set-user-id bit does nothing from starting
// itself for ever.
const onceMark = "RAVI_SWITCHING"

// installSwitch puts the links in their places and offers the copy.
func (s *Server) installSwitch() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.opts.RunDir, 0o755); err != nil {
		return err
	}
	var errs []error
	for _, name := range switchNames {
		errs = append(errs, placeLink(self, name, "/usr/bin", "/usr/local/bin"))
	}
	errs = append(errs, placeClient(self, defaultPath))
	path := filepath.Join(s.opts.RunDir, switchSocket)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	// Closed with the server; the accept loop below ends by it.
	s.tasks.Go(func() {
		<-s.stopped.Done()
		l.Close()
	})
	s.tasks.Go(func() { s.offerSwitch(l, self) })
	return errors.Join(append(errs, os.Chmod(path, 0o666))...)
}

// placeClient makes the client's name lead to this program, and every other
// program of that name on the path.
func placeClient(self, path string) error {
	errs := []error{placeLink(self, clientName, "/usr/local/bin", "/usr/bin")}
	for _, dir := range filepath.SplitList(path) {
		if _, err := os.Lstat(filepath.Join(dir, clientName)); err == nil {
			errs = append(errs, placeLink(self, clientName, dir))
		}
	}
	return errors.Join(errs...)
}

// placeLink makes a name lead to this program in the first of the directories
// where that can be.
func placeLink(self, name string, dirs ...string) error {
	var errs []error
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if to, err := os.Readlink(path); err == nil && to == self {
			return nil
		}
		temp := filepath.Join(dir, uploadPrefix+"n"+randomID())
		err := os.Symlink(self, temp)
		if err == nil {
			if err = os.Rename(temp, path); err == nil {
				return nil
			}
			_ = os.Remove(temp)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (s *Server) offerSwitch(l net.Listener, self string) {
	path := filepath.Join(s.opts.RunDir, switchCopy)
	made := false
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		answer := "ok " + path
		if !made {
			if err := copySwitch(self, path); err != nil {
				answer = err.Error()
			} else {
				made = true
			}
		}
		// Who does not read this does not get to be root; nobody else waits for it.
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		_, _ = io.WriteString(conn, answer)
		conn.Close()
	}
}

// copySwitch copies this program to path, as root's and with the
// set-user-id bit.
func copySwitch(self, path string) (err error) {
	src, err := os.Open(self)
	if err != nil {
		return err
	}
	defer src.Close()
	temp := path + ".new"
	dst, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o700)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	err = errors.Join(err, dst.Chown(0, 0), dst.Chmod(0o755|os.ModeSetuid), dst.Close())
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return nil
}

// switchCall is what sudo or su was asked to do.
type switchCall struct {
	nothing bool // only the password cache was meant, and there is none
	user    string
	group   string
	login   bool // as after a fresh login: own directory, own environment
	shell   bool // a shell, which runs command if there is one
	keepEnv bool
	program string // the shell to use, "" for the user's own
	dir     string
	vars    []string
	command []string
	su      bool
}

// exec becomes the command.
func (c switchCall) exec(accounts accounts) error {
	caller, err := accounts.lookup(strconv.Itoa(os.Getuid()))
	if err != nil {
		return err
	}
	to, err := accounts.lookup(strings.TrimPrefix(c.user, "#"))
	if err != nil {
		return err
	}
	if c.group != "" {
		if to.gid, err = accounts.groupID(strings.TrimPrefix(c.group, "#")); err != nil {
			return err
		}
	}
	env := c.environment(caller, to, os.Environ())
	dir, err := os.Getwd()
	if err != nil || c.login {
		dir = "/"
	}
	if c.login {
		if info, err := os.Stat(to.home); err == nil && info.IsDir() {
			dir = to.home
		}
	}
	if c.dir != "" {
		dir = c.dir
	}
	argv := c.argv(to, env)
	path, err := lookPath(argv[0], dir, env)
	if err != nil {
		return err
	}
	if c.login {
		argv[0] = "-" + filepath.Base(argv[0])
	}
	if err := os.Chdir(dir); err != nil {
		return err
	}
	if err := syscall.Setgroups(groupsOf(to)); err != nil {
		return fmt.Errorf("take the groups of %s: %w", to.name, err)
	}
	if err := syscall.Setresgid(int(to.gid), int(to.gid), int(to.gid)); err != nil {
		return fmt.Errorf("become %s: %w", to.name, err)
	}
	if err := syscall.Setresuid(int(to.uid), int(to.uid), int(to.uid)); err != nil {
		return fmt.Errorf("become %s: %w", to.name, err)
	}
	return startError(path, dir, syscall.Exec(path, argv, env))
}

func groupsOf(a account) []int {
	out := make([]int, 0, len(a.groups))
	for _, g := range a.groups {
		out = append(out, int(g))
	}
	return out
}

// argv is the command, or a shell that runs it.
func (c switchCall) argv(to account, env []string) []string {
	if !c.login && !c.shell {
		return c.command
	}
	shell := to.shell
	if c.shell && !c.login && !c.su {
		if v := envValue(env, "SHELL"); v != "" {
			shell = v
		}
	}
	if c.program != "" {
		shell = c.program
	}
	if len(c.command) == 0 {
		return []string{shell}
	}
	if c.su {
		return append([]string{shell}, c.command...)
	}
	words := make([]string, 0, len(c.command))
	for _, w := range c.command {
		words = append(words, quoteWord(w))
	}
	return []string{shell, "-c", strings.Join(words, " ")}
}

// quoteWord makes a word survive a shell.
func quoteWord(w string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./=:,@%+$", r)
	}
	if w != "" && strings.IndexFunc(w, func(r rune) bool { return !plain(r) }) < 0 {
		return w
	}
	return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
}

// keptVariables pass from the caller to a command even when the environment
// is made anew: where to write, how to speak, and what leads to the network.
var keptVariables = []string{
	"TERM", "COLORTERM", "LANG", "LANGUAGE", "TZ", "DISPLAY", "PATH", markName, "E2B_SANDBOX",
	"http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT",
	"DEBIAN_FRONTEND",
}

func (c switchCall) environment(caller, to account, old []string) []string {
	vars := make(map[string]string)
	for _, entry := range old {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || name == onceMark {
			continue
		}
		everything := c.keepEnv || c.su && !c.login
		if everything || slices.Contains(keptVariables, name) || strings.HasPrefix(name, "LC_") {
			vars[name] = value
		}
	}
	if !c.keepEnv {
		vars["HOME"], vars["SHELL"] = to.home, to.shell
		vars["USER"], vars["LOGNAME"] = to.name, to.name
	}
	if vars["PATH"] == "" || c.login {
		vars["PATH"] = defaultPath
	}
	if !c.su {
		vars["SUDO_USER"] = caller.name
		vars["SUDO_UID"] = strconv.FormatUint(uint64(caller.uid), 10)
		vars["SUDO_GID"] = strconv.FormatUint(uint64(caller.gid), 10)
		vars["SUDO_COMMAND"] = strings.Join(c.command, " ")
	}
	for _, v := range c.vars {
		name, value, _ := strings.Cut(v, "=")
		vars[name] = value
	}
	out := make([]string, 0, len(vars))
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		out = append(out, name+"="+vars[name])
	}
	return out
}

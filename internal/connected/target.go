package connected

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	envKey  = "RAVI_CONTEXT_KEY"
	envURL  = "RAVI_GATEWAY_URL"
	envWait = "RAVI_GATEWAY_WAIT"

	keyPrefix = "rctx_"
	maxKey    = 512
	// serviceHost is what the gateway is called where it has no address of its own.
	serviceHost   = "gateway.ravi.internal"
	serviceDomain = ".ravi.internal"

	defaultWait = 10 * time.Second
	maxWait     = 10 * time.Minute
)

// target is where the gateway is, and who asks it.
type target struct {
	base string // scheme and host
	unix string // the socket's path, if it is one
	own  bool   // it is the socket of this machine's own daemon, which nobody named
	key  string
	wait time.Duration
	dial func(context.Context) (net.Conn, error) // instead of connecting to unix, if it is set
}

// String is the address for people. The key is no part of it.
func (t target) String() string {
	if t.unix != "" {
		return "unix:" + t.unix
	}
	return t.base
}

func required(message, hint string) *failure {
	return &failure{code: codeRequired, message: message, hint: hint, exit: ExitFailed}
}

// targetOf reads the environment. What is wrong with it is said without repeating it. socket is where the gateway is if
// nothing says so; inside a sandbox there is none.
func targetOf(getenv func(string) string, socket string) (target, *failure) {
	t := target{key: getenv(envKey)}
	const give = "a run has one when it was started with --connect read, or --connect write=tasks: ask whoever started this sandbox"
	address := getenv(envURL)
	if address == "" && socket != "" {
		t.own, address = true, "unix:"+socket
	}
	switch {
	case t.key == "" && address == "":
		return t, required("this is ravi inside a sandbox, where it works by asking Ravi's gateway; "+envKey+" and "+envURL+" are not set, so this sandbox is not connected", give)
	case t.key == "" && socket != "":
		return t, required(envKey+" is set, and empty: there is no key to ask with", "use the key that you were given; without the variable, ravi works for the operator")
	case t.key == "":
		return t, required("this is ravi inside a sandbox, where it works by asking Ravi's gateway; "+envKey+" is not set, so there is no key to ask with", give)
	case !validKey(t.key):
		return t, required(envKey+" is not a key: keys begin with "+keyPrefix, "use the variable as the run got it; a key cannot be shortened or changed")
	case address == "":
		return t, required(envURL+" is not set, so it is not known where the gateway is", "inside a sandbox it is http://"+serviceHost)
	}
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		path = strings.TrimPrefix(path, "//")
		if !filepath.IsAbs(path) || strings.ContainsRune(path, 0) {
			return t, required(envURL+" names a socket without its whole path", "write it as unix:/PATH")
		}
		if _, err := os.Lstat(path); t.own && err != nil {
			return t, required("with "+envKey+" set, ravi asks the gateway for everything, and that is not there: "+path,
				"the operator starts it with: ravi daemon start; or set "+envURL)
		}
		t.base, t.unix = "http://"+serviceHost, path
	} else if why := t.parse(address); why != "" {
		return t, required(envURL+" "+why, "it is written as http://"+serviceHost+", https://HOST or unix:/PATH")
	}
	return t, t.waiting(getenv)
}

// parse takes an address apart, and says what is wrong with it.
func (t *target) parse(address string) string {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return "is not an address"
	case u.User != nil:
		return "has a user or password in it: the key is all that is needed"
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || u.Opaque != "":
		return "has more in it than a host"
	case u.Scheme == "http" && !near(u.Hostname()):
		return "would send the key through the network as plain text: use https"
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "has a port that cannot be"
		}
	}
	t.base = u.Scheme + "://" + u.Host
	return ""
}

// near says whether what is sent to a host stays on this machine.
func near(host string) bool {
	if host == "localhost" || strings.HasSuffix(host, serviceDomain) {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// validKey says whether a text can be a key. It goes into a header, so it is not sent to find out.
func validKey(key string) bool {
	rest, ok := strings.CutPrefix(key, keyPrefix)
	if !ok || len(rest) < 8 || len(key) > maxKey {
		return false
	}
	return strings.Trim(rest, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") == ""
}

// dialer connects to the target, whatever address it is asked for.
func (t target) dialer() func(ctx context.Context, network, address string) (net.Conn, error) {
	d := &net.Dialer{Timeout: max(min(t.wait, 10*time.Second), time.Second)}
	switch {
	case t.dial != nil:
		return func(ctx context.Context, _, _ string) (net.Conn, error) { return t.dial(ctx) }
	case t.unix == "":
		return d.DialContext
	}
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		const most = 107 // bytes of a socket's path
		if len(t.unix) <= most {
			return d.DialContext(ctx, "unix", t.unix)
		}
		dir, err := unix.Open(filepath.Dir(t.unix), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, &net.OpError{Op: "dial", Net: "unix", Err: err}
		}
		defer unix.Close(dir)
		return d.DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(dir)+"/"+filepath.Base(t.unix))
	}
}

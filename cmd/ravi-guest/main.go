// Command ravi-guest is the agent inside a sandbox. Started without arguments
// it serves the link on descriptor 3; called by the name sudo or su, it is
// that program's stand-in, and called by the name ravi the client of Ravi's
// gateway.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/connected"
	"ravi/internal/guest"
	"ravi/internal/link"
)

// version is set by the linker.
var version = "dev"

func main() {
	os.Exit(run())
}

func run() int {
	switch name := filepath.Base(os.Args[0]); name {
	case "sudo", "su":
		return guest.Switch(name, os.Args[1:])
	case "ravi":
		return connected.Main(os.Args[1:], version)
	}
	if err := serve(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "ravi-guest:", err)
		return 1
	}
	return 0
}

func serve(args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("ravi-guest", flag.ContinueOnError)
	listen := flags.String("listen", "", "serve on this loopback `ADDRESS` instead of the link, for conformance tests")
	token := flags.String("token", "", "ask callers of --listen for this access `TOKEN`")
	showVersion := flags.Bool("version", false, "print the version and exit")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *showVersion {
		_, err := fmt.Fprintln(stdout, "ravi-guest", version)
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if *token != "" && *listen == "" {
		return fmt.Errorf("--token is for --listen: who holds the link needs none")
	}
	limit, err := memoryLimit()
	if err != nil {
		return err
	}
	init, err := harden()
	if err != nil {
		return err
	}
	if init && *listen == "" {
		if err := guest.TuneKernel(); err != nil {
			return err
		}
	}
	writable := writableFolders()
	opts := guest.Options{
		Version:     version,
		Init:        true,
		Token:       *token,
		MemoryLimit: limit,
	}
	// Where processes are known by a mark, the files are the host's own: root in
	// there changes nothing of them.
	if init && os.Geteuid() == 0 && os.Getenv("RAVI_SANDBOX") == "" {
		opts.Switch, opts.SwitchNow = true, len(writable) > 0
		opts.RunDir = "/run/ravi"
		opts.SpoolDir = "/run/ravi/spool"
		adoptHome()
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM, unix.SIGINT)
	ended := make(chan error, 1)
	var s *guest.Server
	if *listen != "" {
		l, err := guest.Listen(*listen)
		if err != nil {
			return err
		}
		s = guest.New(opts)
		go func() { ended <- s.ServeTCP(l) }()
	} else {
		conn, err := link.OpenEnd(guest.LinkRead, guest.LinkWrite)
		if err != nil {
			return err
		}
		if opts.Lanes, err = lanes(); err != nil {
			return err
		}
		s = guest.New(opts)
		if len(writable) > 0 {
			if err := guest.CloseFiles(writable); err != nil {
				return fmt.Errorf("closing all but the workspace: %w", err)
			}
		}
		token := os.Getenv(link.EnvToken)
		os.Unsetenv(link.EnvToken)
		go func() { ended <- s.ServeLink(conn, token) }()
	}
	select {
	case err = <-ended:
		// Nobody can reach the sandbox any more.
	case <-stop:
	}
	if init {
		// The kernel ends everything that is left when PID 1 is over.
		return err
	}
	err = errors.Join(err, s.Close())
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return errors.Join(err, guest.EndDescendants(ctx))
}

// adoptHome gives the ordinary user a home where the image could not, since it
// was made by somebody who has no other user's id to give.
func adoptHome() {
	const user = 1000
	for _, dir := range []string{"/home/user", "/workspace"} {
		var st unix.Stat_t
		if unix.Lstat(dir, &st) == nil && st.Uid == 0 {
			// A shared workspace stays its owner's, who is root in here.
			_ = unix.Lchown(dir, user, user)
		}
	}
}

// harden keeps the sandbox's users away from the agent's memory and
// descriptors, and makes it the parent of all orphans.
func harden() (init bool, err error) {
	// Whatever this program was started with is not for those that it starts.
	// An old kernel does not know the call; the link itself is seen to later.
	err = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err != nil && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) {
		return false, fmt.Errorf("keep descriptors from other programs: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return false, fmt.Errorf("make the agent undumpable: %w", err)
	}
	if os.Getpid() == 1 {
		return true, nil
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return false, fmt.Errorf("adopt orphans: %w", err)
	}
	return false, nil
}

// writableFolders are those that alone may be written; none: all may. They are not passed on.
func writableFolders() []string {
	const name = "RAVI_WRITABLE"
	v := os.Getenv(name)
	os.Unsetenv(name)
	return filepath.SplitList(v)
}

// lanes are those that this program was born with. How many is not passed on.
func lanes() ([]link.End, error) {
	v := os.Getenv(link.EnvLanes)
	if v == "" {
		return nil, nil
	}
	if err := os.Unsetenv(link.EnvLanes); err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(v, 10, 8)
	if err != nil {
		return nil, fmt.Errorf("%s=%q is not a number of lanes", link.EnvLanes, v)
	}
	return link.OpenLanes(link.FirstLane, int(n))
}

// memoryLimit reads the sandbox's limit. It is not passed on.
func memoryLimit() (uint64, error) {
	const name = "RAVI_MEMORY_LIMIT"
	v := os.Getenv(name)
	if v == "" {
		return 0, nil
	}
	if err := os.Unsetenv(name); err != nil {
		return 0, err
	}
	limit, err := strconv.ParseUint(v, 10, 63)
	if err != nil || limit == 0 {
		return 0, fmt.Errorf("%s=%q is not a number of bytes", name, v)
	}
	return limit, nil
}

package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"ravi/internal/network/tap"
)

// Network is a sandbox's network: what its keeper starts for it besides the
// relay. The gateway reads what the sandbox sends and has no network itself; the
// dialer opens connections for it and never reads a guest's byte.
type Network struct {
	// Program is ravi-gateway, which is both.
	Program string `json:"program"`
	// Policy is handed to both as it is. It can be replaced while they run.
	Policy json.RawMessage `json:"policy"`
	// ProxyAuthFile holds the credentials for an upstream proxy, which the dialer
	// alone reads; empty: there are none.
	ProxyAuthFile string `json:"proxy_auth_file,omitempty"`
	// RootsFile holds the certificates that servers may lead to, in place of the
	// host's own; empty: those.
	RootsFile string `json:"roots_file,omitempty"`
	// Device is how the sandbox's end looks.
	Device tap.Config `json:"device"`
	// The identities of the two; zero keeps the keeper's own.
	GatewayUID uint32 `json:"gateway_uid"`
	DialerUID  uint32 `json:"dialer_uid"`
}

// netParts are the processes of a sandbox's network.
type netParts struct {
	gateway, dialer *exec.Cmd
	// policies are where replacements are sent.
	policies []*os.File
	// namespace is for the maker.
	namespace *os.File
}

// maxPolicy bounds a policy, in bytes: a plan or a request that holds one must fit
// a line.
const maxPolicy = 512 << 10

// plug makes the sandbox's network and starts what serves it. It is called when
// children of this thread are born into the sandbox's process namespace.
func (s *supervisor) plug() error {
	n := s.plan.Network
	if len(n.Policy) > maxPolicy {
		return fmt.Errorf("the network policy has %d bytes, more than %d", len(n.Policy), maxPolicy)
	}
	cable, err := tap.New(n.Device)
	if err != nil {
		return err
	}
	defer cable.Device.Close()
	s.net.namespace = cable.Namespace
	events, err := listen(filepath.Join(s.plan.Dir, NetSocket))
	if err != nil {
		return err
	}
	defer events.Close()
	served, err := events.File()
	if err != nil {
		return err
	}
	defer served.Close()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	asks, answers := os.NewFile(uintptr(fds[0]), "dialer"), os.NewFile(uintptr(fds[1]), "dialer")
	defer asks.Close()
	defer answers.Close()
	// The dialer first: a gateway without one is of no use.
	auth, err := OpenCredentials(n.ProxyAuthFile)
	if err != nil {
		return err
	}
	defer auth.Close()
	s.net.dialer, err = s.startNet("dial", n.DialerUID, 0, answers, auth)
	if err != nil {
		return err
	}
	s.net.gateway, err = s.startNet("gateway", n.GatewayUID, unix.CLONE_NEWNET|unix.CLONE_NEWNS, asks, cable.Device, served)
	return err
}

// OpenCredentials opens the file with the credentials for a proxy, if it is closed
// to others; an empty path gives an empty file. It is not read here.
func OpenCredentials(path string) (*os.File, error) {
	if path == "" {
		return os.Open(os.DevNull)
	}
	refuse := func(err error) (*os.File, error) {
		return nil, fmt.Errorf("the proxy's credentials (network.proxy_auth_file) %s: %w", path, err)
	}
	// Without blocking, should it be a pipe.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ELOOP):
		return refuse(errors.New("it is a symbolic link; name the file itself"))
	case err != nil:
		return refuse(err)
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	switch {
	case err != nil:
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		err = errors.New("it is no regular file")
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		err = fmt.Errorf("it belongs to the user %d; it must be yours or root's", st.Uid)
	case st.Mode&0o077 != 0:
		err = fmt.Errorf("others may use it (mode %04o): chmod 0600 it", st.Mode&0o7777)
	}
	if err != nil {
		f.Close()
		return refuse(err)
	}
	return f, nil
}

// startNet starts one of the two; its first descriptor is where policies come.
func (s *supervisor) startNet(mode string, uid uint32, flags uintptr, files ...*os.File) (*exec.Cmd, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	r, w := os.NewFile(uintptr(fds[0]), "policies"), os.NewFile(uintptr(fds[1]), "policies")
	defer r.Close()
	cmd := &exec.Cmd{
		Path:        s.plan.Network.Program,
		Args:        []string{"ravi-gateway", mode, fmt.Sprint(uid)},
		Env:         []string{"GOMEMLIMIT=256MiB"},
		Dir:         "/",
		Stderr:      s.log(),
		ExtraFiles:  append([]*os.File{r}, files...),
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Cloneflags: flags}, // it dies with the relay, its init
	}
	if s.plan.Network.RootsFile != "" {
		cmd.Env = append(cmd.Env, "SSL_CERT_FILE="+s.plan.Network.RootsFile)
	}
	if err := s.start(cmd); err != nil {
		w.Close()
		return nil, fmt.Errorf("cannot start the sandbox's network (%s): %w", mode, err)
	}
	s.net.policies = append(s.net.policies, w)
	return cmd, sendPolicy(w, s.plan.Network.Policy)
}

// sendPolicy sends a policy in a file in memory that nobody can change. So however
// long it is, and whether the other side takes it or not, this does not wait.
func sendPolicy(to *os.File, policy []byte) error {
	fd, err := unix.MemfdCreate("policy", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return fmt.Errorf("a file in memory for the network policy: %w", err)
	}
	f := os.NewFile(uintptr(fd), "policy")
	defer f.Close()
	if _, err := f.Write(policy); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK); err != nil {
		return fmt.Errorf("sealing the network policy: %w", err)
	}
	err = unix.Sendmsg(int(to.Fd()), []byte{0}, unix.UnixRights(int(f.Fd())), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	if errors.Is(err, unix.EAGAIN) {
		return errors.New("the sandbox's network does not take policies any more")
	}
	return err
}

// replacePolicy hands both a new policy.
func (s *supervisor) replacePolicy(policy json.RawMessage) error {
	switch {
	case s.plan.Network == nil:
		return errors.New("the sandbox has no network")
	case len(policy) > maxPolicy:
		return fmt.Errorf("the network policy has %d bytes, more than %d", len(policy), maxPolicy)
	}
	var errs []error
	for _, w := range s.net.policies {
		errs = append(errs, sendPolicy(w, policy))
	}
	return errors.Join(errs...)
}

// DialEvents connects to the sandbox's network gateway, which tells what it
// decides (package network). A sandbox without a network has none.
func (h *Handle) DialEvents(ctx context.Context) (net.Conn, error) {
	select {
	case <-h.wired:
		return dialIn(ctx, h.dir, NetSocket)
	case <-h.ended:
		return nil, ErrGone
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// SetPolicy replaces the policy of the sandbox's network. It returns when the
// gateway has been handed it.
func (h *Handle) SetPolicy(ctx context.Context, policy json.RawMessage) error {
	_, err := h.ask(ctx, Request{Op: "network", Policy: policy})
	return err
}

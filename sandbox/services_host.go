package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/backend/host"
	"ravi/internal/network"
)

// On the host there is no gateway that services could be reached through, and
// whoever may reach Ravi must not be taken for its operator. So a sandbox with
// services, or of which that is asked (WithWorkspaceOnly), is sealed there: Ravi's own files and processes are hidden from it, and
// each of its services listens on a socket in a folder that it sees, read-only.

// maxVisits bounds the connections to one service that are open at once. More wait.
const maxVisits = 256

// sealed says whether Ravi is hidden from the sandbox's commands, though they are
// the host's own.
func (s *Sandbox) sealed() bool {
	return s.backend == BackendHost && (len(s.serviceNames) > 0 || s.workspaceOnly)
}

// seal prepares the environment of a sandbox of the host backend.
func (s *Sandbox) seal() {
	dir := filepath.Dir(s.servicesDir)
	s.env["PATH"] = host.SealedPath(dir, s.env["PATH"])
	if s.workspaceOnly {
		s.env["HOME"] = filepath.Join(dir, host.HomeDir)
		delete(s.env, "TMPDIR")
	}
}

func (s *Sandbox) servicePath(name string) string { return filepath.Join(s.servicesDir, name+".sock") }

// ServiceURL is where the sandbox's processes reach the service of that name: a URL,
// or on the host "unix:" and the path of a socket. That can be longer than the 107
// bytes that a socket's address holds; then it is reached from its folder.
func (s *Sandbox) ServiceURL(name string) string {
	if s.backend == BackendHost {
		return "unix:" + s.servicePath(name)
	}
	return "http://" + name + ".ravi.internal"
}

// serve has the services reached, until the sandbox ends.
func (s *Sandbox) serve(ctx context.Context, services map[string]Service) (*visits, error) {
	if s.backend == BackendHost {
		return serveSockets(s.servicesDir, services, s.inst.Ended())
	}
	return receive(ctx, visitsOf(s.inst), func(v network.Visit) Service {
		if v.Host != "" {
			return s.away.service(v)
		}
		return services[v.Service]
	})
}

// serveSockets listens for the services in dir until ended is closed.
func serveSockets(dir string, services map[string]Service, ended <-chan struct{}) (*visits, error) {
	d, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("the folder of the sandbox's services: %w", err)
	}
	defer d.Close()
	listeners := map[string]*net.UnixListener{}
	closeAll := func() {
		for _, l := range listeners {
			l.Close()
		}
	}
	for name := range services {
		if listeners[name], err = listenIn(d, name+".sock"); err != nil {
			delete(listeners, name)
			closeAll()
			return nil, fmt.Errorf("listening for the service %q: %w", name, err)
		}
	}
	v := &visits{over: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	v.stop = stop
	go func() {
		defer close(v.over)
		var all sync.WaitGroup
		for name, l := range listeners {
			all.Go(func() { takeVisits(ctx, l, services[name]) })
		}
		select {
		case <-ctx.Done():
		case <-ended:
		}
		stop()
		closeAll()
		all.Wait()
	}()
	return v, nil
}

// listenIn makes a socket in a folder that nobody else can enter. What lies there
// is the socket of an owner that is gone.
func listenIn(dir *os.File, name string) (*net.UnixListener, error) {
	if err := unix.Unlinkat(int(dir.Fd()), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, err
	}
	path := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	// It goes with the folder. By then the descriptor in its name is another's.
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// takeVisits serves what connects to a socket, until that is closed.
func takeVisits(ctx context.Context, l *net.UnixListener, serve Service) {
	var all sync.WaitGroup
	defer all.Wait()
	slots := make(chan struct{}, maxVisits)
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		conn, err := l.Accept()
		if err != nil {
			<-slots
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			// This process has no descriptor left, for a while.
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		all.Go(func() {
			defer func() { <-slots }()
			defer conn.Close()
			cut := context.AfterFunc(ctx, func() { conn.Close() })
			defer cut()
			serve(ctx, conn)
		})
	}
}

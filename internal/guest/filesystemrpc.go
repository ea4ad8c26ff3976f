package guest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"ravi/internal/guestapi/filesystem"
	"ravi/internal/guestapi/filesystem/filesystemconnect"
)

type filesystemService struct{ *Server }

var _ filesystemconnect.FilesystemHandler = filesystemService{}

// at resolves the path of a request for its user.
func (s filesystemService) at(req connect.AnyRequest, path string) (string, account, error) {
	user, err := s.userOf(req.Header(), "")
	if err != nil {
		return "", account{}, err
	}
	abs, err := s.resolve(path, user)
	return abs, user, err
}

func (s filesystemService) entry(path string) (*filesystem.EntryInfo, error) {
	return entryAt(path, &nameCache{from: s.opts.accounts})
}

func (s filesystemService) Stat(_ context.Context, req *connect.Request[filesystem.StatRequest]) (*connect.Response[filesystem.StatResponse], error) {
	path, _, err := s.at(req, req.Msg.GetPath())
	if err != nil {
		return nil, rpcError(err)
	}
	e, err := s.entry(path)
	if err != nil {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&filesystem.StatResponse{Entry: e}), nil
}

func (s filesystemService) MakeDir(_ context.Context, req *connect.Request[filesystem.MakeDirRequest]) (*connect.Response[filesystem.MakeDirResponse], error) {
	path, user, err := s.at(req, req.Msg.GetPath())
	if err != nil {
		return nil, rpcError(err)
	}
	switch info, err := os.Stat(path); {
	case err == nil && info.IsDir():
		return nil, rpcError(fmt.Errorf("directory '%s': %w", path, fs.ErrExist))
	case err == nil:
		return nil, rpcError(fmt.Errorf("%w: path '%s' exists and is not a directory", errBadArgument, path))
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR):
		return nil, rpcError(err)
	}
	if err := makeDirs(path, user); err != nil {
		return nil, rpcError(err)
	}
	e, err := s.entry(path)
	if err != nil {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&filesystem.MakeDirResponse{Entry: e}), nil
}

// makeDirs makes a directory and its parents; those that it makes are the
// user's.
func makeDirs(path string, user account) error {
	var missing []string
	for dir := path; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err == nil {
			if !info.IsDir() {
				return fmt.Errorf("%w: path '%s' is not a directory", errBadArgument, dir)
			}
			break
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			return err
		}
		missing = append(missing, dir)
	}
	for _, dir := range slices.Backward(missing) {
		err := os.Mkdir(dir, 0o755)
		if errors.Is(err, fs.ErrExist) {
			// Another call made it meanwhile.
			continue
		}
		if err != nil {
			return err
		}
		if err := own(dir, user); err != nil {
			return err
		}
	}
	return nil
}

// own hands a path to a user. An agent that is not root has nobody else's
// files to make.
func own(path string, user account) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return os.Lchown(path, int(user.uid), int(user.gid))
}

func (s filesystemService) Move(_ context.Context, req *connect.Request[filesystem.MoveRequest]) (*connect.Response[filesystem.MoveResponse], error) {
	from, user, err := s.at(req, req.Msg.GetSource())
	if err != nil {
		return nil, rpcError(err)
	}
	to, _, err := s.at(req, req.Msg.GetDestination())
	if err != nil {
		return nil, rpcError(err)
	}
	if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
		return nil, rpcError(fmt.Errorf("source '%s' does not exist: %w", from, fs.ErrNotExist))
	}
	if err := makeDirs(filepath.Dir(to), user); err != nil {
		return nil, rpcError(err)
	}
	if err := os.Rename(from, to); err != nil {
		if errors.Is(err, unix.EXDEV) {
			err = fmt.Errorf("%w: '%s' and '%s' are on different file systems: copy it with a command instead", errBadState, from, to)
		}
		return nil, rpcError(err)
	}
	e, err := s.entry(to)
	if err != nil {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&filesystem.MoveResponse{Entry: e}), nil
}

// maxEntries bounds one listing, which is one message.
const maxEntries = 100_000

func (s filesystemService) ListDir(ctx context.Context, req *connect.Request[filesystem.ListDirRequest]) (*connect.Response[filesystem.ListDirResponse], error) {
	path, _, err := s.at(req, req.Msg.GetPath())
	if err != nil {
		return nil, rpcError(err)
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, rpcError(fmt.Errorf("directory '%s' does not exist: %w", path, fs.ErrNotExist))
	case err != nil:
		return nil, rpcError(err)
	case !info.IsDir():
		return nil, rpcError(fmt.Errorf("%w: path '%s' is not a directory", errBadArgument, path))
	}
	// A link is followed at the top only, and the names in the answer stay
	// beneath the path that was asked for.
	res := &filesystem.ListDirResponse{}
	names := &nameCache{from: s.opts.accounts}
	if err := listInto(ctx, path, max(int(req.Msg.GetDepth()), 1), names, res); err != nil {
		return nil, rpcError(err)
	}
	return connect.NewResponse(res), nil
}

func listInto(ctx context.Context, dir string, depth int, names *nameCache, res *filesystem.ListDirResponse) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		e, err := entryAt(path, names)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it went while we looked
		}
		if err != nil {
			return err
		}
		if len(res.Entries) >= maxEntries {
			return fmt.Errorf("%w: more than %d entries beneath the directory: list with less depth", errBadArgument, maxEntries)
		}
		res.Entries = append(res.Entries, e)
		if entry.IsDir() && depth > 1 {
			err := listInto(ctx, path, depth-1, names, res)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

func (s filesystemService) Remove(_ context.Context, req *connect.Request[filesystem.RemoveRequest]) (*connect.Response[filesystem.RemoveResponse], error) {
	path, _, err := s.at(req, req.Msg.GetPath())
	if err != nil {
		return nil, rpcError(err)
	}
	if path == "/" {
		return nil, rpcError(fmt.Errorf("%w: the root directory cannot be removed", errBadArgument))
	}
	if err := os.RemoveAll(path); err != nil {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&filesystem.RemoveResponse{}), nil
}

func (s filesystemService) WatchDir(ctx context.Context, req *connect.Request[filesystem.WatchDirRequest], out *connect.ServerStream[filesystem.WatchDirResponse]) error {
	interval, err := keepaliveInterval(req.Header())
	if err != nil {
		return rpcError(err)
	}
	path, _, err := s.at(req, req.Msg.GetPath())
	if err != nil {
		return rpcError(err)
	}
	w, err := newWatch(path, watchOptions{
		recursive: req.Msg.GetRecursive(),
		network:   req.Msg.GetAllowNetworkMounts(),
	})
	if err != nil {
		return rpcError(err)
	}
	defer w.close()
	if err := out.Send(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Start{
		Start: &filesystem.WatchDirResponse_StartEvent{},
	}}); err != nil {
		return err
	}
	quiet := time.NewTimer(interval)
	defer quiet.Stop()
	for {
		msg := &filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Keepalive{
			Keepalive: &filesystem.WatchDirResponse_KeepAlive{},
		}}
		select {
		case ev, ok := <-w.events:
			if !ok {
				return rpcError(w.err())
			}
			msg.Event = &filesystem.WatchDirResponse_Filesystem{Filesystem: s.event(path, ev, req.Msg.GetIncludeEntry())}
		case <-quiet.C:
		case <-ctx.Done():
			return rpcError(ctx.Err())
		case <-s.stopped.Done():
			return rpcError(fmt.Errorf("%w: the sandbox ends", errBadState))
		}
		if err := out.Send(msg); err != nil {
			return err
		}
		quiet.Reset(interval)
	}
}

// event puts a change into the protocol's words.
func (s *Server) event(root string, ev change, withEntry bool) *filesystem.FilesystemEvent {
	out := &filesystem.FilesystemEvent{Name: validName(ev.name), Type: ev.kind}
	gone := ev.kind == filesystem.EventType_EVENT_TYPE_REMOVE || ev.kind == filesystem.EventType_EVENT_TYPE_RENAME
	if withEntry && !gone {
		if e, err := entryAt(filepath.Join(root, ev.name), &nameCache{from: s.opts.accounts}); err == nil {
			out.Entry = e
		}
	}
	return out
}

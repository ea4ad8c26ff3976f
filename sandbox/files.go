package sandbox

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"ravi/internal/guestapi/filesystem"
)

// Entry is a file, folder or link in a sandbox.
type Entry struct {
	Name, Path   string
	Kind         string // file, dir, symlink or other
	Size         int64
	Mode         fs.FileMode
	Owner, Group string
	Modified     time.Time
	Target       string // of a symlink
}

// Event is a change of a watched folder.
type Event struct {
	Name string // relative to the folder
	Op   string // create, write, remove, rename or chmod
}

// Files moves files in and out. Paths are the guest's, relative ones below the
// user's home; what is made belongs to the ordinary user.
type Files struct {
	s    *Sandbox
	user string
}

// Files gives access to the sandbox's files as its ordinary user.
func (s *Sandbox) Files() Files { return Files{s, s.user} }

// As gives access to the same files as another user.
func (f Files) As(user string) Files { f.user = user; return f }

func ask[Q any](f Files, m *Q) *connect.Request[Q] {
	r := connect.NewRequest(m)
	setUser(r.Header(), f.user)
	return r
}

func entry(e *filesystem.EntryInfo) Entry {
	out := Entry{Name: e.GetName(), Path: e.GetPath(), Size: e.GetSize(), Mode: fs.FileMode(e.GetMode()),
		Owner: e.GetOwner(), Group: e.GetGroup(), Modified: e.GetModifiedTime().AsTime(), Target: e.GetSymlinkTarget()}
	switch e.GetType() {
	case filesystem.FileType_FILE_TYPE_FILE:
		out.Kind = "file"
	case filesystem.FileType_FILE_TYPE_DIRECTORY:
		out.Kind = "dir"
	case filesystem.FileType_FILE_TYPE_SYMLINK:
		out.Kind = "symlink"
	default:
		out.Kind = "other"
	}
	return out
}

// Stat describes one path, without following a final link.
func (f Files) Stat(ctx context.Context, path string) (Entry, error) {
	r, err := f.s.client.Filesystem.Stat(ctx, ask(f, &filesystem.StatRequest{Path: f.s.guestPath(path)}))
	if err != nil {
		return Entry{}, f.s.explain(ctx, err)
	}
	return entry(r.Msg.GetEntry()), nil
}

// List lists a folder, depth levels deep (at least 1).
func (f Files) List(ctx context.Context, path string, depth int) ([]Entry, error) {
	r, err := f.s.client.Filesystem.ListDir(ctx, ask(f, &filesystem.ListDirRequest{Path: f.s.guestPath(path), Depth: uint32(max(depth, 1))}))
	if err != nil {
		return nil, f.s.explain(ctx, err)
	}
	var out []Entry
	for _, e := range r.Msg.GetEntries() {
		out = append(out, entry(e))
	}
	return out, nil
}

// MakeDir makes a folder and those above it.
func (f Files) MakeDir(ctx context.Context, path string) error {
	_, err := f.s.client.Filesystem.MakeDir(ctx, ask(f, &filesystem.MakeDirRequest{Path: f.s.guestPath(path)}))
	return f.s.explain(ctx, err)
}

// Move renames from to to.
func (f Files) Move(ctx context.Context, from, to string) error {
	_, err := f.s.client.Filesystem.Move(ctx, ask(f, &filesystem.MoveRequest{Source: f.s.guestPath(from), Destination: f.s.guestPath(to)}))
	return f.s.explain(ctx, err)
}

// Remove removes a path and all below it. One that is not there is no error.
func (f Files) Remove(ctx context.Context, path string) error {
	_, err := f.s.client.Filesystem.Remove(ctx, ask(f, &filesystem.RemoveRequest{Path: f.s.guestPath(path)}))
	return f.s.explain(ctx, err)
}

// Watch reports changes below a folder until ctx ends; then events is closed.
func (f Files) Watch(ctx context.Context, path string, recursive bool) (events <-chan Event, err error) {
	st, err := f.s.client.Filesystem.WatchDir(ctx, ask(f, &filesystem.WatchDirRequest{Path: f.s.guestPath(path), Recursive: recursive}))
	if err != nil {
		return nil, f.s.explain(ctx, err)
	}
	if !st.Receive() { // the start event, or why not
		defer st.Close()
		if err := st.Err(); err != nil {
			return nil, f.s.explain(ctx, err)
		}
		return nil, io.ErrUnexpectedEOF
	}
	out := make(chan Event)
	go func() {
		defer close(out)
		defer st.Close()
		for st.Receive() {
			e := st.Msg().GetFilesystem()
			if e == nil {
				continue
			}
			ev := Event{Name: e.GetName(), Op: strings.ToLower(strings.TrimPrefix(e.GetType().String(), "EVENT_TYPE_"))}
			select {
			case out <- ev:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// Read opens a file. The content is streamed.
func (f Files) Read(ctx context.Context, path string) (io.ReadCloser, error) {
	return f.get(ctx, "/files", path)
}

// ReadFile reads a file of at most max bytes.
func (f Files) ReadFile(ctx context.Context, path string, max int64) ([]byte, error) {
	r, err := f.Read(ctx, path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, max+1))
	if err != nil {
		return nil, f.s.explain(ctx, err)
	}
	if int64(len(b)) > max {
		return nil, fmt.Errorf("%s has more than %d bytes", path, max)
	}
	return b, nil
}

// Write writes a file from r, making the folders above it. It appears whole or
// not at all.
func (f Files) Write(ctx context.Context, path string, r io.Reader) error {
	return f.put(ctx, http.MethodPost, "/files", path, "application/octet-stream", r)
}

// Tar streams a folder as a tar archive with names relative to it.
func (f Files) Tar(ctx context.Context, path string) (io.ReadCloser, error) {
	return f.get(ctx, "/tar", path)
}

// Untar lays out a tar archive in a folder. Entries that lead out of it are an
// error.
func (f Files) Untar(ctx context.Context, path string, r io.Reader) error {
	return f.put(ctx, http.MethodPut, "/tar", path, "application/x-tar", r)
}

func (f Files) url(at, path string) string {
	q := url.Values{"path": {f.s.guestPath(path)}, "username": {f.user}}
	return "http://guest" + at + "?" + q.Encode()
}

func (f Files) get(ctx context.Context, at, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url(at, path), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "identity")
	res, err := f.s.client.HTTP.Do(req)
	if err != nil {
		return nil, f.s.explain(ctx, err)
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		return nil, httpError(path, res)
	}
	return res.Body, nil
}

func (f Files) put(ctx context.Context, method, at, path, kind string, r io.Reader) error {
	// A reader's own error must reach the caller, and must not look like the
	// end of the content to the guest.
	src := &source{r: r}
	req, err := http.NewRequestWithContext(ctx, method, f.url(at, path), src)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", kind)
	res, err := f.s.client.HTTP.Do(req)
	if src.err != nil {
		return fmt.Errorf("reading what is to be written to %s: %w", path, src.err)
	}
	if err != nil {
		return f.s.explain(ctx, err)
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		return httpError(path, res)
	}
	return nil
}

type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

func httpError(path string, res *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(res.Body, 4096)) // the status says enough
	text := errorText(b)
	switch res.StatusCode {
	case http.StatusNotFound:
		return fmt.Errorf("%s: %w", path, ErrNotFound)
	case http.StatusInsufficientStorage:
		return fmt.Errorf("%s: %w", path, ErrDiskFull)
	}
	return fmt.Errorf("%s: %s (%s)", path, text, res.Status)
}

// CopyOut copies a folder of the sandbox into a folder of the host, which is
// made if need be. What the guest made up is not trusted: nothing is written
// outside dir, and no link is followed.
func (f Files) CopyOut(ctx context.Context, path, dir string) error {
	return f.copyOut(ctx, path, dir, math.MaxInt64, math.MaxInt64)
}

func layDown(root *os.Root, h *tar.Header, r io.Reader) error {
	name := filepath.Clean(h.Name)
	if name == "." {
		return nil
	}
	mode := h.FileInfo().Mode().Perm()
	if dir := filepath.Dir(name); dir != "." {
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, mode|0o700)
	case tar.TypeReg:
		if err := root.RemoveAll(name); err != nil {
			return err
		}
		out, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		if _, err := io.Copy(out, r); err != nil {
			out.Close()
			return err
		}
		return out.Close()
	case tar.TypeSymlink:
		if err := root.RemoveAll(name); err != nil {
			return err
		}
		return root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		if err := root.RemoveAll(name); err != nil {
			return err
		}
		return root.Link(h.Linkname, name)
	}
	return fmt.Errorf("it is neither file, folder nor link")
}

// isCut says whether an error looks like a link that is gone.
func isCut(err error) bool {
	var ne *net.OpError
	var ue *url.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) ||
		errors.As(err, &ne) || errors.As(err, &ue) || connect.CodeOf(err) == connect.CodeUnavailable
}

package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"ravi/internal/guestapi/filesystem"
)

// errEventsLost ends a watch whose reader would otherwise miss changes unknowingly.
var errEventsLost = errors.New("changes came faster than they were read, and some were lost: watch again")

type watchOptions struct {
	recursive bool
	network   bool // accept mounts on which changes may go unseen
}

// change is one change beneath a watched directory.
type change struct {
	name string // relative to the directory
	kind filesystem.EventType
}

// watch is a watched directory, by inotify.
type watch struct {
	root   string
	opts   watchOptions
	file   *os.File
	raw    syscall.RawConn
	events chan change
	done   chan struct{}
	once   sync.Once

	dirs map[int32]string // by watch descriptor, relative to root
	// uploads remembers temporary files of our own that took a name away.
	uploads map[uint32]bool

	mu     sync.Mutex
	failed error
}

const watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_DELETE | unix.IN_DELETE_SELF |
	unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_MOVE_SELF | unix.IN_ATTRIB

// maxWatchedDirs bounds a recursive watch.
const maxWatchedDirs = 100_000

func newWatch(root string, opts watchOptions) (*watch, error) {
	info, err := os.Stat(root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("path '%s' does not exist: %w", root, fs.ErrNotExist)
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, fmt.Errorf("%w: path '%s' is not a directory", errBadArgument, root)
	}
	if !opts.network {
		if kind, err := networkMount(root); err != nil {
			return nil, err
		} else if kind != "" {
			return nil, fmt.Errorf("%w: '%s' is on a shared or network file system (%s), where changes made outside the sandbox are not seen: "+
				"set allow_network_mounts to watch it all the same", errBadArgument, root, kind)
		}
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch '%s': %w", root, err)
	}
	file := os.NewFile(uintptr(fd), "inotify")
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("watch '%s': %w", root, err)
	}
	w := &watch{
		root:    root,
		opts:    opts,
		file:    file,
		raw:     raw,
		events:  make(chan change, 1024),
		done:    make(chan struct{}),
		dirs:    make(map[int32]string),
		uploads: make(map[uint32]bool),
	}
	if err := w.add(".", nil); err != nil {
		w.file.Close()
		return nil, fmt.Errorf("watch '%s': %w", root, err)
	}
	go w.loop()
	return w, nil
}

func (w *watch) close() {
	w.once.Do(func() {
		close(w.done)
		w.file.Close()
	})
}

func (w *watch) err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed
}

// add watches a directory and, if recursive, those in it. What it finds in a
// directory that is new is handed to found: it may have been made before the
// watch was.
func (w *watch) add(rel string, found func(rel string, e fs.DirEntry)) error {
	var wd int
	var err error
	// Control fails once the watch is closed, when the number may be another file's.
	if cerr := w.raw.Control(func(fd uintptr) {
		wd, err = unix.InotifyAddWatch(int(fd), filepath.Join(w.root, rel), watchMask|unix.IN_ONLYDIR)
	}); cerr != nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	w.dirs[int32(wd)] = rel
	if !w.opts.recursive {
		return nil
	}
	if len(w.dirs) > maxWatchedDirs {
		return fmt.Errorf("%w: more than %d directories beneath it", errBadArgument, maxWatchedDirs)
	}
	entries, err := os.ReadDir(filepath.Join(w.root, rel))
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := filepath.Join(rel, e.Name())
		if found != nil {
			found(name, e)
		}
		if !e.IsDir() {
			continue
		}
		if err := w.add(name, found); err != nil && !vanished(err) {
			return err
		}
	}
	return nil
}

func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

func (w *watch) loop() {
	defer close(w.events)
	buf := make([]byte, 64<<10)
	for {
		n, err := w.file.Read(buf)
		if err == nil {
			err = w.read(buf[:n])
		}
		if err != nil {
			w.mu.Lock()
			w.failed = err
			w.mu.Unlock()
			return
		}
	}
}

// read takes the records that inotify(7) describes.
func (w *watch) read(buf []byte) error {
	for len(buf) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(buf))
		mask := binary.NativeEndian.Uint32(buf[4:])
		cookie := binary.NativeEndian.Uint32(buf[8:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(buf[12:]))
		if end > len(buf) {
			return fmt.Errorf("read changes: a record is cut short")
		}
		name := strings.TrimRight(string(buf[unix.SizeofInotifyEvent:end]), "\x00")
		buf = buf[end:]
		if err := w.handle(wd, mask, cookie, name); err != nil {
			return err
		}
	}
	return nil
}

func (w *watch) handle(wd int32, mask, cookie uint32, name string) error {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		return errEventsLost
	}
	dir, ok := w.dirs[wd]
	if !ok {
		return nil
	}
	if mask&unix.IN_IGNORED != 0 {
		delete(w.dirs, wd)
		return nil
	}
	if name == "" && dir != "." {
		// What happens to a directory itself is told by its parent's watch.
		return nil
	}
	if upload, replaces := uploadName(name); upload {
		// Our own file that waits to get its name is no change yet.
		if mask&unix.IN_MOVED_FROM != 0 {
			w.uploads[cookie] = replaces
		}
		return nil
	}
	rel := filepath.Join(dir, name)
	if mask&unix.IN_MOVED_TO != 0 {
		if replaces, ok := w.uploads[cookie]; ok {
			delete(w.uploads, cookie)
			w.tellUpload(rel, replaces)
			return nil
		}
	}
	if mask&unix.IN_ISDIR != 0 && mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0 {
		return w.tellNewDir(rel)
	}
	if mask&unix.IN_ISDIR != 0 && mask&unix.IN_MOVED_FROM != 0 {
		// Should it stay within the tree, its new name follows, as a new directory.
		w.forget(rel)
	}
	for _, k := range kinds {
		if mask&k.mask != 0 {
			w.tell(rel, k.kind)
		}
	}
	return nil
}

var kinds = []struct {
	mask uint32
	kind filesystem.EventType
}{
	{unix.IN_CREATE | unix.IN_MOVED_TO, filesystem.EventType_EVENT_TYPE_CREATE},
	{unix.IN_MODIFY, filesystem.EventType_EVENT_TYPE_WRITE},
	{unix.IN_DELETE | unix.IN_DELETE_SELF, filesystem.EventType_EVENT_TYPE_REMOVE},
	{unix.IN_MOVED_FROM | unix.IN_MOVE_SELF, filesystem.EventType_EVENT_TYPE_RENAME},
	{unix.IN_ATTRIB, filesystem.EventType_EVENT_TYPE_CHMOD},
}

// tellUpload tells of an uploaded file the way it would look had it been
// written in place.
func (w *watch) tellUpload(rel string, replaces bool) {
	if !replaces {
		w.tell(rel, filesystem.EventType_EVENT_TYPE_CREATE)
	}
	w.tell(rel, filesystem.EventType_EVENT_TYPE_WRITE)
}

func (w *watch) tellNewDir(rel string) error {
	if !w.opts.recursive {
		w.tell(rel, filesystem.EventType_EVENT_TYPE_CREATE)
		return nil
	}
	// The watch is there before the event is told: who acts on the event can
	// rely on it. What was made in between is told after it.
	var inside []change
	err := w.add(rel, func(name string, e fs.DirEntry) {
		if upload, _ := uploadName(e.Name()); upload {
			return
		}
		inside = append(inside, change{name, filesystem.EventType_EVENT_TYPE_CREATE})
		// A file that has content has been written to, and by now unseen.
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && info.Size() > 0 {
			inside = append(inside, change{name, filesystem.EventType_EVENT_TYPE_WRITE})
		}
	})
	w.tell(rel, filesystem.EventType_EVENT_TYPE_CREATE)
	for _, ev := range inside {
		w.tell(ev.name, ev.kind)
	}
	if err != nil && !vanished(err) {
		return err
	}
	return nil
}

// forget drops the watches of a directory that was moved, and of all beneath.
func (w *watch) forget(dir string) {
	for wd, d := range w.dirs {
		if d == dir || strings.HasPrefix(d, dir+"/") {
			delete(w.dirs, wd)
			// It may be gone by itself already.
			_ = w.raw.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(wd)) })
		}
	}
}

func (w *watch) tell(rel string, kind filesystem.EventType) {
	select {
	case w.events <- change{name: rel, kind: kind}:
	case <-w.done:
	}
}

// networkMount says what kind of shared file system a path is on, "" for none.
// In gVisor these are the host's directories, on which changes from outside
// raise no event. The root file system is the sandbox's own, whatever its kind.
func networkMount(path string) (string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return "", err
	}
	kind, shared := sharedKinds[int64(st.Type)]
	if !shared {
		return "", nil
	}
	var at, root unix.Stat_t
	if err := unix.Stat(path, &at); err != nil {
		return "", err
	}
	if err := unix.Stat("/", &root); err != nil {
		return "", err
	}
	if at.Dev == root.Dev {
		return "", nil
	}
	return kind, nil
}

var sharedKinds = map[int64]string{
	unix.NFS_SUPER_MAGIC:  "nfs",
	unix.SMB_SUPER_MAGIC:  "smb",
	unix.CIFS_SUPER_MAGIC: "cifs",
	unix.SMB2_SUPER_MAGIC: "smb2",
	unix.FUSE_SUPER_MAGIC: "fuse",
	unix.V9FS_MAGIC:       "9p",
}

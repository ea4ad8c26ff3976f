package guest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"ravi/internal/guestapi/filesystem"
)

func asUser[T any](msg *T) *connect.Request[T] {
	req := connect.NewRequest(msg)
	req.Header().Set("Authorization", basic("user"))
	return req
}

func TestStatListMoveRemove(t *testing.T) {
	g := startGuest(t, Options{})
	ctx := testContext(t)
	made, err := g.Filesystem.MakeDir(ctx, asUser(&filesystem.MakeDirRequest{Path: "d/sub"}))
	if err != nil {
		t.Fatal(err)
	}
	if e := made.Msg.GetEntry(); e.GetPath() != filepath.Join(g.home, "d/sub") || e.GetOwner() != "user" || e.GetGroup() != "user" ||
		e.GetMode() != 0o755 || e.GetPermissions() != "drwxr-xr-x" || e.GetType() != filesystem.FileType_FILE_TYPE_DIRECTORY {
		t.Errorf("entry is %v", e)
	}
	_, err = g.Filesystem.MakeDir(ctx, asUser(&filesystem.MakeDirRequest{Path: "~/d"}))
	wantCode(t, err, connect.CodeAlreadyExists)
	d := filepath.Join(g.home, "d")
	for _, err := range []error{
		os.WriteFile(filepath.Join(d, "file"), []byte("text"), 0o640),
		unix.Setxattr(filepath.Join(d, "file"), "user.e2b.author", []byte("mish"), 0),
		unix.Setxattr(filepath.Join(d, "file"), "user.other", []byte("x"), 0),
		os.Symlink("sub", filepath.Join(d, "link")),
		os.Symlink("nowhere", filepath.Join(d, "dangling")),
		os.WriteFile(filepath.Join(d, "sub/deep\xff"), nil, 0o600),
		os.Symlink("d", filepath.Join(g.home, "top")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err = g.Filesystem.MakeDir(ctx, asUser(&filesystem.MakeDirRequest{Path: "d/file"}))
	wantCode(t, err, connect.CodeInvalidArgument)
	_, err = g.Filesystem.MakeDir(ctx, asUser(&filesystem.MakeDirRequest{Path: "d/file/x"}))
	wantCode(t, err, connect.CodeInvalidArgument)

	stat := func(path string) *filesystem.EntryInfo {
		t.Helper()
		res, err := g.Filesystem.Stat(ctx, asUser(&filesystem.StatRequest{Path: path}))
		if err != nil {
			t.Fatal(err)
		}
		return res.Msg.GetEntry()
	}
	if e := stat("d/file"); e.GetSize() != 4 || e.GetMode() != 0o640 || e.GetOwner() != "root" || len(e.GetMetadata()) != 1 || e.GetMetadata()["author"] != "mish" || e.SymlinkTarget != nil {
		t.Errorf("entry is %v", e)
	}
	if e := stat("d/link"); e.GetSymlinkTarget() != filepath.Join(d, "sub") || e.GetType() != filesystem.FileType_FILE_TYPE_DIRECTORY {
		t.Errorf("entry is %v", e)
	}
	if e := stat("d/dangling"); e.GetSymlinkTarget() != "nowhere" || e.GetType() != filesystem.FileType_FILE_TYPE_SYMLINK {
		t.Errorf("entry is %v", e)
	}
	_, err = g.Filesystem.Stat(ctx, asUser(&filesystem.StatRequest{Path: "none"}))
	wantCode(t, err, connect.CodeNotFound)

	for depth, want := range map[uint32][]string{
		0: {"dangling", "file", "link", "sub"}, 1: {"dangling", "file", "link", "sub"}, 2: {"dangling", "file", "link", "sub", "deep\uFFFD"},
	} {
		res, err := g.Filesystem.ListDir(ctx, asUser(&filesystem.ListDirRequest{Path: "top", Depth: depth}))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range res.Msg.GetEntries() {
			names = append(names, e.GetName())
			if !strings.HasPrefix(e.GetPath(), filepath.Join(g.home, "top")+"/") {
				t.Errorf("path is %q", e.GetPath())
			}
		}
		if !slices.Equal(names, want) {
			t.Errorf("depth %d gives %q, want %q", depth, names, want)
		}
	}
	_, err = g.Filesystem.ListDir(ctx, asUser(&filesystem.ListDirRequest{Path: "none"}))
	wantCode(t, err, connect.CodeNotFound)
	_, err = g.Filesystem.ListDir(ctx, asUser(&filesystem.ListDirRequest{Path: "d/file"}))
	wantCode(t, err, connect.CodeInvalidArgument)

	moved, err := g.Filesystem.Move(ctx, asUser(&filesystem.MoveRequest{Source: "d/file", Destination: "new/place"}))
	if err != nil {
		t.Fatal(err)
	}
	if e := moved.Msg.GetEntry(); e.GetPath() != filepath.Join(g.home, "new/place") || e.GetMetadata()["author"] != "mish" {
		t.Errorf("entry is %v", e)
	}
	if info, err := os.Stat(filepath.Join(g.home, "new")); err != nil || info.Sys().(*syscall.Stat_t).Uid != 1000 {
		t.Errorf("new parent: %v, %v", info, err)
	}
	_, err = g.Filesystem.Move(ctx, asUser(&filesystem.MoveRequest{Source: "none", Destination: "other"}))
	wantCode(t, err, connect.CodeNotFound)

	for range 2 { // what is not there is no error
		if _, err := g.Filesystem.Remove(ctx, asUser(&filesystem.RemoveRequest{Path: "d"})); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(d); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it stayed: %v", err)
	}
	_, err = g.Filesystem.Remove(ctx, asUser(&filesystem.RemoveRequest{Path: "/"}))
	wantCode(t, err, connect.CodeInvalidArgument)
	for _, path := range []string{"~other/x", "a\x00b"} {
		_, err = g.Filesystem.Stat(ctx, asUser(&filesystem.StatRequest{Path: path}))
		wantCode(t, err, connect.CodeInvalidArgument)
	}
}

// watched collects the changes of a stream until one is the last that is awaited.
type watched struct {
	t      *testing.T
	stream *connect.ServerStreamForClient[filesystem.WatchDirResponse]
}

func (g *guestTest) watch(t *testing.T, req *filesystem.WatchDirRequest) *watched {
	t.Helper()
	s, err := g.Filesystem.WatchDir(testContext(t), asUser(req))
	if err != nil {
		t.Fatal(err)
	}
	if !s.Receive() || s.Msg().GetStart() == nil {
		t.Fatalf("the first event is %v, %v", s.Msg(), s.Err())
	}
	t.Cleanup(func() { s.Close() })
	return &watched{t: t, stream: s}
}

// until returns the changes up to one, as "kind name".
func (w *watched) until(last string) (out []string, entry *filesystem.EntryInfo) {
	w.t.Helper()
	for w.stream.Receive() {
		ev := w.stream.Msg().GetFilesystem()
		if ev == nil {
			continue
		}
		line := strings.ToLower(strings.TrimPrefix(ev.GetType().String(), "EVENT_TYPE_")) + " " + ev.GetName()
		out = append(out, line)
		if line == last {
			return out, ev.GetEntry()
		}
	}
	w.t.Fatalf("the stream ended (%v) before %q; so far %q", w.stream.Err(), last, out)
	return nil, nil
}

func TestWatch(t *testing.T) {
	g := startGuest(t, Options{})
	dir := filepath.Join(g.home, "w")
	if err := os.MkdirAll(filepath.Join(dir, "old"), 0o755); err != nil {
		t.Fatal(err)
	}
	w := g.watch(t, &filesystem.WatchDirRequest{Path: "w", Recursive: true, IncludeEntry: true})
	step := func(last string, do func() error) []string {
		t.Helper()
		if err := do(); err != nil {
			t.Fatal(err)
		}
		out, _ := w.until(last)
		return out
	}
	step("write old/f", func() error { return os.WriteFile(filepath.Join(dir, "old/f"), []byte("x"), 0o644) })
	step("chmod old/f", func() error { return os.Chmod(filepath.Join(dir, "old/f"), 0o600) })
	got := step("create g", func() error { return os.Rename(filepath.Join(dir, "old/f"), filepath.Join(dir, "g")) })
	if !slices.Contains(got, "rename old/f") {
		t.Errorf("changes are %q", got)
	}
	step("remove g", func() error { return os.Remove(filepath.Join(dir, "g")) })
	// A tree that is there at once: every part of it is told.
	got = step("write new/a/b/f", func() error {
		return errors.Join(os.MkdirAll(filepath.Join(dir, "new/a/b"), 0o755), func() error {
			var err error
			for i := 0; i < 3 && err == nil; i++ {
				err = os.WriteFile(filepath.Join(dir, "new/a/b/f"), fmt.Append(nil, i), 0o644)
			}
			return err
		}())
	})
	if !slices.Contains(got, "create new") || !slices.Contains(got, "create new/a") || !slices.Contains(got, "create new/a/b") {
		t.Errorf("changes are %q", got)
	}
	// A directory that moves is known by its new name only.
	step("create moved", func() error { return os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "moved")) })
	got = step("chmod moved/a/b/f", func() error {
		return errors.Join(os.WriteFile(filepath.Join(dir, "moved/a/b/f"), []byte("y"), 0o644), os.Chmod(filepath.Join(dir, "moved/a/b/f"), 0o600))
	})
	for _, line := range got {
		if strings.Contains(line, "new/") {
			t.Errorf("the old name is told: %q", got)
		}
	}

	// Uploads look like writes in place.
	for _, want := range [][]string{{"create up", "write up"}, {"write up"}} {
		status, _, body := call(t, g.HTTP, "POST", g.files(filepath.Join(dir, "up")), strings.NewReader("x"), "Content-Type", octets)
		if status != 200 {
			t.Fatalf("status %d: %s", status, body)
		}
		got, entry := w.until("write up")
		if !slices.Equal(got, want) {
			t.Errorf("changes are %q, want %q", got, want)
		}
		if entry.GetPath() != filepath.Join(dir, "up") {
			t.Errorf("entry is %v", entry)
		}
	}
}

func TestWatchWithoutRecursion(t *testing.T) {
	g := startGuest(t, Options{})
	dir := filepath.Join(g.home, "w")
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	w := g.watch(t, &filesystem.WatchDirRequest{Path: "w"})
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "sub/f"), nil, 0o644), os.WriteFile(filepath.Join(dir, "last"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if got, _ := w.until("create last"); slices.Contains(got, "create sub/f") {
		t.Errorf("changes are %q", got)
	}
	for path, code := range map[string]connect.Code{"none": connect.CodeNotFound, "w/last": connect.CodeInvalidArgument} {
		s, err := g.Filesystem.WatchDir(testContext(t), asUser(&filesystem.WatchDirRequest{Path: path}))
		if err == nil {
			s.Receive()
			err = s.Err()
			s.Close()
		}
		wantCode(t, err, code)
	}
}

func TestPolledWatch(t *testing.T) {
	g := startGuest(t, Options{})
	ctx := testContext(t)
	made, err := g.Filesystem.CreateWatcher(ctx, asUser(&filesystem.CreateWatcherRequest{Path: ""}))
	if err != nil {
		t.Fatal(err)
	}
	id := made.Msg.GetWatcherId()
	if err := os.WriteFile(filepath.Join(g.home, "f"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	var got []string
	eventually(t, "the write is told", func() bool {
		res, err := g.Filesystem.GetWatcherEvents(ctx, asUser(&filesystem.GetWatcherEventsRequest{WatcherId: id}))
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range res.Msg.GetEvents() {
			got = append(got, ev.GetType().String()+" "+ev.GetName())
		}
		return slices.Contains(got, "EVENT_TYPE_WRITE f")
	})
	if _, err := g.Filesystem.RemoveWatcher(ctx, asUser(&filesystem.RemoveWatcherRequest{WatcherId: id})); err != nil {
		t.Fatal(err)
	}
	_, err = g.Filesystem.GetWatcherEvents(ctx, asUser(&filesystem.GetWatcherEventsRequest{WatcherId: id}))
	wantCode(t, err, connect.CodeNotFound)
}

func TestPolledWatchTellsWhatItLost(t *testing.T) {
	w := &watcher{watch: &watch{events: make(chan change, maxPolled+1)}}
	for range maxPolled + 1 {
		w.watch.events <- change{name: "f"}
	}
	close(w.watch.events)
	w.collect(func(ev change) *filesystem.FilesystemEvent { return &filesystem.FilesystemEvent{Name: ev.name} })
	if events, err := w.take(); err != nil || len(events) != maxPolled {
		t.Errorf("%d events, %v", len(events), err)
	}
	if _, err := w.take(); !errors.Is(err, errEventsLost) {
		t.Errorf("then %v", err)
	}
}

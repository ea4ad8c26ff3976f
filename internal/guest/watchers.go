package guest

import (
	"context"
	"fmt"
	"sync"

	"connectrpc.com/connect"

	"ravi/internal/guestapi/filesystem"
)

// watcherTable holds the watches of clients that poll.
type watcherTable struct {
	mu     sync.Mutex
	byID   map[string]*watcher
	closed bool
}

// watcher collects changes until they are asked for.
type watcher struct {
	watch *watch

	mu     sync.Mutex
	events []*filesystem.FilesystemEvent
	failed error
}

const (
	maxWatchers = 1024
	// maxPolled bounds what waits for one client; past it the client is told
	// that it has missed something.
	maxPolled = 10_000
)

func (t *watcherTable) add(w *watcher) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || len(t.byID) >= maxWatchers {
		return "", fmt.Errorf("%w: %d watchers are open, remove some", errBadState, len(t.byID))
	}
	if t.byID == nil {
		t.byID = make(map[string]*watcher)
	}
	id := "w" + randomID()
	t.byID[id] = w
	return id, nil
}

func (t *watcherTable) get(id string, remove bool) (*watcher, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w, ok := t.byID[id]
	if !ok {
		return nil, fmt.Errorf("%w: watcher '%s' not found", errNoProcess, id)
	}
	if remove {
		delete(t.byID, id)
	}
	return w, nil
}

func (t *watcherTable) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, w := range t.byID {
		w.watch.close()
	}
	t.byID = nil
}

// collect moves changes from the watch into the list.
func (w *watcher) collect(describe func(change) *filesystem.FilesystemEvent) {
	for ev := range w.watch.events {
		event := describe(ev)
		w.mu.Lock()
		if len(w.events) >= maxPolled {
			w.failed = errEventsLost
		} else {
			w.events = append(w.events, event)
		}
		w.mu.Unlock()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed == nil {
		w.failed = w.watch.err()
	}
}

// take returns what was collected, and only then what went wrong.
func (w *watcher) take() ([]*filesystem.FilesystemEvent, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.events) == 0 && w.failed != nil {
		return nil, w.failed
	}
	events := w.events
	w.events = nil
	return events, nil
}

func (s filesystemService) CreateWatcher(_ context.Context, req *connect.Request[filesystem.CreateWatcherRequest]) (*connect.Response[filesystem.CreateWatcherResponse], error) {
	path, _, err := s.at(req, req.Msg.GetPath())
	if err != nil {
		return nil, rpcError(err)
	}
	watch, err := newWatch(path, watchOptions{
		recursive: req.Msg.GetRecursive(),
		network:   req.Msg.GetAllowNetworkMounts(),
	})
	if err != nil {
		return nil, rpcError(err)
	}
	w := &watcher{watch: watch}
	id, err := s.watchers.add(w)
	if err != nil {
		watch.close()
		return nil, rpcError(err)
	}
	withEntry := req.Msg.GetIncludeEntry()
	s.tasks.Go(func() {
		w.collect(func(ev change) *filesystem.FilesystemEvent { return s.event(path, ev, withEntry) })
	})
	return connect.NewResponse(&filesystem.CreateWatcherResponse{WatcherId: id}), nil
}

func (s filesystemService) GetWatcherEvents(_ context.Context, req *connect.Request[filesystem.GetWatcherEventsRequest]) (*connect.Response[filesystem.GetWatcherEventsResponse], error) {
	w, err := s.watchers.get(req.Msg.GetWatcherId(), false)
	if err != nil {
		return nil, rpcError(err)
	}
	events, err := w.take()
	if err != nil {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&filesystem.GetWatcherEventsResponse{Events: events}), nil
}

func (s filesystemService) RemoveWatcher(_ context.Context, req *connect.Request[filesystem.RemoveWatcherRequest]) (*connect.Response[filesystem.RemoveWatcherResponse], error) {
	w, err := s.watchers.get(req.Msg.GetWatcherId(), true)
	if err != nil {
		return nil, rpcError(err)
	}
	w.watch.close()
	return connect.NewResponse(&filesystem.RemoveWatcherResponse{}), nil
}

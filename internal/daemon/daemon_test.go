package daemon

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ravi/internal/guard"
	"ravi/internal/leaktest"
	"ravi/internal/porttest"
	"ravi/internal/procid"
	"ravi/internal/store"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// home is a home as config makes it.
func home(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "home")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func open(t *testing.T, home string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// one is a daemon at work.
type one struct {
	*Daemon
	home  string
	log   *bytes.Buffer
	end   context.CancelFunc
	ended chan error
}

// start starts a daemon, which is ready when this returns.
func start(t *testing.T, o Options, handler http.HandlerFunc) *one {
	t.Helper()
	if o.Home == "" {
		o.Home = home(t)
	}
	var log bytes.Buffer
	ready := make(chan struct{})
	o.Log, o.Ready, o.Version, o.Store = NewLogger(&log, false), func() { close(ready) }, "1", open(t, o.Home)
	if o.Drain == 0 {
		o.Drain = time.Minute
	}
	if o.Sweep == nil {
		o.Sweep = func(context.Context) (store.Swept, error) { return store.Swept{}, nil }
	}
	ctx, cancel := context.WithCancel(context.Background())
	d := &one{New(o), o.Home, &log, cancel, make(chan error, 1)}
	go func() { d.ended <- d.Run(ctx, handler) }()
	select {
	case <-ready:
	case err := <-d.ended:
		t.Fatalf("it did not start: %v", err)
	}
	t.Cleanup(func() { d.stop(t) })
	return d
}

// stop ends it, once.
func (d *one) stop(t *testing.T) {
	t.Helper()
	if d.end == nil {
		return
	}
	d.end()
	d.end = nil
	if err := <-d.ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func says(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "%q", text) }
}

func TestRun(t *testing.T) {
	var steps []string
	var mu sync.Mutex
	note := func(step string) {
		mu.Lock()
		defer mu.Unlock()
		steps = append(steps, step)
	}
	swept := make(chan struct{}, 2)
	d := start(t, Options{
		Host: "127.0.0.1", Port: porttest.Free(t), Boxes: boxes{note}, Keep: func() bool { return true }, SweepEvery: time.Millisecond,
		Sweep: func(context.Context) (store.Swept, error) {
			note("sweep")
			defer func() {
				select {
				case swept <- struct{}{}:
				default: // it is known by now that it tries again
				}
			}()
			return store.Swept{Problems: []string{"sbx1: it will not go"}}, errors.New("the disk is full")
		},
	}, says("hello"))
	<-swept
	<-swept // what could not be done does not keep it from trying again
	var got string
	if err := Ask(t.Context(), d.State().Socket, "a/b", nil, &got); err != nil || got != "hello" {
		t.Errorf("over the socket: %q, %v", got, err)
	}
	res, err := http.Post("http://"+d.State().Address+"/api/v1/a/b", "application/json", nil)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("over the port: %s", res.Status)
	}
	s, err := ReadState(d.home)
	if err != nil || s.Process.PID != os.Getpid() || s.Address != d.State().Address || s.Version != "1" {
		t.Errorf("its state: %+v, %v", s, err)
	}
	if info, err := os.Stat(filepath.Join(d.home, StateFile)); err != nil || info.Mode() != 0o600 {
		t.Errorf("the state file: %v, %v", info.Mode(), err)
	}
	w := d.Swept()
	if w.Problem != "the disk is full" || w.Problems < 1 || w.Report.Problems[0] != "sbx1: it will not go" || w.TakeOver != "one is stuck" {
		t.Errorf("what it says of its sweeps: %+v", w)
	}
	if !slices.Equal(d.Owned(), []string{"sbx1"}) {
		t.Errorf("owned: %v", d.Owned())
	}
	d.stop(t)
	if steps[0] != "take over" || steps[1] != "sweep" || steps[len(steps)-1] != "stop true" {
		t.Errorf("the order: %v", steps)
	}
	if n := strings.Count(d.log.String(), "it will not go"); n != 1 {
		t.Errorf("the same problem is told %d times:\n%s", n, d.log)
	}
	if _, err := ReadState(d.home); !errors.Is(err, ErrNotRunning) {
		t.Errorf("afterwards: %v", err)
	}
	for _, name := range []string{Socket, StateFile} {
		if _, err := os.Lstat(filepath.Join(d.home, name)); err == nil {
			t.Errorf("%s is left", name)
		}
	}
}

type boxes struct{ note func(string) }

func (b boxes) TakeOver(context.Context) error {
	b.note("take over")
	return errors.New("one is stuck")
}
func (boxes) Owned() []string { return []string{"sbx1"} }
func (b boxes) Stop(_ context.Context, keep bool) error {
	b.note(fmt.Sprint("stop ", keep))
	return nil
}

// Calls at work end as they would; streams are told; what takes longer than the bound is cut, and that is no failure.
func TestStop(t *testing.T) {
	entered, goOn := make(chan string, 2), make(chan struct{})
	d := start(t, Options{Drain: 5 * time.Minute}, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/b") {
			return
		}
		entered <- r.URL.Path
		if strings.HasSuffix(r.URL.Path, "/stream") {
			ctx, err := guard.Lift(w, r)
			if err != nil {
				t.Error(err)
				return
			}
			<-ctx.Done()
			fmt.Fprintf(w, "%q", context.Cause(ctx))
			return
		}
		<-goOn
		fmt.Fprint(w, `"done"`)
	})
	var work, stream string
	var errs [2]error
	var calls sync.WaitGroup
	calls.Go(func() { errs[0] = Ask(context.Background(), d.State().Socket, "a/work", nil, &work) })
	calls.Go(func() { errs[1] = Ask(context.Background(), d.State().Socket, "a/stream", nil, &stream) })
	<-entered
	<-entered
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		d.stop(t)
	}()
	for Ask(context.Background(), d.State().Socket, "a/b", nil, nil) == nil { // until nothing new is let in
	}
	close(goOn)
	<-stopped
	calls.Wait()
	if errs != [2]error{} || work != "done" || stream != guard.ErrShutdown.Error() {
		t.Errorf("%q, %q, %v", work, stream, errs)
	}
}

func TestStopCutsWhatDoesNotEnd(t *testing.T) {
	entered := make(chan struct{})
	d := start(t, Options{Drain: time.Millisecond}, func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
	})
	asked := make(chan error)
	go func() { asked <- Ask(context.Background(), d.State().Socket, "a/b", nil, nil) }()
	<-entered
	d.stop(t)
	if err := <-asked; err == nil {
		t.Error("a call that was cut was answered")
	}
	if !strings.Contains(d.log.String(), "1 requests did not end in time") {
		t.Errorf("the log says nothing of it: %s", d.log)
	}
}

// Where it cannot listen it says so, and does no harm to what is there.
func TestRefusedPlaces(t *testing.T) {
	running := start(t, Options{Host: "127.0.0.1", Port: porttest.Free(t)}, says("the first"))
	_, taken, err := net.SplitHostPort(running.State().Address)
	if err != nil {
		t.Fatal(err)
	}
	var port int
	if _, err := fmt.Sscan(taken, &port); err != nil {
		t.Fatal(err)
	}
	linked := home(t)
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.Symlink(elsewhere, filepath.Join(linked, Socket)); err != nil {
		t.Fatal(err)
	}
	open := home(t)
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o    Options
		want error
		says string
	}{
		"a second one":            {Options{Home: running.home}, guard.ErrInUse, Socket},
		"a port that is not free": {Options{Home: home(t), Host: "127.0.0.1", Port: port}, guard.ErrInUse, taken},
		"open to all":             {Options{Home: home(t), Host: "0.0.0.0", Port: 7777}, guard.ErrExposed, "without TLS"},
		"no certificate":          {Options{Home: home(t), Host: "127.0.0.1", Port: 7777, TLS: &tls.Config{}}, nil, "no certificate"},
		"a symlink":               {Options{Home: linked}, guard.ErrUnsafe, "not a socket"},
		"a home open to others":   {Options{Home: open}, guard.ErrUnsafe, "0700"},
	} {
		c.o.Log = NewLogger(new(bytes.Buffer), false)
		c.o.Ready = func() { t.Errorf("%s: it is ready", name) }
		err := New(c.o).Run(t.Context(), says("nobody"))
		if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Lstat(filepath.Join(c.o.Home, StateFile)); err == nil && c.o.Home != running.home {
			t.Errorf("%s: it left its state", name)
		}
	}
	if _, err := os.Lstat(elsewhere); err == nil {
		t.Error("something was made at the end of a symlink")
	}
	var got string
	if err := Ask(t.Context(), running.State().Socket, "a/b", nil, &got); err != nil || got != "the first" {
		t.Errorf("the one that ran: %q, %v", got, err)
	}
}

// Who is alive is told by process and its start. No clock has a say, and a number alone names nobody.
func TestState(t *testing.T) {
	self, err := procid.Self()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		state string
		want  error
	}{
		"now":                         {stateOf(self, store.Now()), nil},
		"of a clock that was ahead":   {stateOf(self, store.Now().AddDate(30, 0, 0)), nil},
		"of a clock at its beginning": {stateOf(self, time.Unix(0, 0)), nil},
		"another of the number":       {stateOf(procid.ID{PID: self.PID, Start: self.Start + 1}, store.Now()), ErrNotRunning},
		"nobody":                      {stateOf(procid.ID{}, store.Now()), ErrNotRunning},
	} {
		dir := home(t)
		if err := os.WriteFile(filepath.Join(dir, StateFile), []byte(c.state), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadState(dir); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if c.want != nil {
			if err := Stop(t.Context(), dir, false); err != nil { // this process would end
				t.Errorf("%s: stopping: %v", name, err)
			}
		}
	}
	broken := home(t)
	if err := os.WriteFile(filepath.Join(broken, StateFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadState(broken); err == nil || errors.Is(err, ErrNotRunning) {
		t.Errorf("a state that cannot be read: %v", err)
	}
}

func stateOf(id procid.ID, since time.Time) string {
	b, err := json.Marshal(State{Process: id, Since: since})
	if err != nil {
		panic(err)
	}
	return string(b)
}

func TestAsk(t *testing.T) {
	d := start(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/v1/a/no":
			guard.WriteError(w, http.StatusForbidden, guard.CodeDenied, "no", "never")
		case "/api/v1/a/odd":
			w.WriteHeader(http.StatusTeapot)
		}
	})
	var refusal *Refusal
	err := Ask(t.Context(), d.State().Socket, "a/no", nil, nil)
	if !errors.As(err, &refusal) || *refusal != (Refusal{Status: 403, Code: "DENIED", Message: "no", Hint: "never"}) {
		t.Errorf("a refusal: %v", err)
	}
	if err := Ask(t.Context(), d.State().Socket, "a/odd", nil, nil); err == nil || !strings.Contains(err.Error(), "418") {
		t.Errorf("an odd answer: %v", err)
	}
	if err := Ask(t.Context(), filepath.Join(d.home, "none.sock"), "a/b", nil, nil); !errors.Is(err, unix.ENOENT) {
		t.Errorf("nobody there: %v", err)
	}
}

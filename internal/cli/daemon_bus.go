package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"ravi/internal/access"
	"ravi/internal/audit"
	"ravi/internal/bus"
	"ravi/internal/command"
	"ravi/internal/config"
	"ravi/internal/daemon"
	"ravi/internal/dispatch"
	runs "ravi/internal/run"
	"ravi/internal/runner"
	"ravi/internal/store"
	"ravi/sandbox"
)

// busFolder is the bus's in Ravi's home.
const busFolder = "bus"

// daemonBus is a daemon's bus and its dispatcher.
type daemonBus struct {
	home string
	file *config.Config
	st   *store.Store
	log  *slog.Logger
	// audit is where what is decided here is written down.
	audit audit.Log
	// newEnv makes what a run is started in.
	newEnv func() *command.Env

	bus     bus.Bus
	control *nats.Conn
	runners *dispatch.Runners
	warden  *dispatch.Warden
	waker   *store.Waker
	stop    context.CancelFunc
	over    sync.WaitGroup
}

var _ daemon.Bus = (*daemonBus)(nil)

// Start implements daemon.Bus.
func (d *daemonBus) Start(ctx context.Context) (state daemon.BusState, err error) {
	if d.bus, err = openBus(ctx, d.home, d.file, d.log); err != nil {
		return state, busError(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Stop(ctx))
		}
	}()
	if d.control, err = d.bus.Control(ctx); err != nil {
		return state, busError(err)
	}
	if err = d.applyAllRevoked(ctx); err != nil {
		return state, busError(err)
	}
	if d.runners, err = dispatch.ListenRunners(d.control, d.st, d.log); err != nil {
		return state, err
	}
	if err = d.startWarden(ctx); err != nil {
		return state, busError(err)
	}
	var woken <-chan struct{}
	if d.waker, err = store.Wake(d.home); err == nil {
		woken = d.waker.C
	} else {
		d.log.Warn("what is written is looked for again and again", "error", err.Error())
	}
	disp := dispatch.New(dispatch.Options{
		Store: d.st, Woken: woken, Conn: d.control, Start: d.begin, Reply: replyOf, Runs: localRuns(d.file.Dispatch.Runs), Tries: d.file.Dispatch.Tries,
		Free: d.free, Runners: d.runners, Local: d.onlyHere, Over: d.runOver, News: d.tellNews, Log: d.log,
	})
	ctx, d.stop = context.WithCancel(context.WithoutCancel(ctx))
	d.over.Go(func() {
		if err := disp.Run(ctx); err != nil {
			d.log.Error("work is not dispatched any more", "error", err.Error())
		}
	})
	state = daemon.BusState{URL: d.bus.URL(), TLS: d.file.Bus.TLSCert != ""}
	for _, a := range d.bus.Addrs() {
		state.Listens = append(state.Listens, a.String())
	}
	return state, nil
}

// Now implements daemon.Bus.
func (d *daemonBus) Now() (now daemon.BusNow, err error) {
	if !d.control.IsConnected() {
		now.Away = "the connection is lost, and tried again"
		if err := d.control.LastError(); err != nil {
			now.Away = err.Error()
		}
	}
	if err := d.bus.Ready(); err != nil {
		now.Problem = err.Error()
	}
	own, ok := d.bus.(*bus.Server)
	if !ok {
		return now, nil
	}
	v, err := own.View()
	if err != nil {
		return now, err
	}
	now.Stored, now.MaxStore = v.Stored, v.MaxStore
	now.Hub, now.HubJoined, now.HubSays = v.Hub, v.HubJoined, v.HubSays
	return now, nil
}

// Stop implements daemon.Bus.
func (d *daemonBus) Stop(context.Context) error {
	if d.stop != nil {
		d.stop()
		d.over.Wait()
	}
	if d.waker != nil {
		_ = d.waker.Close() // nothing is lost with it
	}
	if d.warden != nil {
		d.warden.Close()
	}
	if d.runners != nil {
		_ = d.runners.Close() // its connection is closed next
	}
	if d.control != nil {
		d.control.Close()
	}
	if d.bus == nil {
		return nil
	}
	return d.bus.Close()
}

// localRuns is how many sandboxes this machine makes at once for messages.
func localRuns(configured int) int {
	if configured != 0 {
		return configured
	}
	return 2 * runtime.NumCPU()
}

// free is for how many more sandboxes this machine has the memory, as it usually gives them.
func (d *daemonBus) free() int {
	usual := sandbox.Default()
	if err := d.file.Sandbox(&usual); err != nil { // runs say it when they are begun
		usual = sandbox.Default()
	}
	left, err := runner.Available()
	if err != nil {
		d.log.Warn("how much memory is free cannot be told, so runs are begun without a look at that", "error", err.Error())
		return math.MaxInt32
	}
	return int(left / runner.Cost(int64(usual.MemoryMiB)<<20))
}

// openBus is the bus by config.json: our own, or another server.
func openBus(ctx context.Context, home string, file *config.Config, log *slog.Logger) (bus.Bus, error) {
	b := file.Bus
	if b.URL != "" {
		return bus.Connect(ctx, bus.External{
			URL: b.URL, CredsFile: b.Creds, AccountKeyFile: b.AccountKey, CAFile: b.CA, Home: home, Dir: filepath.Join(home, busFolder), Log: log,
		})
	}
	o, err := busOptions(home, file, log)
	if err != nil {
		return nil, err
	}
	return bus.Start(ctx, o)
}

// checkBus says what would keep a daemon's bus from starting, but for its port.
func checkBus(home string, file *config.Config) error {
	if file.Bus.Off() || file.Bus.URL != "" {
		return nil
	}
	o, err := busOptions(home, file, slog.Default())
	if err != nil {
		return err
	}
	return busError(o.Check())
}

// busOptions are those of the embedded bus, as config.json gives them.
func busOptions(home string, file *config.Config, log *slog.Logger) (o bus.Options, err error) {
	b := file.Bus
	host, port, err := b.Address()
	if err != nil {
		return o, err
	}
	if (b.TLSCert == "") != (b.TLSKey == "") {
		return o, &config.HintError{Message: "bus.tls_cert and bus.tls_key belong together, and one is missing", Hint: "make both: ravi bus tls NAME-OR-ADDRESS…, and set both as it says"}
	}
	o = bus.Options{
		Dir: filepath.Join(home, busFolder), Home: home, Host: host, Port: port, AllowFrom: b.AllowFrom, MaxStore: b.MaxStoreMB << 20, Log: log,
	}
	if b.TLSCert != "" {
		o.TLS = &bus.TLS{Cert: b.TLSCert, Key: b.TLSKey, CA: b.CA}
	}
	if w := b.WebSocket; w != nil {
		o.WebSocket = &bus.WebSocket{Host: w.Host, Port: w.Port, Origins: w.Origins}
	}
	if l := b.Leaf; l != nil {
		o.Leaf = &bus.Leaf{URL: l.URL, CredsFile: l.Creds, CA: l.CA}
	}
	return o, nil
}

// busError tells why there is no bus.
func busError(err error) error {
	var told *bus.Error
	if !errors.As(err, &told) {
		return err
	}
	return &command.Error{Code: command.CodeUnavailable, Message: err.Error(), Hint: told.Hint, Exit: command.ExitFailed, Err: err}
}

// begin starts the run of a try.
func (d *daemonBus) begin(ctx context.Context, t dispatch.Try) error {
	env := d.newEnv()
	env.Caller = access.AsOperator()
	err := errors.Join(d.beginIn(ctx, env, t), env.Close())
	if err == nil {
		return nil
	}
	if told := command.AsError(err); told.Exit == command.ExitUsage || told.Code == command.CodeNotFound || told.Code == command.CodeConfig {
		text := told.Message
		if told.Hint != "" {
			text += " (" + told.Hint + ")"
		}
		return fmt.Errorf("%w: %s", dispatch.ErrNever, text)
	}
	return err
}

func (d *daemonBus) beginIn(ctx context.Context, env *command.Env, t dispatch.Try) error {
	a, err := d.st.Agent(ctx, t.Work.AgentID)
	if err != nil {
		return err
	}
	work, err := workOf(a)
	if err != nil {
		return err
	}
	m, err := d.st.Message(ctx, t.Work.MessageID)
	if err != nil {
		return err
	}
	// Who sent the message could do that. That it becomes this run is what the operator said of the agent.
	err = d.audit.Append(ctx, audit.Record{Action: audit.WorkBegin, Object: t.Work.ID, Decision: store.Allowed, Caller: t.Work.CreatedBy, RunID: t.RunID})
	if err != nil {
		return err
	}
	onBus, err := d.orderBus(ctx, t, work)
	if err != nil {
		return err
	}
	_, err = startRun(ctx, env, work.create(m.Text, t.Work.SessionID), t.RunID, onBus)
	return err
}

// What a run says to its session.
const (
	mostReply  = 64 << 10
	mostOutput = 4 << 10 // of a command that is no agent
)

// replyOf is what a run has to say in its session: its agent's last words, or the end of what its command wrote.
func replyOf(_ context.Context, _ store.Work, r store.Run) (store.Message, error) {
	m := store.Message{Role: store.RoleAssistant, Author: "ravi", RunID: r.ID}
	t, err := runs.ReadTask(r.Dir)
	var broken *json.SyntaxError
	if errors.Is(err, os.ErrNotExist) || errors.As(err, &broken) {
		// Nothing brings it back, and the session would wait for it for ever. How the run ended is in the record.
		m.Text = fmt.Sprintf("[the run ended as %s; what it left cannot be read any more]", r.Status)
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("the outcome of run %s: %w", r.ID, err)
	}
	text := strings.TrimSpace(t.Answer)
	if text == "" {
		if text, err = endOf(filepath.Join(r.Dir, runs.LogsDir, "stdout.log"), mostOutput); err != nil {
			return m, err
		}
	}
	var about []string
	if r.Status != store.RunSucceeded {
		how := "the run ended as " + string(r.Status)
		if r.ExitCode != nil {
			how += fmt.Sprintf(", with status %d", *r.ExitCode)
		}
		if t.Error != "" {
			how += ": " + t.Error
		}
		about = append(about, how)
	}
	if p := r.Patch; p != nil && p.Files > 0 {
		about = append(about, fmt.Sprintf("its patch changes %s (+%d -%d)", count(p.Files, "file", "files"), p.Insertions, p.Deletions))
	}
	if text == "" && len(about) == 0 {
		about = append(about, "the run ended, and changed nothing")
	}
	if len(about) > 0 {
		text = strings.TrimSpace(text + "\n\n[" + strings.Join(about, "; ") + "]")
	}
	if len(text) > mostReply {
		text = strings.ToValidUTF8(text[:mostReply], "") + "…"
	}
	m.Text = text
	return m, nil
}

// endOf is the end of a text file, from the beginning of a line; nothing of one that is no text.
func endOf(path string, most int64) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	from := max(info.Size()-most, 0)
	b, err := io.ReadAll(io.NewSectionReader(f, from, most))
	if err != nil {
		return "", err
	}
	text := string(b)
	if from > 0 {
		if _, after, ok := strings.Cut(text, "\n"); ok {
			text = after
		}
	}
	if !utf8.ValidString(text) {
		return "", nil
	}
	return strings.TrimSpace(text), nil
}

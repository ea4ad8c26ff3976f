package guest

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"ravi/internal/guestapi"
	"ravi/internal/guestapi/filesystem/filesystemconnect"
	"ravi/internal/guestapi/process/processconnect"
	"ravi/internal/guestapi/ravi"
	"ravi/internal/guestapi/ravi/raviconnect"
	"ravi/internal/link"
)

// Options is how a Server is made. The zero value is right for tests.
type Options struct {
	// Version is what the ready event says.
	Version string
	// Init says that this process collects all children and orphans: it is
	// PID 1, or a subreaper with no children but those started here.
	Init bool
	// Token, if set, is asked of whoever comes over a listener (Guarded).
	Token string
	// SpoolDir is a directory of root's alone for output that nobody reads
	// yet; SpoolBytes bounds it per process.
	SpoolDir   string
	SpoolBytes int64
	// Switch says that the stand-ins of sudo and su are put in their places;
	// RunDir is where they find what they need. SwitchNow has them there before
	// New returns.
	Switch    bool
	SwitchNow bool
	RunDir    string
	// Lanes are those that the guest was born with, in the order of their numbers.
	Lanes []link.End
	// MemoryLimit is the sandbox's limit in bytes; 0 for no memory watch.
	MemoryLimit uint64
	// Retain is how long an ended process is remembered after its end was
	// told, RetainUnseen as long as it was not.
	Retain, RetainUnseen time.Duration

	accounts   accounts
	memoryUsed func() (uint64, error)
}

const (
	defaultSpoolBytes   = 64 << 20
	defaultRetain       = 30 * time.Second
	defaultRetainUnseen = 15 * time.Minute
)

// Server is the guest agent.
type Server struct {
	opts     Options
	reaper   *reaper
	procs    procTable
	lanes    *lanes
	events   eventLog
	settings settings
	watchers watcherTable
	cpu      cpuMeter
	ports    chan struct{} // one for each connection to a port

	stop    context.CancelFunc
	stopped context.Context
	tasks   sync.WaitGroup
}

// New makes a server. Close ends it with all that it started.
func New(opts Options) *Server {
	if opts.SpoolDir == "" {
		opts.SpoolDir = filepath.Join(os.TempDir(), "ravi-spool")
	}
	if opts.SpoolBytes == 0 {
		opts.SpoolBytes = defaultSpoolBytes
	}
	if opts.Retain == 0 {
		opts.Retain = defaultRetain
	}
	if opts.RetainUnseen == 0 {
		opts.RetainUnseen = defaultRetainUnseen
	}
	if opts.accounts == (accounts{}) {
		opts.accounts = systemAccounts
	}
	if opts.memoryUsed == nil {
		opts.memoryUsed = memoryUsed
	}
	s := &Server{
		opts:   opts,
		reaper: newReaper(opts.Init),
		procs:  procTable{retain: opts.Retain, retainUnseen: opts.RetainUnseen},
		lanes:  newLanes(opts.Lanes),
		ports:  make(chan struct{}, maxPorts),
	}
	s.settings.token = opts.Token
	s.stopped, s.stop = context.WithCancel(context.Background())
	s.events.init()
	if opts.Switch {
		install := func() {
			if err := s.installSwitch(); err != nil {
				s.events.add(&ravi.Event{Event: &ravi.Event_Notice_{Notice: &ravi.Event_Notice{
					Message: "not all of sudo, su and ravi work in this sandbox: " + err.Error(),
				}}})
			}
		}
		if opts.SwitchNow {
			install()
		} else {
			// Not waited for: no command is quicker to ask for sudo than this is.
			s.tasks.Go(install)
		}
	}
	if opts.MemoryLimit > 0 {
		s.tasks.Go(func() { s.watchMemory(s.stopped) })
	}
	return s
}

// Close ends every started process with its tree, and the server.
func (s *Server) Close() error {
	s.stop()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var errs []error
	for _, p := range s.procs.close() {
		if _, err := s.killTree(ctx, p); err != nil {
			errs = append(errs, err)
		}
	}
	s.watchers.close()
	s.tasks.Wait()
	s.reaper.close()
	return errors.Join(errs...)
}

// Handler serves the whole protocol to a trusted peer: the one at the other
// end of the link.
func (s *Server) Handler() http.Handler {
	opts := []connect.HandlerOption{
		connect.WithReadMaxBytes(guestapi.MaxMessage),
		// Answers are not compressed: the link is local, and time is the cost.
		connect.WithCompressMinBytes(1 << 30),
	}
	mux := http.NewServeMux()
	mux.Handle(processconnect.NewProcessHandler(processService{s}, opts...))
	mux.Handle(filesystemconnect.NewFilesystemHandler(filesystemService{s}, opts...))
	mux.Handle(raviconnect.NewGuestHandler(guestService{s}, opts...))
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /metrics", s.serveMetrics)
	mux.HandleFunc("POST /init", s.serveInit)
	mux.HandleFunc("GET /envs", s.serveEnvs)
	mux.HandleFunc("GET /files", s.serveDownload)
	mux.HandleFunc("POST /files", s.serveUpload)
	mux.HandleFunc("POST /files/compose", s.serveCompose)
	mux.HandleFunc("GET /tar", s.serveTarOut)
	mux.HandleFunc("PUT /tar", s.serveTarIn)
	mux.HandleFunc("POST /port", s.servePort)
	return mux
}

// codeOf maps what went wrong to the protocol's codes.
func codeOf(err error) connect.Code {
	switch {
	case errors.Is(err, errUnknownUser):
		return connect.CodeUnauthenticated
	case errors.Is(err, errBadState):
		return connect.CodeFailedPrecondition
	case errors.Is(err, errBadArgument):
		return connect.CodeInvalidArgument
	case errors.Is(err, errNotExec), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return connect.CodePermissionDenied
	case errors.Is(err, errNoCommand), errors.Is(err, errNoProcess), errors.Is(err, os.ErrNotExist):
		return connect.CodeNotFound
	case errors.Is(err, os.ErrExist):
		return connect.CodeAlreadyExists
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, errEventsLost),
		errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return connect.CodeResourceExhausted
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return connect.CodeDeadlineExceeded
	case errors.Is(err, context.Canceled):
		return connect.CodeCanceled
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.EINVAL):
		return connect.CodeInvalidArgument
	}
	return connect.CodeInternal
}

func rpcError(err error) error {
	if err == nil {
		return nil
	}
	return connect.NewError(codeOf(err), err)
}

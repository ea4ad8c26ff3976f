package bus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"ravi/internal/filelock"
)

const (
	defaultStore = 1 << 30
	maxMemory    = 16 << 20 // bytes of streams in memory, which no account may have
	maxConns     = 16384
	maxPending   = 64 << 20        // bytes that wait for one slow reader before its connection is cut
	maxPayload   = 1 << 20         // bytes of a message
	startWithin  = 2 * time.Minute // large streams take a while
)

// Server is the embedded server.
type Server struct {
	opts  Options
	ns    *server.Server
	keys  *keys
	lock  *os.File
	log   *logger
	leaf  bool
	now   func() time.Time
	trust Trust
	cert  *certificate // nil without TLS
	addrs []netip.AddrPort
	// domain is the name of the streams' world, which a hub tells from its own.
	domain     string
	lookAtDisk time.Duration
	stop       context.CancelFunc // of what runs beside the server

	mu     sync.Mutex
	conns  []*nats.Conn // of the daemon's own
	closed bool
	space  space
	// unsaved says that keys.age lacks who was revoked last, as it could not be written.
	unsaved bool
	over    sync.WaitGroup
}

var _ Bus = (*Server)(nil)

// Start starts the embedded server. ctx bounds the start only.
func Start(ctx context.Context, o Options) (*Server, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	if err := ourFolder(o.Dir); err != nil {
		return nil, err
	}
	s := newServer(o)
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

func newServer(o Options) *Server {
	return &Server{opts: o, leaf: o.Leaf != nil, now: time.Now, log: &logger{to: o.Log}, lookAtDisk: diskEvery}
}

// begin starts it, and closes what was started if that fails.
func (s *Server) begin(ctx context.Context) error {
	beside, stop := context.WithCancel(context.Background())
	s.stop = stop
	if err := s.start(ctx); err != nil {
		return errors.Join(err, s.Close())
	}
	if err := s.lookDisk(); err != nil {
		return errors.Join(err, s.Close())
	}
	s.over.Go(func() { s.watchDisk(beside) })
	return nil
}

func (s *Server) start(ctx context.Context) error {
	var err error
	if s.lock, err = lockFolder(s.opts.Dir); err != nil {
		return err
	}
	if s.keys, err = openKeys(ctx, s.opts.Home, s.opts.Dir); err != nil {
		return err
	}
	if s.leaf {
		if err := s.keys.ensureHub(ctx); err != nil {
			return err
		}
	}
	no, err := s.natsOptions()
	if err != nil {
		return err
	}
	if s.ns, err = server.NewServer(no); err != nil {
		return fmt.Errorf("cannot start the bus: %w", err)
	}
	s.ns.SetLoggerV2(s.log, false, false, false)
	started := make(chan struct{})
	s.over.Go(func() {
		defer close(started)
		s.ns.Start()
	})
	select {
	case <-started:
	case <-ctx.Done():
		return fmt.Errorf("the bus did not start: %w", context.Cause(ctx))
	case <-time.After(startWithin):
		return fmt.Errorf("the bus did not start within %v", startWithin)
	}
	if fatal := s.log.fatal(); fatal != "" {
		return s.explain(fatal)
	}
	if !s.ns.ReadyForConnections(startWithin) {
		return errors.New("the bus did not start: it does not accept connections")
	}
	return s.ready(no)
}

// ready looks at what the started server is.
func (s *Server) ready(no *server.Options) error {
	host, err := listenAddr(s.opts.Host)
	if err != nil {
		return err
	}
	s.addrs = []netip.AddrPort{netip.AddrPortFrom(host, uint16(s.ns.Addr().(*net.TCPAddr).Port))}
	if s.opts.WebSocket != nil {
		if host, err = listenAddr(s.opts.WebSocket.Host); err != nil {
			return err
		}
		s.addrs = append(s.addrs, netip.AddrPortFrom(host, uint16(no.Websocket.Port)))
	}
	public, err := publicOf(s.keys.doc.Control.Seed, nkeys.PrefixByteAccount)
	if err != nil {
		return err
	}
	if _, err := s.ns.LookupAccount(public); err != nil { // its streams come with it
		return fmt.Errorf("the bus did not start: its account cannot be used: %w", err)
	}
	return nil
}

// lockFolder keeps two servers from having one folder.
func lockFolder(dir string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the lock of the bus: %w", err)
	}
	taken, err := filelock.Try(file, syscall.LOCK_EX)
	if err == nil && taken {
		return file, nil
	}
	file.Close()
	if err != nil {
		return nil, fmt.Errorf("cannot lock the bus: %w", err)
	}
	return nil, refuse(ErrRunning, "look for it: ravi daemon status", "another process has the bus in %s open", dir)
}

// natsOptions are the options of the NATS server.
func (s *Server) natsOptions() (*server.Options, error) {
	o := s.opts
	operator, err := s.keys.operator()
	if err != nil {
		return nil, fmt.Errorf("cannot sign the operator: %w", err)
	}
	accounts := &server.MemAccResolver{}
	store := func(public, text string, err error) error {
		if err != nil {
			return fmt.Errorf("cannot sign an account: %w", err)
		}
		return accounts.Store(public, text)
	}
	if err := store(s.keys.systemClaims()); err != nil {
		return nil, err
	}
	for name, a := range s.keys.accounts() {
		claims, text, err := s.keys.claimsOf(name, a, shape{leaf: s.leaf})
		if err != nil {
			return nil, fmt.Errorf("cannot sign an account: %w", err)
		}
		if err := accounts.Store(claims.Subject, text); err != nil {
			return nil, err
		}
	}
	// One name for ever, as streams belong to it; and one domain, so that a hub can tell ours from its own.
	short := strings.ToLower(operator.Subject[len(operator.Subject)-12:])
	host := o.Host
	if host == "localhost" {
		host = "127.0.0.1"
	}
	s.domain = "ravi-" + short
	no := &server.Options{
		ServerName: s.domain, Host: host, Port: anyPort(o.Port), NoSigs: true,
		TrustedOperators: []*jwt.OperatorClaims{operator}, SystemAccount: operator.SystemAccount, AccountResolver: accounts,
		JetStream: true, StoreDir: o.Dir, JetStreamMaxStore: o.MaxStore, JetStreamMaxMemory: maxMemory,
		JetStreamDomain: s.domain, DisableJetStreamBanner: true,
		MaxConn: maxConns, MaxPayload: maxPayload, MaxPending: maxPending,
		AuthTimeout: o.loginWithin.Seconds(), TLSTimeout: o.loginWithin.Seconds(), PingInterval: 20 * time.Second, MaxPingsOut: 2, MaxTracedMsgLen: 1,
		DisableShortFirstPing: true, // it comes after two seconds, and whoever has not logged in by then takes it for a failure
	}
	if err := s.addTLS(no); err != nil {
		return nil, err
	}
	if err := s.addWebSocket(no); err != nil {
		return nil, err
	}
	return no, s.addLeaf(no)
}

func (s *Server) addWebSocket(no *server.Options) error {
	w := s.opts.WebSocket
	if w == nil {
		return nil
	}
	host, err := listenAddr(w.Host)
	if err != nil {
		return err
	}
	no.Websocket = server.WebsocketOpts{
		Host: host.String(), Port: anyPort(w.Port), NoTLS: no.TLSConfig == nil, TLSConfig: no.TLSConfig,
		AllowedOrigins: w.Origins, SameOrigin: len(w.Origins) == 0, HandshakeTimeout: s.opts.loginWithin,
	}
	return nil
}

func anyPort(port int) int {
	if port == 0 {
		return server.RANDOM_PORT
	}
	return port
}

// explain is why the server did not start, for people.
func (s *Server) explain(why string) error {
	switch {
	case strings.Contains(why, syscall.EADDRINUSE.Error()):
		return refuse(ErrPort, "see who has it: ss -ltnp; or take another: bus.port (0: any free one), RAVI_BUS_PORT",
			"the bus cannot listen on %s: something else listens there (%s)", s.wanted(), why)
	case strings.Contains(why, syscall.EADDRNOTAVAIL.Error()):
		return refuse(ErrPort, "give an address that this machine has: ip addr", "the bus cannot listen on %s: this machine does not have the address", s.wanted())
	case strings.Contains(why, syscall.EACCES.Error()) && strings.Contains(why, "isten"):
		return refuse(ErrPort, "take a port above 1023: bus.port", "the bus may not listen on %s", s.wanted())
	case strings.Contains(why, syscall.ENOSPC.Error()):
		return s.full(why)
	}
	return fmt.Errorf("the bus did not start: %s", why)
}

func (s *Server) wanted() string {
	text := net.JoinHostPort(s.opts.Host, fmt.Sprint(s.opts.Port))
	if w := s.opts.WebSocket; w != nil {
		text += " and, for WebSocket, " + net.JoinHostPort(w.Host, fmt.Sprint(w.Port))
	}
	return text
}

// Control is a new connection of the daemon's own in CONTROL.
func (s *Server) Control(ctx context.Context, opts ...nats.Option) (*nats.Conn, error) {
	return s.own(ctx, "", "control", opts)
}

// Client is a new connection of the daemon's own in the account of a client.
func (s *Server) Client(ctx context.Context, client string, opts ...nats.Option) (*nats.Conn, error) {
	if client == "" {
		return nil, refuse(ErrRequest, "", "a client has a name")
	}
	return s.own(ctx, client, "warden", opts)
}

// ownWait is how long own waits: there is no line that could be cut, only a machine that does much else.
const ownWait = 30 * time.Second

// own connects within the process, with a credential that is good nowhere else and that only this connection has.
func (s *Server) own(ctx context.Context, client, name string, opts []nats.Option) (*nats.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	c, err := s.ownCredential(ctx, client, name)
	if err != nil {
		return nil, err
	}
	l := &login{current: c}
	all := append([]nats.Option{
		nats.Name(name), nats.InProcessServer(s.ns), nats.UserJWT(l.jwt, l.sign), nats.CustomInboxPrefix(c.Inbox()),
		nats.MaxReconnects(-1), nats.ReconnectWait(100 * time.Millisecond), nats.IgnoreAuthErrorAbort(),
		nats.Timeout(ownWait), nats.ErrorHandler(complain(s.opts.Log)),
	}, opts...)
	var nc *nats.Conn
	for begun := time.Now(); ; {
		try := time.Now()
		if nc, err = nats.Connect("", all...); err == nil {
			break
		}
		// The server hangs up on who is slow to log in, which we are where the machine does much else.
		if time.Since(try) < s.opts.loginWithin || time.Since(begun) >= ownWait {
			return nil, fmt.Errorf("cannot connect to the bus from within: %w", err)
		}
	}
	s.conns = append(slices.DeleteFunc(s.conns, (*nats.Conn).IsClosed), nc)
	return nc, nil
}

func (s *Server) ownCredential(ctx context.Context, client, name string) (Credential, error) {
	signer, err := s.signer(ctx, client)
	if err != nil {
		return Credential{}, err
	}
	c := Credential{Name: name}
	if err := c.makeSeeds("", ""); err != nil {
		return Credential{}, fmt.Errorf("cannot make a credential: %w", err)
	}
	claims := jwt.NewUserClaims(c.User)
	claims.Name = name
	claims.AllowedConnectionTypes.Add(jwt.ConnectionTypeInProcess)
	return signer.sign(c, claims)
}

// Curve is the key pair of the daemon for what is sealed from end to end.
func (s *Server) Curve() (nkeys.KeyPair, error) { return nkeys.FromSeed([]byte(s.keys.doc.Curve)) }

// Addrs are the addresses that it listens on: that of the bus, and that of WebSocket if there is one.
func (s *Server) Addrs() []netip.AddrPort { return slices.Clone(s.addrs) }

// URL is where programs of this machine connect.
func (s *Server) URL() string {
	at := s.addrs[0]
	if at.Addr().IsUnspecified() {
		loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if at.Addr().Is6() {
			loopback = netip.IPv6Loopback()
		}
		at = netip.AddrPortFrom(loopback, at.Port())
	}
	if s.opts.TLS != nil {
		return "tls://" + at.String()
	}
	return "nats://" + at.String()
}

// Trust is what programs of this machine check there.
func (s *Server) Trust() Trust { return s.trust }

// Close ends the server and the daemon's own connections, and returns when all is on the disk.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	conns := s.conns
	s.conns = nil
	s.mu.Unlock()
	s.stop()
	for _, nc := range conns {
		nc.Close()
	}
	if s.ns != nil {
		s.ns.Shutdown()
		s.ns.WaitForShutdown()
	}
	s.over.Wait()
	if s.lock != nil {
		return s.lock.Close()
	}
	return nil
}

package bus

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"time"
)

// Options are how the embedded server is. Dir and Home are needed; the zero value of each other stands for what is written
// beside it.
type Options struct {
	// Dir is the folder of the bus, <home>/bus. It is made, for us alone.
	Dir string
	// Home is Ravi's home, whose key encrypts keys.age.
	Home string
	// Host is the address to listen on: 127.0.0.1.
	Host string
	// Port is the port; 0 is any free one.
	Port int
	// TLS is the certificate; nil is none, which is for loopback only.
	TLS *TLS
	// AllowFrom are the addresses that may connect, this machine's own beside them; none are all. It needs TLS: it is an
	// extra layer, and no lock.
	AllowFrom []netip.Prefix
	// WebSocket is a listener for those who can only reach such a one; nil is none.
	WebSocket *WebSocket
	// Leaf joins an existing bus by dialing out; nil does not.
	Leaf *Leaf
	// MaxStore is the most bytes of all streams: 1 GiB.
	MaxStore int64
	// Log gets what the server has to complain about: slog.Default().
	Log *slog.Logger

	// loginWithin is how long who connects has to say who that is: 5 s, and longer in tests.
	loginWithin time.Duration
}

// WebSocket is a listener for WebSocket. It has the TLS of the bus.
type WebSocket struct {
	Host string // 127.0.0.1
	Port int    // 0 is any free one
	// Origins are those whose pages may connect, such as "https://console.example.com"; none are those of the address
	// itself. Programs that are no browser send none, and need a credential as all do.
	Origins []string
}

// Leaf is an existing bus that the server dials, so that runners that are there can be used from here.
type Leaf struct {
	URL       string
	CredsFile string
	CA        string // PEM file; "" are the authorities of the system
}

// Check says what Start would refuse at once, and touches nothing that runs. Whether the port is free it does not say.
func (o Options) Check() error {
	if err := o.fill(); err != nil || o.TLS == nil {
		return err
	}
	return (&certificate{files: *o.TLS}).load()
}

// fill fills in what is not given, and refuses what must not be.
func (o *Options) fill() error {
	if !filepath.IsAbs(o.Dir) || !filepath.IsAbs(o.Home) {
		return refuse(ErrOptions, "", "the folder of the bus and Ravi's home must be absolute paths, not %q and %q", o.Dir, o.Home)
	}
	if o.Host == "" {
		o.Host = "127.0.0.1"
	}
	if o.MaxStore == 0 {
		o.MaxStore = defaultStore
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.loginWithin == 0 {
		o.loginWithin = 5 * time.Second
	}
	if own := made(o.Dir); o.TLS != nil && o.TLS.CA == "" && o.TLS.Cert == own.Cert {
		o.TLS = &TLS{Cert: o.TLS.Cert, Key: o.TLS.Key, CA: own.CA}
	}
	if o.Port < 0 || o.Port > 65535 {
		return refuse(ErrOptions, "set bus.port to 1 to 65535, or 0 for any free one", "%d is not a port", o.Port)
	}
	if o.MaxStore < 1<<20 {
		return refuse(ErrOptions, "set bus.max_store_mb to 1 or more", "the bus cannot store its work in %d bytes", o.MaxStore)
	}
	if err := o.checkExposure("bus.host", o.Host); err != nil {
		return err
	}
	if w := o.WebSocket; w != nil {
		filled := *w
		if filled.Host == "" {
			filled.Host = "127.0.0.1"
		}
		if filled.Port < 0 || filled.Port > 65535 {
			return refuse(ErrOptions, "set bus.websocket.port to 1 to 65535, or 0 for any free one", "%d is not a port", filled.Port)
		}
		o.WebSocket = &filled
		if err := o.checkExposure("bus.websocket.host", filled.Host); err != nil {
			return err
		}
	}
	if len(o.AllowFrom) > 0 && o.TLS == nil {
		return refuse(ErrOptions, "set bus.tls_cert and bus.tls_key, or leave bus.allow_from out",
			"bus.allow_from says who may connect from elsewhere, and without TLS nobody can")
	}
	return nil
}

// checkExposure refuses an address beyond loopback without TLS.
func (o *Options) checkExposure(what, host string) error {
	addr, err := listenAddr(host)
	if err != nil {
		return err
	}
	if addr.IsLoopback() || o.TLS != nil {
		return nil
	}
	also := ""
	if len(o.AllowFrom) > 0 {
		also = "; bus.allow_from is no lock: addresses change hands, and everything could be read on the way"
	}
	return refuse(ErrExposed, "make certificates: ravi bus tls NAME-OR-ADDRESS…, or set bus.tls_cert and bus.tls_key; or stay on this machine: "+what+" 127.0.0.1",
		"the bus does not listen on %s (%s) without TLS%s", host, what, also)
}

// listenAddr is the address of a host to listen on. Names but localhost are refused: what they mean changes.
func listenAddr(host string) (netip.Addr, error) {
	if host == "localhost" {
		host = "127.0.0.1"
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Addr{}, refuse(ErrOptions, "give an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all", "%q is not an address to listen on", host)
	}
	return addr.Unmap(), nil
}

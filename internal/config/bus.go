package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"strconv"

	"ravi/internal/strictjson"
)

// Bus is the block bus: where the bus listens, or which other one is used in its place.
type Bus struct {
	// Enabled is missing for yes.
	Enabled *bool `json:"enabled"`
	// Host is an address, empty for 127.0.0.1; elsewhere than on loopback it needs TLS. RAVI_BUS_HOST goes before it.
	Host string `json:"host"`
	// Port is missing for 4222; 0 is any free one. RAVI_BUS_PORT goes before it.
	Port *int `json:"port"`
	// TLSCert and TLSKey are files, as PEM. They are set one after the other, so that one is missing is for the start to refuse.
	TLSCert string `json:"tls_cert"`
	TLSKey  string `json:"tls_key"`
	// AllowFrom are the networks from which it may be reached besides loopback; empty: any. It is no lock, only a further one.
	AllowFrom []netip.Prefix `json:"allow_from"`
	WebSocket *BusWebSocket  `json:"websocket"`
	// URL is a NATS server or cluster to use in place of our own, Creds a file with credentials for it, AccountKey one with
	// the key that signs users of its account. CA is one with the authority of the certificate, also of our own.
	URL        string   `json:"url"`
	Creds      string   `json:"creds"`
	AccountKey string   `json:"account_key"`
	CA         string   `json:"ca"`
	Leaf       *BusLeaf `json:"leaf"`
	// MaxStoreMB bounds what it keeps, in MiB; 0 is 1024.
	MaxStoreMB int64 `json:"max_store_mb"`
}

// BusWebSocket is a listener for those that reach nothing but the web.
type BusWebSocket struct {
	Host    string   `json:"host"`
	Port    int      `json:"port"`
	Origins []string `json:"origins"`
}

// BusLeaf is the hub that our own bus dials out to. CA is a file with the authority of its certificate.
type BusLeaf struct {
	URL   string `json:"url"`
	Creds string `json:"creds"`
	CA    string `json:"ca"`
}

const (
	busPort = 4222
	// mostStoreMB keeps a number from becoming negative in bytes.
	mostStoreMB = 1 << 30
)

// UnmarshalJSON reads the block, and refuses what cannot be meant.
func (b *Bus) UnmarshalJSON(data []byte) error {
	type plain Bus
	if err := strictjson.Decode(data, (*plain)(b)); err != nil {
		return err
	}
	switch {
	case b.Port != nil && (*b.Port < 0 || *b.Port > 65535):
		return fmt.Errorf("port is %d, which is no port", *b.Port)
	case b.MaxStoreMB < 0 || b.MaxStoreMB > mostStoreMB:
		return fmt.Errorf("max_store_mb is %d, which is no number of MiB", b.MaxStoreMB)
	case b.URL == "" && (b.Creds != "" || b.AccountKey != ""):
		return fmt.Errorf("creds and account_key are about the server of url, which is missing")
	case b.URL != "" && b.Creds == "":
		return fmt.Errorf("url is given without creds: nothing connects to a bus without a credential")
	case b.URL != "" && (b.Host != "" || b.Port != nil || b.TLSCert != "" || b.WebSocket != nil || b.Leaf != nil || len(b.AllowFrom) > 0):
		return fmt.Errorf("url names another server, so host, port, tls_cert, allow_from, websocket and leaf, which are our own's, have no meaning")
	case b.Leaf != nil && (b.Leaf.URL == "" || b.Leaf.Creds == ""):
		return fmt.Errorf("leaf needs url and creds")
	case b.WebSocket != nil && (b.WebSocket.Port < 1 || b.WebSocket.Port > 65535):
		return fmt.Errorf("websocket.port is %d, which is no port", b.WebSocket.Port)
	}
	for _, at := range []string{b.URL, b.leafURL()} {
		if u, err := url.Parse(at); err != nil || u.User != nil {
			return fmt.Errorf("a url of a server has no user or password in it: name a file with credentials in creds")
		}
	}
	return nil
}

func (b *Bus) leafURL() string {
	if b.Leaf == nil {
		return ""
	}
	return b.Leaf.URL
}

// Off says that there is no bus.
func (b *Bus) Off() bool { return b.Enabled != nil && !*b.Enabled }

// Address is where our own listens; port 0 is any free one.
func (b *Bus) Address() (host string, port int, err error) {
	host, port = b.Host, busPort
	if b.Port != nil {
		port = *b.Port
	}
	if h := os.Getenv("RAVI_BUS_HOST"); h != "" {
		host = h
	}
	if p := os.Getenv("RAVI_BUS_PORT"); p != "" {
		if port, err = strconv.Atoi(p); err != nil || port < 0 || port > 65535 {
			return "", 0, &HintError{Message: fmt.Sprintf("RAVI_BUS_PORT is %q, which is no port", p), Hint: "use a number such as 4222, 0 for any free one, or unset it"}
		}
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return host, port, nil
}

// Dispatch is the block dispatch: how much of what is asked for is worked on at once.
type Dispatch struct {
	// Runs is how many sandboxes this machine makes at once for messages; 0: twice its processors. Of a machine that only
	// hands work to runners it is -1.
	Runs int `json:"runs"`
	// Tries is how often work is tried whose runs come to no outcome; 0 is 3.
	Tries int `json:"tries"`
}

// UnmarshalJSON reads the block, and refuses what cannot be meant.
func (d *Dispatch) UnmarshalJSON(data []byte) error {
	type plain Dispatch
	if err := strictjson.Decode(data, (*plain)(d)); err != nil {
		return err
	}
	if d.Runs < -1 || d.Runs > 10_000 || d.Tries < 0 || d.Tries > 100 {
		return fmt.Errorf("runs is -1 to 10000, and tries 0 to 100")
	}
	return nil
}

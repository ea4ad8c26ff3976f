package guestapi

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"

	"connectrpc.com/connect"

	"ravi/internal/guestapi/filesystem/filesystemconnect"
	"ravi/internal/guestapi/process/processconnect"
	"ravi/internal/guestapi/ravi/raviconnect"
)

// Limits on one message of the protocol. Output travels in chunks of at most
// MaxChunk bytes, so that a message that is much larger comes from a guest
// that is broken or hostile.
const (
	MaxChunk    = 256 << 10
	MaxPTYChunk = 16 << 10
	MaxMessage  = 4 << 20
)

// Client speaks the protocol to one guest. HTTP serves /files, /tar and the
// other plain addresses beneath URL.
type Client struct {
	Process    processconnect.ProcessClient
	Filesystem filesystemconnect.FilesystemClient
	Guest      raviconnect.GuestClient
	HTTP       *http.Client
	URL        string
}

// NewClient makes a client that reaches the guest at url through hc. It asks
// for no compression and reads none: the other side may be hostile, and a
// compressed message can be far larger than it looks.
func NewClient(hc *http.Client, url string, opts ...connect.ClientOption) *Client {
	opts = append([]connect.ClientOption{
		connect.WithAcceptCompression("gzip", nil, nil),
		connect.WithReadMaxBytes(MaxMessage),
	}, opts...)
	return &Client{
		Process:    processconnect.NewProcessClient(hc, url, opts...),
		Filesystem: filesystemconnect.NewFilesystemClient(hc, url, opts...),
		Guest:      raviconnect.NewGuestClient(hc, url, opts...),
		HTTP:       hc,
		URL:        url,
	}
}

// OnlyHTTP2 is HTTP/2 without TLS, for a wire that is private already.
func OnlyHTTP2() *http.Protocols {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	return &p
}

// NewHTTPClient reaches a guest over connections that dial makes. The host part
// of an address does not matter, and no redirect is followed.
func NewHTTPClient(dial func(context.Context) (net.Conn, error)) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
			Protocols:          OnlyHTTP2(),
			DisableCompression: true,
			HTTP2:              &http.HTTP2Config{MaxReadFrameSize: 1 << 20},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// ErrLinkUsed is returned when a link that can carry one connection is dialled again.
var ErrLinkUsed = errors.New("the link to the guest has ended")

// NewLinkClient makes a client over the one connection conn, which it owns.
// All calls share that connection; when it breaks, every later call fails
// with ErrLinkUsed, since a link is never dialled twice.
func NewLinkClient(conn net.Conn, opts ...connect.ClientOption) *Client {
	var used atomic.Bool
	tr := &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			if used.Swap(true) {
				return nil, ErrLinkUsed
			}
			return conn, nil
		},
		Protocols:          OnlyHTTP2(),
		DisableCompression: true,
		// Calls that find the link not dialled yet wait for the one that dials it.
		MaxConnsPerHost: 1,
		HTTP2: &http.HTTP2Config{
			// There is this one connection; calls beyond what it takes wait.
			StrictMaxConcurrentRequests: true,
			MaxConcurrentStreams:        1 << 16,
			MaxReadFrameSize:            256 << 10,
		},
	}
	return NewClient(&http.Client{Transport: tr}, "http://guest", opts...)
}

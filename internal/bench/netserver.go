package bench

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	// netName is what the measured client connects to. It is the one name that
	// leads to this machine's loopback everywhere.
	netName = "localhost"
	// marker is what a client begins a connection with that is to be copied as
	// it is: neither TLS nor HTTP begins with it, so the gateway looks at
	// nothing more. The servers here take it off again.
	marker = 0
	// secondEvent is how long after the first event a stream's second one comes.
	secondEvent = 5 * time.Millisecond
)

// netServers are what a sandbox talks to: one without TLS and one with it, on
// this machine's loopback.
type netServers struct {
	plain, secure *http.Server
	ports         [2]string // without TLS, and with it
	ca            []byte    // PEM
	crowd         *meeting
}

// newNetServers begins to serve. Close them.
func newNetServers() (*netServers, error) {
	ca, leaf, err := throwAwayCA(time.Now())
	if err != nil {
		return nil, fmt.Errorf("making certificates: %w", err)
	}
	s := &netServers{ca: ca, crowd: newMeeting()}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, word) })
	mux.HandleFunc("GET /bytes", serveBytes)
	mux.HandleFunc("GET /events", serveEvents)
	mux.HandleFunc("GET /crowd", s.crowd.serve)
	mux.HandleFunc("GET /crowd/done", s.crowd.done)
	quiet := log.New(io.Discard, "", 0) // what a client does is in its own result
	s.plain = &http.Server{Handler: mux, ErrorLog: quiet}
	s.secure = &http.Server{Handler: mux, ErrorLog: quiet, TLSConfig: &tls.Config{Certificates: []tls.Certificate{leaf}, MinVersion: tls.VersionTLS12}}
	var listeners [2]net.Listener
	for i := range listeners {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err == nil {
			listeners[i] = unmarked{l}
			_, s.ports[i], err = net.SplitHostPort(l.Addr().String())
		}
		if err != nil {
			return nil, errors.Join(err, closeListeners(listeners[:]))
		}
	}
	// Both return when they are closed.
	go func() { _ = s.plain.Serve(listeners[0]) }()
	go func() { _ = s.secure.ServeTLS(listeners[1], "", "") }()
	return s, nil
}

func closeListeners(all []net.Listener) error {
	var errs []error
	for _, l := range all {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}

func (s *netServers) close() error { return errors.Join(s.plain.Close(), s.secure.Close()) }

// rules allow the servers, the address where they are included.
func (s *netServers) rules() []string {
	var out []string
	for _, port := range s.ports {
		out = append(out, netName+":"+port, "127.0.0.1:"+port)
	}
	return out
}

// unmarked takes the marker off connections.
type unmarked struct{ net.Listener }

func (l unmarked) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &unmarkedConn{Conn: c}, nil
}

type unmarkedConn struct {
	net.Conn
	begun bool
}

func (c *unmarkedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.begun && n > 0 {
		c.begun = true
		if p[0] == marker {
			n = copy(p, p[1:n])
			if n == 0 && err == nil {
				return c.Conn.Read(p)
			}
		}
	}
	return n, err
}

// serveBytes sends as many bytes as it is asked for.
func serveBytes(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.ParseInt(r.FormValue("n"), 10, 64)
	if err != nil || n < 0 {
		http.Error(w, "n is a number of bytes", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	sendBytes(w, n)
}

var filler = make([]byte, 256<<10)

func sendBytes(w io.Writer, n int64) {
	for n > 0 {
		sent, err := w.Write(filler[:min(n, int64(len(filler)))])
		if err != nil {
			return // whoever reads it notices
		}
		n -= int64(sent)
	}
}

// serveEvents sends one event at once, and another one later: who holds back the
// first until there is more to send is seen.
func serveEvents(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w)
	_, _ = io.WriteString(w, "data: 1\n\n")
	_ = flush.Flush()
	select {
	case <-time.After(secondEvent):
	case <-r.Context().Done():
		return
	}
	_, _ = io.WriteString(w, "data: 2\n\n")
}

// meeting has many clients wait for each other, and tells how long each then
// took for the same work.
type meeting struct {
	mu      sync.Mutex
	size    int
	bytes   int64
	waiting int
	arrived chan struct{} // one for each that comes
	begin   chan struct{} // closed when all are there
	begun   time.Time
	took    []time.Duration
}

func newMeeting() *meeting { return &meeting{begin: make(chan struct{})} }

// expect says how many come, and how many bytes each gets.
func (m *meeting) expect(size int, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.size, m.bytes, m.arrived = size, bytes, make(chan struct{}, size)
}

// serve waits until all are there, and sends.
func (m *meeting) serve(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	bytes := m.bytes
	m.waiting++
	if m.waiting > m.size {
		m.mu.Unlock()
		http.Error(w, "nobody more is expected", http.StatusConflict)
		return
	}
	m.arrived <- struct{}{} // there is room
	if m.waiting == m.size {
		m.begun = time.Now()
		close(m.begin)
	}
	m.mu.Unlock()
	select {
	case <-m.begin:
	case <-r.Context().Done():
		return
	}
	w.Header().Set("Content-Length", strconv.FormatInt(bytes, 10))
	sendBytes(w, bytes)
}

// done hears of one that has got everything.
func (m *meeting) done(w http.ResponseWriter, _ *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.took = append(m.took, time.Since(m.begun))
	_, _ = io.WriteString(w, word)
}

// times are how long those took that are done.
func (m *meeting) times() []time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]time.Duration(nil), m.took...)
}

// throwAwayCA makes an authority that lives as long as the run, and a
// certificate of it for netName.
func throwAwayCA(now time.Time) (caPEM []byte, leaf tls.Certificate, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, leaf, err
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ravi bench"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	site := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		DNSNames: []string{netName}, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		return nil, leaf, err
	}
	siteDER, err := x509.CreateCertificate(rand.Reader, site, ca, key.Public(), key)
	if err != nil {
		return nil, leaf, err
	}
	caPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})
	return caPEM, tls.Certificate{Certificate: [][]byte{siteDER}, PrivateKey: key}, nil
}

// marked has a connection begin with the marker, in one piece with what is
// written first.
type marked struct {
	net.Conn
	begun bool
}

func (c *marked) Write(p []byte) (int, error) {
	if c.begun {
		return c.Conn.Write(p)
	}
	c.begun = true
	n, err := c.Conn.Write(append([]byte{marker}, p...))
	return max(n-1, 0), err
}

// firstEvent reads a stream's first event.
func firstEvent(r *bufio.Reader) error {
	line, err := r.ReadString('\n')
	if err == nil && line != "data: 1\n" {
		err = fmt.Errorf("the stream began with %q", line)
	}
	return err
}

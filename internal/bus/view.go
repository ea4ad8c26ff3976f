package bus

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// View is the running server as it sees itself, for whoever compares that with what it should be. Nothing in it is secret.
type View struct {
	ID          string           `json:"id"` // a new one at each start; a Probe shows it too
	Name        string           `json:"name"`
	Version     string           `json:"version"` // of the NATS server
	StartedAt   time.Time        `json:"started_at"`
	Listens     []netip.AddrPort `json:"listens"` // the bus, then WebSocket if it is on
	TLS         bool             `json:"tls"`
	CertNames   []string         `json:"cert_names"`
	CertUntil   time.Time        `json:"cert_until"` // zero without TLS
	AllowFrom   []netip.Prefix   `json:"allow_from"`
	Origins     []string         `json:"origins"` // of WebSocket
	Hub         string           `json:"hub"`     // the URL that is dialed, empty for none
	HubJoined   bool             `json:"hub_joined"`
	HubSays     string           `json:"hub_says"` // the last complaint about it, which may be over
	Clients     []string         `json:"clients"`  // who has an account
	Connections int              `json:"connections"`
	Slow        int64            `json:"slow_consumers"` // connections that were cut as they did not read
	Stored      uint64           `json:"stored"`         // bytes
	MaxStore    int64            `json:"max_store"`
	Full        bool             `json:"full"`
}

// View is how the server is now.
func (s *Server) View() (View, error) {
	varz, err := s.ns.Varz(nil)
	if err != nil {
		return View{}, fmt.Errorf("the bus says nothing of itself: %w", err)
	}
	v := View{
		ID: s.ns.ID(), Name: s.domain, Version: varz.Version, StartedAt: varz.Start, Listens: s.Addrs(), TLS: s.opts.TLS != nil, AllowFrom: s.opts.AllowFrom,
		Connections: varz.Connections, Slow: varz.SlowConsumers, MaxStore: s.opts.MaxStore, Full: errors.Is(s.Ready(), ErrFull),
	}
	if varz.JetStream.Stats != nil {
		v.Stored = varz.JetStream.Stats.Store
	}
	if s.opts.WebSocket != nil {
		v.Origins = s.opts.WebSocket.Origins
	}
	if s.opts.Leaf != nil {
		v.Hub, v.HubJoined, v.HubSays = s.opts.Leaf.URL, s.ns.NumLeafNodes() > 0, s.log.ofHub()
	}
	s.mu.Lock()
	for name := range s.keys.doc.Clients {
		v.Clients = append(v.Clients, name)
	}
	s.mu.Unlock()
	slices.Sort(v.Clients)
	if s.cert == nil {
		return v, nil
	}
	s.cert.mu.Lock()
	defer s.cert.mu.Unlock()
	leaf, err := x509.ParseCertificate(s.cert.pair.Certificate[0])
	if err != nil {
		return View{}, fmt.Errorf("the certificate of the bus cannot be read: %w", err)
	}
	v.CertUntil, v.CertNames = leaf.NotAfter, leaf.DNSNames
	for _, ip := range leaf.IPAddresses {
		v.CertNames = append(v.CertNames, ip.String())
	}
	return v, nil
}

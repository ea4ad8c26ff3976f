package bus

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

func TestView(t *testing.T) {
	o := options(t)
	made, err := makeTLS(t, o, []string{"bus.example.com", "192.0.2.7"})
	if err != nil {
		t.Fatal(err)
	}
	o.TLS, o.WebSocket, o.AllowFrom = &made, &WebSocket{Origins: []string{"https://a.example"}}, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	o.MaxStore = 5 << 20
	s := start(t, o)
	issue(t, s, guest("zeta", run1))
	nc := dial(t, s, issue(t, s, guest("acme", run1)))
	flush(t, nc)
	if _, err := workStream(t, s).Publish(t.Context(), "work.acme.1", make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	v, err := s.View()
	if err != nil {
		t.Fatal(err)
	}
	if v.ID != s.ns.ID() || !v.TLS || len(v.Listens) != 2 || !slices.Equal(v.Clients, []string{"acme", "zeta"}) || !slices.Contains(v.CertNames, "bus.example.com") ||
		!slices.Contains(v.CertNames, "192.0.2.7") || time.Until(v.CertUntil) < 24*time.Hour || v.Connections < 2 || v.Stored < 1000 || v.MaxStore != 5<<20 || v.Full ||
		!slices.Equal(v.Origins, []string{"https://a.example"}) || !slices.Equal(v.AllowFrom, o.AllowFrom) || v.Hub != "" {
		t.Errorf("%+v", v)
	}
}

package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"ravi/internal/daemon"
	"ravi/internal/doctor"
	"ravi/internal/porttest"
)

// certificate writes a certificate for this machine's loopback, and its key.
func (c clinic) certificate(until time.Time) (cert, key string) {
	c.t.Helper()
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	form := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: until,
		DNSNames: []string{"ravi.example"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, form, form, secret.Public(), secret)
	if err != nil {
		c.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		c.t.Fatal(err)
	}
	cert, key = filepath.Join(c.bin, "cert.pem"), filepath.Join(c.bin, "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
	return cert, key
}

// Who reaches the gateway, and what it shows, is found by dialling it.
func TestDoctorMendsTheGateway(t *testing.T) {
	port := porttest.Free(t)
	c := newClinic(t, map[string]any{"port": port})
	const check = "gateway.exposure"

	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	f := c.finds(check, "gateway.taken", doctor.Warn)
	if !strings.Contains(f.Summary, strconv.Itoa(os.Getpid())) {
		t.Errorf("it does not say who: %s", f.Summary)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	c.well(check, "gateway.taken")

	c.shell("ravi daemon start")
	r := c.look(check)
	if len(r.Findings) > 0 || r.Checks[0].Status != doctor.Pass || !strings.HasPrefix(r.Checks[0].Said, "loopback_only: port "+strconv.Itoa(port)) || !strings.HasSuffix(r.Checks[0].Said, "no TLS, authentication") {
		t.Errorf("%+v", r)
	}

	if l, err := net.Listen("tcp", net.JoinHostPort("::1", strconv.Itoa(port))); err == nil {
		f := c.finds(check, "gateway.stranger", doctor.Warn)
		if len(f.Evidence) != 1 || !strings.Contains(f.Evidence[0], strconv.Itoa(os.Getpid())) {
			t.Errorf("%+v", f)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		c.well(check, "gateway.stranger")
	}

	cert, key := c.certificate(time.Now().AddDate(1, 0, 0))
	c.configure(map[string]any{"port": port, "tls_cert": cert, "tls_key": key})
	c.shell(c.finds(check, "gateway.tls", doctor.Error).Fix)
	c.well(check, "gateway.tls")

	c.certificate(time.Now().AddDate(1, 0, 0))
	c.shell(c.finds(check, "gateway.certificate_stale", doctor.Warn).Fix)
	c.well(check, "gateway.certificate_stale")

	for id, until := range map[string]time.Time{"gateway.certificate_over": time.Now().Add(-time.Minute), "gateway.certificate_ends": time.Now().Add(time.Hour)} {
		c.certificate(until)
		c.shell("ravi daemon restart")
		severity := doctor.Warn
		if id == "gateway.certificate_over" {
			severity = doctor.Error
		}
		_, line, _ := strings.Cut(c.finds(check, id, severity).Fix, "then: ")
		c.certificate(time.Now().AddDate(1, 0, 0))
		c.shell(line)
		c.well(check, id)
	}

	text, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(cert); err != nil {
		t.Fatal(err)
	}
	c.finds(check, "gateway.certificate_file", doctor.Error)
	if err := os.WriteFile(cert, text, 0o600); err != nil {
		t.Fatal(err)
	}
	c.well(check, "gateway.certificate_file")

	c.configure(map[string]any{"host": "0.0.0.0", "port": port, "tls_cert": cert, "tls_key": key})
	c.shell("ravi daemon restart")
	r = c.look(check)
	if len(r.Findings) != 1 || !r.OK {
		t.Fatalf("%+v", r)
	}
	f = r.Findings[0]
	switch f.ID {
	case "gateway.exposed":
		if f.Severity != doctor.Info || !strings.Contains(r.Checks[0].Said, "exposed (") || !strings.HasSuffix(r.Checks[0].Said, "TLS, authentication") {
			t.Errorf("%+v", r)
		}
		_, line, _ := strings.Cut(f.Fix, "else: ")
		c.shell(line)
	case "gateway.wide": // where the tests run there is no network
		c.shell(f.Fix)
	default:
		t.Fatalf("%+v", f)
	}
	c.well(check, f.ID)
}

// A bus that is to listen elsewhere, and does so, is told with its addresses; one that still does is an error; and what is
// said ends that.
func TestDoctorMendsTheBus(t *testing.T) {
	c := newClinic(t, map[string]any{"port": 0})
	const check = "bus.exposure"
	c.shell("ravi daemon start")
	if r := c.look(check); len(r.Findings) > 0 || r.Checks[0].Status != doctor.Pass || !strings.HasPrefix(r.Checks[0].Said, "loopback_only: ") || !strings.HasSuffix(r.Checks[0].Said, "no TLS, authentication") {
		t.Errorf("%+v", r)
	}
	c.shell("ravi bus tls localhost 127.0.0.1")
	configure := func(host string) {
		c.withBus(map[string]any{
			"host": host, "tls_cert": filepath.Join(c.dir, "bus/tls/server.pem"), "tls_key": filepath.Join(c.dir, "bus/tls/server-key.pem"),
		})
	}
	configure("0.0.0.0")
	c.finds(check, "bus.tls", doctor.Error)
	c.shell(c.finds("daemon.current", "bus.stale", doctor.Error).Fix)
	r := c.look(check)
	if len(r.Findings) != 1 || !r.OK || !strings.HasSuffix(r.Checks[0].Said, " TLS, authentication") {
		t.Fatalf("%+v", r)
	}
	if r.Findings[0].ID == "bus.wide" {
		t.Skip("SKIP-ENV: there is no address beyond loopback here")
	}
	if f := r.Findings[0]; f.ID != "bus.exposed" || f.Severity != doctor.Info || !strings.HasPrefix(r.Checks[0].Said, "exposed (") {
		t.Errorf("%+v", r)
	}
	configure("127.0.0.1")
	c.shell(c.finds(check, "bus.exposed", doctor.Error).Fix)
	c.well(check, "bus.exposed")
	c.well("daemon.current", "bus.stale")
}

// A daemon whose port others reach without what has to stand in front says so in its log.
func TestDaemonWarnsAtBoot(t *testing.T) {
	c := newClinic(t, nil)
	cert, key := c.certificate(time.Now().AddDate(1, 0, 0))
	log := func() string {
		b, err := os.ReadFile(filepath.Join(c.dir, daemon.LogFile))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	looks := 0
	start := func(gateway map[string]any) {
		t.Helper()
		c.configure(gateway)
		c.shell("ravi daemon start")
		looks++
		eventually(t, func() bool { return strings.Count(log(), `"reached","what":"bus"`) == looks })
		c.shell("ravi daemon stop") // which waits for what is still said
	}
	start(map[string]any{"port": porttest.Free(t)})
	start(map[string]any{"host": "0.0.0.0", "port": porttest.Free(t), "tls_cert": cert, "tls_key": key})
	if text := log(); strings.Contains(text, "gateway.exposed") || strings.Contains(text, `"WARN"`) && !strings.Contains(text, "gateway.wide") {
		t.Errorf("it warns of what is as it should be:\n%s", text)
	}
	port := porttest.Free(t)
	l, err := net.Listen("tcp", net.JoinHostPort("::1", strconv.Itoa(port)))
	if err != nil {
		t.Skipf("SKIP-ENV: no IPv6 here: %v", err)
	}
	defer l.Close()
	start(map[string]any{"port": port})
	if text := log(); !strings.Contains(text, `"finding":"gateway.stranger"`) || !strings.Contains(text, `"mend":`) {
		t.Errorf("it does not warn of another at its port:\n%s", text)
	}
}

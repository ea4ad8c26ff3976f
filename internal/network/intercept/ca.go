package intercept

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"sync"
	"time"
)

const (
	day = 24 * time.Hour

	// A guest's clock may be behind, and days behind after it slept.
	caBehind, caAhead     = 10 * day, 365 * day
	leafBehind, leafAhead = 7 * day, 30 * day

	maxLeaves = 1024
)

// CA is the authority that one sandbox trusts, and nobody else. Its key is in
// this process's memory only and ends with it.
type CA struct {
	now  func() time.Time
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  []byte

	leafKey *ecdsa.PrivateKey // of all leaves: one is as secret as the other

	mu     sync.Mutex
	leaves map[string]*tls.Certificate
}

// NewCA makes an authority that is valid from ten days before now to a year
// after it.
func NewCA(now func() time.Time) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of the sandbox's CA: %w", err)
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of the sandbox's certificates: %w", err)
	}
	ca := &CA{now: now, key: key, leafKey: leafKey, leaves: make(map[string]*tls.Certificate)}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "Ravi sandbox CA", Organization: []string{"Ravi"}},
		NotBefore:             now().Add(-caBehind),
		NotAfter:              now().Add(caAhead),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := ca.sign(template, template, key)
	if err != nil {
		return nil, fmt.Errorf("make the sandbox's CA: %w", err)
	}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("make the sandbox's CA: %w", err)
	}
	ca.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return ca, nil
}

// PEM is the certificate that the sandbox has to trust.
func (ca *CA) PEM() []byte { return append([]byte(nil), ca.pem...) }

func (ca *CA) sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	return x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, ca.key)
}

// leaf is the certificate for name, a host name or an IP address.
func (ca *CA) leaf(name string) (*tls.Certificate, error) {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	now := ca.now()
	// A clock that was set back counts as well: then the leaf is not valid yet.
	if c := ca.leaves[name]; c != nil && now.Add(leafAhead/2).Before(c.Leaf.NotAfter) && now.After(c.Leaf.NotBefore) {
		return c, nil
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{Organization: []string{"Ravi"}},
		NotBefore:   now.Add(-leafBehind),
		NotAfter:    now.Add(leafAhead),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	der, err := ca.sign(template, ca.cert, ca.leafKey)
	if err != nil {
		return nil, fmt.Errorf("make a certificate for %q: %w", name, err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make a certificate for %q: %w", name, err)
	}
	c := &tls.Certificate{Certificate: [][]byte{der, ca.cert.Raw}, PrivateKey: ca.leafKey, Leaf: parsed}
	if len(ca.leaves) >= maxLeaves {
		// Any one will do: a leaf that is missed is made again in no time.
		for other := range ca.leaves {
			delete(ca.leaves, other)
			break
		}
	}
	ca.leaves[name] = c
	return c, nil
}

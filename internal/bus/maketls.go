package bus

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ravi/internal/secret"
)

// caKeyFile is the key of the authority. It is needed to make certificates only, and is encrypted as keys.age is.
const caKeyFile = "ca-key.age"

// The lives of what MakeTLS makes.
const (
	caLife   = 10 * 365 * 24 * time.Hour
	certLife = 2 * 365 * 24 * time.Hour
)

// MakeTLS makes a certificate for the bus in dir/tls: server.pem and server-key.pem, signed by an authority of its own,
// ca.pem, which is made once and signs again after that. hosts are the names and addresses that the bus is reached by;
// those of loopback are added. Whoever connects is given ca.pem. dir is the folder of the bus, in the home.
func MakeTLS(ctx context.Context, home, dir string, hosts []string) (TLS, error) {
	template, err := serverTemplate(hosts)
	if err != nil {
		return TLS{}, err
	}
	out := made(dir)
	for _, folder := range []string{dir, filepath.Dir(out.CA)} {
		if err := ourFolder(folder); err != nil {
			return TLS{}, err
		}
	}
	store, err := secret.Open(home)
	if err != nil {
		return TLS{}, err
	}
	rel, err := inHome(home, dir)
	if err != nil {
		return TLS{}, err
	}
	ca, caKey, err := authority(ctx, store, out.CA, filepath.Join(rel, "tls", caKeyFile))
	if err != nil {
		return TLS{}, err
	}
	if template.NotAfter.After(ca.NotAfter) {
		template.NotAfter = ca.NotAfter
	}
	key, cert, err := makeCert(template, ca, caKey)
	if err != nil {
		return TLS{}, fmt.Errorf("cannot make the certificate of the bus: %w", err)
	}
	pem, err := keyPEM(key)
	if err == nil {
		err = writePrivate(out.Key, pem)
	}
	if err == nil {
		err = writePrivate(out.Cert, cert)
	}
	if err != nil {
		return TLS{}, fmt.Errorf("cannot write the certificate of the bus: %w", err)
	}
	return out, nil
}

// made is where MakeTLS writes.
func made(dir string) TLS {
	folder := filepath.Join(dir, "tls")
	return TLS{Cert: filepath.Join(folder, "server.pem"), Key: filepath.Join(folder, "server-key.pem"), CA: filepath.Join(folder, "ca.pem")}
}

func serverTemplate(hosts []string) (*x509.Certificate, error) {
	if len(hosts) == 0 {
		return nil, refuse(ErrTLS, "name them: ravi bus tls NAME-OR-ADDRESS…", "a certificate needs the names or addresses that the bus is reached by")
	}
	t := &x509.Certificate{
		NotAfter: time.Now().Add(certLife), Subject: pkix.Name{CommonName: "ravi bus"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, h := range append([]string{"localhost", "127.0.0.1", "::1"}, hosts...) {
		if ip := net.ParseIP(h); ip != nil {
			if !slices.ContainsFunc(t.IPAddresses, ip.Equal) {
				t.IPAddresses = append(t.IPAddresses, ip)
			}
			continue
		}
		name := strings.ToLower(strings.TrimSuffix(h, "."))
		if !hostName(name) {
			return nil, refuse(ErrTLS, "", "%q is neither a name nor an address of a machine", h)
		}
		if !slices.Contains(t.DNSNames, name) {
			t.DNSNames = append(t.DNSNames, name)
		}
	}
	return t, nil
}

func hostName(name string) bool {
	if name == "" || len(name) > 253 {
		return false
	}
	for i, label := range strings.Split(name, ".") {
		if label == "*" && i == 0 && strings.Contains(name, ".") {
			continue
		}
		odd := func(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '_') }
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' || strings.ContainsFunc(label, odd) {
			return false
		}
	}
	return true
}

// authority reads the authority of this bus, or makes it when there is none.
func authority(ctx context.Context, store *secret.Store, certFile, keyName string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	bad := func(err error) error {
		hint := fmt.Sprintf("put it back, or make a new authority, which all who connect must be given: mv %q %q", filepath.Dir(certFile), filepath.Dir(certFile)+".old")
		return refuse(errors.Join(ErrTLS, err), hint, "cannot use the authority of the bus, %s and %s: %s", certFile, caKeyFile, err)
	}
	certPEM, certErr := os.ReadFile(certFile)
	secretPEM, keyErr := store.Sealed(keyName)
	switch {
	case errors.Is(certErr, fs.ErrNotExist) && errors.Is(keyErr, fs.ErrNotExist):
		return newAuthority(ctx, store, certFile, keyName)
	case certErr != nil || keyErr != nil:
		return nil, nil, bad(errors.Join(certErr, keyErr))
	}
	cert, err := readPEM(certPEM, "CERTIFICATE", x509.ParseCertificate)
	if err != nil {
		return nil, nil, bad(err)
	}
	key, err := readPEM(secretPEM, "EC PRIVATE KEY", x509.ParseECPrivateKey)
	if err != nil {
		return nil, nil, bad(err)
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, nil, bad(errors.New("the key is that of another certificate"))
	}
	if !cert.IsCA || time.Now().After(cert.NotAfter) {
		return nil, nil, bad(errors.New("it is over, or is none"))
	}
	return cert, key, nil
}

func newAuthority(ctx context.Context, store *secret.Store, certFile, keyName string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	failed := func(err error) error { return fmt.Errorf("cannot make the authority of the bus: %w", err) }
	t := &x509.Certificate{
		NotAfter: time.Now().Add(caLife), Subject: pkix.Name{CommonName: "ravi bus authority"},
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
	}
	key, certPEM, err := makeCert(t, nil, nil)
	if err != nil {
		return nil, nil, failed(err)
	}
	secretPEM, err := keyPEM(key)
	if err == nil {
		err = store.SetSealed(ctx, keyName, secretPEM)
	}
	if err == nil {
		err = writePrivate(certFile, certPEM)
	}
	if err != nil {
		return nil, nil, failed(err)
	}
	cert, err := readPEM(certPEM, "CERTIFICATE", x509.ParseCertificate)
	return cert, key, err
}

func readPEM[T any](data []byte, kind string, parse func([]byte) (T, error)) (T, error) {
	var none T
	block, _ := pem.Decode(data)
	if block == nil || block.Type != kind {
		return none, fmt.Errorf("there is no %s", strings.ToLower(kind))
	}
	return parse(block.Bytes)
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), err
}

// makeCert makes a key and a certificate for it, signed by parent, or by itself if there is none.
func makeCert(t, parent *x509.Certificate, signer *ecdsa.PrivateKey) (key *ecdsa.PrivateKey, cert []byte, err error) {
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, err
	}
	if parent == nil {
		parent, signer = t, key
	}
	if t.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, nil, err
	}
	t.NotBefore = time.Now().Add(-time.Hour) // clocks differ
	der, err := x509.CreateCertificate(rand.Reader, t, parent, &key.PublicKey, signer)
	return key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), err
}

// writePrivate writes a file for us alone, in one step.
func writePrivate(path string, data []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".new-*") // its mode is 0600
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}

package bus

import (
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
)

// caKeyFile is the key of the authority, which is needed to make certificates only.
const caKeyFile = "ca-key.pem"

// The lives of what MakeTLS makes.
const (
	caLife   = 10 * 365 * 24 * time.Hour
	certLife = 2 * 365 * 24 * time.Hour
)

// MakeTLS makes a certificate for the bus in dir/tls: server.pem and server-key.pem, signed by an authority of its own,
// ca.pem and ca-key.pem, which is made once and signs again after that. hosts are the names and addresses that the bus is
// reached by; those of loopback are added. Whoever connects is given ca.pem. dir is the folder of the bus.
func MakeTLS(dir string, hosts []string) (TLS, error) {
	if err := ourFolder(dir); err != nil {
		return TLS{}, err
	}
	folder := filepath.Join(dir, "tls")
	if err := ourFolder(folder); err != nil {
		return TLS{}, err
	}
	out := TLS{Cert: filepath.Join(folder, "server.pem"), Key: filepath.Join(folder, "server-key.pem"), CA: filepath.Join(folder, "ca.pem")}
	template, err := serverTemplate(hosts)
	if err != nil {
		return TLS{}, err
	}
	ca, caKey, err := authority(out.CA, filepath.Join(folder, caKeyFile))
	if err != nil {
		return TLS{}, err
	}
	if template.NotAfter.After(ca.NotAfter) {
		template.NotAfter = ca.NotAfter
	}
	if err := makeCert(template, ca, caKey, out.Cert, out.Key); err != nil {
		return TLS{}, err
	}
	return out, nil
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
func authority(certFile, keyFile string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	_, noCert := os.Lstat(certFile)
	_, noKey := os.Lstat(keyFile)
	if errors.Is(noCert, fs.ErrNotExist) && errors.Is(noKey, fs.ErrNotExist) {
		t := &x509.Certificate{
			NotAfter: time.Now().Add(caLife), Subject: pkix.Name{CommonName: "ravi bus authority"},
			KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		}
		if err := makeCert(t, nil, nil, certFile, keyFile); err != nil {
			return nil, nil, err
		}
	}
	bad := func(path string, err error) error {
		return refuse(errors.Join(ErrTLS, err), fmt.Sprintf("put it back, or make a new authority, which all who connect must be given: mv %q %q",
			filepath.Dir(path), filepath.Dir(path)+".old"), "cannot use the authority of the bus, %s: %s", path, err)
	}
	cert, err := readPEM(certFile, "CERTIFICATE", x509.ParseCertificate)
	if err != nil {
		return nil, nil, bad(certFile, err)
	}
	key, err := readPEM(keyFile, "EC PRIVATE KEY", x509.ParseECPrivateKey)
	if err != nil {
		return nil, nil, bad(keyFile, err)
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, nil, bad(keyFile, errors.New("it is the key of another certificate"))
	}
	if !cert.IsCA || time.Now().After(cert.NotAfter) {
		return nil, nil, bad(certFile, errors.New("it is over, or is none"))
	}
	return cert, key, nil
}

func readPEM[T any](path, kind string, parse func([]byte) (T, error)) (T, error) {
	var none T
	data, err := os.ReadFile(path)
	if err != nil {
		return none, err
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != kind {
		return none, fmt.Errorf("it holds no %s", strings.ToLower(kind))
	}
	return parse(block.Bytes)
}

// makeCert makes a key and a certificate for it, signed by parent, or by itself if there is none.
func makeCert(t, parent *x509.Certificate, signer *ecdsa.PrivateKey, certFile, keyFile string) error {
	failed := func(err error) error { return fmt.Errorf("cannot make the certificate %s: %w", certFile, err) }
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return failed(err)
	}
	if parent == nil {
		parent, signer = t, key
	}
	if t.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return failed(err)
	}
	t.NotBefore = time.Now().Add(-time.Hour) // clocks differ
	der, err := x509.CreateCertificate(rand.Reader, t, parent, &key.PublicKey, signer)
	if err != nil {
		return failed(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return failed(err)
	}
	err = writePrivate(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}))
	if err == nil {
		err = writePrivate(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}
	if err != nil {
		return failed(err)
	}
	return nil
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

package network

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"ravi/internal/network/policy"
)

// maxExtraCAs bounds the extra certificate authorities of a sandbox, in bytes of
// PEM: they are sent with each policy.
const maxExtraCAs = 256 << 10

// ExtraCAs checks extra certificate authorities, PEM by host, and returns them as
// Config takes them: hosts in the form that is compared, and of the PEM the
// certificates only.
func ExtraCAs(given map[string]string) (map[string]string, error) {
	out, size := map[string]string{}, 0
	for _, key := range slices.Sorted(maps.Keys(given)) {
		host, err := AuthorityHost(key)
		if err != nil {
			return nil, err
		}
		if _, twice := out[host]; twice {
			return nil, fmt.Errorf("the host %s is given twice", host)
		}
		certs, err := certificates([]byte(given[key]))
		if err != nil {
			return nil, fmt.Errorf("the certificates for %s: %w", host, err)
		}
		out[host], size = certs, size+len(certs)
	}
	if size > maxExtraCAs {
		return nil, fmt.Errorf("the certificates have %d bytes in all, more than %d", size, maxExtraCAs)
	}
	return out, nil
}

// AuthorityHost is what an extra certificate authority can hold for, in the form
// that is compared: a name, *.name or an address.
func AuthorityHost(text string) (string, error) {
	if addr, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return addr.Unmap().WithZone("").String(), nil
	}
	name, below := strings.CutPrefix(text, "*.")
	host, err := policy.Host(name)
	if err != nil {
		return "", fmt.Errorf("%s is no host such as git.example.com or *.example.com: %w", strconv.QuoteToASCII(text), err)
	}
	if below {
		return "*." + host, nil
	}
	return host, nil
}

// certificates returns those in a PEM text, without what is between them.
func certificates(text []byte) (string, error) {
	var out bytes.Buffer
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return "", fmt.Errorf("there is a %s beside certificates; take it out", strings.ToLower(block.Type))
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return "", fmt.Errorf("one of them cannot be read: %w", err)
		}
		if err := pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes}); err != nil {
			return "", err
		}
	}
	if out.Len() == 0 {
		return "", errors.New("there is no certificate (PEM, -----BEGIN CERTIFICATE-----)")
	}
	return out.String(), nil
}

// authorities are what servers' certificates must lead to.
type authorities struct {
	system *x509.CertPool
	extra  map[string]*x509.CertPool // those of the system, and more
}

// newAuthorities takes extra ones as ExtraCAs returns them. Of what is no
// certificate nothing is trusted.
func newAuthorities(system *x509.CertPool, extra map[string]string) authorities {
	a := authorities{system, map[string]*x509.CertPool{}}
	for host, certs := range extra {
		pool := system.Clone()
		pool.AppendCertsFromPEM([]byte(certs))
		a.extra[host] = pool
	}
	return a
}

// of is what holds for a host: a name in lower case, or an address.
func (a authorities) of(host string) *x509.CertPool {
	pool, found := a.extra[host]
	for rest := host; !found; {
		_, below, more := strings.Cut(rest, ".")
		if !more {
			return a.system
		}
		rest = below
		pool, found = a.extra["*."+below]
	}
	return pool
}

package guest

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// userOf says as whom a call acts: the user it names, the one in its Basic
// authorization, or the default. That is a choice and not a proof; who may
// call at all is decided before.
func (s *Server) userOf(h http.Header, named string) (account, error) {
	if named == "" {
		r := http.Request{Header: h}
		if name, _, ok := r.BasicAuth(); ok {
			named = name
		}
	}
	if named == "" {
		named = s.settings.defaultUser()
	}
	return s.opts.accounts.lookup(named)
}

// resolve makes a path of the protocol absolute: nothing means the default
// directory, ~ and relative ones start at the user's home.
func (s *Server) resolve(path string, user account) (string, error) {
	if strings.ContainsRune(path, 0) {
		return "", fmt.Errorf("%w: the path has a NUL byte", errBadArgument)
	}
	switch {
	case path == "":
		if dir := s.settings.defaultWorkdir(); dir != "" {
			return s.resolve(dir, user)
		}
		return user.home, nil
	case path == "~":
		return user.home, nil
	case strings.HasPrefix(path, "~/"):
		return filepath.Join(user.home, path[2:]), nil
	case strings.HasPrefix(path, "~"):
		return "", fmt.Errorf("%w: '%s': only your own home has the short form '~'", errBadArgument, path)
	case filepath.IsAbs(path):
		return filepath.Clean(path), nil
	}
	return filepath.Join(user.home, path), nil
}

// Guarded serves the protocol to whoever reaches a listener on loopback. It is
// for conformance tests, and for tools that know E2B's debug mode. With a
// token, every call but /health needs it, or a signature for /files.
// Names other than loopback's are refused in Host, so that no web page reaches
// it by a name of its own; without a token other origins are refused too.
func (s *Server) Guarded() http.Handler {
	next := s.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLoopbackHost(r.Host) {
			writeError(w, http.StatusForbidden, fmt.Errorf("host %q is not this machine", r.Host))
			return
		}
		token := s.settings.accessToken()
		if origin := r.Header.Get("Origin"); origin != "" {
			if token == "" && !isLoopbackOrigin(origin) {
				writeError(w, http.StatusForbidden, fmt.Errorf("origin %q may not call without a token", origin))
				return
			}
			allowOrigin(w.Header(), origin)
			if r.Method == http.MethodOptions {
				w.WriteHeader(http.StatusNoContent)
				return
			}
		}
		if err := s.authorize(r, token); err != nil {
			writeError(w, http.StatusUnauthorized, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

var (
	errNoToken      = errors.New("unauthorized access, please provide a valid access token or method signing if supported")
	errBadSignature = errors.New("invalid signature")
	errExpired      = errors.New("the signature has expired")
)

func (s *Server) authorize(r *http.Request, token string) error {
	if token == "" || r.URL.Path == "/health" {
		return nil
	}
	if given := r.Header.Get("X-Access-Token"); given != "" {
		if sameSecret(given, token) {
			return nil
		}
		return errNoToken
	}
	if r.URL.Path != "/files" {
		return errNoToken
	}
	operation := "write"
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		operation = "read"
	}
	return checkSignature(r.URL.Query(), operation, token, time.Now())
}

func sameSecret(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// checkSignature checks a signed address of /files: who holds the token made
// it for this path, operation and user, perhaps until a certain time.
func checkSignature(q url.Values, operation, token string, now time.Time) error {
	given := q.Get("signature")
	if given == "" {
		return errNoToken
	}
	expiry := q.Get("signature_expiration")
	if !sameSecret(given, signature(q.Get("path"), operation, q.Get("username"), token, expiry)) {
		return errBadSignature
	}
	if expiry != "" {
		at, err := strconv.ParseInt(expiry, 10, 64)
		if err != nil {
			return errBadSignature
		}
		if now.Unix() > at {
			return errExpired
		}
	}
	return nil
}

func signature(path, operation, user, token, expiry string) string {
	text := path + ":" + operation + ":" + user + ":" + token
	if expiry != "" {
		text += ":" + expiry
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

func isLoopbackHost(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.Unmap().IsLoopback()
}

func isLoopbackOrigin(origin string) bool {
	u, err := url.Parse(origin)
	return err == nil && isLoopbackHost(u.Host)
}

func allowOrigin(h http.Header, origin string) {
	h.Set("Access-Control-Allow-Origin", origin)
	h.Add("Vary", "Origin")
	h.Set("Access-Control-Allow-Methods", "GET, POST, PUT, OPTIONS, HEAD")
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Content-Encoding, Range, Connect-Protocol-Version, "+
		"Connect-Timeout-Ms, Keepalive-Ping-Interval, X-Access-Token, E2b-Sandbox-Id, E2b-Sandbox-Port")
	h.Set("Access-Control-Expose-Headers", "Content-Length, Content-Range, ETag, Last-Modified")
	h.Set("Access-Control-Max-Age", "7200")
}

package broker

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strings"
)

// Prefix is what every lease begins with.
const Prefix = "rlease_"

const tokenSize = 18 // random bytes, 24 characters

// NewToken makes a lease's token, and the hash that Lease.Hash takes. The token is for the agent alone and kept nowhere.
func NewToken() (token, hash string) {
	b := make([]byte, tokenSize)
	rand.Read(b) // it ends the program rather than fail
	token = Prefix + base64.RawURLEncoding.EncodeToString(b)
	return token, TokenHash(token)
}

// TokenHash is what is kept of a token.
func TokenHash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// wellFormed says whether a text has the form of a lease.
func wellFormed(token string) bool {
	rest, ok := strings.CutPrefix(token, Prefix)
	if !ok || len(rest) != base64.RawURLEncoding.EncodedLen(tokenSize) {
		return false
	}
	_, err := base64.RawURLEncoding.Strict().DecodeString(rest)
	return err == nil
}

// keyHeaders are where agents put what they take for the provider's key. No other place counts, the address least of all.
var keyHeaders = []string{"X-Api-Key", "X-Goog-Api-Key", "Authorization"}

// holds says why a request does not have the lease, or nil. Whoever sends several of them must mean the same by all.
func (b *Broker) holds(h http.Header) *refusal {
	const hint = "; the agent's key must be the lease that Ravi gave to this run (rlease_…)"
	found := false
	for _, name := range keyHeaders {
		values := h[name]
		if len(values) == 0 {
			continue
		}
		if len(values) > 1 {
			return unauthorized("there is more than one header " + name + hint)
		}
		token := strings.TrimSpace(values[0])
		if name == "Authorization" {
			scheme, rest, _ := strings.Cut(token, " ")
			if !strings.EqualFold(scheme, "Bearer") {
				return unauthorized("the header Authorization is not of the kind Bearer" + hint)
			}
			token = strings.TrimSpace(rest)
		}
		if !wellFormed(token) {
			return unauthorized("the header " + name + " has no lease" + hint)
		}
		if subtle.ConstantTimeCompare([]byte(TokenHash(token)), []byte(b.lease.Hash)) != 1 {
			return unauthorized("the header " + name + " has a lease that is not this run's" + hint)
		}
		found = true
	}
	if !found {
		return unauthorized("there is no lease" + hint)
	}
	return nil
}

func unauthorized(message string) *refusal {
	return &refusal{status: http.StatusUnauthorized, message: message}
}

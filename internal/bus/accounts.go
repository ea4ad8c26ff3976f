package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

// clientConns is the most connections of one client's guests together, so that none can take all that there are.
const clientConns = 512

// signedOperator is the operator's claims.
func (k *keys) operator() (*jwt.OperatorClaims, error) {
	pair, err := nkeys.FromSeed([]byte(k.doc.Operator))
	if err != nil {
		return nil, err
	}
	public, err := pair.PublicKey()
	if err != nil {
		return nil, err
	}
	system, err := publicOf(k.doc.System, nkeys.PrefixByteAccount)
	if err != nil {
		return nil, err
	}
	claims := jwt.NewOperatorClaims(public)
	claims.Name = "ravi"
	claims.SystemAccount = system
	text, err := claims.Encode(pair)
	if err != nil {
		return nil, err
	}
	return jwt.DecodeOperatorClaims(text)
}

// shape is how the accounts are now, beside their keys.
type shape struct {
	leaf bool // a hub is joined
	full bool // nothing more is stored
}

// claimsOf are the signed claims of an account. Nothing passes between accounts but what a hub is told and says; there are
// no leaf nodes but the one that the server dials itself, and no streams but in CONTROL, which store nothing while the disk
// is full.
func (k *keys) claimsOf(name string, a *account, is shape) (*jwt.AccountClaims, string, error) {
	public, err := publicOf(a.Seed, nkeys.PrefixByteAccount)
	if err != nil {
		return nil, "", err
	}
	claims := jwt.NewAccountClaims(public)
	claims.Name = name
	claims.Limits.AccountLimits = jwt.AccountLimits{DisallowBearer: true, Conn: clientConns}
	switch a {
	case k.doc.Control:
		claims.Limits.Conn = jwt.NoLimit
		disk := int64(jwt.NoLimit)
		if is.full {
			disk = 1
		}
		claims.Limits.JetStreamLimits = jwt.JetStreamLimits{DiskStorage: disk, Streams: jwt.NoLimit, Consumer: jwt.NoLimit}
	case k.doc.Hub:
		claims.Limits.Conn, claims.Limits.LeafNodeConn = 0, jwt.NoLimit
	}
	if is.leaf {
		if err := k.joinHub(claims, a); err != nil {
			return nil, "", err
		}
	}
	claims.Revocations = jwt.RevocationList{}
	for user, at := range a.Revoked {
		claims.Revocations[user] = at
	}
	text, err := k.encode(claims)
	return claims, text, err
}

// encode signs claims as the operator.
func (k *keys) encode(claims *jwt.AccountClaims) (string, error) {
	pair, err := nkeys.FromSeed([]byte(k.doc.Operator))
	if err != nil {
		return "", err
	}
	defer pair.Wipe()
	return claims.Encode(pair)
}

func (k *keys) systemClaims() (public, text string, err error) {
	public, err = publicOf(k.doc.System, nkeys.PrefixByteAccount)
	if err != nil {
		return "", "", err
	}
	claims := jwt.NewAccountClaims(public)
	claims.Name = "SYS"
	claims.Limits.AccountLimits = jwt.AccountLimits{DisallowBearer: true, Conn: clientConns}
	text, err = k.encode(claims)
	return public, text, err
}

// push tells the running server what an account is now.
func (s *Server) push(name string, a *account) error {
	claims, text, err := s.keys.claimsOf(name, a, shape{leaf: s.leaf, full: s.space.low})
	if err != nil {
		return fmt.Errorf("cannot sign the account %s: %w", name, err)
	}
	if err := s.ns.AccountResolver().Store(claims.Subject, text); err != nil {
		return fmt.Errorf("cannot set the account %s: %w", name, err)
	}
	known, err := s.ns.LookupAccount(claims.Subject)
	if err != nil {
		return fmt.Errorf("cannot set the account %s: %w", name, err)
	}
	s.ns.UpdateAccountClaims(known, claims)
	return nil
}

// ensure finds the account of a client, and makes it if there is none. It needs the lock.
func (s *Server) ensure(ctx context.Context, client string) (*account, error) {
	if a := s.keys.account(client); a != nil {
		return a, nil
	}
	if !clientForm.MatchString(client) {
		return nil, refuse(ErrRequest, "", "%q is not the name of a client: lower-case letters, digits and -", client)
	}
	seed, err := newSeed(nkeys.PrefixByteAccount)
	if err != nil {
		return nil, fmt.Errorf("cannot make the account of %s: %w", client, err)
	}
	a := &account{Seed: seed}
	s.keys.doc.Clients[client] = a
	if err := s.keys.save(ctx); err != nil {
		delete(s.keys.doc.Clients, client)
		return nil, fmt.Errorf("cannot make the account of %s: %w", client, err)
	}
	return a, s.push(client, a)
}

// Issue makes a credential, or renews one.
func (s *Server) Issue(ctx context.Context, r Request) (Credential, error) {
	if err := r.check(); err != nil {
		return Credential{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return Credential{}, ErrClosed
	}
	signer, err := s.signer(ctx, r.Account)
	if err != nil {
		return Credential{}, err
	}
	return signer.issue(r)
}

func (s *Server) signer(ctx context.Context, client string) (*signer, error) {
	a, err := s.ensure(ctx, client)
	if err != nil {
		return nil, err
	}
	pair, err := nkeys.FromSeed([]byte(a.Seed))
	if err != nil {
		return nil, errors.New("the key of the account is none")
	}
	return &signer{pair: pair, curve: s.keys.doc.Curve, now: s.now}, nil
}

// Revoke says which users of an account are revoked.
func (s *Server) Revoke(ctx context.Context, client string, users map[string]time.Time) error {
	for user := range users {
		if !nkeys.IsValidPublicUserKey(user) {
			return refuse(ErrRequest, "", "%q is not the public key of a user", user)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	a := s.keys.account(client)
	if a == nil {
		if len(users) == 0 {
			return nil
		}
		// Who is revoked before the account is there is so when it is.
		var err error
		if a, err = s.ensure(ctx, client); err != nil {
			return err
		}
	}
	if !a.revoke(users) {
		return nil
	}
	// The cut first: it must not wait for a disk.
	name := client
	if name == "" {
		name = "CONTROL"
	}
	return errors.Join(s.push(name, a), s.keys.save(ctx))
}

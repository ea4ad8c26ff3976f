package bus

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"ravi/internal/secret"
)

// signer makes credentials of one account.
type signer struct {
	pair    nkeys.KeyPair // of the account, or a signing key of it
	account string        // its public key where pair is a signing key
	curve   string        // seed of the daemon's curve key
	now     func() time.Time
}

// check holds a request to the rules, and fills in what follows from what it is.
func (r *Request) check() error {
	bad := func(format string, args ...any) error {
		return refuse(ErrRequest, "", "no credential is issued: "+format, args...)
	}
	if !tokenForm.MatchString(r.Name) {
		return bad("its name %q has others than letters, digits, - and _, or more than 64", r.Name)
	}
	if r.Account != "" && !clientForm.MatchString(r.Account) {
		return bad("%q is not the name of a client", r.Account)
	}
	if r.TTL < time.Second || r.TTL > MaxTTL {
		return bad("it would be good for %v, which is less than a second or more than a year", r.TTL)
	}
	if r.User != "" && !nkeys.IsValidPublicUserKey(r.User) {
		return bad("the user to be renewed is not the public key of one")
	}
	for _, p := range r.From {
		if !p.IsValid() {
			return bad("an address that it may come from is none")
		}
	}
	if r.Kind != KindOperator && len(r.Publish)+len(r.Subscribe) > 0 {
		return bad("its subjects follow from what it is")
	}
	if (r.Kind == KindOwner || r.Kind == KindGuest) && !tokenForm.MatchString(r.RunID) {
		return bad("%q is not the id of a run", r.RunID)
	}
	if r.RunID != "" && r.Kind != KindOwner && r.Kind != KindGuest {
		return bad("it is not of a run")
	}
	switch r.Kind {
	case KindOwner, KindRunner:
		if r.Account != "" {
			return bad("it is in the daemon's account, not in that of a client")
		}
	case KindGuest:
		if r.Account == "" {
			return bad("a guest needs the account of its client")
		}
	case KindOperator:
		return r.checkSubjects()
	default:
		return bad("there is no kind %q", r.Kind)
	}
	return nil
}

// checkSubjects holds the subjects that somebody names to the rules.
func (r *Request) checkSubjects() error {
	if len(r.Publish)+len(r.Subscribe) == 0 || len(r.Publish) > maxSubjects || len(r.Subscribe) > maxSubjects {
		return refuse(ErrRequest, "name them: --publish SUBJECT, --subscribe SUBJECT",
			"no credential is issued: it needs subjects that it may publish or subscribe to, at most %d each", maxSubjects)
	}
	for _, s := range slices.Concat(r.Publish, r.Subscribe) {
		if err := CheckSubject(s); err != nil {
			return err
		}
		// Everything, or what begins with anything, has the API of the streams and others' inboxes in it.
		first, _, _ := strings.Cut(s, ".")
		if first == ">" || first == "*" || strings.HasPrefix(first, "_") || strings.HasPrefix(first, "$") {
			return refuse(ErrRequest, "name the subjects that it needs, such as 'run.>'",
				"no credential is issued: the subject %q reaches into what belongs to the bus itself or to others", s)
		}
	}
	return nil
}

// CheckSubject says whether a text is a subject, wildcards allowed: tokens of visible signs between dots, * for one whole
// token, > for all that is left.
func CheckSubject(s string) error {
	ok := len(s) <= 255
	tokens := strings.Split(s, ".")
	for i, t := range tokens {
		printable := !strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r >= 0x7f })
		wild := strings.ContainsAny(t, "*>") && t != "*" && (t != ">" || i != len(tokens)-1)
		ok = ok && t != "" && printable && !wild
	}
	if !ok {
		return refuse(ErrRequest, "", "%q is not a subject", s)
	}
	return nil
}

// issue makes the credential of a request.
func (s *signer) issue(r Request) (Credential, error) {
	if err := r.check(); err != nil {
		return Credential{}, err
	}
	c := Credential{User: r.User, Name: r.Name}
	if c.User == "" {
		if err := c.makeSeeds(r.Kind, s.curve); err != nil {
			return Credential{}, fmt.Errorf("cannot make a credential: %w", err)
		}
	}
	if r.Kind == KindRunner {
		peer, err := publicOf(s.curve, nkeys.PrefixByteCurve)
		if err != nil {
			return Credential{}, errors.New("cannot make a credential: the curve key of the daemon is none")
		}
		c.Peer = peer
	}
	claims := r.claims(c.User)
	c.Expires = s.now().Add(r.TTL + time.Second - 1).Truncate(time.Second) // a JWT knows whole seconds
	claims.Expires = c.Expires.Unix()
	return s.sign(c, claims)
}

func (s *signer) sign(c Credential, claims *jwt.UserClaims) (Credential, error) {
	claims.IssuerAccount = s.account
	var check jwt.ValidationResults
	claims.Validate(&check)
	if check.IsBlocking(false) {
		return Credential{}, refuse(errors.Join(ErrRequest, errors.Join(check.Errors()...)), "", "no credential is issued: %s", errors.Join(check.Errors()...))
	}
	text, err := claims.Encode(s.pair)
	if err != nil {
		return Credential{}, errors.New("cannot sign a credential") // the cause could show a key
	}
	c.JWT = text
	return c, nil
}

// makeSeeds makes the keys of a new user.
func (c *Credential) makeSeeds(kind Kind, daemon string) error {
	seed, err := newSeed(nkeys.PrefixByteUser)
	if err != nil {
		return err
	}
	if c.User, err = publicOf(seed, nkeys.PrefixByteUser); err != nil {
		return err
	}
	c.Seed = secret.NewValue(seed)
	curve := ""
	switch kind {
	case KindRunner:
		if curve, err = newSeed(nkeys.PrefixByteCurve); err != nil {
			return err
		}
	case KindOwner:
		curve = daemon
	}
	if curve == "" {
		return nil
	}
	c.XSeed = secret.NewValue(curve)
	c.XPublic, err = publicOf(curve, nkeys.PrefixByteCurve)
	return err
}

// claims are what a user may do. All lists are exact: what stands in none of them is refused.
func (r *Request) claims(user string) *jwt.UserClaims {
	c := jwt.NewUserClaims(user)
	c.Name = r.Name
	pub, sub := r.subjects()
	c.Pub.Allow.Add(pub...)
	c.Sub.Allow.Add(append(sub, inbox(user)+".>")...)
	if len(pub) == 0 {
		c.Pub.Deny.Add(">") // nothing allowed would be all
	}
	c.AllowedConnectionTypes.Add(jwt.ConnectionTypeStandard)
	if r.WebSocket {
		c.AllowedConnectionTypes.Add(jwt.ConnectionTypeWebsocket)
	}
	for _, p := range r.From {
		c.Src.Add(netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-(p.Addr().BitLen()-p.Addr().Unmap().BitLen())).Masked().String())
	}
	if r.Kind == KindGuest {
		c.Limits.Payload = GuestPayload
		c.Limits.Subs = GuestSubscriptions
	}
	return c
}

// subjects are what it may publish, and what it may subscribe to beside its inbox.
func (r *Request) subjects() (pub, sub []string) {
	switch r.Kind {
	case KindOwner:
		return []string{"run." + r.RunID + ".>", "tunnel.*." + r.RunID + ".*.down"}, []string{"tunnel.*." + r.RunID + ".*.up"}
	case KindRunner:
		return []string{"runner." + r.Name + ".status", "tunnel." + r.Name + ".*.*.up"}, []string{"tunnel." + r.Name + ".*.*.down"}
	case KindGuest:
		return []string{"run." + r.RunID + ".up.>"}, []string{"run." + r.RunID + ".down.>"}
	}
	return slices.Clone(r.Publish), slices.Clone(r.Subscribe)
}

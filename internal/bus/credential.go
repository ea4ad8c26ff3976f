package bus

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"ravi/internal/secret"
)

const maxFile = 64 << 10 // bytes of a file of credentials

// Credential is a user of the bus: what it may do, signed, and the key that proves to be it.
type Credential struct {
	User    string       // public key
	Name    string       // what it was called
	JWT     string       // what it may do. It is of no use without the seed
	Seed    secret.Value // none in one that renews another
	XSeed   secret.Value // the curve key of a runner, and the daemon's for an owner; others have none
	XPublic string       // its public key
	Peer    string       // for a runner: the public curve key of the daemon
	Expires time.Time
}

// Inbox is the prefix of the credential's own replies, without the last dot.
func (c Credential) Inbox() string { return inbox(c.User) }

func inbox(user string) string { return "_INBOX_" + user }

// The blocks of a file. The first two are those of the NATS tools, which read past the others.
const (
	blockJWT   = "NATS USER JWT"
	blockSeed  = "USER NKEY SEED"
	blockXSeed = "RAVI CURVE SEED"
	blockPeer  = "RAVI PEER"
)

// File is the credential in the form of .creds files, which all tools of NATS read. It holds the key.
func (c Credential) File() []byte {
	var b bytes.Buffer
	block := func(name, text string) {
		if text != "" {
			fmt.Fprintf(&b, "-----BEGIN %s-----\n%s\n------END %s------\n\n", name, text, name)
		}
	}
	block(blockJWT, c.JWT)
	b.WriteString("Whoever has this file is this user. Keep it to yourself: chmod 600.\n\n")
	block(blockSeed, c.Seed.Reveal())
	block(blockXSeed, c.XSeed.Reveal())
	block(blockPeer, c.Peer)
	return b.Bytes()
}

// ParseCredential reads what File gives, and the .creds files of the NATS tools. Errors repeat nothing of it.
func ParseCredential(data []byte) (Credential, error) {
	bad := func(what string) (Credential, error) {
		return Credential{}, refuse(ErrCredential, "get a new one: ravi bus creds issue", "this is not a credential of the bus: %s", what)
	}
	if len(data) > maxFile {
		return bad("it is too large")
	}
	blocks, ok := parseBlocks(string(data))
	if !ok {
		return bad("its blocks are not as they should be")
	}
	if blocks[blockJWT] == "" || blocks[blockSeed] == "" {
		return bad("it has no user or no key")
	}
	c := Credential{JWT: blocks[blockJWT], Seed: secret.NewValue(blocks[blockSeed])}
	if err := c.read(); err != nil {
		return bad(err.Error())
	}
	if public, err := publicOf(blocks[blockSeed], nkeys.PrefixByteUser); err != nil || public != c.User {
		return bad("its key is not the key of its user")
	}
	if x := blocks[blockXSeed]; x != "" {
		public, err := publicOf(x, nkeys.PrefixByteCurve)
		if err != nil {
			return bad("its curve key is none")
		}
		c.XSeed, c.XPublic = secret.NewValue(x), public
	}
	if c.Peer = blocks[blockPeer]; c.Peer != "" && !nkeys.IsValidPublicCurveKey(c.Peer) {
		return bad("its peer is none")
	}
	return c, nil
}

// read fills in what the JWT says. It is not checked who signed it: the bus does.
func (c *Credential) read() error {
	claims, err := jwt.DecodeUserClaims(c.JWT)
	if err != nil || !nkeys.IsValidPublicUserKey(claims.Subject) {
		return errors.New("its user cannot be read")
	}
	c.User, c.Name = claims.Subject, claims.Name
	if claims.Expires > 0 {
		c.Expires = time.Unix(claims.Expires, 0)
	}
	return nil
}

// parseBlocks takes a text apart into blocks of one line each. A name that is there twice is refused.
func parseBlocks(text string) (map[string]string, bool) {
	out := map[string]string{}
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		name, ok := strings.CutPrefix(strings.TrimSpace(strings.Trim(strings.TrimSpace(lines[i]), "-")), "BEGIN ")
		if !ok || !strings.HasPrefix(strings.TrimSpace(lines[i]), "---") {
			continue
		}
		if i+2 >= len(lines) || out[name] != "" || strings.Trim(strings.TrimSpace(lines[i+2]), "-") != "END "+name {
			return nil, false
		}
		out[name] = strings.TrimSpace(lines[i+1])
		i += 2
	}
	return out, true
}

// publicOf is the public key of a seed, which must be of the kind that is named.
func publicOf(seed string, kind nkeys.PrefixByte) (string, error) {
	is, _, err := nkeys.DecodeSeed([]byte(seed))
	if err != nil || is != kind {
		return "", errors.New("not a seed of this kind")
	}
	pair, err := nkeys.FromSeed([]byte(seed))
	if err != nil {
		return "", err
	}
	defer pair.Wipe()
	return pair.PublicKey()
}

// Curve is the key pair of the credential for what is sealed from end to end.
func (c Credential) Curve() (nkeys.KeyPair, error) {
	if c.XSeed.IsZero() {
		return nil, refuse(ErrCredential, "", "the credential %s has no curve key: it is not one of a runner or of a run's process", c.Name)
	}
	return nkeys.FromSeed([]byte(c.XSeed.Reveal()))
}

// Renewed is the credential with the life of one that was issued for the same user.
func (c Credential) Renewed(by Credential) (Credential, error) {
	if by.User != c.User {
		return Credential{}, refuse(ErrCredential, "", "the new credential is of another user than %s", c.Name)
	}
	c.JWT, c.Name, c.Expires = by.JWT, by.Name, by.Expires
	return c, nil
}

// ReadFile reads a credential from a file that belongs to us and that nobody else may read.
func ReadFile(path string) (Credential, error) {
	data, err := readPrivate(path)
	if err != nil {
		return Credential{}, err
	}
	c, err := ParseCredential(data)
	if err != nil {
		return Credential{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// readPrivate reads a small file with a key in it.
func readPrivate(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse(errors.Join(ErrCredential, err), "give the path of a file that ravi bus creds issue wrote", "there is no file %s", path)
	}
	if err != nil {
		return nil, refuse(errors.Join(ErrCredential, err), "", "cannot read the credential: %s", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, refuse(errors.Join(ErrCredential, err), "", "cannot read the credential: %s", err)
	}
	if !info.Mode().IsRegular() {
		return nil, refuse(ErrCredential, "", "%s is not a file", path)
	}
	if owner := int(info.Sys().(*syscall.Stat_t).Uid); owner != os.Geteuid() {
		return nil, refuse(ErrCredential, fmt.Sprintf("if it is yours: sudo chown %d %q", os.Geteuid(), path),
			"%s belongs to user %d, not to you (user %d)", path, owner, os.Geteuid())
	}
	if perm := info.Mode().Perm(); perm&0o077 != 0 {
		return nil, refuse(ErrCredential, fmt.Sprintf("chmod 600 %q and, if others may have used that, revoke it: ravi bus creds revoke", path),
			"others may read or change %s (mode %04o)", path, perm)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, refuse(errors.Join(ErrCredential, err), "", "cannot read the credential: %s", err)
	}
	return data, nil
}

// WriteFile writes the credential to a new file that only we may read. One that is there is not replaced.
func (c Credential) WriteFile(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("cannot write the credential: %w", err)
	}
	_, err = file.Write(c.File())
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("cannot write the credential: %w", errors.Join(err, os.Remove(path)))
	}
	return nil
}

package bus

import (
	"net/url"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

// What a hub is told of CONTROL, and what of it is heard there. All else stays apart: work, its streams and answers belong
// to this daemon, and who could publish them could start runs.
var (
	told  = []jwt.Subject{"tunnel.*.*.*.down"}
	heard = []jwt.Subject{"runner.*.status", "tunnel.*.*.*.up"}
)

// joinHub lets these subjects pass between CONTROL and the account that the hub is joined to.
func (k *keys) joinHub(claims *jwt.AccountClaims, a *account) error {
	from, to, other := told, heard, k.doc.Hub
	switch a {
	case k.doc.Control:
	case k.doc.Hub:
		from, to, other = heard, told, k.doc.Control
	default:
		return nil
	}
	public, err := publicOf(other.Seed, nkeys.PrefixByteAccount)
	if err != nil {
		return err
	}
	claims.Limits.Imports, claims.Limits.Exports, claims.Limits.WildcardExports = jwt.NoLimit, jwt.NoLimit, true
	for _, subject := range from {
		claims.Exports.Add(&jwt.Export{Subject: subject, Type: jwt.Stream})
	}
	for _, subject := range to {
		claims.Imports.Add(&jwt.Import{Account: public, Subject: subject, Type: jwt.Stream})
	}
	return nil
}

// addLeaf lets the server dial out to a hub, with an account of its own on this side.
func (s *Server) addLeaf(no *server.Options) error {
	l := s.opts.Leaf
	if l == nil {
		return nil
	}
	servers, secure, err := checkURL(l.URL, false)
	if err != nil {
		return err
	}
	u, err := url.Parse(servers)
	if err != nil {
		return refuse(ErrOptions, "give one URL, such as tls://hub.example.com:7422", "the URL of the hub is none")
	}
	if _, err := ReadFile(l.CredsFile); err != nil {
		return err
	}
	public, err := publicOf(s.keys.doc.Hub.Seed, nkeys.PrefixByteAccount)
	if err != nil {
		return err
	}
	remote := &server.RemoteLeafOpts{
		LocalAccount: public, URLs: []*url.URL{u}, Credentials: l.CredsFile,
	}
	if secure {
		if remote.TLSConfig, err = (Trust{CA: l.CA}).config(); err != nil {
			return err
		}
		remote.TLS = true
	}
	no.LeafNode.Remotes = []*server.RemoteLeafOpts{remote}
	return nil
}

package bus

import (
	"net/url"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

// kept are the subjects of CONTROL that no hub hears of or speaks on: work, its streams and their API belong to this daemon,
// and a hub that could publish there could start runs.
var kept = []string{"work.>", "dead.>", "run.>", "$JS.>", "$KV.>", "$O.>", "$SYS.>"}

// addLeaf lets the server dial out to a hub, with CONTROL on this side.
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
	public, err := publicOf(s.keys.doc.Control.Seed, nkeys.PrefixByteAccount)
	if err != nil {
		return err
	}
	remote := &server.RemoteLeafOpts{
		LocalAccount: public, URLs: []*url.URL{u}, Credentials: l.CredsFile, DenyImports: kept, DenyExports: kept,
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

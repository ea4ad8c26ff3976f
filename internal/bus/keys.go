package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nkeys"

	"ravi/internal/secret"
	"ravi/internal/strictjson"
)

const (
	keysFile    = "keys.age"
	keysVersion = 1
)

// document is what is encrypted in keys.age. It does not leave this package.
type document struct {
	Version  int                 `json:"version"`
	Operator string              `json:"operator"` // seed
	System   string              `json:"system"`   // seed
	Control  *account            `json:"control"`
	Clients  map[string]*account `json:"clients"`
	Hub      *account            `json:"hub,omitempty"` // what is told a hub, and heard of it; there once there was one
	Curve    string              `json:"curve"`         // seed
}

// account is the key of an account, and who of it is revoked: seconds since 1970 by public key.
type account struct {
	Seed    string           `json:"seed"`
	Revoked map[string]int64 `json:"revoked,omitempty"`
}

// Format keeps what is printed by mistake from showing what it holds.
func (d document) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte("[keys of the bus]")) }

// Format is that of document.
func (a account) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte("[key of an account]")) }

// keys is the document and where it lies.
type keys struct {
	store *secret.Store
	name  string // from the home
	doc   document
}

// openKeys reads the keys of the bus whose folder is dir, and makes them when there are none.
func openKeys(ctx context.Context, home, dir string) (*keys, error) {
	rel, err := inHome(home, dir)
	if err != nil {
		return nil, err
	}
	store, err := secret.Open(home)
	if err != nil {
		return nil, err
	}
	k := &keys{store: store, name: filepath.Join(rel, keysFile)}
	data, err := store.Sealed(k.name)
	if errors.Is(err, fs.ErrNotExist) {
		if err := k.doc.make(); err != nil {
			return nil, fmt.Errorf("cannot make the keys of the bus: %w", err)
		}
		return k, k.save(ctx)
	}
	if told := (*secret.Error)(nil); errors.As(err, &told) {
		return nil, refuse(errors.Join(ErrKeys, err), told.Hint, "cannot read the keys of the bus: %s", told.Message)
	}
	if err != nil {
		return nil, refuse(errors.Join(ErrKeys, err), "", "cannot read the keys of the bus: %s", err)
	}
	if err := k.doc.decode(data); err != nil {
		path := filepath.Join(dir, keysFile)
		return nil, refuse(ErrKeys, fmt.Sprintf("use the ravi that wrote it, or begin anew, with which all credentials end: mv %q %q", path, path+".old"),
			"cannot use the keys of the bus in %s: %s", path, err)
	}
	return k, nil
}

// inHome is the path of the folder of the bus from the home.
func inHome(home, dir string) (string, error) {
	rel, err := filepath.Rel(home, dir)
	if err != nil || !filepath.IsLocal(rel) || rel == "." {
		return "", refuse(ErrOptions, "", "the folder of the bus, %s, is not in Ravi's home %s", dir, home)
	}
	return rel, nil
}

func (d *document) make() error {
	*d = document{Version: keysVersion, Control: &account{}, Clients: map[string]*account{}}
	for _, one := range []struct {
		kind nkeys.PrefixByte
		to   *string
	}{
		{nkeys.PrefixByteOperator, &d.Operator}, {nkeys.PrefixByteAccount, &d.System},
		{nkeys.PrefixByteAccount, &d.Control.Seed}, {nkeys.PrefixByteCurve, &d.Curve},
	} {
		seed, err := newSeed(one.kind)
		if err != nil {
			return err
		}
		*one.to = seed
	}
	return nil
}

// decode reads a document, and checks all of it. No error repeats a part of it.
func (d *document) decode(data []byte) error {
	var head struct {
		Version int `json:"version"`
	}
	if json.Unmarshal(data, &head) == nil && head.Version > keysVersion {
		return fmt.Errorf("a newer ravi wrote them (format %d, this one knows %d)", head.Version, keysVersion)
	}
	bad := errors.New("their content is not as it should be")
	if strictjson.Decode(data, d) != nil || d.Version != keysVersion || d.Control == nil {
		return bad
	}
	kinds := map[string]nkeys.PrefixByte{
		d.Operator: nkeys.PrefixByteOperator, d.System: nkeys.PrefixByteAccount,
		d.Control.Seed: nkeys.PrefixByteAccount, d.Curve: nkeys.PrefixByteCurve,
	}
	if d.Clients == nil {
		d.Clients = map[string]*account{}
	}
	for name, a := range d.Clients {
		if a == nil || !clientForm.MatchString(name) {
			return bad
		}
		kinds[a.Seed] = nkeys.PrefixByteAccount
	}
	want := 4 + len(d.Clients)
	if d.Hub != nil {
		kinds[d.Hub.Seed] = nkeys.PrefixByteAccount
		want++
	}
	if len(kinds) != want { // two accounts with one key would be one
		return bad
	}
	for seed, kind := range kinds {
		if _, err := publicOf(seed, kind); err != nil {
			return bad
		}
	}
	return nil
}

func (k *keys) save(ctx context.Context) error {
	data, err := json.Marshal(k.doc)
	if err != nil {
		return errors.New("cannot write the keys of the bus: they cannot be encoded") // the cause could show one
	}
	return k.store.SetSealed(ctx, k.name, data)
}

// ensureHub makes the account for a hub when there is none.
func (k *keys) ensureHub(ctx context.Context) error {
	if k.doc.Hub != nil {
		return nil
	}
	seed, err := newSeed(nkeys.PrefixByteAccount)
	if err != nil {
		return fmt.Errorf("cannot make the account of the hub: %w", err)
	}
	k.doc.Hub = &account{Seed: seed}
	return k.save(ctx)
}

// account finds the account of a client, or CONTROL for ""; nil if there is none.
func (k *keys) account(client string) *account {
	if client == "" {
		return k.doc.Control
	}
	return k.doc.Clients[client]
}

// accounts are all that have users, by what they are called.
func (k *keys) accounts() map[string]*account {
	all := maps.Clone(k.doc.Clients)
	all["CONTROL"] = k.doc.Control
	if k.doc.Hub != nil {
		all["HUB"] = k.doc.Hub
	}
	return all
}

// revoke replaces the set of revoked users, and says whether it was another.
func (a *account) revoke(users map[string]time.Time) bool {
	fresh := make(map[string]int64, len(users))
	for user, at := range users {
		fresh[user] = at.Unix()
	}
	if maps.Equal(fresh, a.Revoked) {
		return false
	}
	a.Revoked = fresh
	return true
}

func newSeed(kind nkeys.PrefixByte) (string, error) {
	pair, err := nkeys.CreatePair(kind)
	if err != nil {
		return "", err
	}
	defer pair.Wipe()
	seed, err := pair.Seed()
	return string(seed), err
}

// ourFolder makes a folder that only we may enter, or checks that the one that is there is that.
func ourFolder(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return refuse(errors.Join(ErrOptions, err), "", "cannot make the folder of the bus: %s", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return refuse(errors.Join(ErrOptions, err), "", "cannot look at the folder of the bus: %s", err)
	}
	if !info.IsDir() {
		return refuse(ErrOptions, fmt.Sprintf("move it away: mv %q %q", dir, strings.TrimRight(dir, "/")+".old"), "%s is not a folder", dir)
	}
	if perm := info.Mode().Perm(); perm&0o077 != 0 {
		return refuse(ErrOptions, fmt.Sprintf("chmod 700 %q", dir), "others may look into the folder of the bus, %s (mode %04o)", dir, perm)
	}
	return nil
}

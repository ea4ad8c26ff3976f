package secret

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"filippo.io/age"

	"ravi/internal/filelock"
	"ravi/internal/strictjson"
)

// The files of the store, in Ravi's home.
const (
	File    = "secrets.age"
	KeyFile = "secrets.key"

	lockFile = "secrets.lock"
)

const (
	maxFile = 16 << 20 // bytes of secrets.age; what is larger was not written here
	maxKey  = 4 << 10  // bytes of secrets.key

	version = 1 // of the document
)

// document is what is encrypted.
type document struct {
	Version int      `json:"version"`
	Secrets []record `json:"secrets"`
}

// record is one secret with its values in the clear. It does not leave this package.
type record struct {
	Name      string     `json:"name"`
	Hosts     []string   `json:"hosts"`
	Headers   []string   `json:"headers"`
	Query     string     `json:"query,omitempty"`
	Env       []string   `json:"env"`
	Value     string     `json:"value,omitempty"`
	Argv      []string   `json:"command,omitempty"`
	App       *appRecord `json:"github_app,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	UpdatedAt time.Time  `json:"updated_at"`
}

type appRecord struct {
	App
	PrivateKey string `json:"private_key"`
}

// Format keeps a record that is printed by mistake from showing what it holds.
func (r record) Format(s fmt.State, _ rune) { io.WriteString(s, hidden) }

// source is the record's source, as it would be set.
func (r *record) source() Source {
	s := Source{Value: NewValue(r.Value), Argv: r.Argv}
	if r.App != nil {
		s.App = &AppSource{PrivateKey: NewValue(r.App.PrivateKey)}
	}
	return s
}

// secret is all of a record that may be shown.
func (r *record) secret() Secret {
	s := Secret{
		Name: r.Name, Binding: Binding{Hosts: r.Hosts, Headers: r.Headers, Query: r.Query, Env: r.Env},
		Argv: r.Argv, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, Source: Stored,
	}
	switch {
	case r.App != nil:
		app := r.App.App
		s.Source, s.App = GitHub, &app
	case r.Argv != nil:
		s.Source = Command
	}
	return s
}

// decode reads the decrypted document. Everything in it is checked, so that what is used is what could be set. No
// error repeats a part of it.
func decode(data []byte) (document, error) {
	var doc document
	var head struct {
		Version int `json:"version"`
	}
	if json.Unmarshal(data, &head) == nil && head.Version > version {
		return doc, fmt.Errorf("%w (format %d, this ravi knows %d)", ErrNewer, head.Version, version)
	}
	if err := strictjson.Decode(data, &doc); err != nil {
		var at *strictjson.Error
		if errors.As(err, &at) {
			return document{}, fmt.Errorf("line %d, column %d of its content is not as it should be", at.Line, at.Column)
		}
		return document{}, errors.New("its content is not as it should be")
	}
	if doc.Version != version {
		return document{}, errors.New("its content does not say which format it has")
	}
	names := map[string]bool{}
	for i := range doc.Secrets {
		r := &doc.Secrets[i]
		if err := r.check(); err != nil {
			return document{}, fmt.Errorf("secret number %d: %w", i+1, err)
		}
		if names[strings.ToLower(r.Name)] {
			return document{}, fmt.Errorf("secret number %d has the name of another", i+1)
		}
		names[strings.ToLower(r.Name)] = true
	}
	return doc, nil
}

// check holds a record to the rules of what is set, and brings it to its form.
func (r *record) check() error {
	if err := CheckName(r.Name); err != nil {
		return err
	}
	b, err := Binding{Hosts: r.Hosts, Headers: r.Headers, Query: r.Query, Env: r.Env}.check(r.Name)
	if err != nil {
		return err
	}
	r.Hosts, r.Headers, r.Env = b.Hosts, b.Headers, b.Env
	s := r.source()
	kind, err := s.kind()
	if err != nil {
		return err
	}
	switch kind {
	case Stored:
		return checkValue(r.Value)
	case Command:
		return checkArgv(r.Argv)
	}
	return r.App.check()
}

// load reads the store. Nothing there is an empty one; what is there and cannot be read never is.
func (s *Store) load() (document, error) {
	// The document first: while it is there its key is, too.
	sealed, err := s.read(File, maxFile, 0o022)
	if errors.Is(err, fs.ErrNotExist) {
		return document{Version: version}, nil
	}
	if refused := (*Error)(nil); errors.As(err, &refused) {
		return document{}, err
	}
	if err != nil {
		return document{}, s.damaged("cannot be read: "+err.Error(), err)
	}
	key, err := s.key()
	if errors.Is(err, fs.ErrNotExist) {
		return document{}, refuse(errors.Join(ErrKey, err), "put the key back from where you keep a copy; without it nobody can read them. To begin anew: mv "+
			s.quoted(File)+" "+s.quoted(File+".lost"),
			"there are secrets in %s, and their key %s is not there", s.path(File), s.path(KeyFile))
	}
	if err != nil {
		return document{}, err
	}
	plain, err := age.Decrypt(bytes.NewReader(sealed), key)
	if wrong := (*age.NoIdentityMatchError)(nil); errors.As(err, &wrong) {
		return document{}, refuse(errors.Join(ErrKey, err), "put back the key that belongs to it, or the file that belongs to the key. To begin anew: mv "+
			s.quoted(File)+" "+s.quoted(File+".lost"),
			"%s was encrypted with another key than %s", s.path(File), s.path(KeyFile))
	}
	if err != nil {
		return document{}, s.damaged("is not what was written there", err)
	}
	data, err := io.ReadAll(io.LimitReader(plain, maxFile))
	if err != nil {
		return document{}, s.damaged("is not what was written there", err)
	}
	doc, err := decode(data)
	if errors.Is(err, ErrNewer) {
		return document{}, refuse(err, "use that newer ravi, or set RAVI_HOME to another directory", "%s: %s", s.path(File), err)
	}
	if err != nil {
		return document{}, s.damaged("cannot be used: "+err.Error(), err)
	}
	return doc, nil
}

func (s *Store) damaged(what string, err error) error {
	return refuse(errors.Join(ErrDamaged, err), "put back a copy of it, or begin anew and set the secrets again: mv "+
		s.quoted(File)+" "+s.quoted(File+".damaged"), "%s %s", s.path(File), what)
}

// save writes the store, and makes its key when it is the first time. It needs the lock.
func (s *Store) save(doc document) error {
	plain, err := json.Marshal(doc)
	if err != nil {
		return errors.New("cannot write the secrets: they cannot be encoded") // the cause could show one
	}
	if len(plain) > maxFile/2 {
		return refuse(ErrValue, "remove some: ravi secrets rm NAME", "the secrets have more than %d bytes together", maxFile/2)
	}
	key, err := s.key()
	if errors.Is(err, fs.ErrNotExist) {
		key, err = s.makeKey()
	}
	if err != nil {
		return err
	}
	// Who was killed while making the key may have left its other name.
	if err := os.Remove(s.path(KeyFile + ".new")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot write the secrets: %w", err)
	}
	sealed, err := encrypt(plain, key)
	if err == nil {
		err = s.write(File, sealed, s.rename)
	}
	if err != nil {
		return fmt.Errorf("cannot write the secrets: %w", err)
	}
	return nil
}

func encrypt(plain []byte, key *age.X25519Identity) ([]byte, error) {
	var sealed bytes.Buffer
	w, err := age.Encrypt(&sealed, key.Recipient())
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(plain); err != nil {
		return nil, err
	}
	err = w.Close()
	return sealed.Bytes(), err
}

// key reads the key, and refuses one that somebody else could have read or put there.
func (s *Store) key() (*age.X25519Identity, error) {
	text, err := s.read(KeyFile, maxKey, 0o077)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var refused *Error
	if errors.As(err, &refused) {
		return nil, err
	}
	if err != nil {
		return nil, refuse(errors.Join(ErrKey, err), "", "cannot read the key of the secrets: %s", err)
	}
	// Errors of parsing are not told: they could repeat a part of the key.
	ids, err := age.ParseIdentities(bytes.NewReader(text))
	if err == nil && len(ids) == 1 {
		if id, ok := ids[0].(*age.X25519Identity); ok {
			return id, nil
		}
	}
	return nil, refuse(ErrKey, "put the key back from where you keep a copy", "%s holds no key of age (AGE-SECRET-KEY-1…), or more than one", s.path(KeyFile))
}

// makeKey makes the key. It needs the lock.
func (s *Store) makeKey() (*age.X25519Identity, error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, fmt.Errorf("cannot make a key for the secrets: %w", err)
	}
	text := fmt.Sprintf("# the key of %s; whoever has both has the secrets\n# public key: %s\n%s\n", File, id.Recipient(), id)
	// A link fails where something is. So the key is there whole or not at all, and none is ever replaced.
	err = s.write(KeyFile, []byte(text), func(from, to string) error {
		defer os.Remove(from)
		return os.Link(from, to)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot make a key for the secrets: %w", err)
	}
	return id, nil
}

// read reads a file of the store: a regular one that is ours, and with which others may do nothing that stands in
// closed. A file that is not there is fs.ErrNotExist.
func (s *Store) read(name string, most int64, closed fs.FileMode) ([]byte, error) {
	path := s.path(name)
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, refuse(ErrKey, "put the file itself there: mv \"$(readlink -f "+s.quoted(name)+")\" "+s.quoted(name)+" && chmod 600 "+s.quoted(name),
			"%s is a symbolic link", path)
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, refuse(ErrKey, "move it away", "%s is not a file", path)
	}
	if owner := int(info.Sys().(*syscall.Stat_t).Uid); owner != os.Geteuid() {
		return nil, refuse(ErrKey, fmt.Sprintf("look at where it comes from; if it is yours: sudo chown %d %s && chmod 600 %s", os.Geteuid(), s.quoted(name), s.quoted(name)),
			"%s belongs to user %d, not to you (user %d)", path, owner, os.Geteuid())
	}
	if perm := info.Mode().Perm(); perm&closed != 0 {
		return nil, refuse(ErrKey, "chmod 600 "+s.quoted(name)+" and, if others may have used that, make new credentials at the services",
			"others may read or change %s (mode %04o)", path, perm)
	}
	b, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("it has more than %d bytes", most)
	}
	return b, err
}

// write puts a file in its place in one step, from one beside it that is on the disk already. It needs the lock.
func (s *Store) write(name string, data []byte, place func(from, to string) error) (err error) {
	fresh := s.path(name + ".new")
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) { // of one who was killed here
		return err
	}
	file, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(fresh)
		}
	}()
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err := place(fresh, s.path(name)); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(s.path(name)))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// lock waits for the right to change the store, which ends with the process that holds it.
func (s *Store) lock(ctx context.Context) (*os.File, error) {
	file, err := os.OpenFile(s.path(lockFile), os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the lock of the secrets: %w", err)
	}
	if err := filelock.Wait(ctx, file, syscall.LOCK_EX, 5*time.Millisecond, nil); err != nil {
		file.Close()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("waiting for another ravi to release %s: %w", s.path(lockFile), err)
		}
		return nil, fmt.Errorf("cannot lock the secrets: %w", err)
	}
	return file, nil
}

func (s *Store) path(name string) string { return filepath.Join(s.home, name) }

func (s *Store) quoted(name string) string { return strconv.Quote(s.path(name)) }

package secret

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"filippo.io/age"
)

const maxSealed = 8 << 20 // bytes of a sealed file

// Sealed reads a small file that SetSealed wrote: name is its path from the home, such as "bus/keys.age". One that is not
// there is fs.ErrNotExist; one that cannot be read is ErrDamaged or ErrKey, never an empty one.
func (s *Store) Sealed(name string) ([]byte, error) {
	if err := checkSealed(name); err != nil {
		return nil, err
	}
	sealed, err := s.read(name, maxSealed, 0o077)
	if err != nil {
		return nil, err
	}
	key, err := s.key()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, s.keyGone(name)
	}
	if err != nil {
		return nil, err
	}
	plain, err := age.Decrypt(bytes.NewReader(sealed), key)
	if wrong := (*age.NoIdentityMatchError)(nil); errors.As(err, &wrong) {
		return nil, refuse(errors.Join(ErrKey, err), "put back the key that belongs to it, or the file that belongs to the key. To begin anew: mv "+
			s.quoted(name)+" "+s.quoted(name+".lost"), "%s was encrypted with another key than %s", s.path(name), s.path(KeyFile))
	}
	var data []byte
	if err == nil {
		data, err = io.ReadAll(io.LimitReader(plain, maxSealed))
	}
	if err != nil {
		return nil, refuse(errors.Join(ErrDamaged, err), "put back a copy of it, or begin anew: mv "+
			s.quoted(name)+" "+s.quoted(name+".damaged"), "%s is not what was written there", s.path(name))
	}
	return data, nil
}

// SetSealed writes such a file in one step, encrypted with the key that secrets.age has, which is made when nothing needed
// one before. The file's folder must be there.
func (s *Store) SetSealed(ctx context.Context, name string, plain []byte) error {
	if err := checkSealed(name); err != nil {
		return err
	}
	if len(plain) > maxSealed/2 {
		return fmt.Errorf("%s would have more than %d bytes", name, maxSealed/2)
	}
	lock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	key, err := s.key()
	if errors.Is(err, fs.ErrNotExist) {
		// A new key beside what an old one encrypted would lose that for good.
		for _, old := range []string{File, name} {
			if _, err := os.Lstat(s.path(old)); err == nil {
				return s.keyGone(old)
			}
		}
		key, err = s.makeKey()
	}
	if err != nil {
		return err
	}
	sealed, err := encrypt(plain, key)
	if err == nil {
		err = s.write(name, sealed, s.rename)
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", s.path(name), err)
	}
	return nil
}

func (s *Store) keyGone(name string) error {
	return refuse(ErrKey, "put the key back from where you keep a copy; without it nobody can read the file. To begin anew: mv "+
		s.quoted(name)+" "+s.quoted(name+".lost"), "there is %s, and its key %s is not there", s.path(name), s.path(KeyFile))
}

func checkSealed(name string) error {
	if !filepath.IsLocal(name) || filepath.Clean(name) != name || name == File || filepath.Ext(name) != ".age" {
		return fmt.Errorf("%q is not a name for a sealed file", name)
	}
	return nil
}

package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"ravi/internal/guestapi/filesystem"
)

// entryAt describes what is at path, the link itself if it is one.
func entryAt(path string, names *nameCache) (*filesystem.EntryInfo, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("path '%s' does not exist: %w", path, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	e := &filesystem.EntryInfo{
		Name:         validName(info.Name()),
		Path:         validName(path),
		Size:         info.Size(),
		Mode:         uint32(info.Mode().Perm()),
		Permissions:  info.Mode().String(),
		ModifiedTime: timestamppb.New(info.ModTime()),
		Type:         typeOf(info.Mode()),
		Metadata:     readMetadata(path),
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		e.Owner, e.Group = names.names(st.Uid, st.Gid)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		// A link counts as what it leads to, and tells where that is.
		target := validName(linkTarget(path))
		e.SymlinkTarget = &target
		if to, err := os.Stat(path); err == nil {
			e.Type, e.Mode = typeOf(to.Mode()), uint32(to.Mode().Perm())
		}
	}
	return e, nil
}

func typeOf(mode fs.FileMode) filesystem.FileType {
	switch {
	case mode.IsDir():
		return filesystem.FileType_FILE_TYPE_DIRECTORY
	case mode&fs.ModeSymlink != 0:
		return filesystem.FileType_FILE_TYPE_SYMLINK
	case mode.IsRegular():
		return filesystem.FileType_FILE_TYPE_FILE
	}
	return filesystem.FileType_FILE_TYPE_UNSPECIFIED
}

// linkTarget follows a link to its end, or says what is written in it when
// that leads nowhere.
func linkTarget(path string) string {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		return target
	}
	target, err := os.Readlink(path)
	if err != nil {
		return path
	}
	return target
}

// validName marks bytes that the protocol's strings cannot carry.
func validName(name string) string {
	if utf8.ValidString(name) {
		return name
	}
	return strings.ToValidUTF8(name, "\uFFFD")
}

// The metadata of a file are its extended attributes under this prefix.
const metadataPrefix = "user.e2b."

const (
	maxMetadataKey   = 255 - len(metadataPrefix)
	maxMetadataTotal = 4096
)

// readMetadata returns a file's metadata. A file system without extended
// attributes holds none.
func readMetadata(path string) map[string]string {
	names, err := xattrBuffer(func(buf []byte) (int, error) { return unix.Llistxattr(path, buf) })
	if err != nil {
		return nil
	}
	var out map[string]string
	for name := range strings.SplitSeq(string(names), "\x00") {
		key, ok := strings.CutPrefix(name, metadataPrefix)
		if !ok || key == "" {
			continue
		}
		value, err := xattrBuffer(func(buf []byte) (int, error) { return unix.Lgetxattr(path, name, buf) })
		if err != nil || !utf8.Valid(value) || !utf8.ValidString(key) {
			continue
		}
		if out == nil {
			out = make(map[string]string)
		}
		out[key] = string(value)
	}
	return out
}

// xattrBuffer calls f with a buffer that is large enough.
func xattrBuffer(f func([]byte) (int, error)) ([]byte, error) {
	buf := make([]byte, 256)
	for {
		n, err := f(buf)
		if errors.Is(err, unix.ERANGE) && len(buf) < 1<<17 {
			buf = make([]byte, len(buf)*4)
			continue
		}
		if err != nil {
			return nil, err
		}
		return buf[:n], nil
	}
}

// checkMetadata refuses what could not be read back the same.
func checkMetadata(metadata map[string]string) error {
	total := 0
	for key, value := range metadata {
		if key == "" || len(key) > maxMetadataKey || !printable(key) {
			return fmt.Errorf("%w: metadata key %q must be 1 to %d printable ASCII characters", errBadArgument, key, maxMetadataKey)
		}
		if !printable(value) {
			return fmt.Errorf("%w: the value of metadata key %q must be printable ASCII", errBadArgument, key)
		}
		total += len(metadataPrefix) + len(key) + len(value)
	}
	if total > maxMetadataTotal {
		return fmt.Errorf("%w: the metadata is %d bytes long, the limit is %d", errBadArgument, total, maxMetadataTotal)
	}
	return nil
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

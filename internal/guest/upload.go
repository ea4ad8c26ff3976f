package guest

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// uploaded is one entry of the answer to an upload.
type uploaded struct {
	Path     string            `json:"path"`
	Name     string            `json:"name"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// serveUpload writes one file (octet-stream) or several (multipart). All of
// them are written beside their places first and moved there at the end, so
// that a failed upload leaves no half file and changes none.
func (s *Server) serveUpload(w http.ResponseWriter, r *http.Request) {
	user, err := s.userOf(r.Header, r.URL.Query().Get("username"))
	if err != nil {
		writeFailure(w, err)
		return
	}
	metadata := metadataOf(r.Header)
	if err := checkMetadata(metadata); err != nil {
		writeFailure(w, err)
		return
	}
	body, err := decoded(r)
	if err != nil {
		writeFailure(w, err)
		return
	}
	up := &upload{server: s, user: user, metadata: metadata}
	defer up.abandon()
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case err == nil && kind == "multipart/form-data" && params["boundary"] != "":
		err = up.multipart(multipart.NewReader(body, params["boundary"]), r.URL.Query().Get("path"))
	case err == nil && kind == "application/octet-stream":
		if r.URL.Query().Get("path") == "" {
			err = fmt.Errorf("%w: the query must name the path", errBadArgument)
			break
		}
		err = up.add(r.URL.Query().Get("path"), body)
	default:
		err = fmt.Errorf("%w: the content type must be multipart/form-data or application/octet-stream, not %q",
			errBadArgument, r.Header.Get("Content-Type"))
	}
	if err == nil {
		err = up.place()
	}
	if err != nil {
		writeFailure(w, err)
		return
	}
	writeJSON(w, http.StatusOK, up.result())
}

// decoded takes the body out of its encoding. What only claims to be gzip is
// refused where it is read.
func decoded(r *http.Request) (io.Reader, error) {
	switch encoding := strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Encoding"))); encoding {
	case "", "identity":
		return bodyReader{r.Body}, nil
	case "gzip":
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, fmt.Errorf("%w: the body is not gzip: %w", errBadArgument, err)
		}
		return bodyReader{z}, nil
	default:
		return nil, fmt.Errorf("%w: content encoding %q is not supported, send gzip or identity", errBadArgument, encoding)
	}
}

// bodyReader says of an error that it came from the client.
type bodyReader struct{ r io.Reader }

func (b bodyReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("%w: read the body: %w", errBadArgument, err)
	}
	return n, err
}

// metadataOf reads the headers that become a file's metadata. Of one that
// comes twice the first counts.
func metadataOf(h http.Header) map[string]string {
	out := make(map[string]string)
	for name, values := range h {
		if key, ok := strings.CutPrefix(strings.ToLower(name), "x-metadata-"); ok && len(values) > 0 {
			out[key] = values[0]
		}
	}
	return out
}

// upload is the files of one call, before they are in place.
type upload struct {
	server   *Server
	user     account
	metadata map[string]string
	files    []*staged
	taken    map[string]bool
}

// staged is a file that is written but has not got its name yet.
type staged struct {
	path    string // what the caller named, absolute
	target  string // that, with links followed
	temp    string // empty once it is in place
	special bool   // the target is a device, FIFO or the like, and was written directly
}

// multipart stages every file of a form. A path in the query names the one
// file there is; else their file names are paths.
func (u *upload) multipart(parts *multipart.Reader, path string) error {
	for {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: read the form: %w", errBadArgument, err)
		}
		if part.FormName() != "file" {
			continue
		}
		name := path
		if name == "" {
			name = partFilename(part)
		}
		if name == "" {
			return fmt.Errorf("%w: a file of the form has no name, and the query has no path", errBadArgument)
		}
		if err := u.add(name, bodyReader{part}); err != nil {
			return err
		}
	}
}

// partFilename returns a part's file name, with its directories, which
// Part.FileName drops. Form encoders write quotes and line ends in escaped
// form, and nothing else.
func partFilename(part *multipart.Part) string {
	_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	if err != nil {
		return ""
	}
	return strings.NewReplacer("%22", `"`, "%0D", "\r", "%0A", "\n").Replace(params["filename"])
}

// uploadPrefix starts the names of staged files. The letter after it tells a
// watch whether the file replaces another.
const uploadPrefix = ".ravi-upload-"

// uploadName says whether a name is one of a staged file, and whether that
// replaces another.
func uploadName(name string) (upload, replaces bool) {
	rest, ok := strings.CutPrefix(name, uploadPrefix)
	return ok, strings.HasPrefix(rest, "r")
}

// add stages one file.
func (u *upload) add(name string, body io.Reader) error {
	path, err := u.server.resolve(name, u.user)
	if err != nil {
		return err
	}
	if strings.HasSuffix(name, "/") {
		return fmt.Errorf("%w: path '%s' names a directory", errBadArgument, name)
	}
	target, err := followLinks(path)
	if err != nil {
		return err
	}
	if u.taken[target] {
		return fmt.Errorf("%w: the path '%s' comes twice in one upload", errBadArgument, path)
	}
	if u.taken == nil {
		u.taken = make(map[string]bool)
	}
	u.taken[target] = true
	f := &staged{path: path, target: target}
	u.files = append(u.files, f)

	info, err := os.Lstat(target)
	switch {
	case err == nil && info.IsDir():
		return fmt.Errorf("%w: path '%s' is a directory", errBadArgument, path)
	case err == nil && !info.Mode().IsRegular():
		f.special = true
		return writeSpecial(target, body)
	case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR):
		return err
	}
	if err := makeDirs(filepath.Dir(target), u.user); err != nil {
		return err
	}
	pattern, mode := uploadPrefix+"n*", fs.FileMode(0o644)
	if info != nil {
		pattern, mode = uploadPrefix+"r*", info.Mode().Perm()
	}
	temp, err := os.CreateTemp(filepath.Dir(target), pattern)
	if err != nil {
		return err
	}
	f.temp = temp.Name()
	return errors.Join(u.fill(temp, body, mode), temp.Close())
}

// fill gives a staged file its content and all that belongs to it.
func (u *upload) fill(temp *os.File, body io.Reader, mode fs.FileMode) error {
	// The wrapper hides the file's own ReadFrom, which would try to splice.
	if _, err := io.CopyBuffer(struct{ io.Writer }{temp}, body, make([]byte, 256<<10)); err != nil {
		return err
	}
	if err := own(temp.Name(), u.user); err != nil {
		return err
	}
	if err := temp.Chmod(mode); err != nil {
		return err
	}
	for key, value := range u.metadata {
		if err := unix.Fsetxattr(int(temp.Fd()), metadataPrefix+key, []byte(value), 0); err != nil {
			return fmt.Errorf("keep metadata %q: %w", key, err)
		}
	}
	return nil
}

// writeSpecial writes to what is no regular file and so cannot be replaced.
// It waits for nobody to open the other end.
func writeSpecial(path string, body io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("%w: nobody reads from '%s'", errBadState, path)
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(struct{ io.Writer }{f}, body)
	return errors.Join(err, f.Close())
}

// place moves every staged file to its place.
func (u *upload) place() error {
	for _, f := range u.files {
		if f.special {
			continue
		}
		err := os.Rename(f.temp, f.target)
		if errors.Is(err, unix.EBUSY) {
			// A file that something is mounted on keeps its place.
			err = overwrite(f.temp, f.target)
		}
		if err != nil {
			return fmt.Errorf("put '%s' in place: %w", f.path, err)
		}
		f.temp = ""
	}
	return nil
}

func overwrite(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close(), os.Remove(from))
}

// abandon removes what did not get to its place.
func (u *upload) abandon() {
	for _, f := range u.files {
		if f.temp != "" {
			// Nothing better can be done about one that stays; it says what it is.
			_ = os.Remove(f.temp)
		}
	}
}

func (u *upload) result() []uploaded {
	out := make([]uploaded, 0, len(u.files))
	for _, f := range u.files {
		out = append(out, uploaded{
			Path: f.path, Name: filepath.Base(f.path), Type: "file", Metadata: readMetadata(f.target),
		})
	}
	return out
}

// followLinks resolves a path whose end need not exist, so that an upload
// through a link replaces what it leads to and not the link.
func followLinks(path string) (string, error) {
	for range 40 {
		info, err := os.Lstat(path)
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			return path, nil
		}
		target, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(target) {
			dir, err := filepath.EvalSymlinks(filepath.Dir(path))
			if err != nil {
				return "", err
			}
			target = filepath.Join(dir, target)
		}
		path = target
	}
	return "", fmt.Errorf("%w: too many links at '%s'", errBadArgument, path)
}

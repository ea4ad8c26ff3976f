package guest

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// fileArgs are the user and path that a plain HTTP call names.
func (s *Server) fileArgs(r *http.Request) (string, account, error) {
	q := r.URL.Query()
	user, err := s.userOf(r.Header, q.Get("username"))
	if err != nil {
		return "", account{}, err
	}
	path, err := s.resolve(q.Get("path"), user)
	return path, user, err
}

// openRegular opens a file to read. Opening never waits, as it would for a
// FIFO without a writer.
func openRegular(path string) (*os.File, fs.FileInfo, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, fmt.Errorf("path '%s' does not exist: %w", path, fs.ErrNotExist)
	case err != nil:
		return nil, nil, err
	case info.IsDir():
		return nil, nil, fmt.Errorf("%w: path '%s' is a directory", errBadArgument, path)
	case !info.Mode().IsRegular():
		return nil, nil, fmt.Errorf("%w: path '%s' is not a regular file", errBadArgument, path)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%w: path '%s' is not a regular file", errBadArgument, path)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

func (s *Server) serveDownload(w http.ResponseWriter, r *http.Request) {
	path, _, err := s.fileArgs(r)
	if err != nil {
		writeFailure(w, err)
		return
	}
	f, info, err := openRegular(path)
	if err != nil {
		writeFailure(w, err)
		return
	}
	defer f.Close()
	encoding, err := chooseEncoding(r.Header)
	if err != nil {
		writeError(w, http.StatusNotAcceptable, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", disposition(filepath.Base(path)))
	h.Add("Vary", "Accept-Encoding")
	h.Set("X-Content-Type-Options", "nosniff")
	switch {
	case info.Size() == 0:
		// Files of /proc say that they are empty and are not.
		s.serveUnsized(w, f)
	case encoding == "gzip" && r.Header.Get("Range") == "":
		h.Set("Content-Encoding", "gzip")
		h.Set("Last-Modified", info.ModTime().UTC().Format(http.TimeFormat))
		if r.Method == http.MethodHead {
			return
		}
		z := gzip.NewWriter(w)
		if _, err := io.Copy(z, f); err != nil {
			panic(http.ErrAbortHandler) // the client must not take a part for the whole
		}
		if err := z.Close(); err != nil {
			panic(http.ErrAbortHandler)
		}
	default:
		http.ServeContent(w, r, "", info.ModTime(), f)
	}
}

func (s *Server) serveUnsized(w http.ResponseWriter, f *os.File) {
	buf := make([]byte, 4096)
	n, err := f.Read(buf)
	if err != nil && !errors.Is(err, io.EOF) {
		writeFailure(w, err)
		return
	}
	if n == 0 {
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(http.StatusOK)
		return
	}
	w.WriteHeader(http.StatusOK)
	if _, err := w.Write(buf[:n]); err != nil {
		return
	}
	if _, err := io.Copy(w, f); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// disposition names the file for a browser. A name that has no form in a
// header is left out.
func disposition(name string) string {
	if v := mime.FormatMediaType("inline", map[string]string{"filename": validName(name)}); v != "" {
		return v
	}
	return "inline"
}

// chooseEncoding picks gzip only where it is asked for by name, and an error
// where the client takes nothing that there is.
func chooseEncoding(h http.Header) (string, error) {
	weights := map[string]float64{}
	for part := range strings.SplitSeq(strings.Join(h.Values("Accept-Encoding"), ","), ",") {
		name, params, _ := strings.Cut(strings.TrimSpace(part), ";")
		if name == "" {
			continue
		}
		weight := 1.0
		if q, ok := strings.CutPrefix(strings.TrimSpace(params), "q="); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(q), 64)
			if err != nil {
				continue
			}
			weight = v
		}
		weights[strings.ToLower(strings.TrimSpace(name))] = weight
	}
	weight := func(name string) float64 {
		if v, ok := weights[name]; ok {
			return v
		}
		if v, ok := weights["*"]; ok && (name != "identity" || v == 0) {
			return v
		}
		if name == "identity" {
			return 0.001 // always acceptable unless refused, and liked least
		}
		return 0
	}
	zip, identity := weight("gzip"), weight("identity")
	switch {
	case zip > 0 && zip >= identity && weights["gzip"] > 0:
		return "gzip", nil
	case identity > 0:
		return "identity", nil
	case zip > 0:
		return "gzip", nil
	}
	return "", errors.New("no acceptable encoding found, supported: [identity, gzip]")
}

package inject

import (
	"bytes"
	"io"
	"net/http"
	"strings"
)

// Watch looks for placeholders in what a guest sends where none is replaced: the
// body of a request, or a protocol that is not HTTP. found is called with the
// first one's secret; if it returns an error, that is what reading gives, and the
// placeholder has not been handed on as a whole. Without secrets it is src itself.
func (s *Set) Watch(src io.Reader, found func(secret string) error) io.Reader {
	now := s.now.Load()
	if now == nil || len(now.all) == 0 {
		return src
	}
	return &watch{src: src, set: now, found: found}
}

type watch struct {
	src   io.Reader
	set   *secrets
	found func(string) error
	tail  []byte // the end of what was handed on, as far as it may begin a placeholder
	err   error
}

func (w *watch) Read(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	n, err := w.src.Read(p)
	if w.found == nil || n == 0 {
		return n, err
	}
	if secret, ok := w.look(p[:n]); ok {
		found := w.found
		w.found = nil // told once
		if w.err = found(secret); w.err != nil {
			return 0, w.err
		}
	}
	return n, err
}

// look finds a placeholder in what was read, or that ends there.
func (w *watch) look(b []byte) (secret string, found bool) {
	if len(w.tail) > 0 {
		joined := append(w.tail, b[:min(len(b), w.set.longest)]...)
		if s := w.set.find(string(joined)); s != nil {
			return s.Name, true
		}
	}
	if bytes.Contains(b, []byte(placeholderPrefix)) {
		if s := w.set.find(string(b)); s != nil {
			return s.Name, true
		}
	}
	keep := w.set.longest - 1
	if len(b) >= keep {
		w.tail = append(w.tail[:0], b[len(b)-keep:]...)
	} else {
		w.tail = append(w.tail, b...)
		w.tail = append(w.tail[:0], w.tail[max(0, len(w.tail)-keep):]...)
	}
	return "", false
}

// InTrailer finds a placeholder in what follows a body, where none is replaced.
func (s *Set) InTrailer(h http.Header) (secret string, found bool) {
	if now := s.now.Load(); now != nil {
		if b, _ := now.inHeader(h, nil); b != nil {
			return b.Name, true
		}
	}
	return "", false
}

// Told is how a body with a placeholder is described, for people.
func Told(secret, host string, bound bool) (why, hint string) {
	if bound {
		return "a placeholder of the secret " + secret + " went out in a body, where nothing is put in its place",
			"send it in a header that the secret is bound to"
	}
	return strings.Join([]string{"the placeholder of the secret", secret, "is in what is sent to", host, "which the secret is not bound to"}, " "),
		"if it is meant to get it: ravi secrets set " + secret + " --host " + host + ", and use HTTPS"
}

package intercept

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// source feeds a bufio.Reader from a connection, and takes bytes back.
type source struct {
	conn net.Conn
	back []byte
	left int // what may still be read of a head; negative: no bound
}

var errHeadTooLarge = errors.New("the head of the message is too large")

func (s *source) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, errHeadTooLarge
	}
	if s.left > 0 {
		p = p[:min(len(p), s.left)]
	}
	var n int
	var err error
	if len(s.back) > 0 {
		n = copy(p, s.back)
		if s.back = s.back[n:]; len(s.back) == 0 {
			s.back = nil
		}
	} else {
		n, err = s.conn.Read(p)
	}
	if s.left > 0 {
		s.left -= n
	}
	return n, err
}

// unread has r begin with b again.
func (s *source) unread(r *bufio.Reader, b []byte) {
	rest, _ := r.Peek(r.Buffered())
	back := make([]byte, 0, len(b)+len(rest)+len(s.back))
	s.back = append(append(append(back, b...), rest...), s.back...)
	r.Reset(s)
}

// readHead reads a message's head, the empty line included.
func readHead(r *bufio.Reader, most int) ([]byte, error) {
	var head []byte
	begin := 0 // of the line
	for {
		part, err := r.ReadSlice('\n')
		if len(head)+len(part) > most {
			return head, errHeadTooLarge
		}
		head = append(head, part...)
		switch {
		case err == bufio.ErrBufferFull:
			continue
		case err == io.EOF:
			return head, io.ErrUnexpectedEOF
		case err != nil:
			return head, err
		}
		if line := head[begin:]; len(line) == 1 || len(line) == 2 && line[0] == '\r' {
			return head, nil
		}
		begin = len(head)
	}
}

// requestHead is what the strict reading of a request's head found.
type requestHead struct {
	method, target string
	host           []string
	old            bool // HTTP/1.0
}

// parseRequestHead is strict where readers of HTTP are known to differ, since
// what two of them understand differently can hide a second request. What it
// accepts is parsed once more, by net/http.
func parseRequestHead(head []byte) (requestHead, error) {
	var h requestHead
	lines := strings.Split(string(head), "\r\n")
	if len(lines) < 3 || lines[len(lines)-1] != "" || lines[len(lines)-2] != "" {
		return h, errors.New("a line does not end in CR LF")
	}
	first, fields := lines[0], lines[1:len(lines)-2]
	parts := strings.Split(first, " ")
	if len(parts) >= 2 { // for the record, even if it is wrong
		h.method, h.target = parts[0], parts[1]
	}
	if len(parts) != 3 || !httpguts.ValidHeaderFieldName(parts[0]) || parts[1] == "" {
		return h, errors.New("the request line is not METHOD TARGET VERSION")
	}
	switch parts[2] {
	case "HTTP/1.1":
	case "HTTP/1.0":
		h.old = true
	default:
		return h, fmt.Errorf("the request line's version is %q, not HTTP/1.1", parts[2])
	}
	if bytes.ContainsAny([]byte(first), "\r\n\x00") {
		return h, errors.New("a control character in the request line")
	}
	var lengths, codings int
	for _, field := range fields {
		if field == "" || field[0] == ' ' || field[0] == '\t' {
			return h, errors.New("a header is continued on a second line")
		}
		name, value, found := strings.Cut(field, ":")
		if !found || !httpguts.ValidHeaderFieldName(name) {
			return h, fmt.Errorf("%.40q is not a header's name", name)
		}
		if !httpguts.ValidHeaderFieldValue(value) {
			return h, fmt.Errorf("the header %s has a control character", name)
		}
		value = strings.Trim(value, " ")
		switch strings.ToLower(name) {
		case "host":
			h.host = append(h.host, value)
		case "content-length":
			lengths++
			if value == "" || strings.Trim(value, "0123456789") != "" {
				return h, errors.New("Content-Length is not a number")
			}
		case "transfer-encoding":
			codings++
			if !strings.EqualFold(value, "chunked") {
				return h, fmt.Errorf("Transfer-Encoding %.40q is not supported, only chunked", value)
			}
		}
	}
	switch {
	case len(h.host) != 1:
		return h, fmt.Errorf("%d Host headers", len(h.host))
	case lengths > 1:
		return h, errors.New("Content-Length is given twice")
	case codings > 1:
		return h, errors.New("Transfer-Encoding is given twice")
	case lengths > 0 && codings > 0:
		return h, errors.New("Content-Length and Transfer-Encoding contradict each other")
	case codings > 0 && h.old:
		return h, errors.New("Transfer-Encoding in HTTP/1.0")
	}
	return h, nil
}

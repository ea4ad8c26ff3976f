package intercept

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestCA(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ca, err := NewCA(func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{site, "a_b.site.test", "192.0.2.1", strings.Repeat("a.", 120) + "test"} {
		leaf, err := ca.leaf(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []time.Time{now, now.Add(-6 * day), now.Add(10 * day)} {
			if _, err := leaf.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: pool(ca), CurrentTime: at}); err != nil {
				t.Errorf("%s at %v: %v", name, at, err)
			}
		}
		if again, _ := ca.leaf(name); again != leaf {
			t.Errorf("%s: made twice", name)
		}
	}
	if ca.cert.NotBefore.After(now.Add(-10*day)) || ca.cert.NotAfter.Before(now.Add(365*day)) {
		t.Errorf("valid from %v to %v", ca.cert.NotBefore, ca.cert.NotAfter)
	}
	old, _ := ca.leaf(site)
	for _, at := range []time.Duration{20 * day, -10 * day} {
		now = now.Add(at)
		if fresh, _ := ca.leaf(site); fresh == old || now.After(fresh.Leaf.NotAfter) || now.Before(fresh.Leaf.NotBefore) {
			t.Errorf("an old certificate is used %v later", at)
		}
	}
	for i := range maxLeaves + 10 {
		if _, err := ca.leaf(fmt.Sprintf("n%d.test", i)); err != nil {
			t.Fatal(err)
		}
	}
	if len(ca.leaves) > maxLeaves {
		t.Errorf("%d certificates are kept", len(ca.leaves))
	}
}

func TestClassify(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want kind
	}{
		{"", kindUnknown}, {"\x16", kindUnknown}, {"\x16\x03", kindUnknown}, {"\x16\x03\x01", kindTLS}, {"\x16\x03\x09", kindOther}, {"\x16\x02", kindOther},
		{"G", kindUnknown}, {"GET", kindUnknown}, {"GET ", kindHTTP1}, {"GETX", kindVague}, {"\r\n", kindUnknown}, {"\r\n\r\nGET /", kindHTTP1},
		{strings.Repeat("\n", 65), kindOther}, {"P", kindUnknown}, {"PRI", kindUnknown}, {"PRI * HTTP/2.0\r\n", kindUnknown}, {preface, kindHTTP2}, {preface + "x", kindHTTP2},
		{"PRI * HTTP/1.1\r\n", kindHTTP1}, {"FOO / HTTP/1.1", kindVague}, {"FOO / HTTP/1.1\r\n", kindHTTP1}, {"FOO bar\r\n", kindOther},
		{"SSH-2.0-OpenSSH_9 Debian\r\n", kindOther}, {"SSH-2.0", kindVague}, {"a\x00", kindOther}, {"\xff", kindOther}, {"FOO /" + strings.Repeat("x", sniffMost), kindHTTP1},
		{strings.Repeat("x", sniffMost), kindOther}, {"(x) / HTTP/1.1\r\n", kindOther},
	} {
		if got := classify([]byte(tc.in)); got != tc.want {
			t.Errorf("%.40q: %v, not %v", tc.in, got, tc.want)
		}
	}
}

// What is decided does not depend on how the bytes were cut into pieces.
func FuzzClassify(f *testing.F) {
	for _, s := range []string{"GET / HTTP/1.1\r\n", preface, "\x16\x03\x01\x00\x01", "SSH-2.0-x\r\n", "\r\nFOO / HTTP/1.1\r\n", "PRI * HTTP/1.1\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		decided := kindUnknown
		for n := range len(b) + 1 {
			k := classify(b[:n])
			if decided > kindVague && k != decided {
				t.Fatalf("%q was %v, and is %v with %q", b[:n-1], decided, k, b[:n])
			}
			decided = k
		}
	})
}

func FuzzHello(f *testing.F) {
	var hello bytes.Buffer
	tls.Client(&recorderTo{&hello}, &tls.Config{ServerName: site, NextProtos: []string{"h2"}}).Handshake()
	f.Add(hello.Bytes())
	f.Add([]byte("\x16\x03\x01\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		conn := &replay{Conn: &readOnly{r: bytes.NewReader(b)}}
		info, err := helloOf(t, conn)
		if err == nil && info == nil {
			t.Fatal("neither a ClientHello nor an error")
		}
		rest, _ := io.ReadAll(conn)
		if !bytes.Equal(rest, b) && len(b) <= helloMost {
			t.Fatalf("of %d bytes %d are left to be read", len(b), len(rest))
		}
	})
}

func helloOf(t *testing.T, conn *replay) (*tls.ClientHelloInfo, error) {
	return hello(t.Context(), conn)
}

// recorderTo writes to a buffer, and has nothing to read.
type recorderTo struct{ w io.Writer }

func (r *recorderTo) Read([]byte) (int, error)         { return 0, io.EOF }
func (r *recorderTo) Write(p []byte) (int, error)      { return r.w.Write(p) }
func (r *recorderTo) Close() error                     { return nil }
func (r *recorderTo) LocalAddr() net.Addr              { return nil }
func (r *recorderTo) RemoteAddr() net.Addr             { return nil }
func (r *recorderTo) SetDeadline(time.Time) error      { return nil }
func (r *recorderTo) SetReadDeadline(time.Time) error  { return nil }
func (r *recorderTo) SetWriteDeadline(time.Time) error { return nil }

type readOnly struct {
	recorderTo
	r io.Reader
}

func (r *readOnly) Read(p []byte) (int, error)  { return r.r.Read(p) }
func (r *readOnly) Write(p []byte) (int, error) { return len(p), nil }

// What the strict reading accepts, net/http reads as the same request.
func FuzzRequestHead(f *testing.F) {
	for _, tc := range badHeads {
		f.Add([]byte(tc.raw))
	}
	f.Add([]byte("POST /a?b HTTP/1.1\r\nHost: site.test\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc"))
	f.Add([]byte("POST / HTTP/1.1\r\nhost: site.test\r\ntransfer-encoding: Chunked\r\n\r\n0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		head, err := readHead(bufio.NewReaderSize(bytes.NewReader(b), 16), 1<<16)
		if err != nil {
			return
		}
		if !bytes.HasPrefix(b, head) {
			t.Fatalf("%q is not the beginning of %q", head, b)
		}
		h, err := parseRequestHead(head)
		if err != nil {
			return
		}
		req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			return // then it is refused as well
		}
		if req.Method != h.method || req.RequestURI != h.target || len(h.host) != 1 {
			t.Fatalf("%q is %q %q here, and %q %q to net/http", head, h.method, h.target, req.Method, req.RequestURI)
		}
		if lines := strings.Count(string(head), "\r\n"); lines != strings.Count(string(head), "\n") || lines != strings.Count(string(head), "\r") {
			t.Fatalf("%q has lines that end differently", head)
		}
		if req.URL.Host == "" && req.Host != strings.Trim(h.host[0], "\t") {
			t.Fatalf("host %q here, %q to net/http", h.host[0], req.Host)
		}
		if req.ContentLength > 0 && len(req.TransferEncoding) > 0 {
			t.Fatalf("%q has two lengths", head)
		}
	})
}

// Only what means the name, in whatever case, is its authority; and its normal
// form means the same.
func TestAuthorities(t *testing.T) {
	f := &flow{name: site, port: 443}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.StringMatching(`(?i)[ \t]?site\.test\.{0,2}(:[0-9]{0,4})?[ \t]?`)).Draw(t, "authority")
		host, port, found := strings.Cut(s, ":")
		want := strings.ToLower(strings.TrimSuffix(host, ".")) == site && (!found || port == "443")
		for i := range len(s) {
			want = want && s[i] < 0x80
		}
		if got := f.isAuthority(s); got != want {
			t.Fatalf("%q: %v", s, got)
		}
		if want {
			if n := authority(s); n != site && n != site+":443" || !f.isAuthority(n) {
				t.Fatalf("%q becomes %q", s, n)
			}
		}
	})
	ip := &flow{name: "192.0.2.1", port: 80, isIP: true}
	six := &flow{name: "2001:db8::1", port: 80, isIP: true}
	for _, tc := range []struct {
		f    *flow
		s    string
		want bool
	}{
		{ip, "192.0.2.1", true}, {ip, "192.0.2.1:80", true}, {ip, "192.0.2.2", false}, {ip, "[192.0.2.1]:81", false},
		{six, "[2001:db8::1]", true}, {six, "[2001:db8::1]:80", true}, {six, "[2001:db8::1]:81", false}, {six, "[2001:db8::2]", false}, {f, "[site.test]", false},
	} {
		if got := tc.f.isAuthority(tc.s); got != tc.want {
			t.Errorf("%s on %s: %v", tc.s, tc.f.name, got)
		}
	}
}

func TestUnread(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, "bytes")
		s := &source{conn: &readOnly{r: bytes.NewReader(all)}, left: -1}
		r := bufio.NewReaderSize(s, 16)
		for range rapid.IntRange(1, 4).Draw(t, "times") {
			taken := make([]byte, rapid.IntRange(0, len(all)).Draw(t, "n"))
			io.ReadFull(r, taken)
			s.unread(r, taken)
		}
		got, err := io.ReadAll(r)
		if err != nil || !slices.Equal(got, all) {
			t.Fatalf("%q, %v", got, err)
		}
	})
}

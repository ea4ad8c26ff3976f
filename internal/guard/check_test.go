package guard

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Each of these is a request that a web page, a rebinding name or a confused client makes. None reaches the handler.
func TestRefusals(t *testing.T) {
	var reached atomic.Int64
	_, addr := onTCP(t, func(w http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		ok(w, r)
	}, Options{Origins: []string{"https://console.example"}, MaxBody: 100})
	_, port, _ := strings.Cut(addr, ":")
	const get, post = "GET /a HTTP/1.1\r\nHost: HOST\r\n", "POST /a HTTP/1.1\r\nHost: HOST\r\n"
	host := func(h string) string { return "GET /a HTTP/1.1\r\nHost: " + h + "\r\n\r\n" }
	for name, c := range map[string]struct {
		send   string
		status int
		code   string
		says   string
	}{
		"a rebinding name":        {host("evil.example:" + port), 403, CodeDenied, "evil.example"},
		"a name that begins so":   {host("127.0.0.1.evil.example:" + port), 403, CodeDenied, "not called"},
		"without the port":        {host("127.0.0.1"), 403, CodeDenied, "not called"},
		"another port":            {host("127.0.0.1:1"), 403, CodeDenied, "not called"},
		"an empty port":           {host("127.0.0.1:"), 403, CodeDenied, "not called"},
		"an empty host":           {host(""), 403, CodeDenied, "not called"},
		"no host, HTTP/1.0":       {"GET /a HTTP/1.0\r\n\r\n", 403, CodeDenied, "not called"},
		"a dot at the end":        {host("localhost.:" + port), 403, CodeDenied, "not called"},
		"capitals":                {host("LOCALHOST:" + port), 403, CodeDenied, "not called"},
		"another spelling of it":  {host("127.1:" + port), 403, CodeDenied, "not called"},
		"as a number":             {host("2130706433:" + port), 403, CodeDenied, "not called"},
		"mapped":                  {host("[::ffff:127.0.0.1]:" + port), 403, CodeDenied, "not called"},
		"all addresses":           {host("0.0.0.0:" + port), 403, CodeDenied, "not called"},
		"absolute, own":           {"GET http://HOST/a HTTP/1.1\r\nHost: HOST\r\n\r\n", 403, CodeDenied, "first line"},
		"absolute, another":       {"GET http://evil.example/a HTTP/1.1\r\nHost: HOST\r\n\r\n", 403, CodeDenied, "first line"},
		"absolute, with a user":   {"GET http://u:p@HOST/a HTTP/1.1\r\nHost: HOST\r\n\r\n", 403, CodeDenied, "first line"},
		"CONNECT":                 {"CONNECT evil.example:443 HTTP/1.1\r\nHost: HOST\r\n\r\n", 403, CodeDenied, "first line"},
		"OPTIONS of all":          {"OPTIONS * HTTP/1.1\r\nHost: HOST\r\n\r\n", 403, CodeDenied, "first line"},
		"an origin":               {get + "Origin: https://evil.example\r\n\r\n", 403, CodeDenied, "evil.example"},
		"its own origin":          {get + "Origin: http://HOST\r\n\r\n", 403, CodeDenied, "origin"},
		"null":                    {get + "Origin: null\r\n\r\n", 403, CodeDenied, "null"},
		"an empty origin":         {get + "Origin:\r\n\r\n", 403, CodeDenied, "origin"},
		"an origin like it":       {get + "Origin: https://console.example.evil\r\n\r\n", 403, CodeDenied, "origin"},
		"an origin in capitals":   {get + "Origin: https://Console.example\r\n\r\n", 403, CodeDenied, "origin"},
		"two origins":             {get + "Origin: https://console.example\r\nOrigin: https://evil.example\r\n\r\n", 403, CodeDenied, "origin"},
		"cross-site":              {get + "Sec-Fetch-Site: cross-site\r\n\r\n", 403, CodeDenied, "cross-site"},
		"same-site":               {get + "Sec-Fetch-Site: same-site\r\n\r\n", 403, CodeDenied, "same-site"},
		"two sites":               {get + "Sec-Fetch-Site: none\r\nSec-Fetch-Site: cross-site\r\n\r\n", 403, CodeDenied, "cross-site"},
		"a site nobody knows":     {get + "Sec-Fetch-Site: x\r\n\r\n", 403, CodeDenied, "another site"},
		"a browser's asking":      {"OPTIONS /a HTTP/1.1\r\nHost: HOST\r\nOrigin: https://console.example\r\nAccess-Control-Request-Method: POST\r\n\r\n", 405, CodeMethod, "OPTIONS"},
		"TRACE":                   {"TRACE /a HTTP/1.1\r\nHost: HOST\r\n\r\n", 405, CodeMethod, "TRACE"},
		"DELETE":                  {"DELETE /a HTTP/1.1\r\nHost: HOST\r\n\r\n", 405, CodeMethod, "DELETE"},
		"a method in small":       {"post /a HTTP/1.1\r\nHost: HOST\r\n\r\n", 405, CodeMethod, "post"},
		"HTTP/2 on a plain wire":  {"PRI /a HTTP/1.1\r\nHost: HOST\r\n\r\n", 405, CodeMethod, "PRI"},
		"a form":                  {post + "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 3\r\n\r\na=b", 400, CodeUsage, "form"},
		"an empty form":           {post + "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 0\r\n\r\n", 400, CodeUsage, "form"},
		"plain text":              {post + "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", 400, CodeUsage, "text/plain"},
		"JSON in a parameter":     {post + "Content-Type: text/plain; x=application/json\r\nContent-Length: 2\r\n\r\n{}", 400, CodeUsage, "text/plain"},
		"a list of types":         {post + "Content-Type: text/plain, application/json\r\nContent-Length: 2\r\n\r\n{}", 400, CodeUsage, "type"},
		"two types":               {post + "Content-Type: application/json\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", 400, CodeUsage, "type"},
		"another character set":   {post + "Content-Type: application/json; charset=utf-7\r\nContent-Length: 2\r\n\r\n{}", 400, CodeUsage, "type"},
		"multipart":               {post + "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 2\r\n\r\n{}", 400, CodeUsage, "multipart"},
		"no type":                 {post + "Content-Length: 2\r\n\r\n{}", 400, CodeUsage, "type"},
		"no type and no length":   {post + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, CodeUsage, "type"},
		"GET with a body":         {get + "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", 400, CodeUsage, "no body"},
		"a length beyond":         {post + "Content-Type: application/json\r\nContent-Length: 101\r\n\r\n", 413, CodeTooLarge, "100 bytes"},
		"a length far beyond":     {post + "Content-Type: application/json\r\nContent-Length: 9000000000000000000\r\n\r\n", 413, CodeTooLarge, "100 bytes"},
		"a long name is told cut": {host(strings.Repeat("a", 5000)), 403, CodeDenied, strings.Repeat("a", 100)},
	} {
		t.Run(name, func(t *testing.T) {
			got := raw(t, addr, c.send)
			mustRefuse(t, got, c.status, c.code, c.says)
			if len(got.body) > 1000 {
				t.Errorf("an answer of %d bytes", len(got.body))
			}
			if allow := got.header.Get("Allow"); (c.status == 405) != (allow == "GET, HEAD, POST") {
				t.Errorf("Allow: %q", allow)
			}
		})
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("%d of them reached the handler", n)
	}
}

// What net/http itself refuses, it refuses in plain text; it matters that it does.
func TestRefusedBelow(t *testing.T) {
	var reached atomic.Int64
	_, addr := onTCP(t, func(w http.ResponseWriter, r *http.Request) { reached.Add(1) }, Options{})
	for name, c := range map[string]struct {
		send   string
		status int
	}{
		"two hosts":            {"GET /a HTTP/1.1\r\nHost: HOST\r\nHost: HOST\r\n\r\n", 400},
		"two hosts, evil last": {"GET /a HTTP/1.1\r\nHost: HOST\r\nHost: evil.example\r\n\r\n", 400},
		"a user in the host":   {"GET /a HTTP/1.1\r\nHost: u@HOST\r\n\r\n", 400},
		"a folded host":        {"GET /a HTTP/1.1\r\nHost: HOST\r\n .evil.example\r\n\r\n", 400},
		"no host":              {"GET /a HTTP/1.1\r\n\r\n", 400},
		"space before colon":   {"GET /a HTTP/1.1\r\nHost : HOST\r\n\r\n", 400},
		"two lengths":          {"POST /a HTTP/1.1\r\nHost: HOST\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x", 400},
		"a signed length":      {"POST /a HTTP/1.1\r\nHost: HOST\r\nContent-Length: +2\r\n\r\n{}", 400},
		"a negative length":    {"POST /a HTTP/1.1\r\nHost: HOST\r\nContent-Length: -1\r\n\r\n", 400},
		"an odd encoding":      {"POST /a HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: xchunked\r\n\r\n", 501},
		"two encodings":        {"POST /a HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", 501},
		"a large header":       {"GET /a HTTP/1.1\r\nHost: HOST\r\nX: " + strings.Repeat("a", 40<<10) + "\r\n\r\n", 431},
		"many headers":         {"GET /a HTTP/1.1\r\nHost: HOST\r\n" + strings.Repeat("X: a\r\n", 8<<10) + "\r\n", 431},
		"a large target":       {"GET /" + strings.Repeat("a", 40<<10) + " HTTP/1.1\r\nHost: HOST\r\n\r\n", 431},
		"a null in a header":   {"GET /a HTTP/1.1\r\nHost: HOST\r\nX: a\x00b\r\n\r\n", 400},
	} {
		if got := raw(t, addr, c.send); got.status != c.status {
			t.Errorf("%s: status %d, want %d", name, got.status, c.status)
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("%d of them reached the handler", n)
	}
}

func TestLetThrough(t *testing.T) {
	_, addr := onTCP(t, ok, Options{Origins: []string{"https://console.example"}})
	_, port, _ := strings.Cut(addr, ":")
	const get, post = "GET /a HTTP/1.1\r\nHost: HOST\r\n", "POST /a HTTP/1.1\r\nHost: HOST\r\n"
	for name, send := range map[string]string{
		"its address":         get + "\r\n",
		"localhost":           "GET /a HTTP/1.1\r\nHost: localhost:" + port + "\r\n\r\n",
		"::1":                 "GET /a HTTP/1.1\r\nHost: [::1]:" + port + "\r\n\r\n",
		"HEAD":                "HEAD /a HTTP/1.1\r\nHost: HOST\r\n\r\n",
		"the allowed origin":  get + "Origin: https://console.example\r\nSec-Fetch-Site: same-origin\r\n\r\n",
		"an address typed in": get + "Sec-Fetch-Site: none\r\n\r\n",
		"JSON":                post + "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
		"JSON, in UTF-8":      post + "Content-Type: Application/JSON; charset=UTF-8\r\nContent-Length: 2\r\n\r\n{}",
		"JSON in chunks":      post + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"no body":             post + "Content-Length: 0\r\n\r\n",
		"no body, unsaid":     post + "\r\n",
	} {
		got := raw(t, addr, send)
		if got.status != 200 || name != "HEAD" && got.body != "reached" {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
		mustSeal(t, got.header)
	}
}

// A client that means two requests with what another takes for one gets no second answer.
func TestSmuggling(t *testing.T) {
	var mu sync.Mutex
	var paths []string
	_, addr := onTCP(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		paths = append(paths, r.URL.Path)
	}, Options{})
	const smuggled = "GET /smuggled HTTP/1.1\r\nHost: HOST\r\n\r\n"
	for name, send := range map[string]string{
		"a length and chunks": "POST /first HTTP/1.1\r\nHost: HOST\r\nContent-Type: application/json\r\nContent-Length: 4\r\n" +
			"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + smuggled,
		"chunks, folded": "POST /first HTTP/1.1\r\nHost: HOST\r\nContent-Type: application/json\r\nContent-Length: 2\r\n" +
			"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + smuggled,
		"a bare line feed": "POST /first HTTP/1.1\r\nHost: HOST\r\nContent-Type: application/json\r\n" +
			"Transfer-Encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n" + smuggled,
		"a body of a refused request": "POST /first HTTP/1.1\r\nHost: HOST\r\nContent-Type: text/plain\r\nContent-Length: 999\r\n\r\n" + smuggled,
		"a body of GET":               "GET /first HTTP/1.1\r\nHost: HOST\r\nContent-Length: 999\r\n\r\n" + smuggled,
	} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, strings.ReplaceAll(send, "HOST", addr)); err != nil {
			t.Fatal(err)
		}
		all, _ := io.ReadAll(c) // the server's end of it may be a reset
		c.Close()
		if n := strings.Count(string(all), "HTTP/1.1 "); n != 1 {
			t.Errorf("%s: %d answers: %q", name, n, all)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if slices.Contains(paths, "/smuggled") {
		t.Error(paths)
	}
}

// FuzzTarget: whatever stands in Host, target and Origin, what passes is exactly one of the names and no other origin.
func FuzzTarget(f *testing.F) {
	for _, s := range [][3]string{
		{"127.0.0.1:7777", "/a", ""}, {"", "/a", ""}, {"localhost:7777", "/a", "null"}, {"[::1]:7777", "//x/a", "https://console.example"},
		{"LOCALHOST:7777", "http://localhost:7777/", "http://127.0.0.1:7777"}, {"localhost.:7777", "*", " "}, {"a@localhost:7777", "/\x00", "\x00"},
	} {
		f.Add(s[0], s[1], s[2], true)
	}
	names := []string{"127.0.0.1:7777", "localhost:7777", "[::1]:7777"}
	door := NewDoor(1, append(names, "")...)
	f.Fuzz(func(t *testing.T, host, target, origin string, present bool) {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host, r.RequestURI, r.Header = host, target, http.Header{}
		if u, err := url.ParseRequestURI(target); err == nil {
			r.URL = u
		}
		if checkTarget(door, r) == nil && (!slices.Contains(names, host) || !strings.HasPrefix(target, "/")) {
			t.Errorf("host %q and target %q pass", host, target)
		}
		if present {
			r.Header["Origin"] = []string{origin}
		}
		if checkOrigin([]string{"https://console.example"}, r.Header) == nil && present && origin != "https://console.example" {
			t.Errorf("origin %q passes", origin)
		}
		if shown := quoted(host); len(shown) > 2000 || strings.ContainsFunc(shown, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("shown as %s", shown)
		}
	})
}

package intercept

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strings"
	"testing"

	"ravi/internal/network/inject"
)

const (
	token       = "ghs_Tr0ub4dor+3/x=="
	placeholder = "ravi-secret-token-aaaaaaaaaaaaaaaaaaaaaaaaaa"
	otherToken  = "s3cond-value-of-another"
	otherHolder = "ravi-secret-other-bbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// withSecrets binds one secret to the site, and another to somewhere else.
func withSecrets(t *testing.T, change ...func(*inject.Secret)) func(*world) {
	t.Helper()
	mine := inject.Secret{Name: "TOKEN", Placeholder: placeholder, Value: token, Hosts: []string{site},
		Headers: []string{inject.DefaultHeader, "X-Api-Key: {}"}, Query: "key"}
	for _, c := range change {
		c(&mine)
	}
	set := &inject.Set{}
	if err := set.Replace([]inject.Secret{mine, {Name: "OTHER", Placeholder: otherHolder, Value: otherToken,
		Hosts: []string{"elsewhere.test"}, Headers: []string{inject.DefaultHeader}}}); err != nil {
		t.Fatal(err)
	}
	return func(w *world) { w.proxy.Secrets = set }
}

func elsewhere(s *inject.Secret) { s.Hosts = []string{"not-here.test"} }

// echo answers with what it got, and reflects it in every way that it can.
type echoed struct {
	Target string
	Header http.Header
	Body   string
}

func echo(got chan<- echoed) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		e := echoed{r.URL.RequestURI(), r.Header, string(b)}
		got <- e
		for k, vs := range r.Header {
			for _, v := range vs {
				w.Header().Add("X-Echo-"+k, v)
			}
		}
		w.Header().Set("Trailer", "X-Late")
		w.WriteHeader(http.StatusTeapot)
		json.NewEncoder(w).Encode(e)
		fmt.Fprintf(w, "%s %q %s", r.Header.Get("Authorization"), r.Header.Get("X-Api-Key"), url.QueryEscape(r.Header.Get("X-Api-Key")))
		w.Header().Set("X-Late", r.Header.Get("Authorization"))
	}
}

func (w *world) send(h2 bool, method, target string, body string, headers ...string) *http.Response {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, "https://"+site+target, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	r, err := w.client(h2).Do(req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
			if text := fmt.Sprint(header); strings.Contains(text, token) {
				w.t.Errorf("the response %d holds the value: %s", code, text)
			}
			return nil
		},
	})))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { r.Body.Close() })
	return r
}

// leaks fails if anything of a response holds the value.
func leaks(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	all := r.Status + fmt.Sprint(r.Header) + string(b) + fmt.Sprint(r.Trailer)
	for _, form := range []string{token, url.QueryEscape(token), base64.StdEncoding.EncodeToString([]byte(token))[:20], strings.Trim(token, "=")} {
		if strings.Contains(all, form) {
			t.Errorf("the response holds %s:\n%s", form, all)
		}
	}
	return all
}

func TestSecretIsPutIn(t *testing.T) {
	basic := func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }
	both(t, func(t *testing.T, h2 bool) {
		for _, c := range []struct{ name, target, header, sent, want, wantTarget string }{
			{"bearer", "/a", "Authorization", "Bearer " + placeholder, "Bearer " + token, ""},
			{"another scheme", "/a", "Authorization", "token " + placeholder, "token " + token, ""},
			{"a header of its own", "/a", "X-Api-Key", placeholder, token, ""},
			{"password", "/a", "Authorization", basic("x-access-token:" + placeholder), basic("x-access-token:" + token), ""},
			{"user", "/a", "Authorization", basic(placeholder + ":"), basic(token + ":"), ""},
			{"query", "/a?x=%2F&key=" + placeholder + "&y", "X-Other", "1", "1", "/a?x=%2F&key=" + url.QueryEscape(token) + "&y"},
			{"a value that has none", "/a?key=1", "Authorization", "Bearer mine", "Bearer mine", "/a?key=1"},
		} {
			t.Run(c.name, func(t *testing.T) {
				got := make(chan echoed, 1)
				w := newWorld(t, addr(tlsServer(t, echo(got))), 443, withSecrets(t))
				r := w.send(h2, "POST", c.target, "body with "+placeholder, c.header, c.sent)
				all := leaks(t, r)
				e := <-got
				if e.Header.Get(c.header) != c.want || c.wantTarget != "" && e.Target != c.wantTarget {
					t.Errorf("the server got %s %q", e.Target, e.Header.Get(c.header))
				}
				if e.Body != "body with "+placeholder {
					t.Errorf("the server got the body %q", e.Body)
				}
				if r.StatusCode != http.StatusTeapot || r.ContentLength >= 0 {
					t.Errorf("status %d, length %d", r.StatusCode, r.ContentLength)
				}
				used := c.want != c.sent || c.wantTarget != "" && c.wantTarget != c.target
				if used && !strings.Contains(all, placeholder) {
					t.Errorf("the guest got no placeholder back: %s", all)
				}
				ev := w.event()
				if ev.Alarm || !ev.Allowed || (len(ev.Secrets) == 1) != used || strings.Contains(fmt.Sprint(ev), token) {
					t.Errorf("event %+v", ev)
				}
			})
		}
	})
}

func TestPlaceholderAstray(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		for _, c := range []struct {
			name                 string
			target, header, sent string
			body                 string
			change               func(*inject.Secret)
			alarm                bool
		}{
			{"header of another host", "/", "Authorization", "Bearer " + placeholder, "", elsewhere, true},
			{"basic of another host", "/", "Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte("u:"+placeholder)), "", elsewhere, true},
			{"cookie of another host", "/", "Cookie", "a=" + placeholder, "", elsewhere, true},
			{"path of another host", "/x/" + placeholder, "A", "b", "", elsewhere, true},
			{"escaped path of another host", "/x/%72avi-secret-token-aaaaaaaaaaaaaaaaaaaaaaaaa%61", "A", "b", "", elsewhere, true},
			{"twice escaped", "/?q=%2572avi-secret-token-aaaaaaaaaaaaaaaaaaaaaaaaaa", "A", "b", "", elsewhere, true},
			{"upper case", "/?q=" + strings.ToUpper(placeholder), "A", "b", "", elsewhere, true},
			{"header's name", "/", placeholder, "x", "", elsewhere, true},
			{"body of another host", "/", "A", "b", "some text, then " + placeholder, elsewhere, true},
			{"another host's secret here", "/", "Authorization", "Bearer " + otherHolder, "", nil, true},
			{"a header that it is not bound to", "/", "X-Evil", placeholder, "", nil, false},
			{"the path", "/" + placeholder, "A", "b", "", nil, false},
			{"another parameter", "/?other=" + placeholder, "A", "b", "", nil, false},
			{"the right one and another", "/?key=" + placeholder + "&z=" + placeholder, "A", "b", "", nil, false},
		} {
			t.Run(c.name, func(t *testing.T) {
				got := make(chan echoed, 1)
				var change []func(*inject.Secret)
				if c.change != nil {
					change = append(change, c.change)
				}
				w := newWorld(t, addr(tlsServer(t, echo(got))), 443, withSecrets(t, change...))
				r := w.send(h2, "POST", c.target, c.body, c.header, c.sent)
				leaks(t, r)
				if r.StatusCode != http.StatusForbidden || r.Header.Get("X-Ravi-Refused") == "" {
					t.Errorf("answered %s", r.Status)
				}
				select {
				case e := <-got:
					if c.body == "" || strings.Contains(e.Body, placeholder) {
						t.Errorf("the server got %+v", e)
					}
				default:
				}
				if ev := w.event(); ev.Alarm != c.alarm || ev.Allowed || ev.Hint == "" || len(ev.Secrets) != 0 {
					t.Errorf("event %+v", ev)
				}
			})
		}
	})
}

// Half a placeholder is none, and two halves in two headers are not one.
func TestSplitPlaceholder(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		got := make(chan echoed, 1)
		w := newWorld(t, addr(tlsServer(t, echo(got))), 443, withSecrets(t))
		r := w.send(h2, "GET", "/", "", "Authorization", "Bearer "+placeholder[:20], "Authorization", placeholder[20:], "X-Api-Key", placeholder[:20], "X-Api-Key", placeholder[20:])
		leaks(t, r)
		if e := <-got; strings.Contains(fmt.Sprint(e), token) {
			t.Errorf("the server got %+v", e)
		}
		if ev := w.event(); len(ev.Secrets) > 0 {
			t.Errorf("event %+v", ev)
		}
	})
}

// Without TLS no secret is sent, not even to the host that it is bound to.
func TestNoSecretWithoutTLS(t *testing.T) {
	got := make(chan echoed, 1)
	server := plainServer(t, echo(got))
	w := newWorld(t, addr(server), 80, withSecrets(t))
	answer := ask(t, w.dial(), "GET / HTTP/1.1\r\nHost: "+site+"\r\nAuthorization: Bearer "+placeholder+"\r\nConnection: close\r\n\r\n")
	if !strings.HasPrefix(answer, "HTTP/1.1 403 ") || !strings.Contains(answer, "https://"+site) || len(got) > 0 {
		t.Errorf("answered %q", answer)
	}
	if ev := w.event(); ev.Alarm || ev.Allowed {
		t.Errorf("event %+v", ev)
	}
}

// What a server says in the line of its status, too.
func TestStatusIsRedacted(t *testing.T) {
	cert, err := serverCA().leaf(site)
	if err != nil {
		t.Fatal(err)
	}
	server := rawServer(t, func(c *net.TCPConn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{*cert}})
		if _, err := http.ReadRequest(bufio.NewReader(s)); err == nil {
			io.WriteString(s, "HTTP/1.1 401 no "+token+"\r\nContent-Length: 0\r\n\r\n")
		}
		s.Close()
	})
	w := newWorld(t, server, 443, withSecrets(t))
	if r := w.send(false, "GET", "/", ""); r.Status != "401 no "+placeholder {
		t.Errorf("answered %q", r.Status)
	} else {
		leaks(t, r)
	}
}

// What a guest could ask for so that the value comes back in another form.
func TestResponseStaysSearchable(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		w := newWorld(t, addr(tlsServer(t, func(w http.ResponseWriter, r *http.Request) {
			for _, name := range []string{"Range", "If-Range", "A-Im", "Sec-Websocket-Extensions"} {
				if v, ok := r.Header[name]; ok {
					t.Errorf("the server got %s %q", name, v)
				}
			}
			if v := r.Header["Accept-Encoding"]; len(v) != 1 || v[0] != "identity" {
				t.Errorf("the server got Accept-Encoding %q", v)
			}
			switch r.URL.Path {
			case "/gzip":
				w.Header().Set("Content-Encoding", "gzip")
				z := gzip.NewWriter(w)
				io.WriteString(z, r.Header.Get("Authorization"))
				z.Close()
			case "/part":
				w.Header().Set("Content-Range", "bytes 7-8/100")
				w.WriteHeader(http.StatusPartialContent)
				io.WriteString(w, token[:2])
			case "/redirect":
				w.Header().Set("Location", "https://evil.test/?"+r.Header.Get("Authorization"))
				w.WriteHeader(http.StatusFound)
			case "/hints":
				w.Header().Set("Link", r.Header.Get("Authorization"))
				w.WriteHeader(http.StatusEarlyHints)
				w.Header().Set("Link", "nothing")
				w.WriteHeader(http.StatusOK)
			}
		})), 443, withSecrets(t))
		for path, status := range map[string]int{"/gzip": 502, "/part": 502, "/redirect": 302, "/hints": 200} {
			r := w.send(h2, "GET", path, "", "Authorization", "Bearer "+placeholder, "Range", "bytes=7-8", "If-Range", "x", "A-IM", "gzip",
				"Sec-WebSocket-Extensions", "permessage-deflate", "Accept-Encoding", "gzip, br")
			leaks(t, r)
			if r.StatusCode != status {
				t.Errorf("%s: answered %s", path, r.Status)
			}
		}
	})
}

// The value is taken out also where it lies across the pieces in which the body comes, and what has none comes through
// as it is, at once.
func TestValueAcrossPieces(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		go1, go2 := make(chan bool), make(chan bool)
		w := newWorld(t, addr(tlsServer(t, func(w http.ResponseWriter, r *http.Request) {
			f := http.NewResponseController(w)
			io.WriteString(w, "event: one\n\n")
			f.Flush()
			<-go1
			for _, b := range []byte("x" + token + "y\n") {
				w.Write([]byte{b})
				f.Flush()
			}
			<-go2
		})), 443, withSecrets(t))
		r := w.send(h2, "GET", "/", "")
		first := make([]byte, len("event: one\n\n"))
		if _, err := io.ReadFull(r.Body, first); err != nil {
			t.Fatal(err)
		}
		close(go1)
		second := make([]byte, len("x"+placeholder+"y\n"))
		if _, err := io.ReadFull(r.Body, second); err != nil || string(second) != "x"+placeholder+"y\n" {
			t.Errorf("got %q, %v", second, err)
		}
		close(go2)
		if rest, err := io.ReadAll(r.Body); len(rest) > 0 || err != nil {
			t.Errorf("then %q, %v", rest, err)
		}
	})
}

// A rule may have a secret sent unasked; what the guest wrote there is gone.
func TestRuleInjects(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		got := make(chan echoed, 1)
		w := newWorld(t, addr(tlsServer(t, echo(got))), 443, withSecrets(t), func(w *world) { w.rules.inject = []string{"TOKEN"} })
		leaks(t, w.send(h2, "GET", "/", "", "Authorization", "Bearer mine", "Authorization", "Bearer "+otherHolder))
		if e := <-got; len(e.Header["Authorization"]) != 1 || e.Header.Get("Authorization") != "Bearer "+token {
			t.Errorf("the server got %q", e.Header["Authorization"])
		}
		for _, name := range []string{"OTHER", "NONE"} {
			w.rules.inject = []string{name}
			if r := w.send(h2, "GET", "/", ""); r.StatusCode != http.StatusForbidden || len(got) > 0 {
				t.Errorf("%s: answered %s", name, r.Status)
			}
		}
	})
}

// A new value is used at once, and the old one is still taken out; without a value requests are refused.
func TestValueIsReplaced(t *testing.T) {
	got := make(chan echoed, 1)
	w := newWorld(t, addr(tlsServer(t, func(w http.ResponseWriter, r *http.Request) {
		echo(got)(w, r)
		io.WriteString(w, token) // which it remembers
	})), 443, withSecrets(t))
	for _, value := range []string{"a-new-value", ""} {
		if err := w.proxy.Secrets.Replace([]inject.Secret{{Name: "TOKEN", Placeholder: placeholder, Value: inject.Value(value), Hosts: []string{site},
			Headers: []string{inject.DefaultHeader}}}); err != nil {
			t.Fatal(err)
		}
		r := w.send(false, "GET", "/", "", "Authorization", "Bearer "+placeholder)
		if all := leaks(t, r); strings.Contains(all, "a-new-value") {
			t.Errorf("the response holds the new value: %s", all)
		}
		if value == "" {
			if r.StatusCode != http.StatusForbidden {
				t.Errorf("without a value: %s", r.Status)
			}
			continue
		}
		if e := <-got; e.Header.Get("Authorization") != "Bearer "+value {
			t.Errorf("the server got %q", e.Header.Get("Authorization"))
		}
	}
}

// In what is neither HTTP nor replaced, a placeholder to a host without a secret and a value from one with it cut the
// connection.
func TestSecretsOutsideHTTP(t *testing.T) {
	t.Run("placeholder", func(t *testing.T) {
		var seen bytes.Buffer
		done := make(chan struct{})
		server := rawServer(t, func(c *net.TCPConn) {
			defer close(done)
			io.WriteString(c, "220 hello\r\n")
			io.Copy(&seen, c)
		})
		w := newWorld(t, server, 25, withSecrets(t, elsewhere), func(w *world) { w.rules.connect.Opaque = true })
		c := w.dial()
		io.WriteString(c, "AUTH "+placeholder[:10])
		io.WriteString(c, placeholder[10:]+"\r\n")
		io.Copy(io.Discard, c)
		<-done
		if strings.Contains(seen.String(), placeholder) {
			t.Errorf("the server got %q", seen.String())
		}
		if ev := w.event(); !ev.Alarm || ev.Allowed || ev.Hint == "" {
			t.Errorf("event %+v", ev)
		}
	})
	t.Run("value", func(t *testing.T) {
		w := newWorld(t, addr(tlsServer(t, func(w http.ResponseWriter, r *http.Request) {
			c, b, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			fmt.Fprintf(b, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Echo: %s\r\n\r\nplain %s", r.Header.Get("Authorization"), r.Header.Get("Authorization"))
			b.Flush()
			io.Copy(io.Discard, c)
		})), 443, withSecrets(t))
		c := w.dialTLS("http/1.1")
		answer := ask(t, c, "GET / HTTP/1.1\r\nHost: "+site+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nAuthorization: Bearer "+placeholder+"\r\n\r\n")
		if !strings.HasPrefix(answer, "HTTP/1.1 101 ") || strings.Contains(answer, token) {
			t.Errorf("answered %q", answer)
		}
		if ev := w.event(); ev.Why == "" || strings.Contains(fmt.Sprint(ev), token) {
			t.Errorf("event %+v", ev)
		}
	})
}

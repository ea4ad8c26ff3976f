package inject

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

const holder = "ravi-secret-token-aaaaaaaaaaaaaaaaaaaaaaaaaa"

func good() Secret {
	return Secret{Name: "TOKEN", Placeholder: holder, Value: "s3cret-value", Hosts: []string{"api.test"}, Headers: []string{DefaultHeader}}
}

func setOf(t interface{ Fatal(...any) }, secrets ...Secret) *Set {
	s := &Set{}
	if err := s.Replace(secrets); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWhatNoSecretCanBe(t *testing.T) {
	setOf(t, good())
	for name, change := range map[string]func(*Secret){
		"no name":                   func(s *Secret) { s.Name = "" },
		"no host":                   func(s *Secret) { s.Hosts = nil },
		"any host":                  func(s *Secret) { s.Hosts = []string{"*"} },
		"an address":                func(s *Secret) { s.Hosts = []string{"192.0.2.1"} },
		"an address with a port":    func(s *Secret) { s.Hosts = []string{"192.0.2.1:443"} },
		"an IPv6 address":           func(s *Secret) { s.Hosts = []string{"[2001:db8::1]:443"} },
		"a network":                 func(s *Secret) { s.Hosts = []string{"192.0.2.0/24:443"} },
		"a short value":             func(s *Secret) { s.Value = "1234567" },
		"a long value":              func(s *Secret) { s.Value = Value(strings.Repeat("x", maxValue+1)) },
		"a line break":              func(s *Secret) { s.Value = "12345678\r\nHost: evil.test" },
		"a space at the end":        func(s *Secret) { s.Value = "12345678 " },
		"no place":                  func(s *Secret) { s.Headers = nil },
		"a header without a value":  func(s *Secret) { s.Headers = []string{"Authorization: Bearer"} },
		"a header with two":         func(s *Secret) { s.Headers = []string{"Authorization: {} {}"} },
		"a header with a break":     func(s *Secret) { s.Headers = []string{"Authorization: {}\r\nX: y"} },
		"the header Host":           func(s *Secret) { s.Headers = []string{"host: {}"} },
		"the header Content-Length": func(s *Secret) { s.Headers = []string{"CONTENT-LENGTH: {}"} },
		"its own placeholder":       func(s *Secret) { s.Placeholder = "password" },
		"a short placeholder":       func(s *Secret) { s.Placeholder = "ravi-secret-x" },
		"a placeholder with a star": func(s *Secret) { s.Placeholder = holder + "*" },
	} {
		s := good()
		change(&s)
		set := &Set{}
		err := set.Replace([]Secret{s})
		if err == nil {
			t.Errorf("%s: accepted", name)
		} else if s.Value != "" && len(s.Value) < 100 && strings.Contains(err.Error(), string(s.Value)) {
			t.Errorf("%s: the value is in the error: %v", name, err)
		}
	}
	if err := new(Set).Replace([]Secret{good(), good()}); err == nil {
		t.Error("the same secret twice: accepted")
	}
	if err := new(Set).Replace(make([]Secret, maxSecrets+1)); err == nil {
		t.Error("too many: accepted")
	}
}

func TestValueIsNotPrinted(t *testing.T) {
	s := good()
	for _, text := range []string{fmt.Sprint(s), fmt.Sprintf("%v %+v %#v %s %q", s, s, s, s.Value, s.Value), fmt.Sprint(&s)} {
		if strings.Contains(text, "s3cret-value") {
			t.Errorf("printed: %s", text)
		}
	}
}

func TestNewPlaceholder(t *testing.T) {
	a, b := NewPlaceholder("My_Token"), NewPlaceholder("My_Token")
	if a == b || !strings.HasPrefix(a, "ravi-secret-my_token-") {
		t.Errorf("%s, %s", a, b)
	}
	s := good()
	s.Placeholder = a
	setOf(t, s)
}

// Whatever a request looks like: its value goes to the bound host inside TLS and in the bound header only, and no
// placeholder goes out in a head.
func TestGates(t *testing.T) {
	s := good()
	s.Query = "key"
	set := setOf(t, s)
	rapid.Check(t, func(t *rapid.T) {
		host := rapid.SampledFrom([]string{"api.test", "sub.api.test", "xapi.test", "api.test.evil", "192.0.2.1"}).Draw(t, "host")
		port := rapid.SampledFrom([]uint16{80, 443, 8443}).Draw(t, "port")
		piece := rapid.SampledFrom([]string{"", "a", "%", "%72", "Basic ", "Bearer ", "&key=", "&", "=", "?", "/", holder, holder[:12], strings.ToUpper(holder), "%72" + holder[1:]})
		text := func(label string) string { return strings.Join(rapid.SliceOfN(piece, 0, 5).Draw(t, label), "") }
		r := &Request{Host: host, Port: port, TLS: rapid.Bool().Draw(t, "tls"), Target: "/" + text("target"), Header: http.Header{
			"Authorization": {text("authorization"), text("authorization 2")}, "X-Other": {text("other")},
		}}
		used, err := set.PutIn(r)
		if err != nil {
			refused := (*Refused)(nil)
			if !errors.As(err, &refused) || refused.Why == "" || refused.Hint == "" || strings.Contains(err.Error()+refused.Hint, "s3cret-value") {
				t.Fatalf("%v", err)
			}
			if refused.Alarm != (host != "api.test" || port == 8443) {
				t.Fatalf("alarm %v to %s:%d: %v", refused.Alarm, host, port, err)
			}
			return
		}
		head := r.Target + fmt.Sprint(r.Header)
		may := host == "api.test" && port != 8443 && r.TLS
		if put := strings.Contains(head, "s3cret-value"); put != (len(used) == 1) || put && !may {
			t.Fatalf("to %s:%d: used %v: %s", host, port, used, head)
		}
		if strings.Contains(strings.ToLower(unescape(head)), holder) {
			t.Fatalf("a placeholder goes to %s: %s", host, head)
		}
		if strings.Contains(r.Header.Get("X-Other"), "s3cret-value") || strings.Contains(strings.SplitN(r.Target, "?", 2)[0], "s3cret-value") {
			t.Fatalf("put where it is not bound to: %s", head)
		}
	})
}

// However a stream is cut into pieces, a placeholder in it is seen before all of it was handed on.
func TestWatch(t *testing.T) {
	set := setOf(t, good())
	rapid.Check(t, func(t *rapid.T) {
		before := rapid.StringMatching(`[a-z-]{0,300}`).Draw(t, "before")
		half := rapid.Bool().Draw(t, "half")
		text := before + holder
		if half {
			text = before + holder[:len(holder)-1] + " and on"
		}
		text += rapid.StringMatching(`[a-z-]{0,300}`).Draw(t, "after")
		var src io.Reader = strings.NewReader(text)
		if rapid.Bool().Draw(t, "bytewise") {
			src = iotest.OneByteReader(src)
		}
		stop := errors.New("stop")
		b := make([]byte, rapid.IntRange(1, 200).Draw(t, "size"))
		var got strings.Builder
		var err error
		r := set.Watch(src, func(secret string) error {
			if secret != "TOKEN" {
				t.Fatalf("saw %s", secret)
			}
			return stop
		})
		for err == nil {
			var n int
			n, err = r.Read(b)
			got.Write(b[:n])
		}
		switch {
		case half && (err != io.EOF || got.String() != text):
			t.Fatalf("%v after %q", err, got.String())
		case !half && (err != stop || strings.Contains(got.String(), holder) || !strings.HasPrefix(text, got.String())):
			t.Fatalf("%v after %q", err, got.String())
		}
	})
}

func FuzzPutIn(f *testing.F) {
	f.Add("/?key="+holder, "Bearer "+holder, "Basic "+holder)
	f.Add("/%2572avi", "Basic cmF2aTo=", "%%%")
	f.Fuzz(func(t *testing.T, target, one, two string) {
		s := good()
		s.Query = "key"
		r := &Request{Host: "other.test", Port: 443, TLS: true, Target: target, Header: http.Header{"Authorization": {one}, "X-Two": {two}}}
		used, err := setOf(t, s).PutIn(r)
		if len(used) > 0 || err == nil && strings.Contains(target+one+two, holder) || strings.Contains(r.Target+fmt.Sprint(r.Header), "s3cret-value") {
			t.Fatalf("%v, %v", used, err)
		}
	})
}

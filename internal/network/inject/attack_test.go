package inject

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// A head of a megabyte holds thousands of placeholders, and a value may be long.
func TestPlaceholdersAreCounted(t *testing.T) {
	s := good()
	s.Query, s.Value = "key", Value(strings.Repeat("v", maxValue))
	many := strings.Repeat(holder, maxTimes+1)
	for name, r := range map[string]*Request{
		"in one header":    {Target: "/", Header: http.Header{"Authorization": {many}}},
		"in Basic":         {Target: "/", Header: http.Header{"Authorization": {"Basic " + base64.StdEncoding.EncodeToString([]byte(many))}}},
		"in many":          {Target: "/", Header: http.Header{"Authorization": strings.SplitAfter(many, holder)[:maxTimes+1]}},
		"in one parameter": {Target: "/?key=" + many, Header: http.Header{}},
		"in many of them":  {Target: "/?" + strings.Repeat("key="+holder+"&", maxTimes+1), Header: http.Header{}},
		"here and there":   {Target: "/?key=" + holder, Header: http.Header{"Authorization": {many[len(holder):]}}},
	} {
		r.Host, r.Port, r.TLS = "api.test", 443, true
		if used, err := setOf(t, s).PutIn(r); err == nil || len(used) > 0 {
			t.Errorf("%s: %v, the head has %d bytes", name, err, len(r.Target)+len(fmt.Sprint(r.Header)))
		}
	}
	r := &Request{Host: "api.test", Port: 443, TLS: true, Target: "/", Header: http.Header{"Authorization": {many[len(holder):]}}}
	if _, err := setOf(t, s).PutIn(r); err != nil {
		t.Error(err)
	}
}

// Places where nobody looks for a credential are seen as well.
func TestHiddenPlaceholders(t *testing.T) {
	basic := base64.StdEncoding.EncodeToString([]byte("u:" + holder + "."))
	for name, r := range map[string]*Request{
		"method":               {Method: holder},
		"trailer's name":       {Trailer: http.Header{http.CanonicalHeaderKey(holder): nil}},
		"Basic, tabulator":     {Header: http.Header{"Authorization": {"Basic\t" + basic}}},
		"Basic, garbage":       {Header: http.Header{"Authorization": {"Basic " + basic + " !"}}},
		"Basic, second scheme": {Header: http.Header{"Authorization": {"Bearer x, Basic " + basic}}},
		"Basic, cut":           {Header: http.Header{"Authorization": {"Basic " + basic[:len(basic)-1]}}},
		"base64 in a cookie":   {Header: http.Header{"Cookie": {"a=" + basic + "; b"}}},
		"base64 in a query":    {Target: "/?" + basic},
		"proxy's credential":   {Header: http.Header{"Proxy-Authorization": {"Basic " + basic}}},
	} {
		r.Host, r.Port, r.TLS = "other.test", 443, true
		if _, err := setOf(t, good()).PutIn(r); !errors.Is(err, errAstray) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whatever becomes of a secret, a value that it had is taken out of what its hosts answer, on every port.
func TestPastValuesAreTakenOut(t *testing.T) {
	renamed, moved, renewed, gone := good(), good(), good(), good()
	renamed.Name = "OTHER"
	moved.Hosts = []string{"elsewhere.test"}
	renewed.Value = "another-value"
	gone.Value = ""
	for name, then := range map[string][][]Secret{
		"renamed": {{renamed}}, "moved": {{moved}}, "renewed": {{renewed}}, "without a value": {{gone}}, "removed": {{}},
		"removed, then others": {{}, {moved}, {renewed}, {}},
	} {
		set := setOf(t, good())
		early := set.Redactor("api.test")
		for _, list := range then {
			if err := set.Replace(list); err != nil {
				t.Fatal(err)
			}
		}
		if got := set.Redactor("api.test").String("s3cret-value"); got != holder {
			t.Errorf("%s: %q", name, got)
		}
		if name == "renewed" && early.String("another-value") != holder {
			t.Error("what is under way keeps the new value")
		}
	}
	if set := setOf(t, good()); set.Redactor("other.test") != nil || set.Redactor("sub.api.test") != nil || set.Redactor("192.0.2.1") != nil {
		t.Error("hosts without a secret are searched")
	}
}

func TestPastIsBounded(t *testing.T) {
	set := &Set{}
	for i := range keepAll + keepOld {
		s := good()
		s.Value, s.Name = Value(fmt.Sprintf("value-number-%d", i)), fmt.Sprint("T", i%keepOld)
		if err := set.Replace([]Secret{s}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(set.now.Load().past); n != keepAll {
		t.Errorf("%d are remembered", n)
	}
	if r := set.Redactor("api.test"); r.String(fmt.Sprintf("value-number-%d", keepAll+5)) != holder {
		t.Error("a new one is forgotten")
	}
}

func TestRedactHeaderNames(t *testing.T) {
	s := good()
	s.Value = "tOken-oF-mIxed-cAse"
	r := setOf(t, s).Redactor("api.test")
	h := http.Header{"X-Token-Of-Mixed-Case": {"a"}, "X-token-of-mixed-case": {"b"}, "X-tOken-oF-mIxed-cAse": {"c"}, "X-Other": {"d"}}
	RedactHeader(r, h)
	if len(h) != 1 || h.Get("X-Other") != "d" {
		t.Errorf("left: %v", h)
	}
}

func TestSigned(t *testing.T) {
	set := setOf(t, good())
	for _, c := range []struct{ host, target, header, want string }{
		{"api.test", "/", "AWS4-HMAC-SHA256 Credential=x", "AWS4-"},
		{"api.test", "/?X-Amz-Signature=ab", "", "AWS4-"},
		{"api.test", "/", "digest username=x", "Digest"},
		{"api.test", "/", "Bearer x", ""},
		{"other.test", "/", "AWS4-HMAC-SHA256 Credential=x", ""},
	} {
		r := &Request{Host: c.host, Port: 443, TLS: true, Target: c.target, Header: http.Header{"Authorization": {c.header}}}
		if got := set.Signed(r); got != c.want {
			t.Errorf("%v: %q", c, got)
		}
	}
}

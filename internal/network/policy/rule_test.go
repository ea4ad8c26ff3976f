package policy

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"ravi/internal/strictjson"
)

func TestRuleForms(t *testing.T) {
	for in, want := range map[string]string{
		`"example.com"`:         "example.com",
		`"Example.COM.:443"`:    "example.com:443",
		`"*.example.com"`:       "*.example.com",
		`"*.Example.com.:8443"`: "*.example.com:8443",
		`"192.0.2.1"`:           "192.0.2.1",
		`"192.0.2.1:22"`:        "192.0.2.1:22",
		`"10.0.0.0/8:5432"`:     "10.0.0.0/8:5432",
		`"10.1.2.3/32:5432"`:    "10.1.2.3:5432",
		`"[2001:DB8::1]"`:       "[2001:db8::1]",
		`"[2001:db8:0::1]:22"`:  "[2001:db8::1]:22",
		`"[fd00::/8]:22"`:       "[fd00::/8]:22",
		`"none."`:               "none",
		`"ntp.Example:123/udp"`: "ntp.example:123/udp",
		`"10.0.0.0/8:53/udp"`:   "10.0.0.0/8:53/udp",
		`{"host":"a.b","ports":[123],"protocol":"udp"}`:                    "a.b:123/udp",
		`{"host":"a.b","ports":[123],"protocol":"tcp"}`:                    "a.b:123",
		`{"host":"a.b","ports":["1-2"],"protocol":"udp"}`:                  `{"host":"a.b","ports":["1-2"],"protocol":"udp"}`,
		`{"host":"example.com"}`:                                           "example.com",
		`{"host":"a.b","ports":[443]}`:                                     "a.b:443",
		`{"host":"a.b","ports":["443"]}`:                                   "a.b:443",
		`{"host":"10.0.0.0/8","ports":[5432]}`:                             "10.0.0.0/8:5432",
		`{"host":"[fd00::/8]","ports":[5432]}`:                             "[fd00::/8]:5432",
		`{"host":"a.b","ports":[443,"8000-8100"]}`:                         `{"host":"a.b","ports":[443,"8000-8100"]}`,
		`{"host":"a.b","methods":["get","HEAD"],"paths":["/a&b/*","/c"]}`:  `{"host":"a.b","methods":["GET","HEAD"],"paths":["/a&b/*","/c"]}`,
		`{"host":"*.a.b","tls":"passthrough"}`:                             `{"host":"*.a.b","tls":"passthrough"}`,
		`{"host":"a.b","tls":"intercept","inject":["github","npm.token"]}`: `{"host":"a.b","tls":"intercept","inject":["github","npm.token"]}`,
	} {
		var r Rule
		if err := strictjson.Decode([]byte(in), &r); err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if r.String() != want {
			t.Errorf("%s is %s, want %s", in, r, want)
		}
		out, err := json.Marshal(r)
		if err != nil {
			t.Errorf("%s: %v", in, err)
		}
		var again Rule
		if err := json.Unmarshal(out, &again); err != nil || again.String() != want {
			t.Errorf("%s is written as %s, which is read as %s, %v", in, out, again, err)
		}
	}
}

func TestRuleRefusals(t *testing.T) {
	for in, want := range map[string]string{
		`""`:                               "empty",
		`"https://example.com"`:            "this is a URL",
		`"example.com/path"`:               "without a path",
		`"example.com/udp"`:                "names its port",
		`"example.com:1/udp/udp"`:          "twice",
		`"example.com:1/tcp"`:              "port",
		`{"host":"a.b","protocol":"udp"}`:  "names its port",
		`{"host":"a.b","protocol":"sctp"}`: `"tcp" or "udp"`,
		`{"host":"a.b","ports":[1],"protocol":"udp","methods":["GET"]}`:   "nothing is seen",
		`{"host":"a.b","ports":[1],"protocol":"udp","tls":"passthrough"}`: "nothing is seen",
		`{"host":"a.b","ports":[1],"protocol":"udp","inject":["X"]}`:      "nothing is seen",
		`"example.com:"`:                       "port after : is missing",
		`"example.com:0"`:                      "1 to 65535",
		`"example.com:65536"`:                  "1 to 65535",
		`"example.com:0443"`:                   "1 to 65535",
		`"example.com:+443"`:                   "1 to 65535",
		`"example.com:https"`:                  "1 to 65535",
		`"example.com:80:90"`:                  "brackets",
		`"2001:db8::1"`:                        "brackets",
		`"::1"`:                                "brackets",
		`"2001:db8::/32:443"`:                  "brackets",
		`"[2001:db8::1"`:                       "closing ]",
		`"[2001:db8::1]443"`:                   "after ] comes a port",
		`"[192.0.2.1]:443"`:                    "without brackets",
		`"[example.com]:443"`:                  "in brackets stands",
		`"[fe80::1%eth0]:443"`:                 "zone",
		`"[::ffff:10.0.0.1]:443"`:              "write the IPv4 address itself: 10.0.0.1",
		`"[::ffff:10.0.0.0/104]:443"`:          "write the IPv4 address itself",
		`"10.1.2.3/8:443"`:                     "the network is 10.0.0.0/8",
		`"10.0.0.0/33:443"`:                    "number of bits",
		`"10.0.0.0/:443"`:                      "number of bits",
		`"198.18.0.7:443"`:                     "198.18.0.0/15",
		`"198.18.0.0/16:443"`:                  "198.18.0.0/15",
		`"*"`:                                  "--allow-net all",
		`"*:443"`:                              "--allow-net all",
		`"*."`:                                 "empty",
		`"*.*.example.com"`:                    "at the start only",
		`"a.*.example.com"`:                    "at the start only",
		`"*example.com"`:                       "at the start only",
		`"*.127.0.0.1"`:                        "ends in a number",
		`"127.1:80"`:                           "ends in a number",
		`"0x7f000001:80"`:                      "ends in a number",
		`"2130706433"`:                         "ends in a number",
		`"@build"`:                             "named list",
		`"exam ple.com"`:                       "cannot stand in a host name",
		`7`:                                    "a rule is a word",
		`null`:                                 "a rule is a word",
		`[7]`:                                  "a rule is a word",
		`{}`:                                   `"host" is missing`,
		`{"host":7}`:                           "expected a string",
		`{"host":"a.b:443"}`:                   `the port stands in "ports"`,
		`{"host":"a.b","port":443}`:            "did you mean ports?",
		`{"host":"a.b","Host":"c.d"}`:          "unknown key",
		`{"host":"a.b","ports":[]}`:            "ambiguous",
		`{"host":"a.b","ports":[0]}`:           "1 to 65535",
		`{"host":"a.b","ports":["90-80"]}`:     "backwards",
		`{"host":"a.b","ports":["80-"]}`:       "a port is a number",
		`{"host":"a.b","ports":[4.5]}`:         "1 to 65535",
		`{"host":"a.b","ports":443}`:           "expected a list",
		`{"host":"a.b","methods":[]}`:          "ambiguous",
		`{"host":"a.b","methods":["CONNECT"]}`: "never allowed",
		`{"host":"a.b","methods":["GET /"]}`:   "no HTTP method",
		`{"host":"a.b","paths":[]}`:            "ambiguous",
		`{"host":"a.b","paths":["a"]}`:         "begins with /",
		`{"host":"a.b","paths":["*"]}`:         "begins with /",
		`{"host":"a.b","paths":["/a*b"]}`:      "at the end only",
		`{"host":"a.b","paths":["/a?b=c"]}`:    "without the query",
		`{"host":"a.b","paths":["/a/../b"]}`:   "plain form",
		`{"host":"a.b","paths":["/a%2fb"]}`:    "plain form",
		`{"host":"a.b","paths":["/a b"]}`:      "plain form",
		`{"host":"a.b","tls":"off"}`:           `"intercept" or "passthrough"`,
		`{"host":"a.b","tls":"passthrough","paths":["/a"]}`:    "no request is seen",
		`{"host":"a.b","tls":"passthrough","methods":["GET"]}`: "no request is seen",
		`{"host":"a.b","tls":"passthrough","inject":["x"]}`:    "no request is seen",
		`{"host":"a.b","inject":[]}`:                           "ambiguous",
		`{"host":"a.b","inject":["a b"]}`:                      "no name of a secret",
		`{"host":"192.0.2.1","inject":["a"]}`:                  "not for an address",
	} {
		var r Rule
		err := strictjson.Decode([]byte(in), &r)
		if err == nil {
			t.Errorf("%s was not refused: %s", in, r)
			continue
		}
		// The rule stands in the message as it was given, but for quotes.
		if msg := err.Error(); !strings.Contains(msg, want) || !strings.Contains(msg, in) && !strings.Contains(msg, strings.Trim(in, `"`)) {
			t.Errorf("%s: %v; want it to say %q and the rule", in, err, want)
		}
		if !errors.Is(err, ErrRule) {
			t.Errorf("%s: %v is no ErrRule", in, err)
		}
	}
}

func TestParse(t *testing.T) {
	for in, want := range map[string]string{
		"false": "false", " true ": "true", `["a.b", {"host":"c.d"}]`: `["a.b","c.d"]`,
		`[{"host":"a.b","ports":[1,2],"paths":["/<x>"]}]`: `[{"host":"a.b","ports":[1,2],"paths":["/\u003cx\u003e"]}]`,
	} {
		out, err := json.Marshal(parse(t, in))
		if err != nil || string(out) != want {
			t.Errorf("%s is written as %s, %v; want %s", in, out, err, want)
		}
	}
	for in, parts := range map[string][]string{
		"":                          {"no JSON"},
		"null":                      {"false (nothing), true"},
		`"a.b"`:                     {"false (nothing), true"},
		`{"host":"a.b"}`:            {"false (nothing), true"},
		"[]":                        {"ambiguous"},
		`["a.b","c.d:x"]`:           {"line 1, column 8", "[1]", `"c.d:x"`},
		`["a.b",{"hots":"c"}]`:      {"[1]", "did you mean host?", `{"hots":"c"}`},
		`["10.0.0.0/8"]`:            {"needs a port", "10.0.0.0/8:443"},
		`["a.b"] true`:              {"after top-level value"},
		"[\"a\\u001b[31m.b\"]":      {`\x1b`},
		`[{"host":"a","host":"b"}]`: {"[0].host: given twice"},
	} {
		_, err := Parse(json.RawMessage(in))
		t.Run(in, func(t *testing.T) {
			refusedWith(t, err, parts...)
			if !errors.Is(err, ErrRule) {
				t.Errorf("%v is no ErrRule", err)
			}
			if strings.ContainsRune(err.Error(), '\x1b') {
				t.Errorf("%q would reach the terminal", err)
			}
		})
	}
	if _, err := FromRules([]Rule{{}}); !errors.Is(err, ErrRule) {
		t.Errorf("an empty rule: %v", err)
	}
	one := rules(t, "a.b")[0]
	if _, err := FromRules(slices.Repeat([]Rule{one}, maxRules)); err != nil {
		t.Errorf("as many rules as there may be: %v", err)
	}
	_, err := FromRules(slices.Repeat([]Rule{one}, maxRules+1))
	refusedWith(t, err, "4097 rules are more than 4096")
	_, err = Parse(json.RawMessage(`[{"host":"a.b","methods":["GET"` + strings.Repeat(`,"GET"`, maxParts) + `]}]`))
	refusedWith(t, err, `"methods" has 257 entries, more than 256`)
}

func TestParseFlag(t *testing.T) {
	lists := func(name string) ([]Rule, error) {
		switch name {
		case "build":
			return rules(t, "pypi.org", "*.npmjs.org"), nil
		case "empty":
			return nil, nil
		}
		return nil, errors.New("no such list")
	}
	for in, want := range map[string]string{
		"none": "false", "all": "true", "a.b": `["a.b"]`, "a.b:22, c.d": `["a.b:22","c.d"]`,
		"a.b|@build": `["a.b","pypi.org","*.npmjs.org"]`, "[fd00::/8]:443,10.0.0.0/8:1": `["[fd00::/8]:443","10.0.0.0/8:1"]`, "all.": `["all"]`,
	} {
		p, err := ParseFlag(strings.Split(in, "|"), lists)
		out, _ := json.Marshal(p)
		if err != nil || string(out) != want {
			t.Errorf("%s gives %s, %v; want %s", in, out, err, want)
		}
	}
	if p, err := ParseFlag(nil, nil); err != nil || p.Everything() || len(p.Rules()) > 0 {
		t.Errorf("no value: %v, %v", p, err)
	}
	for in, want := range map[string]string{
		"": "between commas", "a.b,": "between commas", "none,a.b": "stands alone", "a.b|all": "stands alone", "all|all": "stands alone",
		"@": "follows @", "@nope": "no such list", "@empty": "the list is empty", "a.b:x": `"a.b:x"`, "10.0.0.0/8": "needs a port",
	} {
		t.Run(in, func(t *testing.T) {
			_, err := ParseFlag(strings.Split(in, "|"), lists)
			refusedWith(t, err, want)
			if !errors.Is(err, ErrRule) {
				t.Errorf("%v is no ErrRule", err)
			}
		})
	}
	_, err := ParseFlag([]string{"@build"}, nil)
	refusedWith(t, err, "no named lists")
}

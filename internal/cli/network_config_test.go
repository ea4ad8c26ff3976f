package cli

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"ravi/internal/access"
	"ravi/internal/command"
	"ravi/internal/config"
	"ravi/internal/network/policy"
	"ravi/sandbox"
)

// blockOf reads a config.json with this block network.
func blockOf(t *testing.T, block string) (networkBlock, error) {
	t.Helper()
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, config.File), []byte(`{"network":`+block+`}`), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := config.Load(home)
	if err != nil {
		return networkBlock{}, err
	}
	return networkOf(file)
}

func TestNetworkBlock(t *testing.T) {
	none, err := networkOf(&config.Config{})
	if f := none.floor(); err != nil || f.Max != nil || len(f.AlwaysDeny)+len(f.AlwaysAllow) > 0 {
		t.Errorf("without a file: %+v, %v", f, err)
	}
	for _, text := range []string{
		`{"always_deny":["evil.example","10.0.0.0/8"],"always_allow":["proxy.example:3128"],"max":["*.example"],"lists":{"build":["pypi.org",{"host":"a.example","methods":["GET"]}]}}`,
		`{"alwaysDeny":["evil.example","10.0.0.0/8"],"alwaysAllow":["proxy.example:3128"],"max":["*.example"],"lists":{"build":["pypi.org",{"host":"a.example","methods":["GET"]}]}}`,
	} {
		b, err := blockOf(t, text)
		if err != nil {
			t.Fatal(err)
		}
		f := b.floor()
		if len(f.AlwaysDeny) != 2 || len(f.AlwaysAllow) != 1 || f.Max == nil || len(f.Max.Rules()) != 1 {
			t.Errorf("got %+v", f)
		}
		a, err := allowNet([]string{"@build,b.example:22"}, b.list)
		if err != nil || strings.Join(a.Rules, " ") != `pypi.org {"host":"a.example","methods":["GET"]} b.example:22` || a.All {
			t.Errorf("the list became %+v, %v", a, err)
		}
	}
	for text, all := range map[string]bool{`{"max":false}`: false, `{"max":true}`: true} {
		if b, err := blockOf(t, text); err != nil || b.Max == nil || b.Max.Everything() != all || len(b.Max.Rules()) > 0 {
			t.Errorf("%s: %+v, %v", text, b.Max, err)
		}
	}
}

func TestNetworkBlockOfProxiesAndAuthorities(t *testing.T) {
	if b, err := blockOf(t, `{}`); err != nil || b.proxy() != nil {
		t.Errorf("without a proxy: %+v, %v", b, err)
	}
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, []byte("ours\n"+certificate), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := blockOf(t, `{"proxy":"socks5://127.0.0.1:1080","proxy_auth_file":"/srv/auth","proxyDirect":["*.corp.example","10.0.0.0/8",{"host":"a.example","ports":[1,2]}],
		"proxy_by_name":true,"extra_cas":{"Git.Example":"`+ca+`","*.b.example":"`+ca+`"}}`)
	if err != nil {
		t.Fatal(err)
	}
	want := &sandbox.NetworkProxy{URL: "socks5://127.0.0.1:1080", AuthFile: "/srv/auth", ByName: true,
		Direct: []string{"*.corp.example", "10.0.0.0/8", `{"host":"a.example","ports":[1,2]}`}}
	if got := b.proxy(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, err := b.extraCAs(); err != nil || len(got) != 2 || !strings.Contains(got["Git.Example"], certificate) || !strings.Contains(got["*.b.example"], certificate) {
		t.Errorf("got %v, %v", got, err)
	}
	// The files are read when a sandbox is made, not before.
	empty, large := filepath.Join(dir, "empty.pem"), filepath.Join(dir, "large.pem")
	if err := os.WriteFile(empty, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(large, make([]byte, maxCAFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing.pem")
	for path, want := range map[string]string{
		missing: missing + ": no such file or directory",
		empty:   empty + ": the certificates for a.example: there is no certificate",
		large:   large + ": it has more than 1048576 bytes",
		dir:     "is a directory",
	} {
		b, err := blockOf(t, `{"extra_cas":{"a.example":"`+path+`"}}`)
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.extraCAs()
		if told := command.AsError(err); told == nil || !strings.Contains(told.Message, want) || told.Code != command.CodeConfig || told.Hint == "" {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// certificate is one whose key nobody has.
const certificate = `-----BEGIN CERTIFICATE-----
MIIBcjCCARmgAwIBAgIUJ8gqA87LfnCdTAYNjgQvR93OfyQwCgYIKoZIzj0EAwIw
DzENMAsGA1UEAwwEdGVzdDAeFw0yNjExMjkyMTI0MzJaFw0yNjExMzAyMTI0MzJa
MA8xDTALBgNVBAMMBHRlc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAATqWmcs
QhxDG3C5Xtmdyj5JvKNFcEShDi5QT6jND3NXTB+mcCcsQCFUgRAcTzALqFDGIwqc
VpgiYiZqLh6dIBSUo1MwUTAdBgNVHQ4EFgQUD1EjzQdBXnhnnUS1Wqrpokb2bkIw
HwYDVR0jBBgwFoAUD1EjzQdBXnhnnUS1Wqrpokb2bkIwDwYDVR0TAQH/BAUwAwEB
/zAKBggqhkjOPQQDAgNHADBEAiAlZTtTAE+831HXrQRHLwjdTHcwKPzhnQBV8pcm
s+WxhgIgEv41aQ22K1oDsly6ZFm2FBan0TgQjgYVVFUDtwvtJcs=
-----END CERTIFICATE-----
`

func TestNetworkBlockRefusals(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"an unknown key":   {`{"always_denied":[]}`, `config.json:1:13: network.always_denied: unknown key; did you mean always_deny?`},
		"both spellings":   {`{"max":true,"always_deny":[],"alwaysDeny":[]}`, `network.alwaysDeny: given twice`},
		"a URL":            {`{"always_allow":["https://a.example"]}`, `config.json:1:29: network.always_allow[0]: refused network rule "https://a.example": this is a URL`},
		"a bounded denial": {`{"always_deny":[{"host":"a.example","paths":["/x"]}]}`, `config.json:1:27: network.always_deny: refused network rule "{\"host\":\"a.example\",\"paths\":[\"/x\"]}": a denial names`},
		"an open network":  {`{"always_allow":["10.0.0.0/8"]}`, `network.always_allow: refused network rule "10.0.0.0/8": a network needs a port`},
		"an empty bound":   {`{"max":[]}`, `network.max: refused network rule list: [] is ambiguous`},
		"a word for max":   {`{"max":"all"}`, `network.max: refused network rule list: it is false (nothing)`},
		"a list's rule":    {`{"lists":{"build":["pypi.org","a b"]}}`, `network.lists.build[1]: refused network rule "a b"`},
		"a list in a list": {`{"lists":{"build":["@other"]}}`, `network.lists.build[0]: refused network rule "@other": a named list cannot stand here`},
		"a list's name":    {`{"lists":{"a,b":["pypi.org"]}}`, `network.lists: "a,b" is no name for a list`},
		"an empty list":    {`{"lists":{"build":[]}}`, `network.lists: the list build is empty`},
		"a proxy in TLS":   {`{"proxy":"https://a.example:3128"}`, `config.json:1:21: network.proxy: the proxy "https://a.example:3128" would be spoken to in TLS`},
		"a credential":     {`{"proxy":"http://u:p@a.example:3128"}`, `network.proxy: the proxy's URL holds a user or password; they stand in a file of their own`},
		"a place":          {`{"proxy":"http://a.example:1","proxy_auth_file":"auth"}`, `network.proxy_auth_file: "auth" is not an absolute path`},
		"a bounded way":    {`{"proxy":"http://a.example:1","proxy_direct":[{"host":"a.example","paths":["/x"]}]}`, `network.proxy_direct: refused network rule`},
		"nothing to name":  {`{"proxy_by_name":true}`, `network.proxy_by_name of config.json is about a proxy, and there is no network.proxy`},
		"nobody to ask":    {`{"proxy_auth_file":"/srv/auth"}`, `network.proxy_auth_file of config.json is about a proxy`},
		"no way around":    {`{"proxy_direct":["a.example"]}`, `network.proxy_direct of config.json is about a proxy`},
		"a CA for all":     {`{"extra_cas":{"*":"/x.pem"}}`, `network.extra_cas: "*" is no host such as git.example.com`},
		"a CA for a port":  {`{"extra_cas":{"a.example:443":"/x.pem"}}`, `network.extra_cas: "a.example:443" is no host`},
		"a CA's place":     {`{"extra_cas":{"a.example":"x.pem"}}`, `network.extra_cas["a.example"]: "x.pem" is not an absolute path`},
		"a CA twice":       {`{"extra_cas":{"a.example":"/x.pem","A.example":"/y.pem"}}`, `network.extra_cas: the host a.example is given twice`},
		"no block":         {`[]`, `network: expected an object, got a list`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := blockOf(t, c.in)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestUnknownLists(t *testing.T) {
	b, err := blockOf(t, `{"lists":{"build":["pypi.org"],"docs":["go.dev"]}}`)
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]string{
		"@biuld":  `"@biuld": there is no list "biuld" in network.lists of config.json; did you mean @build?`,
		"@zzzzzz": `there are ["build" "docs"]`,
		"@":       "the name of a list follows @",
	} {
		if a, err := allowNet([]string{value}, b.list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v", value, a, err)
		}
	}
	if _, err := allowNet([]string{"@build"}, networkBlock{}.list); err == nil || !strings.HasSuffix(err.Error(), "of config.json") {
		t.Errorf("without lists: %v", err)
	}
	if a, err := allowNet([]string{"none"}, b.list); err != nil || a.All || len(a.Rules) > 0 {
		t.Errorf("none: %+v, %v", a, err)
	}
}

func page(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The page of the configuration names every key of the block, and its example is valid.
func TestNetworkConfigurationPage(t *testing.T) {
	_, text, ok := strings.Cut(page(t, "configuration.md"), "\n## network\n")
	if !ok {
		t.Fatal("there is no part about the block network")
	}
	text, _, _ = strings.Cut(text, "\n## ")
	block := reflect.TypeFor[networkBlock]()
	for i := range block.NumField() {
		if key := block.Field(i).Tag.Get("json"); !strings.Contains(text, "\n| `"+key+"` |") {
			t.Errorf("there is no line for %s", key)
		}
	}
	_, example, _ := strings.Cut(text, "```json\n")
	example, _, _ = strings.Cut(example, "```")
	var file struct {
		Network json.RawMessage `json:"network"`
	}
	if err := json.Unmarshal([]byte(example), &file); err != nil {
		t.Fatalf("the example: %v", err)
	}
	if b, err := blockOf(t, string(file.Network)); err != nil || len(b.AlwaysDeny) == 0 || b.Max == nil || len(b.Lists["build"]) == 0 {
		t.Errorf("the example: %+v, %v", b, err)
	}
}

// Every rule that the page of the network shows is one.
func TestNetworkPage(t *testing.T) {
	_, text, _ := strings.Cut(page(t, "network.md"), "| rule | allows |\n")
	text, _, _ = strings.Cut(text, "\n\n")
	rows := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(text, -1)
	if len(rows) < 10 {
		t.Fatalf("only %d rules are shown", len(rows))
	}
	for _, row := range rows {
		var r policy.Rule
		var err error
		if strings.HasPrefix(row[1], "{") {
			err = json.Unmarshal([]byte(row[1]), &r)
		} else {
			r, err = policy.ParseRule(row[1])
		}
		if err == nil {
			_, err = policy.FromRules([]policy.Rule{r})
		}
		if err != nil {
			t.Errorf("%s: %v", row[1], err)
		}
	}
}

// What config.json says about the network reaches the run that is asked for.
func TestNetworkOfARun(t *testing.T) {
	home := t.TempDir()
	t.Setenv("RAVI_HOME", home)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, []byte(certificate), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, config.File), []byte(
		`{"tools":{"sandbox":{"allow_net":["a.example"]}},"network":{"always_deny":["evil.example"],"max":["*.example"],"lists":{"build":["b.example","c.example:8443"]},
			"proxy":"http://proxy.example:3128","extra_cas":{"git.example":"`+ca+`"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{"": "a.example", "@build": "b.example c.example:8443", "none": ""} {
		env := &command.Env{Stderr: io.Discard, Quiet: true, Caller: access.AsOperator()}
		env.Progress = newProgress(env)
		in := runInput{Repo: ".", Command: []string{"true"}}
		if flag != "" {
			in.AllowNet = []string{flag}
		}
		o, err := runOptions(t.Context(), env, in, sources{models: modelsOf})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(o.Config.AllowNet.Rules, " "); got != want {
			t.Errorf("--allow-net %q: the rules are %q, want %q", flag, got, want)
		}
		if f := o.NetworkFloor; len(f.AlwaysDeny) != 1 || f.Max == nil || len(f.Max.Rules()) != 1 {
			t.Errorf("--allow-net %q: the floor is %+v", flag, f)
		}
		if p := o.NetworkProxy; p == nil || p.URL != "http://proxy.example:3128" || o.ExtraCAs["git.example"] != certificate {
			t.Errorf("--allow-net %q: beyond are %+v and %v", flag, p, o.ExtraCAs)
		}
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	}
}

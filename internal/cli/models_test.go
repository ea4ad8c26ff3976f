package cli

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"ravi/internal/access"
	"ravi/internal/broker"
	"ravi/internal/command"
	"ravi/internal/config"
	"ravi/internal/redact"
	"ravi/internal/secret"
)

// modelsHome is a home with a block models, secrets, and an environment with these variables of all that are looked at.
func modelsHome(t *testing.T, block string, vars map[string]string, secrets map[string]secret.Change) *command.Env {
	t.Helper()
	home := t.TempDir()
	t.Setenv("RAVI_HOME", home)
	for _, k := range knownProviders {
		t.Setenv(k.baseEnv, "")
		for _, v := range k.keys {
			t.Setenv(v.name, "")
		}
	}
	for name, value := range vars {
		t.Setenv(name, value)
	}
	if block != "" {
		if err := os.WriteFile(filepath.Join(home, config.File), []byte(`{"models":`+block+`}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	vault := must[*secret.Store](t)(secret.Open(home))
	for name, c := range secrets {
		must[secret.Secret](t)(vault.Set(t.Context(), name, c))
	}
	env := &command.Env{Caller: access.AsOperator()}
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	})
	return env
}

func stored(value string, hosts ...string) secret.Change {
	return secret.Change{Hosts: hosts, Source: &secret.Source{Value: secret.NewValue(value)}}
}

// told is a provider with its keys, as a text.
func told(t *testing.T, p broker.Provider) string {
	t.Helper()
	text := fmt.Sprintf("%s %s %s", p.Name, p.Dialect, p.BaseURL)
	for _, k := range p.Keys {
		text += fmt.Sprintf(" %s=%s", k.Name, must[string](t)(k.Value(t.Context())))
	}
	if p.Bearer {
		text += " bearer"
	}
	return text
}

func TestModels(t *testing.T) {
	printed := secret.Change{Hosts: []string{"api.anthropic.com"}, Source: &secret.Source{Argv: []string{"/bin/echo", "fromthecommand"}}}
	const anthropic, openai, gemini = "https://api.anthropic.com", "https://api.openai.com", "https://generativelanguage.googleapis.com"
	for name, test := range map[string]struct {
		block   string
		vars    map[string]string
		secrets map[string]secret.Change
		want    []string
		known   []string
	}{
		"nothing": {},
		"variables": {
			vars: map[string]string{"GEMINI_API_KEY": "gemini-key", "ANTHROPIC_API_KEY": "anthropic-key", "OPENAI_API_KEY": "openai-key\n", "GOOGLE_API_KEY": "other-key"},
			want: []string{"anthropic anthropic " + anthropic + " ANTHROPIC_API_KEY=anthropic-key", "openai openai " + openai + " OPENAI_API_KEY=openai-key",
				"gemini gemini " + gemini + " GEMINI_API_KEY=gemini-key"},
			known: []string{"anthropic-key", "gemini-key", "openai-key"},
		},
		"a token": {
			vars:  map[string]string{"ANTHROPIC_AUTH_TOKEN": "anthropic-token", "GOOGLE_API_KEY": "google-key"},
			want:  []string{"anthropic anthropic " + anthropic + " ANTHROPIC_AUTH_TOKEN=anthropic-token bearer", "gemini gemini " + gemini + " GOOGLE_API_KEY=google-key"},
			known: []string{"anthropic-token", "google-key"},
		},
		"secrets": {
			secrets: map[string]secret.Change{"OPENAI_API_KEY": stored("openai-key", "api.openai.com"), "ANTHROPIC_API_KEY": printed, "OTHER": stored("other-key", "x.example")},
			want:    []string{"anthropic anthropic " + anthropic + " ANTHROPIC_API_KEY=fromthecommand", "openai openai " + openai + " OPENAI_API_KEY=openai-key"},
			known:   []string{"openai-key"}, // the command was not asked
		},
		"a variable before a secret": {
			vars:    map[string]string{"OPENAI_API_KEY": "variable-key"},
			secrets: map[string]secret.Change{"OPENAI_API_KEY": stored("openai-key", "api.openai.com")},
			want:    []string{"openai openai " + openai + " OPENAI_API_KEY=variable-key"},
			known:   []string{"variable-key"},
		},
		"other upstreams": {
			vars: map[string]string{
				"ANTHROPIC_API_KEY": "anthropic-key", "ANTHROPIC_BASE_URL": "http://127.0.0.1:9/a/", "OPENAI_API_KEY": "openai-key", "OPENAI_BASE_URL": "https://proxy.example/openai/v1",
				"GEMINI_API_KEY": "gemini-key", "GOOGLE_GEMINI_BASE_URL": "http://localhost:8/v1beta",
			},
			want: []string{"anthropic anthropic http://127.0.0.1:9/a ANTHROPIC_API_KEY=anthropic-key", "openai openai https://proxy.example/openai/v1 OPENAI_API_KEY=openai-key",
				"gemini gemini http://localhost:8/v1beta GEMINI_API_KEY=gemini-key"},
			known: []string{"anthropic-key", "gemini-key", "openai-key"},
		},
		"configured": {
			block: `{"providers": {
				"zeta": {"dialect": "openai", "base_url": "http://models.example:11434/v1"},
				"anthropic": {"base_url": "https://eu.proxy.example:8443/x", "secret": ["FIRST", "SECOND"], "auth": "bearer"},
				"mine": {"dialect": "anthropic", "base_url": "https://a.mine.example", "secret": "MINE"}}}`,
			vars: map[string]string{"ANTHROPIC_API_KEY": "anthropic-key", "ANTHROPIC_BASE_URL": "https://elsewhere.example", "SECOND": "second-key"},
			secrets: map[string]secret.Change{"FIRST": stored("first-key", "eu.proxy.example:8443"), "SECOND": stored("never-this", "eu.proxy.example:8443"),
				"MINE": stored("mine-key", "*.mine.example")},
			want: []string{"anthropic anthropic https://eu.proxy.example:8443/x FIRST=first-key SECOND=second-key bearer", "mine anthropic https://a.mine.example MINE=mine-key",
				"zeta openai http://models.example:11434/v1"},
			known: []string{"first-key", "mine-key", "second-key"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := must[models](t)(modelsOf(t.Context(), modelsHome(t, test.block, test.vars, test.secrets)))
			var got, known []string
			for _, p := range m.Providers {
				got = append(got, told(t, p))
			}
			for _, k := range m.Known {
				known = append(known, k.Secret)
			}
			if slices.Sort(known); !slices.Equal(got, test.want) || !slices.Equal(known, test.known) {
				t.Errorf("got %q, known %q", got, known)
			}
			r := redact.New(m.Known...)
			for _, k := range known {
				if out := r.String("x " + k + " y"); strings.Contains(out, k) {
					t.Errorf("%s", out)
				}
			}
			if len(m.Providers) > 0 {
				if b, err := json.Marshal(m.Providers[0].Models); err != nil || strings.Contains(string(b), "key") {
					t.Errorf("%s %v", b, err)
				}
			}
		})
	}
}

// What keeps a provider from being used is told before anything is made, with what mends it, and never with a key.
func TestModelsThatCannotBe(t *testing.T) {
	app := map[string]string{"ANTHROPIC_API_KEY": "anthropic-key"}
	for name, test := range map[string]struct {
		block   string
		vars    map[string]string
		secrets map[string]secret.Change
		dialect broker.Dialect
		want    string // empty: it can be
		hint    string
	}{
		"nothing": {dialect: broker.Anthropic, want: "the model provider anthropic: there is no key: neither is the variable ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN set, nor is there a secret of that name",
			hint: "ravi secrets set ANTHROPIC_API_KEY --host api.anthropic.com"},
		"nothing for any": {want: "ANTHROPIC_API_KEY", hint: "ravi secrets set ANTHROPIC_API_KEY"},
		"another":         {vars: app, dialect: broker.OpenAI, want: "OPENAI_API_KEY", hint: "ravi secrets set OPENAI_API_KEY --host api.openai.com"},
		"any":             {vars: app},
		"it":              {vars: app, dialect: broker.Anthropic},
		"another's fault": {vars: map[string]string{"ANTHROPIC_API_KEY": "anthropic-key", "OPENAI_API_KEY": "x"}, dialect: broker.Anthropic},
		"too short":       {vars: map[string]string{"OPENAI_API_KEY": "brief"}, dialect: broker.OpenAI, want: "the variable OPENAI_API_KEY: the value has 5 bytes"},
		"two lines":       {vars: map[string]string{"OPENAI_API_KEY": "openai-key\r\nHost: evil"}, want: "more than one line"},
		"in the open": {vars: map[string]string{"OPENAI_API_KEY": "openai-key", "OPENAI_BASE_URL": "http://93.184.216.34/v1"}, dialect: broker.OpenAI,
			want: "OPENAI_BASE_URL: a key would go over the network in the open"},
		"in the open by name": {vars: map[string]string{"OPENAI_API_KEY": "openai-key", "OPENAI_BASE_URL": "http://127.0.0.1.evil.example"}, dialect: broker.OpenAI, want: "in the open"},
		"to the cloud":        {vars: map[string]string{"OPENAI_API_KEY": "openai-key", "OPENAI_BASE_URL": "http://169.254.169.254"}, dialect: broker.OpenAI, want: "in the open"},
		"a private address":   {vars: map[string]string{"OPENAI_API_KEY": "openai-key", "OPENAI_BASE_URL": "http://10.1.2.3:80"}, dialect: broker.OpenAI},
		"loopback":            {vars: map[string]string{"OPENAI_API_KEY": "openai-key", "OPENAI_BASE_URL": "http://[::1]:80"}, dialect: broker.OpenAI},
		"a credential":        {vars: map[string]string{"OPENAI_API_KEY": "openai-key", "OPENAI_BASE_URL": "https://user:hunter22@x.example"}, dialect: broker.OpenAI, want: "OPENAI_BASE_URL: there is a credential"},
		"elsewhere": {secrets: map[string]secret.Change{"OPENAI_API_KEY": stored("openai-key", "api.openai.com")}, vars: map[string]string{"OPENAI_BASE_URL": "https://evil.example"}, dialect: broker.OpenAI,
			want: "the secret OPENAI_API_KEY may not go to evil.example: it is bound to api.openai.com", hint: "ravi secrets set OPENAI_API_KEY --host api.openai.com --host evil.example"},
		"another port": {secrets: map[string]secret.Change{"OPENAI_API_KEY": stored("openai-key", "api.openai.com")}, vars: map[string]string{"OPENAI_BASE_URL": "https://api.openai.com:8443"}, dialect: broker.OpenAI, want: "may not go"},
		"beside":       {secrets: map[string]secret.Change{"OPENAI_API_KEY": stored("openai-key", "*.openai.com")}, vars: map[string]string{"OPENAI_BASE_URL": "https://evilopenai.com"}, dialect: broker.OpenAI, want: "may not go"},
		"the open port": {secrets: map[string]secret.Change{"OPENAI_API_KEY": stored("openai-key", "localhost")}, vars: map[string]string{"OPENAI_BASE_URL": "http://localhost"}, dialect: broker.OpenAI,
			want: "may not go to localhost"},
		"its port": {secrets: map[string]secret.Change{"OPENAI_API_KEY": stored("openai-key", "localhost:8080")}, vars: map[string]string{"OPENAI_BASE_URL": "http://LOCALHOST:8080"}, dialect: broker.OpenAI},
		// What config.json names is not replaced by another in silence.
		"configured": {block: `{"providers": {"mine": {"dialect": "anthropic", "base_url": "https://mine.example", "secret": "MINE"}}}`, vars: app, dialect: broker.Anthropic,
			want: "the model provider mine: there is no key: neither is the variable MINE set", hint: "ravi secrets set MINE --host mine.example"},
		"configured, another dialect":  {block: `{"providers": {"mine": {"dialect": "openai", "base_url": "https://mine.example", "secret": "MINE"}}}`, vars: app, dialect: broker.Anthropic},
		"a bound on what has no price": {block: `{"limits": {"usd": 1}}`, vars: app, dialect: broker.Anthropic, want: "bounds money, and no price is known"},
		"a bound on what has one":      {block: `{"limits": {"usd": 1}, "providers": {"anthropic": {"prices": {"*": {"input": 3}}}}}`, vars: app, dialect: broker.Anthropic},
		"one of two":                   {block: `{"providers": {"anthropic": {"secret": ["ANTHROPIC_API_KEY", "MINE"]}}}`, vars: app, dialect: broker.Anthropic, want: "the variable MINE"},
	} {
		t.Run(name, func(t *testing.T) {
			m := must[models](t)(modelsOf(t.Context(), modelsHome(t, test.block, test.vars, test.secrets)))
			found, err := m.of(test.dialect)
			if test.want == "" {
				if err != nil || len(found) == 0 || test.dialect != "" && found[0].Dialect != test.dialect {
					t.Errorf("got %v, %v", found, err)
				}
				return
			}
			var e *command.Error
			if !errors.As(err, &e) || !strings.Contains(e.Message, test.want) || !strings.Contains(e.Hint, test.hint) || len(found) > 0 {
				t.Fatalf("got %v, %v", found, err)
			}
			for _, v := range []string{"anthropic-key", "openai-key", "hunter22", "brief"} {
				if strings.Contains(e.Message+e.Hint, v) {
					t.Errorf("it tells the key: %v", err)
				}
			}
		})
	}
	// A token of an app is none for a model.
	key := must[*rsa.PrivateKey](t)(rsa.GenerateKey(rand.Reader, 2048))
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	github := secret.Change{Hosts: []string{"api.openai.com"}, Source: &secret.Source{App: &secret.AppSource{ID: 7, PrivateKey: secret.NewValue(string(text))}}}
	m := must[models](t)(modelsOf(t.Context(), modelsHome(t, "", nil, map[string]secret.Change{"OPENAI_API_KEY": github})))
	if found, err := m.of(broker.OpenAI); err == nil || !strings.Contains(err.Error(), "no keys of a model provider") || len(m.Providers) > 0 {
		t.Errorf("an app: %v, %v", found, err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := modelsOf(gone, modelsHome(t, "", nil, nil)); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// What makes no sense in the block models is refused with its place, and leaves no trace of a credential in the error.
func TestModelsBlock(t *testing.T) {
	at := func(p string) string {
		return `{"providers": {"mine": {"dialect": "openai", "base_url": "https://x.example", ` + p + `}}}`
	}
	for name, row := range map[string]struct{ block, want string }{
		"whole": {at(`"secret": ["A", "B"], "auth": "bearer", "models": ["gpt-*", "meta/llama-3.3:free"], "headers": {"x-title": "Ravi"},
			"prices": {"gpt-*": {"input": 3, "output": 15.5, "cache_read": 0.3, "cache_write": 3.75}}`), ""},
		"known":          {`{"providers": {"anthropic": {"models": ["claude-*"]}, "gemini": {"dialect": "gemini"}}, "allow": ["web_search", "field:top_k", "type:think"], "limits": {"tokens": 5, "requests_per_minute": 60}}`, ""},
		"unknown key":    {`{"provider": {}}`, "models.provider: unknown key; did you mean providers?"},
		"name":           {`{"providers": {"Mine/x": {"dialect": "openai"}}}`, "models.providers: \"Mine/x\" is no name for a provider"},
		"no dialect":     {`{"providers": {"mine": {"base_url": "https://x.example"}}}`, "mine has no dialect"},
		"dialect":        {`{"providers": {"mine": {"dialect": "azure", "base_url": "https://x.example"}}}`, `mine has the dialect "azure"`},
		"other dialect":  {`{"providers": {"openai": {"dialect": "gemini"}}}`, "openai speaks the dialect openai"},
		"no address":     {`{"providers": {"mine": {"dialect": "openai"}}}`, "mine has no base_url, such as https://api.openai.com"},
		"credential":     {`{"providers": {"mine": {"dialect": "openai", "base_url": "https://u:hunter22@x.example"}}}`, "models.providers.mine.base_url: there is a credential in the address"},
		"user":           {`{"providers": {"mine": {"dialect": "openai", "base_url": "https://hunter22@x.example"}}}`, "there is a credential in the address"},
		"query":          {`{"providers": {"mine": {"dialect": "openai", "base_url": "https://x.example?key=hunter22"}}}`, "a query or a fragment"},
		"empty query":    {`{"providers": {"mine": {"dialect": "openai", "base_url": "https://x.example?"}}}`, "a query or a fragment"},
		"fragment":       {`{"providers": {"mine": {"dialect": "openai", "base_url": "https://x.example/#hunter22"}}}`, "a query or a fragment"},
		"scheme":         {`{"providers": {"mine": {"dialect": "openai", "base_url": "file:///etc/hunter22"}}}`, "begins with https://"},
		"no host":        {`{"providers": {"mine": {"dialect": "openai", "base_url": "https:///hunter22"}}}`, "names no host"},
		"port":           {`{"providers": {"mine": {"dialect": "openai", "base_url": "https://x.example:0"}}}`, "no port"},
		"no port":        {`{"providers": {"mine": {"dialect": "openai", "base_url": "https://x.example:/"}}}`, "no port"},
		"dots":           {`{"providers": {"mine": {"dialect": "openai", "base_url": "https://x.example/a/../b"}}}`, "not a plain one"},
		"encoded":        {`{"providers": {"mine": {"dialect": "openai", "base_url": "https://x.example/a%2fb"}}}`, "characters that need no place"},
		"no url":         {`{"providers": {"mine": {"dialect": "openai", "base_url": "https://hunter22 x\n"}}}`, "it is no address"},
		"secret":         {at(`"secret": "hunter22-hunter22"`), "models.providers.mine.secret: it is no name of a secret"},
		"secrets":        {at(`"secret": ["A", "hunter22-"]`), "it is no name of a secret"},
		"auth":           {at(`"auth": "hunter22"`), "models.providers.mine.auth: it is bearer"},
		"model":          {at(`"models": ["a b"]`), `models.providers.mine.models: "a b" is no name of a model`},
		"header name":    {at(`"headers": {"a b": "c"}`), `"a b" is no name of a header`},
		"header value":   {at(`"headers": {"x-a": "c\r\nd: e"}`), "the value of the header X-A cannot stand in one"},
		"header twice":   {at(`"headers": {"x-a": "1", "X-A": "2"}`), "the header X-A is given twice"},
		"own header":     {at(`"headers": {"authorization": "Bearer hunter22"}`), "the header Authorization is the broker's own"},
		"host header":    {at(`"headers": {"host": "evil.example"}`), "the header Host is the broker's own"},
		"secret header":  {at(`"headers": {"x-portkey-api-key": "hunter22hunter22"}`), "the header X-Portkey-Api-Key looks like a credential"},
		"secret value":   {at(`"headers": {"x-a": "sk-hunter22hunter22hunter22"}`), "the header X-A looks like a credential"},
		"price":          {at(`"prices": {"m": {"input": -1}}`), "models.providers.mine.prices: a price of m is negative"},
		"dear":           {at(`"prices": {"m": {"output": 1000001}}`), "a price of m is negative, or more than"},
		"price's model":  {at(`"prices": {"": {"input": 1}}`), `"" is no name of a model`},
		"price's key":    {at(`"prices": {"m": {"in": 1}}`), "models.providers.mine.prices.m"},
		"grant":          {`{"allow": ["websearch"]}`, `models.allow: "websearch" is nothing that can be allowed; did you mean web_search?`},
		"every grant":    {`{"allow": ["` + strings.Join(grantNames, `", "`) + `"], "providers": {"gemini": {}}}`, ""},
		"field":          {`{"allow": ["field:a b"]}`, "is nothing that can be allowed"},
		"limit":          {`{"limits": {"usd": -1}}`, "models.limits: a limit is negative"},
		"unknown limit":  {`{"limits": {"dollars": 1}}`, "models.limits.dollars: unknown key"},
		"limit's number": {`{"limits": {"tokens": 1.5}}`, "models.limits.tokens"},
	} {
		t.Run(name, func(t *testing.T) {
			env := modelsHome(t, row.block, nil, nil)
			_, err := effectiveConfig(env)
			if row.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				m := must[models](t)(modelsOf(t.Context(), modelsHome(t, row.block, map[string]string{"A": "aaaaaaaa", "B": "bbbbbbbb", "GEMINI_API_KEY": "cccccccc"}, nil)))
				if len(m.Providers) == 0 {
					t.Fatalf("got %+v", m.Providers)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), row.want) || !strings.Contains(err.Error(), config.File+":1:") || strings.Contains(err.Error(), "hunter22") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestModelsBlockReachesTheBroker(t *testing.T) {
	m := must[models](t)(modelsOf(t.Context(), modelsHome(t, `{"providers": {"mine": {"dialect": "openai", "base_url": "https://x.example", "models": ["gpt-*"],
		"headers": {"x-title": "Ravi"}, "prices": {"gpt-*": {"input": 3, "cache_read": 0.3}}}},
		"allow": ["mcp", "field:top_k"], "limits": {"requests": 1, "tokens": 2, "usd": 2.5, "requests_per_minute": 4}}`, nil, nil)))
	if want := (broker.Limits{Requests: 1, Tokens: 2, USD: 2.5, PerMinute: 4}); m.Limits != want || len(m.Grants) != 2 || !m.Grants["mcp"] || !m.Grants["field:top_k"] {
		t.Errorf("got %+v %v", m.Limits, m.Grants)
	}
	if len(m.Providers) != 1 {
		t.Fatalf("got %+v", m.Providers)
	}
	p := m.Providers[0]
	if !slices.Equal(p.Models, []string{"gpt-*"}) || p.Headers["X-Title"] != "Ravi" || p.Prices["gpt-*"] != (broker.Price{Input: 3, CacheRead: 0.3}) || len(p.Keys) != 0 {
		t.Errorf("got %+v", p)
	}
}

// What is said of a run's models on the command line reaches it, also by way of the process that does the run.
func TestModelsOfARun(t *testing.T) {
	env := modelsHome(t, `{"limits": {"tokens": 50}, "providers": {"anthropic": {"prices": {"*": {"input": 3}}}}}`, map[string]string{"ANTHROPIC_API_KEY": "sk-ant-0123456789"}, nil)
	env.Progress = newProgress(env)
	repo := t.TempDir()
	repository(t, repo)
	for _, record := range []bool{true, false} {
		in := runsCreateInput{Repo: repo, Agent: "command", Command: []string{"true"}, Tokens: 70, USD: 2, Record: record}.run()
		o, err := runOptions(t.Context(), env, in, sources{models: modelsOf})
		if err != nil {
			t.Fatal(err)
		}
		if m := o.Models; m == nil || m.Record != record || m.Limits != (broker.Limits{Tokens: 50, USD: 2}) {
			t.Errorf("the run has %+v", m)
		}
	}
}

// A holder of a key gets what its profile lists of what there is, and nothing of another provider.
func TestModelsWithinAProfile(t *testing.T) {
	provider := func(name string, models ...string) broker.Provider {
		return broker.Provider{Name: name, Dialect: broker.Anthropic, Models: models}
	}
	m := models{
		Providers: []broker.Provider{provider("anthropic"), provider("mine", "llama-*", "meta/x:free", "*-small")},
		lacking:   []lack{{"openai", broker.OpenAI, errors.New("OPENAI_BASE_URL: it is on the host internal.example")}},
	}
	for _, c := range []struct {
		patterns []string
		want     string
	}{
		{nil, ""}, {[]string{}, ""}, {[]string{"gemini/*"}, ""}, {[]string{"anthrop*/x"}, ""}, {[]string{"claude-*"}, ""},
		{[]string{"anthropic/*"}, "anthropic=*"},
		{[]string{"anthropic/claude-*", "anthropic/x"}, "anthropic=claude-*,x"},
		{[]string{"*/*"}, "anthropic=* mine=llama-*,meta/x:free,*-small"},
		{[]string{"mine/llama-3*"}, "mine=llama-3*"},
		{[]string{"mine/l*"}, "mine=llama-*"},
		{[]string{"mine/meta/*"}, "mine=meta/x:free"},
		{[]string{"mine/qwen", "mine/llamb-*"}, ""},
		{[]string{"mine/llama-3-small", "mine/tiny-small"}, "mine=llama-3-small,tiny-small"},
		{[]string{"mine/x*"}, ""}, // what it has in common with *-small is nothing that one pattern says
	} {
		in := m.within("p", c.patterns)
		var got []string
		for _, p := range in.Providers {
			got = append(got, p.Name+"="+strings.Join(p.Models, ","))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%q: %q", c.patterns, got)
		}
		if _, err := in.of(broker.OpenAI); !errors.Is(err, access.ErrDenied) && !slices.Contains(c.patterns, "*/*") || strings.Contains(fmt.Sprint(err), "internal.example") != slices.Contains(c.patterns, "*/*") {
			t.Errorf("%q: %v", c.patterns, err)
		}
		_, err := in.of(broker.Anthropic)
		if (err == nil) != (c.want != "") || err != nil && (!errors.Is(err, access.ErrDenied) || !strings.Contains(err.Error(), "any model of anthropic, which the profile p does not hold")) {
			t.Errorf("%q: %v", c.patterns, err)
		}
	}
	// What is narrowed is a copy.
	if len(m.Providers[0].Models) != 0 || len(m.Providers[1].Models) != 3 {
		t.Errorf("the providers were changed: %+v", m.Providers)
	}
}

// What two lists have in common is in both.
func TestModelsInCommon(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[ab*]{1,4}`)
		have, wanted := rapid.SliceOfN(pattern, 1, 3).Draw(t, "have"), rapid.SliceOfN(pattern, 0, 3).Draw(t, "wanted")
		name := rapid.StringMatching(`[ab]{1,5}`).Draw(t, "name")
		in := func(list []string) bool {
			return slices.ContainsFunc(list, func(p string) bool { return takesIn(p, name) })
		}
		if in(both(have, wanted)) && !(in(have) && in(wanted)) {
			t.Fatalf("%v and %v have %v in common, and so %s", have, wanted, both(have, wanted), name)
		}
	})
}

// What docs/models.md shows can be written so, and gives the providers that it says.
func TestModelsPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/models.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```json\n")
	example, _, ok := strings.Cut(rest, "```")
	var block struct{ Models json.RawMessage }
	if err := json.Unmarshal([]byte(example), &block); !ok || err != nil {
		t.Fatalf("there is no example: %v", err)
	}
	env := modelsHome(t, string(block.Models), map[string]string{"ANTHROPIC_API_KEY": "first-key", "ANTHROPIC_SECOND_KEY": "second-key"},
		map[string]secret.Change{"ROUTER_KEY": stored("router-key", "router.example.com")})
	must[configShown](t)(effectiveConfig(env))
	var got []string
	for _, p := range must[models](t)(modelsOf(t.Context(), env)).Providers {
		got = append(got, told(t, p))
	}
	want := []string{"anthropic anthropic https://api.anthropic.com ANTHROPIC_API_KEY=first-key ANTHROPIC_SECOND_KEY=second-key",
		"local openai http://localhost:11434/v1", "router openai https://router.example.com/api/v1 ROUTER_KEY=router-key"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	for _, name := range grantNames {
		if !strings.Contains(string(page), "\n| `"+name+"` |") {
			t.Errorf("docs/models.md has no line for %s", name)
		}
	}
	for _, k := range knownProviders {
		for _, v := range k.keys {
			if !strings.Contains(string(page), "`"+v.name+"`") || !strings.Contains(string(page), "`"+k.baseEnv+"`") {
				t.Errorf("docs/models.md does not name %s or %s", v.name, k.baseEnv)
			}
		}
	}
}

package gitbox

import "testing"

func TestHosted(t *testing.T) {
	for url, want := range map[string]string{
		"https://github.com/acme/web.git":         "github.com/acme/web",
		"https://user:token@GitHub.com/acme/web":  "github.com/acme/web",
		"ssh://git@github.com:22/acme/web.git/":   "github.com/acme/web",
		"git@github.com:acme/web.git":             "github.com/acme/web",
		"github.com:acme/web":                     "github.com/acme/web",
		"https://git.corp.example:8443/a/b/c.git": "git.corp.example/a/b/c",
		"":                                "",
		"/srv/git/web":                    "",
		"../web":                          "",
		"file:///srv/git/web":             "",
		"https://github.com/":             "",
		"https://github.com/acme/web?x=1": "",
		"https://github.com/acme/we b":    "",
		"https://evil.example\\@github.com/acme/web": "",
		"ext::sh -c evil":                "",
		"https://github.com/acme/web\nx": "",
	} {
		if got := Hosted(url); got != want {
			t.Errorf("%q: got %q, want %q", url, got, want)
		}
	}
}

package host

import (
	"slices"
	"strings"
)

// passed are the variables of the caller's that commands get: who and where it
// is, its language and terminal, and how to reach the network. Everything else
// may be a secret.
var passed = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "COLORTERM", "TZ", "TMPDIR",
}

// passedWith are beginnings of names of the same kinds.
var passedWith = []string{"LC_", "SSL_CERT_"}

// proxies are passed unless they hold a credential; also in lower case.
var proxies = []string{"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY"}

// personal are those that are the caller's own, and no other user's.
var personal = []string{"HOME", "USER", "LOGNAME", "SHELL", "TMPDIR"}

// Environment picks from the caller's variables what commands get. withheld
// are the names of those that would have been passed but hold a credential.
func Environment(environ []string) (env map[string]string, withheld []string) {
	env = map[string]string{}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		switch {
		case slices.Contains(passed, name), slices.ContainsFunc(passedWith, func(p string) bool { return strings.HasPrefix(name, p) }):
			env[name] = value
		case slices.Contains(proxies, strings.ToUpper(name)):
			if strings.Contains(value, "@") {
				withheld = append(withheld, name) // user:password@proxy
				continue
			}
			env[name] = value
		}
	}
	slices.Sort(withheld)
	return env, withheld
}

// ForOther is what of an environment another user than the caller gets.
func ForOther(env map[string]string) map[string]string {
	out := map[string]string{}
	for name, value := range env {
		if !slices.Contains(personal, name) {
			out[name] = value
		}
	}
	return out
}

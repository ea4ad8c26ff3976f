package run

import "regexp"

// secretNames are names that are given to credentials, as whole words.
var secretNames = regexp.MustCompile(`(?i)(^|_)(API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|SECRET_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|PAT)(_|$)`)

// secretValues are forms that only credentials have: the prefixes that
// services give them, JSON web tokens, private keys, and addresses with a
// password.
var secretValues = []struct {
	what string
	form *regexp.Regexp
}{
	{"an API key", regexp.MustCompile(`^(sk-[A-Za-z0-9_-]{16,}|AIza[0-9A-Za-z_-]{35}|(AKIA|ASIA)[0-9A-Z]{16}|e2b_[0-9a-f]{16,})`)},
	{"a token", regexp.MustCompile(`^(gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abpors]-[\w-]{10,}|npm_[A-Za-z0-9]{20,}|pypi-[\w-]{20,}|hf_[A-Za-z0-9]{20,}|rctx_|rlease_)`)},
	{"a web token", regexp.MustCompile(`^eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+$`)},
	{"a private key", regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----`)},
	{"an address with a password", regexp.MustCompile(`^[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@`)},
}

// LooksSecret says why a variable looks like a credential, or "" if it does
// not. An empty value is none.
func LooksSecret(name, value string) string {
	if value == "" {
		return ""
	}
	for _, s := range secretValues {
		if s.form.MatchString(value) {
			return "the value looks like " + s.what
		}
	}
	if secretNames.MatchString(name) {
		return "by its name it is a credential"
	}
	return ""
}

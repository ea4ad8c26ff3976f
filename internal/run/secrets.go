package run

import "regexp"

// secretNames are names that are given to credentials: as whole words, in the
// camel case of configuration files, and what ends like a password.
var secretNames = []*regexp.Regexp{
	regexp.MustCompile(`(?i)(^|_)(API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|SECRET_?KEY|TOKEN|SECRET|CREDENTIALS?|PAT)(_|$)`),
	regexp.MustCompile(`(?i)(PASSWORD|PASSWD|PASSPHRASE)(_|$)`), // PGPASSWORD
	regexp.MustCompile(`(?i)_PWD$`), // MYSQL_PWD, but neither PWD nor OLDPWD
	regexp.MustCompile(`[a-z](ApiKey|APIKey|AccessKey|PrivateKey|SecretKey|Token|Secret|Credentials?)$`),
}

// secretValues are forms that only credentials have: the prefixes that
// services give them, JSON web tokens, private keys, headers, and addresses
// with a password. They may stand within other text, such as a list of options.
var secretValues = []struct {
	what string
	form *regexp.Regexp
}{
	{"an API key", begins(`(sk-[A-Za-z0-9_-]{16,}|AIza[0-9A-Za-z_-]{35}|(AKIA|ASIA)[0-9A-Z]{16}|e2b_[0-9a-f]{16,})`)},
	{"a token", begins(`(gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abpors]-[\w-]{10,}|npm_[A-Za-z0-9]{20,}|pypi-[\w-]{20,}|hf_[A-Za-z0-9]{20,}|rctx_|rlease_)`)},
	{"a web token", begins(`eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+`)},
	{"a header with a credential", regexp.MustCompile(`(?i)^(authorization:\s*)?(bearer|basic)\s+[A-Za-z0-9._~+/=-]{16,}`)},
	{"a private key", regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----`)},
	{"an address with a password", begins(`[A-Za-z][A-Za-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@`)},
}

// begins is a form at the beginning of a word.
func begins(form string) *regexp.Regexp { return regexp.MustCompile(`(^|[^A-Za-z0-9_/.-])` + form) }

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
	for _, form := range secretNames {
		if form.MatchString(name) {
			return "by its name it is a credential"
		}
	}
	return ""
}

package run

import (
	"strings"
	"testing"
)

func TestLooksSecret(t *testing.T) {
	const value = "s3cr3tValueThatIsLong"
	for _, c := range [][2]string{
		{"OPENAI_API_KEY", "x"}, {"APIKEY", "x"}, {"GITHUB_TOKEN", "x"}, {"token", "x"}, {"PGPASSWORD", "x"}, {"MYSQL_PWD", "x"}, {"DB_PASSWORD_FILE", "x"},
		{"SSH_PRIVATE_KEY", "x"}, {"apiKey", "x"}, {"clientSecret", "x"}, {"authToken", "x"}, {"AWS_SECRET_ACCESS_KEY", "x"}, {"GH_PAT", "x"},
		{"X", "sk-" + value}, {"X", "--key=sk-" + value}, {"X", "ghp_" + value}, {"X", "AKIAABCDEFGHIJKLMNOP"},
		{"X", "eyJhbGciOiJ9.eyJzdWIiOiIx.abc"}, {"X", "Bearer " + value}, {"X", "Authorization: Basic " + value},
		{"X", "-----BEGIN RSA PRIVATE KEY-----\nMII"}, {"X", "https://u:p@example.org"}, {"X", "--index-url https://:p@example.org/simple"},
	} {
		why := LooksSecret(c[0], c[1])
		if why == "" {
			t.Errorf("%s=%s looks like none", c[0], c[1])
		}
		if len(c[1]) > 1 && strings.Contains(why, c[1]) {
			t.Errorf("the value is in %q", why)
		}
	}
	for _, c := range [][2]string{
		{"PWD", "/x"}, {"OLDPWD", "/x"}, {"KEYBOARD", "de"}, {"TOKENIZER", "fast"}, {"TOKENS", "100"}, {"SECRETARY", "Maria"}, {"PATH", "/bin"}, {"PATTERN", "x"},
		{"GITHUB_TOKEN", ""}, {"X", "risk-assessment-for-everybody"}, {"X", "https://example.org:8080/a@b"}, {"X", "-----BEGIN CERTIFICATE-----"},
		{"X", "basic"}, {"X", "/usr/lib/sk-learn-and-other-things"}, {"HTTP_PROXY", "http://127.0.0.1:8080"},
	} {
		if why := LooksSecret(c[0], c[1]); why != "" {
			t.Errorf("%s=%s: %s", c[0], c[1], why)
		}
	}
}

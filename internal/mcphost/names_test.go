package mcphost

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Every tool has a name that providers take and no other tool has, the same each time, and the plain one if that fits.
func TestToolNames(t *testing.T) {
	free := func(string) bool { return false }
	for _, c := range []struct{ remote, want string }{{"echo", "mcp_a_echo"}, {"get-sum_2", "mcp_a_get-sum_2"}} {
		if got := toolName("a", c.remote, free); got != c.want {
			t.Errorf("%s: %s, want %s", c.remote, got, c.want)
		}
	}
	fit := regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
	rapid.Check(t, func(t *rapid.T) {
		taken := map[string]bool{}
		for _, remote := range rapid.SliceOfNDistinct(rapid.OneOf(rapid.String(), rapid.StringMatching(`[a. _]{1,4}|[a-z._]{50,70}`)), 1, 20, rapid.ID).Draw(t, "names") {
			name := toolName("server", remote, func(n string) bool { return taken[n] })
			if again := toolName("server", remote, func(n string) bool { return taken[n] }); again != name {
				t.Fatalf("%q is %q, and then %q", remote, name, again)
			}
			if !fit.MatchString(name) || taken[name] || !strings.HasPrefix(name, "mcp_server_") {
				t.Fatalf("%q is called %q", remote, name)
			}
			taken[name] = true
		}
	})
}

// A text that is cut stays UTF-8, has its beginning and end, and says how much is missing.
func TestMiddle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text, most := rapid.String().Draw(t, "text"), rapid.IntRange(4, 100).Draw(t, "most")
		got := middle(text, most)
		if len(text) <= most {
			if got != text {
				t.Fatalf("%q was changed to %q", text, got)
			}
			return
		}
		if len(got) > most+50 || strings.ToValidUTF8(got, "") != got || !strings.Contains(got, " bytes are left out here)") {
			t.Fatalf("%q became %q", text, got)
		}
	})
}

package cli

import (
	"regexp"
	"testing"
	"time"
)

// What is to come is not said to have been.
func TestMoment(t *testing.T) {
	for _, c := range []struct {
		at   time.Duration
		says string
	}{{-2 * time.Hour, `\(2h ago\)$`}, {90*24*time.Hour + time.Hour, `\(in 90d\)$`}, {0, `\(\d+[sm] ago\)$`}} { // it may take some seconds to say so
		if got := moment(time.Now().Add(c.at)); !regexp.MustCompile(c.says).MatchString(got) {
			t.Errorf("%v: %s", c.at, got)
		}
	}
}

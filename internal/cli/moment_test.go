package cli

import (
	"strings"
	"testing"
	"time"
)

// What is to come is not said to have been.
func TestMoment(t *testing.T) {
	for _, c := range []struct {
		at   time.Duration
		says string
	}{{-2 * time.Hour, "(2h ago)"}, {90*24*time.Hour + time.Minute, "(in 90d)"}, {0, "(0s ago)"}} {
		if got := moment(time.Now().Add(c.at)); !strings.HasSuffix(got, c.says) {
			t.Errorf("%v: %s", c.at, got)
		}
	}
}

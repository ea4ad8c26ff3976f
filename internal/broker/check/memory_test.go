package check

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// filled is a body of some 32 MB that has nothing but this in it, over and over; a verb of it gets a number.
func filled(open, item, end string) []byte {
	var b strings.Builder
	b.Grow(32 << 20)
	b.WriteString(`{"model":"claude-x","max_tokens":9,"messages":[],"metadata":` + open)
	for n := 0; b.Len() < 32<<20-100; n++ {
		if strings.Contains(item, "%") {
			fmt.Fprintf(&b, item, n)
		} else {
			b.WriteString(item)
		}
	}
	b.WriteString(end + "}")
	return []byte(b.String())
}

// Whatever small things a large body is made of, what is made of them is bounded.
func TestManySmallValues(t *testing.T) {
	for name, body := range map[string][]byte{
		"numbers":      filled("[", "1,", "1]"),
		"objects":      filled("[", "{},", "1]"),
		"keys":         filled("{", `"%x":1,`, `"z":1}`),
		"escaped keys": filled("{", `"\n%x":1,`, `"z":1}`),
		"pairs":        filled("[", `{"\u0061":1},`, "1]"),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, refused := Messages(body, nil)
		runtime.ReadMemStats(&after)
		if refused == nil || refused.Status != 400 || !strings.Contains(refused.Message, "more than 262144 values") {
			t.Errorf("%s: %v", name, refused)
		}
		// Keys of four times as many values need more than this.
		made := (after.TotalAlloc - before.TotalAlloc) >> 20
		if t.Logf("%s: %d MiB", name, made); made > 200 {
			t.Errorf("%s: %d MiB were made of 32", name, made)
		}
	}
}

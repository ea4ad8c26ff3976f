package check

import (
	"encoding/json"
	"strings"
	"testing"
)

// large is a body of about 32 MB of which each message is as large as this.
func large(message int) []byte {
	line := "\\tif err != nil { // \\\"<&>\\\" \\u00e4 is\\n"
	one := `{"role":"user","content":[{"type":"text","text":"` + strings.Repeat(line, message/len(line)) + `"}]},`
	return []byte(`{"model":"claude-x","max_tokens":9,"stream":true,"messages":[` +
		strings.Repeat(one, max(1, (32<<20)/len(one))) + `{"role":"user","content":"end"}]}`)
}

func BenchmarkMessages(b *testing.B) {
	for name, size := range map[string]int{"1KB": 1 << 10, "4KB": 4 << 10, "1MB": 1 << 20, "32MB": 32 << 20} {
		b.Run(name, func(b *testing.B) {
			body := large(size)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, refused := Messages(body, nil); refused != nil {
					b.Fatal(refused)
				}
			}
		})
	}
}

// BenchmarkValid is what the standard library needs to find the syntax right, which is a part of the above.
func BenchmarkValid(b *testing.B) {
	body := large(4 << 10)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if !json.Valid(body) {
			b.Fatal("it is not valid")
		}
	}
}

package redact

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

func many(n, size int) *Redactor {
	random := rand.New(rand.NewPCG(1, 2))
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_"
	var pairs []Pair
	for i := range n {
		secret := make([]byte, size)
		for j := range secret {
			secret[j] = letters[random.IntN(len(letters))]
		}
		pairs = append(pairs, Pair{Secret: string(secret), Instead: fmt.Sprintf("[secret %d]", i)})
	}
	return New(pairs...)
}

// texts are a megabyte each, without a secret.
func texts() map[string][]byte {
	random := rand.New(rand.NewPCG(3, 4))
	noise := make([]byte, 1<<20)
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	code := strings.Repeat("func (s *state) save(ctx context.Context, final bool) error {\n\treturn fmt.Errorf(\"writing %s: %w\", name, err)\n}\n", 10000)
	return map[string][]byte{"noise": noise, "code": []byte(code)[:1<<20], "hex": fmt.Appendf(nil, "%x", noise[:1<<19])}
}

type endless struct {
	text []byte
	left int
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n := copy(p, e.text[:min(len(e.text), e.left)])
	e.left -= n
	return n, nil
}

func BenchmarkReader(b *testing.B) {
	for name, text := range texts() {
		for _, c := range []struct{ secrets, size int }{{5, 40}, {60, 40}, {60, 8}} {
			b.Run(fmt.Sprintf("%s/%dx%d", name, c.secrets, c.size), func(b *testing.B) {
				r := many(c.secrets, c.size)
				p := make([]byte, 32<<10)
				src := &endless{text: text, left: 1 << 62}
				reader := r.Reader(src)
				if _, err := reader.Read(p); err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				for b.Loop() {
					for n := 0; n < len(text); {
						k, err := reader.Read(p)
						if err != nil {
							b.Fatal(err)
						}
						n += k
					}
				}
				if reader.Hits() != 0 {
					b.Fatal("there was a hit")
				}
			})
		}
	}
}

func TestReadAllocatesNothing(t *testing.T) {
	reader := many(5, 40).Reader(&endless{text: bytes.Repeat([]byte("some text "), 1000), left: 1 << 40})
	p := make([]byte, 4<<10)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := reader.Read(p); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a Read", n)
	}
}

package redact

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// What comes out of an even Reader, and when, is the same for every secret of one length, as long as no secret comes by.
func TestEvenTellsNothing(t *testing.T) {
	const a, b = "abcdefgh-ijklmnop", "bcdabcda-bcdabcda"
	for _, ends := range []func([]byte) int{nil, func(p []byte) int { return bytes.IndexByte(p, '|') + 1 }} {
		rapid.Check(t, func(t *rapid.T) {
			var said []string
			pieces := rapid.SliceOfN(rapid.OneOf(rapid.StringMatching(`[a-d\n|]{0,9}`), rapid.StringMatching(`a|ab|abcd|bcda|bcdabcda-bcdabcd|abcdefgh-ijklmno|[a-d]{250}\n?`)), 1, 8).Draw(t, "pieces")
			for _, secret := range []string{a, b} {
				r := New(Pair{Secret: secret, Instead: "#"})
				if _, found := r.Found(strings.Join(pieces, "")); found {
					t.Skip()
				}
				in, out := io.Pipe()
				read := r.Reader(in).Even(ends)
				src := make(chan string)
				go func() {
					p := make([]byte, 1<<16)
					for {
						n, err := read.Read(p)
						if err != nil {
							close(src)
							return
						}
						src <- string(p[:n])
					}
				}()
				var log strings.Builder
				for _, piece := range pieces {
					wrote := make(chan struct{})
					go func() { io.WriteString(out, piece); close(wrote) }()
					for done := false; !done; {
						select {
						case got := <-src:
							log.WriteString(got)
						case <-wrote:
							done = true
						}
					}
					// What is decided comes out before the next piece is asked for.
					probe := make(chan struct{})
					go func() { out.Write([]byte{}); close(probe) }()
					for done := false; !done; {
						select {
						case got := <-src:
							log.WriteString(got)
						case <-probe:
							done = true
						}
					}
					log.WriteByte(0xff)
				}
				out.Close()
				for got := range src {
					log.WriteString(got)
				}
				if got := strings.ReplaceAll(log.String(), "\xff", ""); got != strings.Join(pieces, "") {
					t.Fatalf("%q became %q", pieces, got)
				}
				said = append(said, log.String())
			}
			if said[0] != said[1] {
				t.Fatalf("of %q one says %q, the other %q", pieces, said[0], said[1])
			}
		})
	}
}

// An even Reader takes out what the others do, unless an end was told within it.
func TestEvenAsTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRedactor(t)
		if r == nil {
			t.Skip()
		}
		text := drawText(t, r)
		want, hits := model(r, text, true)
		// No secret lies across the places that are ends: values hold no such character.
		if slices.ContainsFunc(r.search().forms, func(f form) bool {
			return strings.ContainsFunc(f.text, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f })
		}) {
			t.Skip()
		}
		n := rapid.IntRange(1, 9).Draw(t, "piece")
		read := r.Reader(&slowly{text, n}).Even(nil)
		got, err := io.ReadAll(read)
		if err != nil || string(got) != want || read.Hits() != hits {
			t.Fatalf("%q became %q, want %q; %v", text, got, want, err)
		}
	})
}

type slowly struct {
	rest string
	n    int
}

func (f *slowly) Read(p []byte) (int, error) {
	if f.rest == "" {
		return 0, io.EOF
	}
	n := copy(p, f.rest[:min(f.n, len(f.rest))])
	f.rest = f.rest[n:]
	return n, nil
}

// A line comes out when it is whole, though no more follows.
func TestEvenLines(t *testing.T) {
	r := New(Pair{Secret: "abcdefgh-ijklmnop", Instead: "#"})
	in, out := io.Pipe()
	defer out.Close()
	go io.WriteString(out, "one abcdefgh-ijklmnop abcd\ntwo abc")
	p := make([]byte, 100)
	if n, err := r.Reader(in).Even(nil).Read(p); err != nil || string(p[:n]) != "one # abcd\n" {
		t.Errorf("got %q, %v", p[:n], err)
	}
}

func TestEveryCharacter(t *testing.T) {
	const secret = "Tok3n-Of-Ümläut~?>~~?>"
	r := New(Pair{Secret: secret, Instead: "#"})
	units, numbers, hexes, percent := "", "", "", ""
	for _, c := range secret {
		units += fmt.Sprintf(`\u%04x`, c)
		numbers += fmt.Sprintf("&#%d;", c)
		hexes += fmt.Sprintf("&#x%X;", c)
	}
	for i := range len(secret) {
		percent += fmt.Sprintf("%%%02x", secret[i])
	}
	for _, text := range []string{units, numbers, hexes, percent, strings.ToLower(secret), strings.ToUpper(secret)} {
		if got := r.String("x=" + text + ";"); got != "x=#;" {
			t.Errorf("%q became %q", text, got)
		}
	}
	for before := range 3 {
		text := base64.StdEncoding.EncodeToString([]byte("   "[:before] + secret + "xx"))
		for _, form := range []string{strings.ReplaceAll(text, "/", `\/`), strings.NewReplacer("/", "%2F", "+", "%2B").Replace(text)} {
			if got := r.String(form); !strings.Contains(got, "#") {
				t.Errorf("%q became %q", form, got)
			}
		}
	}
}

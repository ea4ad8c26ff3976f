package redact

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

// A secret that is added is taken out from then on, in streams that are under way too; what a stream held back for
// another one comes out whole.
func TestAdd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &Redactor{}
		if rapid.Bool().Draw(t, "one before") {
			r = New(Pair{"long-secret-value-first", "<1>", ""})
		}
		var in, out bytes.Buffer
		w, rd := r.Writer(&out), r.Reader(iotest.OneByteReader(&in))
		before := rapid.SampledFrom([]string{"", "text ", "long-secret", "sec", "second-sec"}).Draw(t, "before")
		read := func() string {
			b, err := io.ReadAll(rd)
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
		io.WriteString(w, before)
		r.Add(Pair{"second-secret", "<2>", ""}, Pair{"second-secret", "<3>", ""})
		after := rapid.SampledFrom([]string{"", " second-secret", "ond-secret", "long-secret-value-first", "!second-secret-second-secret!"}).Draw(t, "after")
		io.WriteString(w, after)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		in.WriteString(after)
		if got, want := read(), r.String(after); got != want {
			t.Fatalf("read %q, want %q", got, want)
		}
		if strings.Contains(after, "second-secret") && strings.Contains(out.String(), "second-secret") {
			t.Fatalf("wrote %q", out.String())
		}
		if got := out.String(); !strings.Contains(before+after, "second-secret") && !strings.Contains(before+after, "long-secret-value-first") && got != before+after {
			t.Fatalf("wrote %q of %q", got, before+after)
		}
	})
}

// A reader that waits when a secret is added takes it out of what it waits for.
func TestAddWhileReading(t *testing.T) {
	for _, r := range []*Redactor{{}, New(Pair{"another-secret", "<1>", ""})} {
		added := readerFunc(func(p []byte) (int, error) {
			r.Add(Pair{"second-secret", "<2>", ""})
			return copy(p, "a second-secret"), io.EOF
		})
		if b, err := io.ReadAll(r.Reader(added)); string(b) != "a <2>" || err != nil {
			t.Errorf("read %q, %v", b, err)
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

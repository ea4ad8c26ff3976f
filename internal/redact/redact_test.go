package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

// model is what must come out of text, seen as a whole: at each place the longest form counts. If there is more to
// come, it ends where a form may have begun.
func model(r *Redactor, text string, final bool) (out string, hits int) {
	var b strings.Builder
	for at := 0; at < len(text); {
		var best *form
		for i := range r.search().forms {
			f := &r.search().forms[i]
			rest := text[at:]
			if strings.HasPrefix(rest, f.text) && (best == nil || len(f.text) > len(best.text)) {
				best = f
			}
			if !final && len(rest) < len(f.text) && strings.HasPrefix(f.text, rest) {
				return b.String(), hits
			}
		}
		if best == nil {
			b.WriteByte(text[at])
			at++
			continue
		}
		b.WriteString(r.search().pairs[best.pair].Instead)
		at += len(best.text)
		hits++
	}
	return b.String(), hits
}

// fewLetters makes overlaps likely.
var fewLetters = rapid.StringMatching(`[ab%"/6]{0,6}`)

func drawRedactor(t *rapid.T) *Redactor {
	letters := rapid.OneOf(fewLetters, rapid.StringMatching(`[ab]{8,24}`), rapid.StringN(1, 12, -1))
	var pairs []Pair
	for i, secret := range rapid.SliceOfN(letters, 1, 6).Draw(t, "secrets") {
		// What is put in may be a secret itself.
		pairs = append(pairs, Pair{secret, rapid.SampledFrom([]string{"", "*", "ab", fmt.Sprintf("[%d]", i)}).Draw(t, "instead"), fmt.Sprint(i)})
	}
	return New(pairs...)
}

func drawText(t *rapid.T, r *Redactor) string {
	var parts []string
	for range rapid.IntRange(0, 12).Draw(t, "parts") {
		part := fewLetters.Draw(t, "text")
		if r != nil && rapid.Bool().Draw(t, "a form") {
			f := rapid.SampledFrom(r.search().forms).Draw(t, "form").text
			from := rapid.IntRange(0, len(f)).Draw(t, "from")
			part = f[rapid.SampledFrom([]int{0, 0, from}).Draw(t, "start"):]
			part = part[:rapid.SampledFrom([]int{len(part), len(part), len(part) / 2}).Draw(t, "end")]
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "")
}

// In whatever pieces a text comes, each piece brings out what the model has decided by then, neither less nor more.
func TestAsTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRedactor(t)
		text := drawText(t, r)
		if r == nil {
			if got := r.String(text); got != text {
				t.Fatalf("without secrets %q became %q", text, got)
			}
			return
		}
		want, hits := model(r, text, true)
		if got := r.String(text); got != want {
			t.Fatalf("String: got %q, want %q", got, want)
		}
		if _, found := r.Found(text); found != (hits > 0) {
			t.Fatalf("Found: %v with %d hits", found, hits)
		}
		var cuts []int
		for at := 0; at < len(text); {
			at = min(len(text), at+rapid.IntRange(1, 9).Draw(t, "piece"))
			cuts = append(cuts, at)
		}
		var written bytes.Buffer
		w := r.Writer(&written)
		src := &pieces{}
		reader := r.Reader(src)
		read, p := "", make([]byte, rapid.IntRange(1, 64).Draw(t, "p"))
		last := 0
		for _, cut := range cuts {
			piece := text[last:cut]
			last = cut
			decided, _ := model(r, text[:cut], false)
			if n, err := w.Write([]byte(piece)); n != len(piece) || err != nil {
				t.Fatal(n, err)
			}
			if written.String() != decided {
				t.Fatalf("Writer after %q: got %q, want %q", text[:cut], &written, decided)
			}
			src.next = piece
			for len(read) < len(decided) {
				n, err := reader.Read(p)
				if err != nil {
					t.Fatalf("Reader after %q: got %q and %v, want %q", text[:cut], read, err, decided)
				}
				read += string(p[:n])
			}
			if src.next != "" { // there was nothing to wait for
				if n, err := reader.Read(p); n != 0 || err != io.ErrNoProgress {
					t.Fatalf("Reader after %q: %d bytes and %v, want none yet", text[:cut], n, err)
				}
			}
			if read != decided {
				t.Fatalf("Reader after %q: got %q, want %q", text[:cut], read, decided)
			}
		}
		if err := w.Close(); err != nil || written.String() != want || w.Hits() != hits {
			t.Fatalf("Writer: got %q, %d hits, %v; want %q, %d", &written, w.Hits(), err, want, hits)
		}
		src.end = true
		rest, err := io.ReadAll(reader)
		if read += string(rest); err != nil || read != want || reader.Hits() != hits {
			t.Fatalf("Reader: got %q, %d hits, %v; want %q, %d", read, reader.Hits(), err, want, hits)
		}
		if !slices.Equal(w.Found(), reader.Found()) || (hits > 0) != (len(w.Found()) > 0) {
			t.Fatalf("found %q and %q", w.Found(), reader.Found())
		}
	})
}

// pieces gives one piece, then nothing until there is another.
type pieces struct {
	next string
	end  bool
}

func (s *pieces) Read(p []byte) (int, error) {
	if s.next == "" && s.end {
		return 0, io.EOF
	}
	n := copy(p, s.next)
	s.next = s.next[n:]
	return n, nil
}

func TestForms(t *testing.T) {
	const secret = `p&s/w+r<d=" ü'1`
	r := New(Pair{Secret: secret, Instead: "#"})
	escaped, err := json.Marshal(secret)
	if err != nil {
		t.Fatal(err)
	}
	var plainJSON bytes.Buffer
	enc := json.NewEncoder(&plainJSON)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(secret); err != nil {
		t.Fatal(err)
	}
	lower := func(s string) string {
		return strings.NewReplacer("%2F", "%2f", "%2B", "%2b", "%3C", "%3c", "%3D", "%3d", "%C3%BC", "%c3%bc").Replace(s)
	}
	for name, text := range map[string]string{
		"itself": secret, "query": url.QueryEscape(secret), "path": url.PathEscape(secret), "query, small": lower(url.QueryEscape(secret)),
		"path, small": lower(url.PathEscape(secret)), "hex": hex.EncodeToString([]byte(secret)), "HEX": fmt.Sprintf("%X", secret),
		"JSON": strings.Trim(string(escaped), `"`), "JSON, slash": strings.ReplaceAll(string(escaped[1:len(escaped)-1]), "/", `\/`),
		"JSON, plain": strings.TrimSuffix(plainJSON.String()[1:], "\"\n"), "HTML": html.EscapeString(secret),
		"HTML, named": strings.NewReplacer("&#34;", "&quot;", "&#39;", "&apos;").Replace(html.EscapeString(secret)),
		"JavaScript":  "p%26s%2Fw%2Br%3Cd%3D%22%20%C3%BC'1", "Python": "p%26s/w%2Br%3Cd%3D%22%20%C3%BC%271",
	} {
		if got := r.String("x=" + text + ";"); got != "x=#;" {
			t.Errorf("%s: %q became %q", name, text, got)
		}
	}
	if got := New(Pair{Secret: `a/b"c`, Instead: "#"}).String(`{"k":"a\/b\"c","l":"a/b\"c"}`); got != `{"k":"#","l":"#"}` {
		t.Errorf("slash: %s", got)
	}
}

// Wherever a secret begins in what is encoded, what is left tells no whole byte of it.
func TestBase64(t *testing.T) {
	for _, secret := range []string{"\xfb\xff\xfe secret value ~~~ \xff", "123456789ab", "12345678"} {
		r := New(Pair{Secret: secret, Instead: ""})
		for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding, base64.RawStdEncoding} {
			for before := range 7 {
				for after := range 4 {
					text := enc.EncodeToString([]byte(strings.Repeat("<", before) + secret + strings.Repeat(">", after)))
					got := r.String(text)
					// Beside the core there are at most two characters that hold bits of the secret.
					if most := (before*8+5)/6 + (after*8+5)/6 + 2 + strings.Count(text, "="); len(got) > most {
						t.Errorf("%d bytes, secret, %d: %q became %q", before, after, text, got)
					}
				}
			}
		}
	}
	// A short one has no core that is long enough at each place; nothing else is taken for it.
	text := base64.StdEncoding.EncodeToString([]byte("12345"))
	if got := New(Pair{Secret: "12345", Instead: "#"}).String(text); got != text {
		t.Errorf("got %q", got)
	}
}

func TestWhichIsMeant(t *testing.T) {
	r := New(Pair{Secret: "abcdef", Instead: "[long]", Name: "LONG"}, Pair{Secret: "", Instead: "never"}, Pair{Secret: "bcd", Instead: "[short]"},
		Pair{Secret: "efgh", Instead: "[late]"}, Pair{Secret: "bcd", Instead: "[second]"}, Pair{Secret: "[short]", Instead: "again"})
	for text, want := range map[string]string{
		"abcdef": "[long]", "abcde": "a[short]e", "abcdefgh": "[long]gh", "xbcdefgh": "x[short][late]", "bcdbcd": "[short][short]",
		"ABCDEF": "ABCDEF", "626364": "[short]", "[short]": "again", "": "",
	} {
		if got := r.String(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	if instead, found := r.Found("x bcd abcdef"); instead != "[short]" || !found {
		t.Errorf("the first one: %q, %v", instead, found)
	}
	w := r.Writer(io.Discard)
	if _, err := io.WriteString(w, "bcd abcdef bcd"); err != nil {
		t.Fatal(err)
	}
	if got := w.Found(); !slices.Equal(got, []string{"LONG", "[short]"}) || w.Hits() != 3 {
		t.Errorf("found %q, %d hits", got, w.Hits())
	}
}

func TestNoSecrets(t *testing.T) {
	r := New(Pair{Instead: "x"})
	if r != nil {
		t.Error("an empty secret counts")
	}
	const text = "plain text"
	var b bytes.Buffer
	w := r.Writer(&b)
	if _, err := io.Copy(w, r.Reader(strings.NewReader(text))); err != nil || b.String() != text {
		t.Errorf("got %q, %v", &b, err)
	}
	if err := errors.Join(w.Close(), w.Close()); err != nil || w.Hits() != 0 || w.Found() != nil {
		t.Errorf("closed: %v, %d, %v", err, w.Hits(), w.Found())
	}
	if _, found := r.Found(text); found || r.String(text) != text {
		t.Error("something was found")
	}
}

var few = New(Pair{Secret: "s3cret-value", Instead: "[secret A]", Name: "A"}, Pair{Secret: "s3cret-value-that-is-longer", Instead: "[secret B]", Name: "B"})

func TestEndsOfStreams(t *testing.T) {
	broken := errors.New("the line broke")
	for text, want := range map[string]string{
		"it is s3cret-value":              "it is [secret A]", // the longer one might have followed
		"it is s3cret-valu":               "it is s3cret-valu",
		"s3cret-value-that-is-longe":      "[secret A]-that-is-longe",
		"a s3cret-value-that-is-longer":   "a [secret B]",
		"s":                               "s",
		"":                                "",
		"s3cret-values3cret-value-that-i": "[secret A][secret A]-that-i",
	} {
		for name, wrap := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader, "halves": iotest.HalfReader, "with error": iotest.DataErrReader,
			"all": func(r io.Reader) io.Reader { return iotest.DataErrReader(iotest.OneByteReader(r)) },
		} {
			got, err := io.ReadAll(few.Reader(wrap(strings.NewReader(text))))
			if err != nil || string(got) != want {
				t.Errorf("%s, %q: got %q, %v", name, text, got, err)
			}
			failing := few.Reader(wrap(io.MultiReader(strings.NewReader(text), iotest.ErrReader(broken))))
			if got, err = io.ReadAll(failing); !errors.Is(err, broken) || string(got) != want {
				t.Errorf("%s, %q, error: got %q, %v", name, text, got, err)
			}
			if n, err := failing.Read(make([]byte, 1)); n != 0 || !errors.Is(err, broken) {
				t.Errorf("%s: after the error: %d, %v", name, n, err)
			}
		}
		if err := iotest.TestReader(few.Reader(strings.NewReader(text)), []byte(want)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestWriterErrors(t *testing.T) {
	broken := errors.New("the pipe broke")
	w := few.Writer(writerFunc(func([]byte) (int, error) { return 0, broken }))
	if n, err := w.Write([]byte("s3cre")); n != 5 || err != nil {
		t.Errorf("what is held back was written: %d, %v", n, err)
	}
	if n, err := w.Write([]byte("!")); n != 0 || !errors.Is(err, broken) {
		t.Errorf("got %d, %v", n, err)
	}
	if _, err := w.Write([]byte("x")); !errors.Is(err, broken) {
		t.Errorf("it went on: %v", err)
	}
	if err := w.Close(); !errors.Is(err, broken) {
		t.Errorf("closed: %v", err)
	}
	if _, err := w.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("written after the end: %v", err)
	}
	if _, err := few.Writer(writerFunc(func(p []byte) (int, error) { return len(p) - 1, nil })).Write([]byte("xx")); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("short: %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// A megabyte around the borders of what is read at once.
func TestLongStreams(t *testing.T) {
	text := strings.Repeat(strings.Repeat("x", chunk-7)+"s3cret-value-that-is-longer"+strings.Repeat("s3cret-val", 3), 40)
	want, hits := model(few, text, true)
	reader := few.Reader(strings.NewReader(text))
	got, err := io.ReadAll(reader)
	if err != nil || string(got) != want || reader.Hits() != hits || hits != 40 {
		t.Errorf("Reader: %d bytes, %d hits, %v; want %d, %d", len(got), reader.Hits(), err, len(want), hits)
	}
	for _, size := range []int{1, 9, chunk + 1, len(text)} {
		var b bytes.Buffer
		w := few.Writer(&b)
		for p := range slices.Chunk([]byte(text), size) {
			if n, err := w.Write(p); n != len(p) || err != nil {
				t.Fatal(n, err)
			}
		}
		if err := w.Close(); err != nil || b.String() != want {
			t.Errorf("Writer by %d: %d bytes, %v; want %d", size, b.Len(), err, len(want))
		}
	}
}

func FuzzStream(f *testing.F) {
	f.Add("secret", "secrets", "my secret is secre", 3)
	f.Add("aa", "aba", "aababaaab", 1)
	f.Add("a", "\xff\x00", "61ff00FF", 2)
	f.Fuzz(func(t *testing.T, a, b, text string, size int) {
		r := New(Pair{Secret: a, Instead: "A"}, Pair{Secret: b, Instead: "B"})
		if r == nil || r.search().longest > 1000 {
			t.Skip()
		}
		want, _ := model(r, text, true)
		if got := r.String(text); got != want {
			t.Errorf("String: got %q, want %q", got, want)
		}
		var out bytes.Buffer
		w := r.Writer(&out)
		for p := range slices.Chunk([]byte(text), 1+int(uint(size)%7)) {
			if _, err := w.Write(p); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil || out.String() != want {
			t.Errorf("Writer: got %q, %v; want %q", &out, err, want)
		}
		if got, err := io.ReadAll(r.Reader(iotest.HalfReader(strings.NewReader(text)))); err != nil || string(got) != want {
			t.Errorf("Reader: got %q, %v; want %q", got, err, want)
		}
	})
}

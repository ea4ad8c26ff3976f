package intercept

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"ravi/internal/redact"
)

// frame is one of a server's, unmasked.
func frame(first byte, payload string) string {
	b := []byte{first}
	switch n := len(payload); {
	case n < 126:
		b = append(b, byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 127), uint64(n))
	}
	return string(b) + payload
}

const wholeText, firstText, more, lastMore, ping = 0x81, 0x01, 0x00, 0x80, 0x89

func newFrames(src io.Reader) *frames {
	return &frames{src: src, r: redact.New(redact.Pair{Secret: token, Instead: placeholder})}
}

// However a message is cut into fragments, and these into pieces, a value in it does not get through, and all else does.
func TestFrames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream strings.Builder
		reflected := false
		var before string
		for range rapid.IntRange(1, 4).Draw(t, "messages") {
			parts := []string{rapid.StringMatching(`[a-z]{0,200}`).Draw(t, "text"), token[:rapid.IntRange(0, len(token)).Draw(t, "so much")], "!"}
			message := strings.Join(parts, "")
			if strings.Contains(message, token) && !reflected {
				reflected, before = true, stream.String()
			}
			first := byte(firstText)
			for rapid.Bool().Draw(t, "a fragment") {
				n := rapid.IntRange(0, len(message)).Draw(t, "long")
				stream.WriteString(frame(first, message[:n]))
				message, first = message[n:], more
				if rapid.Bool().Draw(t, "ping") {
					stream.WriteString(frame(ping, "p"))
				}
			}
			stream.WriteString(frame(first|0x80, message))
		}
		var src io.Reader = strings.NewReader(stream.String())
		if rapid.Bool().Draw(t, "bytewise") {
			src = iotest.OneByteReader(src)
		}
		got, err := io.ReadAll(newFrames(src))
		switch {
		case !reflected && (err != nil || string(got) != stream.String()):
			t.Fatalf("%q became %q, %v", stream.String(), got, err)
		case reflected && !errors.Is(err, errReflected):
			t.Fatalf("%q: %v", stream.String(), err)
		case reflected && len(got) >= len(before)+len(token)+10 && strings.Contains(unframed(string(got)), token[:len(token)-1]):
			t.Fatalf("%q became %q", stream.String(), got)
		case reflected && !strings.HasPrefix(stream.String(), string(got)):
			t.Fatalf("%q became %q", stream.String(), got)
		}
	})
}

// unframed is a stream without the heads of its frames, as far as that is short.
func unframed(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, s)
}

// A whole message does not wait for the next one, even if it ends like the beginning of a value.
func TestFramesDoNotWait(t *testing.T) {
	for _, message := range []string{
		frame(wholeText, "g"), frame(wholeText, "text "+token[:len(token)-1]), frame(0x82, strings.Repeat("g", 70000)), frame(ping, token[:5]),
		frame(firstText, "a") + frame(lastMore, "g"), frame(wholeText, ""),
	} {
		in, out := io.Pipe()
		go io.WriteString(out, message)
		got := make([]byte, len(message))
		if _, err := io.ReadFull(newFrames(in), got); err != nil || string(got) != message {
			t.Errorf("%.40q became %.40q, %v", message, got, err)
		}
		out.Close()
	}
}

func TestFramesThatCannotBeSearched(t *testing.T) {
	for name, c := range map[string]struct {
		sent string
		want error
	}{
		"compressed":          {frame(wholeText|0x40, "x"), errNotFrames},
		"masked":              {"\x81\x81abcdx", errNotFrames},
		"long control frame":  {frame(ping, strings.Repeat("x", 126)), errNotFrames},
		"control in parts":    {frame(0x09, "x"), errNotFrames},
		"value in a ping":     {frame(ping, token), errReflected},
		"in a ping, between":  {frame(firstText, "abc") + frame(ping, token), errReflected},
		"only what is around": {frame(firstText, "x") + strings.Repeat(frame(ping, ""), framesMost), errNotFrames},
	} {
		var src io.Reader = strings.NewReader(c.sent)
		if len(c.sent) < framesMost { // byte by byte, all that waits is looked at as often
			src = iotest.OneByteReader(src)
		}
		got, err := io.ReadAll(newFrames(src))
		if !errors.Is(err, c.want) || strings.Contains(string(got), token[:2]) {
			t.Errorf("%s: %.50q, %v", name, got, err)
		}
	}
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte(frame(wholeText, token) + frame(ping, "x")))
	f.Add([]byte(frame(firstText, token[:4]) + frame(more, token[4:]) + frame(lastMore, "")))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := io.ReadAll(newFrames(bytes.NewReader(b)))
		if !bytes.HasPrefix(b, got) || err == nil && !bytes.Equal(got, b) {
			t.Fatalf("%q became %q, %v", b, got, err)
		}
		if bytes.Contains(got, []byte(token)) {
			t.Fatalf("the value came through: %q", got)
		}
	})
}

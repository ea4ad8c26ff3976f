package sandbox

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"connectrpc.com/connect"
	"pgregory.net/rapid"
)

func TestText(t *testing.T) {
	long := strings.Repeat("a", 30) + strings.Repeat("ü", 30)
	for _, c := range []struct {
		name string
		r    Result
		max  int
		want string
	}{
		{"nothing", Result{}, 0, "\nExit code: 0"},
		{"no line end", Result{Stdout: "hi"}, 0, "hi\n\nExit code: 0"},
		{"line end", Result{Stdout: "hello\n"}, 0, "hello\n\nExit code: 0"},
		{"two line ends", Result{Stdout: "hello\n\n"}, 0, "hello\n\n\nExit code: 0"},
		{"only a line end", Result{Stdout: "\n"}, 0, "\n\nExit code: 0"},
		{"blank output counts", Result{Stdout: "  "}, 0, "  \n\nExit code: 0"},
		{"errors", Result{Stdout: "a", Stderr: "b\n", ExitCode: 1}, 0, "a\nSTDERR:\nb\n\nExit code: 1"},
		{"only errors", Result{Stderr: "b", ExitCode: 1}, 0, "STDERR:\nb\n\nExit code: 1"},
		{"blank errors do not count", Result{Stdout: "a", Stderr: " \n\t\n"}, 0, "a\n\nExit code: 0"},
		{"time-out", Result{Stdout: "x\n", Stderr: "Command timed out after 5s", ExitCode: -1}, 0, "x\nSTDERR:\nCommand timed out after 5s\n\nExit code: -1"},
		{"invalid bytes", Result{Stdout: "a\xffb\x80"}, 0, "a\\xffb\\x80\n\nExit code: 0"},
		{"a real replacement character", Result{Stdout: "\uFFFD"}, 0, "\uFFFD\n\nExit code: 0"},
		{"just fits", Result{Stdout: "12345"}, 19, "12345\n\nExit code: 0"},
		{"even cap", Result{Stdout: long}, 10, "aaaaa\n\n... (64 chars truncated) ...\n\nde: 0"},
		{"odd cap", Result{Stdout: long}, 11, "aaaaa\n\n... (63 chars truncated) ...\n\node: 0"},
		{"cap of one", Result{Stdout: "abc"}, 1, "\n\n... (16 chars truncated) ...\n\n0"},
		{"no cap", Result{Stdout: strings.Repeat("x", 20_000)}, -1, strings.Repeat("x", 20_000) + "\n\nExit code: 0"},
		{"the default cap", Result{Stdout: strings.Repeat("x", 20_000)}, 0,
			strings.Repeat("x", 5_000) + "\n\n... (10014 chars truncated) ...\n\n" + strings.Repeat("x", 4_986) + "\n\nExit code: 0"},
	} {
		if got := c.r.Text(c.max); got != c.want {
			t.Errorf("%s:\ngot  %q\nwant %q", c.name, got, c.want)
		}
	}
}

// The text is always valid, ends with the exit code if that fits, and of a cut
// one exactly max characters remain: a beginning and an end of the whole.
func TestTextAlways(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Result{
			Stdout:   string(rapid.SliceOf(rapid.Byte()).Draw(t, "stdout")),
			Stderr:   rapid.String().Draw(t, "stderr"),
			ExitCode: rapid.IntRange(-1, 255).Draw(t, "code"),
		}
		max := rapid.IntRange(1, 80).Draw(t, "max")
		whole, cut := []rune(r.Text(-1)), r.Text(max)
		if !utf8.ValidString(cut) {
			t.Fatalf("not UTF-8: %q", cut)
		}
		if len(whole) <= max {
			if cut != string(whole) {
				t.Fatalf("%q was changed to %q though it fits", string(whole), cut)
			}
			return
		}
		want := string(whole[:max/2]) + fmt.Sprintf("\n\n... (%d chars truncated) ...\n\n", len(whole)-max) + string(whole[len(whole)-(max-max/2):])
		if cut != want {
			t.Fatalf("got %q, want %q", cut, want)
		}
	})
}

func TestTimedOut(t *testing.T) {
	for s, want := range map[float64]string{0: "0s", 1: "1s", 1.5: "1.5s", 120: "120s", 0.25: "0.25s"} {
		if got := timedOut(*After(0) + secondsOf(s)); got != "Command timed out after "+want {
			t.Errorf("%v: %q", s, got)
		}
	}
}

// However output is cut into writes, what is kept is a beginning and an end of
// it, never more than the bound, and what is missing is told exactly.
func TestCapture(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 60).Draw(t, "most")
		pieces := rapid.SliceOfN(rapid.OneOf(
			rapid.SliceOfN(rapid.ByteRange('a', 'z'), 0, 90),
			rapid.SliceOfN(rapid.Byte(), 0, 20),
			rapid.Map(rapid.StringN(0, 20, 60), func(s string) []byte { return []byte(s) }),
		), 0, 12).Draw(t, "pieces")
		c := capture{most: most}
		var whole []byte
		for _, p := range pieces {
			if n, err := c.Write(p); n != len(p) || err != nil {
				t.Fatalf("Write: %d of %d, %v", n, len(p), err)
			}
			whole = append(whole, p...)
		}
		if c.total != int64(len(whole)) {
			t.Fatalf("counted %d of %d bytes", c.total, len(whole))
		}
		got, all := c.result()
		if all != (len(whole) <= most) {
			t.Fatalf("all is %v with %d bytes and a bound of %d", all, len(whole), most)
		}
		if all {
			if got != string(whole) {
				t.Fatalf("got %q, want %q", got, whole)
			}
			return
		}
		for missing := len(whole) - most; missing <= len(whole); missing++ {
			marker := fmt.Sprintf("\n... (%d bytes truncated) ...\n", missing)
			if i := strings.Index(got, marker); i >= 0 {
				head, tail := got[:i], got[i+len(marker):]
				if len(head)+len(tail)+missing != len(whole) {
					continue // a text of the command's that looks like it
				}
				if !strings.HasPrefix(string(whole), head) || !strings.HasSuffix(string(whole), tail) {
					t.Fatalf("%q is not made of the ends of %q", got, whole)
				}
				if len(head) < most/2-3 || len(tail) < most-most/2-3 {
					t.Fatalf("only %d and %d bytes kept of %d", len(head), len(tail), most)
				}
				if utf8.Valid(whole) && !utf8.ValidString(got) {
					t.Fatalf("a character was cut: %q", got)
				}
				return
			}
		}
		t.Fatalf("%q does not say how much of %d bytes is missing", got, len(whole))
	})
}

func TestEndErrors(t *testing.T) {
	for reason, closed := range map[string]bool{"closed": true, "oom": false, "owner_gone": false, "violation": false, "sandbox_died": false, "keeper_died": false, "killed by someone": false} {
		err := error(&EndError{Reason: reason, MemoryMiB: 256})
		if !errors.Is(err, ErrEnded) || errors.Is(err, ErrClosed) != closed {
			t.Errorf("%s: ErrEnded %v, ErrClosed %v", reason, errors.Is(err, ErrEnded), errors.Is(err, ErrClosed))
		}
		if reason == "oom" != strings.Contains(err.Error(), "256 MiB") {
			t.Errorf("%s: %v", reason, err)
		}
	}
}

func TestGuestErrors(t *testing.T) {
	for code, want := range map[connect.Code]error{
		connect.CodeNotFound: ErrNotFound, connect.CodeUnauthenticated: ErrNotFound, connect.CodeResourceExhausted: ErrDiskFull,
		connect.CodeInternal: nil,
	} {
		cause := connect.NewError(code, errors.New("what the guest said"))
		err := fromGuest(fmt.Errorf("asking: %w", cause))
		for _, kind := range []error{ErrNotFound, ErrDiskFull} {
			if errors.Is(err, kind) != (kind == want) {
				t.Errorf("%v: %v", code, err)
			}
		}
		if err.Error() != "what the guest said" || connect.CodeOf(err) != code {
			t.Errorf("%v became %v", code, err)
		}
	}
	plain := errors.New("no guest's")
	if fromGuest(plain) != plain {
		t.Error("an error that is not the guest's was changed")
	}
}

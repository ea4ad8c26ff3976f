package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"ravi/internal/command"
	"ravi/internal/secret"
)

// asked runs askValue on a terminal, and gives the other end of it once the question stands there.
func asked(t *testing.T, ctx context.Context) (keyboard, screen *os.File, answer chan error, value *secret.Value) {
	t.Helper()
	keyboard, screen, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keyboard.Close(); screen.Close() })
	said, say := io.Pipe()
	answer, value = make(chan error, 1), new(secret.Value)
	go func() {
		defer say.Close()
		var err error
		*value, err = askValue(ctx, &command.Env{Stdin: screen, Stderr: say, StdinTerminal: true}, "NAME")
		answer <- err
	}()
	question := "value of NAME (it is not shown): "
	got := make([]byte, len(question))
	if _, err := io.ReadFull(said, got); err != nil || string(got) != question {
		t.Fatalf("asked %q, %v", got, err)
	}
	go io.Copy(io.Discard, said)
	return keyboard, screen, answer, value
}

func echoes(t *testing.T, f *os.File) bool {
	t.Helper()
	state, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return state.Lflag&unix.ECHO != 0
}

// What is typed is not shown, and the terminal is afterwards as it was.
func TestAskedValueIsNotShown(t *testing.T) {
	keyboard, screen, answer, value := asked(t, t.Context())
	if _, err := io.WriteString(keyboard, "canary-value-1\n"); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; err != nil || value.Reveal() != "canary-value-1" {
		t.Fatalf("got %q, %v", value.Reveal(), err)
	}
	if !echoes(t, screen) {
		t.Error("the terminal shows nothing any more")
	}
	// What the terminal showed comes before what is written to it now.
	if _, err := io.WriteString(screen, "end"); err != nil {
		t.Fatal(err)
	}
	var shown bytes.Buffer
	for b := make([]byte, 1); !strings.HasSuffix(shown.String(), "end"); shown.Write(b) {
		if _, err := keyboard.Read(b); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Contains(shown.String(), "canary") {
		t.Errorf("the terminal showed %q", shown.String())
	}
}

// Who is interrupted while being asked gets the terminal back as it was.
func TestAskedValueInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	keyboard, screen, answer, _ := asked(t, ctx)
	if echoes(t, screen) {
		t.Error("it would be shown")
	}
	cancel()
	if err := <-answer; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if !echoes(t, screen) {
		t.Error("the terminal shows nothing any more")
	}
	io.WriteString(keyboard, "\n") // lets the reader go
}

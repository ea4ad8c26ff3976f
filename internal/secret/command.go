package secret

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"ravi/internal/redact"
	"ravi/internal/strictjson"
)

const (
	commandTime = 30 * time.Second
	maxOutput   = 64 << 10 // bytes that a command may print
	maxTail     = 2 << 10  // bytes of its complaints that are told
	maxArgv     = 32 << 10 // bytes of the program and its arguments
)

// checkArgv refuses what is no program.
func checkArgv(argv []string) error {
	if len(argv) == 0 || argv[0] == "" {
		return refuse(ErrSource, "write it after --, such as: --command -- gh auth token", "no program is named")
	}
	size := 0
	for _, a := range argv {
		size += len(a)
		if !utf8.ValidString(a) || strings.ContainsRune(a, 0) {
			return refuse(ErrSource, "", "a word of the command is not text")
		}
	}
	if size > maxArgv {
		return refuse(ErrSource, "put it into a script", "the command has more than %d bytes", maxArgv)
	}
	if strings.Contains(argv[0], "/") && !filepath.IsAbs(argv[0]) {
		return refuse(ErrSource, "write its whole path, or its name alone if it is in your PATH", "the program's path does not begin with /")
	}
	return nil
}

// runCommand runs the program that prints a value. It runs as the user does, without a shell, and in Ravi's home: what
// lies in the repository of a run is not its configuration.
func (s *Store) runCommand(ctx context.Context, name string, argv []string) (held, error) {
	within, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	cmd := exec.CommandContext(within, argv[0], argv[1:]...)
	cmd.Dir = s.home
	// A group of its own, so that what it started ends with it when its time is over.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	out, complaints := &head{most: maxOutput, full: cancel}, &tail{most: maxOutput}
	cmd.Stdout, cmd.Stderr = out, complaints

	fail := func(format string, args ...any) (held, error) {
		message := fmt.Sprintf("the command %s of the secret %s %s", filepath.Base(argv[0]), name, fmt.Sprintf(format, args...))
		if said := complaints.without(out.data); said != "" {
			message += ":\n" + said
		}
		return held{}, refuse(ErrSource, "try it by itself, then: ravi secrets show "+name+" --check", "%s", message)
	}
	err := cmd.Run()
	exit := (*exec.ExitError)(nil)
	switch {
	case ctx.Err() != nil:
		return held{}, ctx.Err()
	case out.over:
		return fail("prints more than %d bytes", maxOutput)
	case within.Err() != nil:
		return fail("did not end within %s", s.patience)
	case errors.As(err, &exit):
		return fail("failed (%s)", exit)
	case err != nil && !errors.Is(err, exec.ErrWaitDelay): // something that it left behind holds its output; all is there
		return fail("cannot be run: %s", err)
	}
	value, until, err := parseOutput(out.data)
	if err != nil {
		return fail("printed no secret: %s", err)
	}
	return held{value: value, from: s.now(), until: until}, nil
}

// parseOutput reads what a command printed: an object with the value and its end, or the value alone. No error repeats
// a part of it.
func parseOutput(out []byte) (Value, time.Time, error) {
	text := strings.TrimRight(string(out), "\r\n")
	if !strings.HasPrefix(strings.TrimSpace(text), "{") {
		return NewValue(text), time.Time{}, checkValue(text)
	}
	var got struct {
		Value     string    `json:"value"`
		ExpiresAt time.Time `json:"expires_at"`
	}
	if strictjson.Decode(out, &got) != nil {
		return Value{}, time.Time{}, errors.New(`its output begins with {, and is not {"value": "…", "expires_at": "2026-01-31T12:00:00Z"}, of which the second may be missing`)
	}
	return NewValue(got.Value), got.ExpiresAt, checkValue(got.Value)
}

// head keeps the beginning of a stream, and says when there is more. It is a writer and nothing else: what could read
// a stream to its end by itself would know no bound.
type head struct {
	data []byte
	most int
	full func()
	over bool
}

func (h *head) Write(p []byte) (int, error) {
	if len(h.data)+len(p) > h.most {
		h.over = true
		h.full()
		return 0, errors.New("too much")
	}
	h.data = append(h.data, p...)
	return len(p), nil
}

// tail keeps the end of a stream.
type tail struct {
	data []byte
	most int
	cut  bool
}

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	if over := len(t.data) - t.most; over > 0 {
		t.data, t.cut = append(t.data[:0], t.data[over:]...), true
	}
	return len(p), nil
}

// without is the end of what was said, without anything that was printed on the other stream. What a command says of
// its secrets in words of its own cannot be told apart from other words.
func (t *tail) without(printed []byte) string {
	text := string(t.data)
	if t.cut {
		// The first line lacks its beginning, and a part of a value would not be found.
		_, text, _ = strings.Cut(text, "\n")
	}
	var pairs []redact.Pair
	for _, s := range fragments(printed) {
		pairs = append(pairs, redact.Pair{Secret: s, Instead: hidden})
	}
	text = strings.TrimSpace(strings.ToValidUTF8(redact.New(pairs...).String(text), "\uFFFD"))
	if over := len(text) - maxTail; over > 0 {
		text = "…" + strings.ToValidUTF8(text[over:], "")
	}
	return text
}

// fragments are the parts of an output that could be a value: the one that is found in it, its lines and its words.
func fragments(printed []byte) []string {
	const most = 64 // the search costs time for each
	var out []string
	add := func(s string) {
		if len(s) >= MinValue && len(out) < most && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	if v, _, err := parseOutput(printed); err == nil {
		add(v.Reveal())
	}
	for line := range strings.Lines(string(printed)) {
		add(strings.TrimSpace(line))
	}
	for _, word := range strings.FieldsFunc(string(printed), func(r rune) bool { return strings.ContainsRune(" \t\r\n\"'", r) }) {
		add(word)
	}
	return out
}

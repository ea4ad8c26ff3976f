// Package secret keeps credentials at rest, and gets their values from where they come: stored ones, programs that
// print one, and GitHub Apps, whose tokens are made for one repository and end by themselves.
//
// A secret is a name, a binding that says where its value may go, and a source. The store is one file in Ravi's home,
// secrets.age, encrypted with the key beside it, secrets.key. What a run holds is a Lease: it gives the value when it
// is needed, gets a new one before the old one ends, and gives back in the end what can be given back.
//
// The package reads and writes secrets.age, secrets.key and secrets.lock, runs the programs that its secrets name, and
// talks to the API that a GitHub App belongs to. It never writes a value in the clear, and no error, printed value or
// document of its own holds one. It knows nothing of sandboxes, of their network or of the command line, and decides
// nothing about requests: who puts a value into one keeps to the binding.
package secret

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// The causes of errors, for errors.Is.
var (
	// ErrNotFound says that no secret has this name.
	ErrNotFound = errors.New("no such secret")
	// ErrName refuses a name.
	ErrName = errors.New("not a name for a secret")
	// ErrValue refuses a value.
	ErrValue = errors.New("not a value of a secret")
	// ErrBinding refuses a binding.
	ErrBinding = errors.New("refused binding")
	// ErrSource refuses a source, or says that it gave no value.
	ErrSource = errors.New("the source gave no value")
	// ErrScope refuses a token that would be worth more than the run needs.
	ErrScope = errors.New("too wide")
	// ErrKey says that the key of the store is missing, is no key, or could have been read or made by others.
	ErrKey = errors.New("the key of the secrets cannot be used")
	// ErrDamaged says that the store cannot be read.
	ErrDamaged = errors.New("the secrets cannot be read")
	// ErrNewer says that a newer ravi wrote the store.
	ErrNewer = errors.New("the secrets were written by a newer ravi")
	// ErrEnded says that a lease was ended before.
	ErrEnded = errors.New("the lease has ended")
)

// Error is what people are told: what happened, and what mends it. Neither holds a value.
type Error struct {
	Message string
	Hint    string
	Err     error // one of the causes above, and what is beneath it
}

func (e *Error) Error() string { return e.Message }

func (e *Error) Unwrap() error { return e.Err }

func refuse(cause error, hint, format string, args ...any) *Error {
	return &Error{Message: fmt.Sprintf(format, args...), Hint: hint, Err: cause}
}

// The bounds of a value, in bytes. A shorter one would be found in text that has nothing to do with it, and a longer
// one is taken by no server in a header.
const (
	MinValue = 8
	MaxValue = 16384
)

// hidden is what is shown of a value.
const hidden = "[secret]"

// Value is a text that must not be shown: no way of printing or encoding it shows it, also when it is a field that
// nobody exported, which printing reads past all methods. The zero Value is none.
type Value struct {
	// A function is printed as an address, whatever prints it.
	reveal func() string
}

// NewValue wraps a text. What a value may be is checked where it is stored.
func NewValue(text string) Value {
	if text == "" {
		return Value{}
	}
	return Value{func() string { return text }}
}

// Reveal is the text itself.
func (v Value) Reveal() string {
	if v.reveal == nil {
		return ""
	}
	return v.reveal()
}

// IsZero says that there is no value.
func (v Value) IsZero() bool { return v.reveal == nil }

func (v Value) String() string { return hidden }

// GoString is what %#v shows.
func (v Value) GoString() string { return hidden }

// Format is what every other verb shows.
func (v Value) Format(s fmt.State, _ rune) { io.WriteString(s, hidden) }

// MarshalText is what every encoding shows, JSON included.
func (v Value) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// LogValue is what a log shows.
func (v Value) LogValue() slog.Value { return slog.StringValue(hidden) }

// ReadValue reads a value from a file or a stream, to its end. One line break in the end is taken off.
func ReadValue(r io.Reader) (Value, error) {
	b, err := io.ReadAll(io.LimitReader(r, MaxValue+3)) // a value, its line break, and one byte too many
	if err != nil {
		return Value{}, fmt.Errorf("cannot read the value: %w", err)
	}
	text := chomp(string(b))
	return NewValue(text), checkValue(text)
}

// chomp takes one line break off.
func chomp(text string) string { return strings.TrimSuffix(strings.TrimSuffix(text, "\n"), "\r") }

// checkValue refuses what cannot stand in a header of HTTP, or is no secret. It says nothing of the text but its length.
func checkValue(text string) error {
	const headers = "a secret is one line, as it stands in a header of a request"
	switch {
	case text == "":
		return refuse(ErrValue, "", "the value is empty")
	case len(text) > MaxValue:
		return refuse(ErrValue, "", "the value has more than %d bytes", MaxValue)
	case !utf8.ValidString(text):
		return refuse(ErrValue, headers, "the value is not UTF-8 text")
	case strings.ContainsAny(text, "\r\n"):
		return refuse(ErrValue, headers, "the value has more than one line")
	case strings.IndexFunc(text, unicode.IsControl) >= 0:
		return refuse(ErrValue, headers, "the value holds a control character")
	case strings.TrimSpace(text) == "":
		return refuse(ErrValue, "", "the value is nothing but spaces")
	case strings.TrimSpace(text) != text:
		return refuse(ErrValue, "a header's value loses them on its way", "the value begins or ends with a space")
	case len(text) < MinValue:
		return refuse(ErrValue, "what is this short is guessed, and found in text that has nothing to do with it",
			"the value has %d bytes; a secret has at least %d", len(text), MinValue)
	}
	return nil
}

// Kind is where the value of a secret comes from.
type Kind string

// The kinds of sources.
const (
	Stored  Kind = "value"      // it is stored itself
	Command Kind = "command"    // a program prints it
	GitHub  Kind = "github_app" // a GitHub App makes it
)

// Secret is all about a secret but its value.
type Secret struct {
	Name string `json:"name"`
	Binding
	Source Kind `json:"source"`
	// Argv is the program and its arguments, for Command.
	Argv []string `json:"command,omitempty"`
	// App is set for GitHub.
	App       *App      `json:"github_app,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

// Source is where a value comes from, as it is set: exactly one of the three.
type Source struct {
	Value Value
	Argv  []string
	App   *AppSource
}

// kind is which of the three it is.
func (s *Source) kind() (Kind, error) {
	var given []Kind
	if !s.Value.IsZero() {
		given = append(given, Stored)
	}
	if s.Argv != nil {
		given = append(given, Command)
	}
	if s.App != nil {
		given = append(given, GitHub)
	}
	if len(given) != 1 {
		return "", refuse(ErrSource, "", "a secret has one source: a value, a command or a GitHub App; there are %d", len(given))
	}
	return given[0], nil
}

// MaxName is the length of the longest name, in bytes.
const MaxName = 64

var nameForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// CheckName refuses what is no name for a secret. Since that may be a value in the wrong place, it is not repeated.
func CheckName(name string) error {
	const form = "a name is made of letters, digits and _, such as GITHUB_TOKEN; it begins with no digit"
	switch {
	case name == "":
		return refuse(ErrName, form, "the name of the secret is empty")
	case len(name) > MaxName:
		return refuse(ErrName, form, "the name of the secret has more than %d bytes", MaxName)
	case strings.Contains(name, "="):
		return refuse(ErrName, form, "there is a = in the name of the secret; the value does not stand beside it")
	case !nameForm.MatchString(name):
		return refuse(ErrName, form, "the name of the secret holds a character that no name has")
	}
	return nil
}

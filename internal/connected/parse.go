package connected

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// maxText bounds what is read of a file or of standard input for one field.
const maxText = 1 << 20

// call is a command with its input.
type call struct {
	body       map[string]any
	json, help bool
}

// parser reads the arguments of one command.
type parser struct {
	cmd     *Command
	stdin   io.Reader // nil once it has been read
	call    *call
	args    []*Field // that are still to be given
	literal bool     // after --
}

// parse turns what follows the command's name into the body of the call. Nothing gets into the body that does not
// stand in the arguments, or in a file that they name.
func (c *Command) parse(args []string, stdin io.Reader) (*call, *failure) {
	p := &parser{cmd: c, stdin: stdin, call: &call{body: map[string]any{}}, args: c.args()}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		more, err := p.word(arg, args[i+1:])
		if err != nil {
			return nil, err
		}
		if p.call.help {
			return p.call, nil
		}
		i += more
	}
	for _, f := range p.args {
		if !f.Optional && !(f.Rest && p.call.body[f.Name] != nil) {
			return nil, p.usage("%s is missing", f.Arg)
		}
	}
	return p.call, nil
}

func (p *parser) usage(format string, args ...any) *failure {
	return usage("see "+p.cmd.line()+" --help", format, args...)
}

// word reads one argument, and says how many of the next ones belong to it.
func (p *parser) word(arg string, next []string) (more int, err *failure) {
	switch {
	case p.literal || arg == "-" || !strings.HasPrefix(arg, "-"):
		return 0, p.argument(arg)
	case arg == "--":
		p.literal = true
		return 0, nil
	case len(p.args) > 0 && p.args[0].Rest && p.call.body[p.args[0].Name] != nil:
		// Whose flag it is cannot be known: in `exec BOX ls --all` it would be that of ls.
		return 0, usage("write flags before it, or -- before words that are to be taken as they are",
			"%s stands after %s…", name(arg), p.args[0].Arg)
	case strings.HasPrefix(arg, "--"):
		return p.long(arg, next)
	}
	return p.shorts(arg, next)
}

// name is a flag without its value, which might be a secret.
func name(arg string) string {
	n, _, _ := strings.Cut(arg, "=")
	return n
}

func (p *parser) long(arg string, next []string) (more int, err *failure) {
	dashed, value, hasValue := strings.Cut(arg, "=")
	known, err := global(dashed, value, hasValue, &p.call.json, &p.call.help)
	if known || err != nil {
		return 0, err
	}
	set := p.set
	f := p.cmd.flag(dashed[2:])
	if f == nil {
		// Every text can come from a file.
		base, ok := strings.CutSuffix(dashed[2:], "-file")
		if f = p.cmd.flag(base); !ok || f == nil || f.Type != typeString {
			return 0, p.unknown(dashed)
		}
		set = p.setFile
	}
	switch {
	case hasValue:
	case f.Type == typeBoolean:
		value = "true"
	case len(next) == 0:
		return 0, p.usage("%s needs a value", dashed)
	default:
		value, more = next[0], 1
	}
	return more, set(f, dashed, value)
}

func (p *parser) unknown(flag string) *failure {
	var names []string
	for _, f := range p.cmd.Fields {
		if f.Flag != "" {
			names = append(names, f.Flag)
		}
	}
	return usage(didYouMean(strings.TrimLeft(flag, "-"), "--", append(names, "json", "help"), "see "+p.cmd.line()+" --help"), "unknown flag: %s", flag)
}

// shorts reads letters: -n 5, -n5, -n=5, and -an5 when a needs no value.
func (p *parser) shorts(arg string, next []string) (more int, err *failure) {
	for rest := arg[1:]; rest != ""; {
		_, size := utf8.DecodeRuneInString(rest)
		dashed := "-" + rest[:size]
		rest = rest[size:]
		known, err := global(dashed, "", false, &p.call.json, &p.call.help)
		switch {
		case err != nil:
			return 0, err
		case known:
			continue
		}
		f := p.cmd.short(dashed[1:])
		if f == nil {
			return 0, p.unknown(dashed)
		}
		if f.Type == typeBoolean && !strings.HasPrefix(rest, "=") {
			if err := p.set(f, dashed, "true"); err != nil {
				return 0, err
			}
			continue
		}
		if rest != "" {
			return 0, p.set(f, dashed, strings.TrimPrefix(rest, "="))
		}
		if len(next) == 0 {
			return 0, p.usage("%s needs a value", dashed)
		}
		return 1, p.set(f, dashed, next[0])
	}
	return 0, nil
}

// argument gives an argument to the field whose turn it is.
func (p *parser) argument(arg string) *failure {
	if len(p.args) == 0 {
		return p.usage("%q is one argument too many", arg)
	}
	f := p.args[0]
	if !f.Rest {
		p.args = p.args[1:]
	}
	if p.literal && f.Type == typeString {
		return p.put(f, f.Arg, arg)
	}
	return p.set(f, f.Arg, arg)
}

// set adds a text to a field. A single - is what stands on standard input.
func (p *parser) set(f *Field, called, text string) *failure {
	if f.Type == typeString && text == "-" {
		return p.setFile(f, called, text)
	}
	return p.put(f, called, text)
}

// setFile fills a field from a file, or from standard input.
func (p *parser) setFile(f *Field, called, path string) *failure {
	from := "standard input"
	in := p.stdin
	if path == "-" {
		if in == nil {
			return p.usage("%s: standard input was read already", called)
		}
		p.stdin = nil
	} else {
		file, err := os.Open(path)
		if err != nil {
			return p.usage("%s: %v", called, err)
		}
		defer file.Close()
		in, from = file, path
	}
	text, err := io.ReadAll(io.LimitReader(in, maxText+1))
	switch {
	case err != nil:
		return p.usage("%s: %v", called, err)
	case len(text) > maxText:
		return p.usage("%s: %s is longer than %d bytes", called, from, maxText)
	}
	return p.put(f, called, string(text))
}

// put adds a text to a field, as it is.
func (p *parser) put(f *Field, called, text string) *failure {
	if !utf8.ValidString(text) {
		// JSON has no way to say it, and something else must not be sent instead.
		return p.usage("%s: this is not UTF-8 text", called)
	}
	v, err := f.value(p.call.body[f.Name], text)
	if err != nil {
		return p.usage("%s: %v", called, err)
	}
	p.call.body[f.Name] = v
	return nil
}

// value is the JSON value of a text, added to what was given before.
func (f *Field) value(before any, text string) (any, error) {
	switch f.Type {
	case typeBoolean:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return nil, errors.New("write true or false")
		}
		return b, nil
	case typeInteger:
		if i, err := strconv.ParseInt(text, 10, 64); err == nil {
			return i, nil
		}
		u, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return nil, errors.New("write a whole number")
		}
		return u, nil
	case typeNumber:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			return nil, errors.New("write a number")
		}
		return n, nil
	case typeDuration:
		if _, err := time.ParseDuration(text); err != nil {
			return nil, errors.New("write a duration like 30s, 5m or 2h")
		}
		return text, nil
	case typeStrings:
		list, _ := before.([]string)
		return append(list, text), nil
	case typeMap:
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return nil, errors.New("write NAME=VALUE")
		}
		m, _ := before.(map[string]string)
		if m == nil {
			m = map[string]string{}
		}
		if _, twice := m[key]; twice {
			return nil, fmt.Errorf("%q is given twice", key)
		}
		m[key] = value
		return m, nil
	}
	return text, nil
}

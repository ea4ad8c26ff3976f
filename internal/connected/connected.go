// Package connected is the `ravi` that a program finds inside a sandbox: a client of the gateway, and nothing else. It
// knows no command. What there is, and which flags it takes, the gateway tells, and only what the caller's key may use.
//
// It reads the environment, its arguments, standard input and the files that are named to it, and speaks to the one
// address in RAVI_GATEWAY_URL. It must never do anything locally instead, send the key elsewhere or show it, follow a
// redirect, use a proxy, or repeat a write whose outcome is not known. It is part of the guest agent: it does nothing
// until it is called, and needs nothing that the agent does not need as well.
package connected

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"ravi/internal/strictjson"
	"ravi/internal/term"
)

// Exit codes.
const (
	ExitFailed      = 1
	ExitUsage       = 2
	ExitUnavailable = 69 // nobody answered in time, as EX_UNAVAILABLE of sysexits.h
)

// Codes of the errors that are made here; the gateway has more.
const (
	codeUsage       = "USAGE"
	codeRequired    = "GATEWAY_REQUIRED"
	codeUnavailable = "UNAVAILABLE"
	codeDenied      = "DENIED"
	codeUncertain   = "UNCERTAIN" // a write was sent, and no answer came
	codeInternal    = "INTERNAL"
)

// failure is an error as it is told to people and programs.
type failure struct {
	code, message, hint string
	exit                int
}

func (f *failure) Error() string { return f.message }

func usage(hint, format string, args ...any) *failure {
	return &failure{code: codeUsage, message: fmt.Sprintf(format, args...), hint: hint, exit: ExitUsage}
}

func nonsense(format string, args ...any) *failure {
	return &failure{
		code: codeInternal, message: fmt.Sprintf(format, args...), exit: ExitFailed,
		hint: "this is a fault of the gateway or of what stands before it; nothing here can mend it",
	}
}

// Program is one call of the client.
type Program struct {
	Getenv         func(string) string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Version        string
	// Socket is the gateway's where RAVI_GATEWAY_URL does not name another; empty inside a sandbox, which has none.
	Socket string

	sleep func(context.Context, time.Duration) error // of a test
	now   func() time.Time
}

// Main is the client with the process's own streams and environment. It gives the exit code.
func Main(args []string, version string) int {
	log.SetOutput(io.Discard) // net/http's own words about a strange answer are not for the caller
	p := &Program{Getenv: os.Getenv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Version: version}
	return p.Run(context.Background(), args)
}

// Run does what the arguments, without the program's name, ask for, and gives the exit code.
func (p *Program) Run(ctx context.Context, args []string) int {
	exit, err := p.run(ctx, args)
	if err != nil {
		return p.fail(err, wantsJSON(args))
	}
	return exit
}

func (p *Program) run(ctx context.Context, args []string) (exit int, err *failure) {
	top, err := parseTop(args)
	switch {
	case err != nil:
		return 0, err
	case top.version:
		where := " (the client inside a sandbox)"
		if p.Socket != "" {
			where = ""
		}
		return 0, p.print("ravi " + p.Version + where + "\n")
	}
	to, err := targetOf(p.Getenv, p.Socket)
	if err != nil {
		if top.help && len(top.words) == 0 {
			// Help is for those, too, who have nothing yet.
			return 0, p.print(helpTop(nil, err))
		}
		return 0, err
	}
	c := newClient(to, p.sleep, p.now)
	defer c.close()
	reg, err := c.registry(ctx)
	if err != nil {
		if top.help && len(top.words) == 0 {
			_ = p.print(helpTop(nil, nil)) // what can be said without it; the error is told as well
		}
		return 0, err
	}
	if len(top.words) == 0 {
		return 0, p.print(helpTop(reg, nil))
	}
	cmd, rest, err := reg.find(top.words)
	if err != nil {
		return 0, p.denied(ctx, c, top.words, err)
	}
	if cmd == nil {
		if err := onlyGlobals(rest); err != nil {
			return 0, err
		}
		return 0, p.print(helpGroup(reg, top.words[0]))
	}
	if err := cmd.check(); err != nil {
		return 0, err
	}
	if top.help {
		return 0, p.print(helpCommand(cmd))
	}
	call, err := cmd.parse(rest, p.Stdin)
	switch {
	case err != nil:
		return 0, err
	case call.help:
		return 0, p.print(helpCommand(cmd))
	}
	return p.ask(ctx, c, cmd, call, top.json || call.json)
}

// denied asks the gateway for a command that it did not name, so that it says what the key lacks, and writes it down that
// it was asked for. Where it says anything else, the command is not known.
func (p *Program) denied(ctx context.Context, c *client, words []string, unknown *failure) *failure {
	if len(words) < 2 || !word(words[0], '-') || !word(words[1], '-') {
		return unknown
	}
	_, err := c.do(ctx, request{method: "POST", path: "/api/v1/" + words[0] + "/" + words[1], body: []byte("{}"), accept: "application/json", what: words[0] + "." + words[1], most: maxAnswer})
	if err != nil && err.code == codeDenied {
		return err
	}
	return unknown
}

// ask has the gateway do the command, and prints its answer.
func (p *Program) ask(ctx context.Context, c *client, cmd *Command, call *call, asJSON bool) (exit int, err *failure) {
	body, jerr := json.Marshal(call.body)
	if jerr != nil {
		return 0, usage("", "what was given cannot be sent: %v", jerr)
	}
	if len(body) > maxBody {
		return 0, usage("send less, or in parts", "what was given takes %d bytes, more than the %d that the gateway accepts", len(body), maxBody)
	}
	accept := "text/plain"
	if asJSON {
		accept = "application/json"
	}
	a, err := c.do(ctx, request{method: "POST", path: cmd.path(), body: body, accept: accept, repeat: cmd.Access == "read", what: cmd.full(), most: maxAnswer})
	if err != nil {
		return 0, err
	}
	if exit, err = a.exit(); err != nil {
		return 0, err
	}
	// A command that has nothing to show to people but its JSON may answer so.
	if asJSON || a.json() {
		if !json.Valid(a.body) {
			return 0, nonsense("the gateway's answer is not JSON")
		}
		return exit, p.printJSON(a.body)
	}
	return exit, p.print(string(a.body))
}

// fail tells an error, and gives the exit code. People read it on stderr; with --json it is the one document on
// stdout, where a program looks for the answer.
func (p *Program) fail(f *failure, asJSON bool) int {
	if asJSON {
		var doc struct {
			Error struct {
				Code    string `json:"code"`
				Message string `json:"message"`
				Hint    string `json:"hint"`
			} `json:"error"`
		}
		doc.Error.Code, doc.Error.Message, doc.Error.Hint = f.code, f.message, f.hint
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if enc.Encode(doc) == nil && p.printJSON(b.Bytes()) == nil {
			return f.exit
		}
	}
	text := "error: " + inside(f.message) + "\n"
	if f.hint != "" {
		text += "hint: " + inside(f.hint) + "\n"
	}
	// There is nobody left to tell that this failed.
	_, _ = io.WriteString(p.Stderr, p.mask(text))
	return f.exit
}

// inside keeps what a message says inside the message: no line of it can look like one of ours.
func inside(s string) string {
	return strings.ReplaceAll(strings.TrimRight(term.SafeText(s), "\n"), "\n", "\n  ")
}

// print writes text, without anything that a terminal would obey.
func (p *Program) print(text string) *failure {
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return p.write([]byte(p.mask(term.SafeText(text))))
}

// printJSON writes a document so that it means the same, and a terminal obeys none of it.
func (p *Program) printJSON(doc []byte) *failure {
	doc = term.SafeJSON(bytes.ToValidUTF8(doc, []byte("\uFFFD")))
	return p.write([]byte(p.mask(strings.TrimRight(string(doc), "\n") + "\n")))
}

func (p *Program) write(b []byte) *failure {
	if _, err := p.Stdout.Write(b); err != nil {
		return &failure{code: codeInternal, message: "the result cannot be printed: " + err.Error(), exit: ExitFailed}
	}
	return nil
}

// mask takes the caller's own key out of what is shown. Nothing here puts it in; the gateway, or the arguments, might.
func (p *Program) mask(s string) string { return mask(s, p.Getenv(envKey)) }

// top is what stands before the command.
type top struct {
	words               []string // the group, and all that follows it
	json, help, version bool
}

// parseTop reads the flags that may stand before the group.
func parseTop(args []string) (top, *failure) {
	var t top
	for i, arg := range args {
		name, value, hasValue := strings.Cut(arg, "=")
		switch {
		case arg == "-v" || arg == "--version":
			t.version = true
		case arg == "help":
			t.help = true // of what follows
		case arg == "" || arg[0] != '-':
			t.words = args[i:]
			return t, nil
		default:
			known, err := global(name, value, hasValue, &t.json, &t.help)
			if err != nil {
				return t, err
			}
			if !known {
				return t, usage("see ravi --help", "unknown flag %s before the command", name)
			}
		}
	}
	return t, nil
}

// global reads the flags that every command has.
func global(name, value string, hasValue bool, asJSON, help *bool) (known bool, err *failure) {
	var into *bool
	switch name {
	case "--json":
		into = asJSON
	case "-h", "--help":
		into = help
	case "-q", "--quiet":
		into = new(bool) // there is no progress to leave out
	default:
		return false, nil
	}
	*into = true
	if hasValue {
		v, err := strconv.ParseBool(value)
		if err != nil {
			return true, usage("", "%s: write true or false", name)
		}
		*into = v
	}
	return true, nil
}

// onlyGlobals refuses what stands after a group that is only asked for help.
func onlyGlobals(args []string) *failure {
	for _, arg := range args {
		name, value, hasValue := strings.Cut(arg, "=")
		known, err := global(name, value, hasValue, new(bool), new(bool))
		if err != nil {
			return err
		}
		if !known {
			return usage("write the command before its flags: ravi GROUP COMMAND [flags] [arguments]", "unknown flag %s before the command", name)
		}
	}
	return nil
}

// wantsJSON says whether --json stands on the command line before a --: a usage error must know before flags are
// parsed, since parsing is what failed.
func wantsJSON(args []string) bool {
	for _, arg := range args {
		switch arg {
		case "--":
			return false
		case "--json", "--json=true":
			return true
		}
	}
	return false
}

// didYouMean is a hint that names what was most likely meant, or otherwise.
func didYouMean(wrong, before string, names []string, otherwise string) string {
	slices.Sort(names)
	if near := strictjson.Nearest(wrong, names); near != "" {
		return "did you mean " + before + near + "?"
	}
	return otherwise
}

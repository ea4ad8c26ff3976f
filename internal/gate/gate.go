// Package gate says what a shell command would do before it runs: allow, ask a person, or deny. The registry of an
// agent's tools calls it for every backend alike, since a sandbox does not relax permissions.
//
// What it is: a seat belt, and the source of the question that a person is asked. It reads a command as bash would,
// with a real parser, and follows what can be known without running it: quotes, variables, functions, aliases,
// substitutions whose output is known, here-documents and pipes into shells, wrappers (sudo, env, xargs, find -exec),
// and folders changed into. Where a branch may or may not be taken, both are judged. A deny is never approvable; an ask
// goes to a person, and is a refusal where there is none. What cannot be understood asks.
//
// What it is not: the boundary. The sandbox is. A program that the gate does not know, a script on the disk, a Makefile,
// a compiled program and an interpreter's text can do what they like; of such text the gate only looks whether it names
// what would be asked or denied. It judges what bash would do; where another shell reads the same text otherwise, it is
// not that shell's judge. It knows no files: links, and what a program's name leads to, are not looked at.
//
// It is pure: it opens nothing, starts nothing, asks no network, keeps no state between two commands, knows no sandbox,
// and its work is bounded. It imports nothing of ours, and must not.
package gate

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Decision is what becomes of a command. The larger one wins.
type Decision int

// The decisions.
const (
	Allow Decision = iota
	Ask            // a person says yes to this very command, or it is refused
	Deny           // nobody can say yes
)

// String is what people read.
func (d Decision) String() string {
	switch d {
	case Allow:
		return "allow"
	case Ask:
		return "ask"
	default:
		return "deny"
	}
}

// The families of what is asked about or denied.
const (
	Delete     = "delete"     // what cannot be had back
	Publish    = "publish"    // what others get to see
	Install    = "install"    // programs of others
	Remote     = "remote"     // another machine runs something of ours, or we something that was just loaded
	Credential = "credential" // keys and tokens
	VCS        = "vcs"        // history or uncommitted work is lost
	Fetch      = "fetch"      // a request that changes something
	Device     = "device"     // disks, written past their file system
	Power      = "power"      // the machine goes off
	Bomb       = "bomb"       // processes without end
	System     = "system"     // rights of the whole system
	Pattern    = "pattern"    // a pattern of the operator's
	Unclear    = "unclear"    // what it would do cannot be known before it runs
)

// Verdict is what the gate says of a command.
type Verdict struct {
	Decision Decision
	Family   string // of an Ask or a Deny
	Reason   string // for people: what in the command, and what it would do
	Part     string // the piece of the command, as far as it was resolved; free of control characters
}

// Options is what an operator says.
type Options struct {
	// ExtraDeny are regular expressions (RE2) that deny. Each is searched in the command as written, and in each simple
	// command as it would run, its words joined by spaces. Letters match as they are written: (?i) at a pattern's
	// beginning makes it match both cases.
	ExtraDeny []string
}

// ErrPattern says that a pattern of the operator's does not compile.
var ErrPattern = errors.New("not a regular expression")

// Gate judges commands. Many goroutines may use one.
type Gate struct{ extra []*regexp.Regexp }

// New makes a gate. A pattern that does not compile is refused here, and not when a command is judged.
func New(o Options) (*Gate, error) {
	g := &Gate{}
	for i, pattern := range o.ExtraDeny {
		re, err := regexp.Compile(pattern)
		if err != nil {
			return nil, fmt.Errorf("extra_deny_patterns[%d] %q is %w (%w): correct it, or take it out", i, pattern, ErrPattern, err)
		}
		if pattern == "" {
			return nil, fmt.Errorf("extra_deny_patterns[%d] is empty, which every command matches and is %w of use: take it out", i, ErrPattern)
		}
		g.extra = append(g.extra, re)
	}
	return g, nil
}

// The bounds of one judgement. What is beyond them asks.
const (
	maxCommand = 64 << 10 // bytes of a command
	maxNesting = 120      // brackets within brackets, in what is parsed
	maxDepth   = 16       // shells within shells, calls within calls
	maxSteps   = 6000     // statements, words, and what is as much work
	maxForms   = 12       // what a word may be, where it may be several things
	maxFields  = 256      // words that a brace expansion makes
	maxText    = 16 << 10 // bytes of a value, or of what a command prints
)

// Judge says what a command would do in the folder cwd. It never panics, and its time is bounded. An empty cwd is a
// folder that nobody knows, neither the root nor a home.
func (g *Gate) Judge(command, cwd string) (v Verdict) {
	defer func() {
		// The parser is another's, and the text is hostile: what breaks it is not understood.
		if r := recover(); r != nil {
			v = Verdict{Decision: Ask, Family: Unclear, Reason: "the command cannot be understood", Part: shown(command)}
		}
	}()
	return g.judge(command, cwd)
}

func (g *Gate) judge(command, cwd string) Verdict {
	j := &judge{gate: g}
	j.patterns(command)
	if j.best.Decision == Deny {
		return j.best
	}
	switch {
	case len(command) > maxCommand:
		j.found(Ask, Unclear, fmt.Sprintf("the command is longer than %d bytes", maxCommand), command)
	case !utf8.ValidString(command) || strings.ContainsFunc(command, reserved) || strings.Contains(command, "\\\r"):
		j.found(Ask, Unclear, "the command has bytes that shells read in different ways", command)
	default:
		st := newState(cwd)
		j.root = st.cwd[0]
		j.shell(st, command)
		j.ends(st)
	}
	return j.best
}

// Digest names a command exactly: an approval is bound to it, and to nothing that only looks alike.
func Digest(command string) string {
	sum := sha256.Sum256([]byte(command))
	return hex.EncodeToString(sum[:])
}

// judge is one judgement under way.
type judge struct {
	gate  *Gate
	best  Verdict
	root  string // the folder that the command starts in
	steps int
	depth int
	spent bool

	background, piped int // how deep in & and in | we are
	calls             []*frame
	loaded            bool // a substitution's text comes from the network
	pseudo            int  // files that process substitutions made
}

// found records what was found. The first of the gravest stays.
func (j *judge) found(d Decision, family, reason, part string) {
	if d > j.best.Decision {
		j.best = Verdict{Decision: d, Family: family, Reason: reason, Part: shown(part)}
	}
}

// atMost judges with do, and makes a question of what that would deny: it is not certain that it runs.
func (j *judge) atMost(limit Decision, why string, do func()) {
	before := j.best
	j.best = Verdict{}
	do()
	after := j.best
	j.best = before
	if after.Decision > limit {
		after.Decision, after.Reason = limit, after.Reason+why
	}
	if after.Decision > j.best.Decision {
		j.best = after
	}
}

// step counts work, and says whether there may be more of it.
func (j *judge) step() bool {
	if j.steps++; j.steps > maxSteps && !j.spent {
		j.spent = true
		j.found(Ask, Unclear, "the command is too much to look through", "")
	}
	// What is denied cannot become worse.
	return !j.spent && j.best.Decision != Deny
}

// charge counts work on much text.
func (j *judge) charge(bytes int) {
	const one = 512 // bytes are as much work as a step
	j.steps += bytes / one
}

// deeper runs do one level down, unless that is too deep.
func (j *judge) deeper(do func()) {
	if j.depth >= maxDepth {
		j.found(Ask, Unclear, "the command is nested too deeply to look through", "")
		return
	}
	j.depth++
	do()
	j.depth--
}

func (j *judge) patterns(text string) {
	for _, re := range j.gate.extra {
		if re.MatchString(text) {
			j.found(Deny, Pattern, "it matches "+re.String()+" of tools.exec.extra_deny_patterns", text)
		}
	}
}

// What is not known is written with runes that no command may have: they are of Unicode's private use.
const (
	hole     = "\uf8f0" // any text, within one word
	wild     = "\uf8f1" // any text, which may be any number of words
	some     = "\uf8f2" // a name, or several beneath one another: never empty, never climbing, no option
	homeDir  = "\uf8f3" // a home directory
	globMark = "\uf8f4" // what follows is a glob character that acts
)

func reserved(r rune) bool { return r >= '\uf8f0' && r <= '\uf8f4' || r == 0 }

// unknown says that a text has parts of which nothing is known.
func unknown(s string) bool { return strings.Contains(s, hole) || strings.Contains(s, wild) }

// symbolic says that a text is not what it will be.
func symbolic(s string) bool { return strings.ContainsFunc(s, reserved) }

// plain is a text for people and patterns.
var plain = strings.NewReplacer("/home/"+homeDir, "~", hole, "…", wild, "…", some, "…", homeDir, "~", globMark, "")

func shown(s string) string {
	const most = 200
	s = strings.TrimSpace(strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, plain.Replace(s)))
	if runes := []rune(s); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return s
}

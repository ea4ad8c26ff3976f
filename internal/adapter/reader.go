package adapter

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"
)

// What is read is bounded, whatever a program writes.
const (
	maxLine   = 1 << 20 // bytes; a longer line is left out
	maxText   = 64 << 10
	maxInput  = 256 << 10
	maxName   = 200
	maxEvents = 1000 // of one line
	headSize  = 64
)

// lines cuts what is written into lines.
type lines struct {
	*scribe
	line    func([]byte)
	buf     []byte
	skipped bool // the present line is too long
	closed  bool
}

// Write takes a part of the stream. It never fails.
func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 && !l.closed {
		part, rest, whole := bytes.Cut(p, []byte{'\n'})
		p = rest
		switch {
		case l.skipped:
		case len(l.buf)+len(part) > maxLine:
			// Its beginning says whether something is lost.
			l.skipped, l.buf = true, append(l.buf, part[:min(len(part), headSize)]...)
			l.buf = bytes.Clone(l.buf[:min(len(l.buf), headSize)])
		case whole && len(l.buf) == 0:
			l.take(part)
			continue
		default:
			l.buf = append(l.buf, part...)
		}
		if whole {
			l.flush()
		}
	}
	return n, nil
}

// Close tells the end.
func (l *lines) Close() error {
	if !l.closed {
		l.flush()
		l.closed = true
		l.finish()
	}
	return nil
}

func (l *lines) flush() {
	if l.skipped && !l.skips(l.buf) {
		l.say(Event{Kind: Note, Text: "a line of more than 1 MiB was left out"})
	} else if !l.skipped {
		l.take(l.buf)
	}
	l.buf, l.skipped = l.buf[:0], false
}

func (l *lines) take(line []byte) {
	line = bytes.TrimSpace(line)
	l.told = 0
	if len(line) == 0 || l.skips(line) {
		return
	}
	if !utf8.Valid(line) {
		line = bytes.ToValidUTF8(line, []byte("\uFFFD"))
	}
	l.line(line)
}

func (s *scribe) skips(line []byte) bool {
	for _, begin := range s.skip {
		if bytes.HasPrefix(line, []byte(begin)) {
			return true
		}
	}
	return false
}

// scribe keeps what is said at the end.
type scribe struct {
	tell func(Event)
	told int // events of this line

	session, model string
	in, out        int64
	last           string // what was said last
	answer         string // what the program gave as its answer
	failure        string // why it failed
	failed         bool
	ended          bool // the program said that it is done
	plain          bool // a program that never says so
	pending        []byte
	skip           []string // how lines begin that say nothing new
}

// say tells an event, cut to size.
func (s *scribe) say(e Event) {
	if s.told++; s.told > maxEvents {
		return
	}
	e.Text, e.Tool, e.ID, e.Parent = cut(e.Text, maxText), cut(e.Tool, maxName), cut(e.ID, maxName), cut(e.Parent, maxName)
	if e.Input = bytes.TrimSpace(e.Input); len(e.Input) > maxInput || !json.Valid(e.Input) || string(e.Input) == "null" {
		e.Input = nil
	}
	if e.Kind == Text && e.Parent == "" {
		s.last = e.Text
	}
	s.tell(e)
}

// parse reads a line of JSON. What is none, is text that the program, or what it started, wrote beside its events.
func (s *scribe) parse(line []byte, into any) bool {
	if line[0] != '{' {
		s.say(Event{Kind: Note, Text: string(line)})
		return false
	}
	// One field of another form than it had does not make the others unreadable.
	var form *json.UnmarshalTypeError
	err := json.Unmarshal(line, into)
	return err == nil || errors.As(err, &form)
}

// piece takes a part of what is said. Parts are told as one when something else comes.
func (s *scribe) piece(text string) {
	s.pending = append(s.pending, text...)
	if len(s.pending) > maxText/2 {
		s.join()
	}
}

func (s *scribe) join() {
	if len(s.pending) > 0 {
		s.text(Text, string(s.pending), "")
		s.pending = s.pending[:0]
	}
}

// start tells the conversation and the model, each when it is known and new.
func (s *scribe) start(session, model string) {
	if !isSession.MatchString(session) {
		session = s.session
	}
	if !isModel.MatchString(model) {
		model = s.model
	}
	if session == s.session && model == s.model {
		return
	}
	s.session, s.model = session, model
	s.say(Event{Kind: Start, Session: session, Model: model})
}

func (s *scribe) text(kind, text, parent string) {
	if strings.TrimSpace(text) != "" {
		s.say(Event{Kind: kind, Text: text, Parent: parent})
	}
}

// wrong tells an error, and keeps it as the reason if the program fails.
func (s *scribe) wrong(text string) {
	s.failure = cut(text, maxText)
	s.say(Event{Kind: Error, Text: text, Failed: true})
}

// count tells what the program used up to now.
func (s *scribe) count() {
	if s.in != 0 || s.out != 0 {
		s.say(Event{Kind: Usage, InputTokens: s.in, OutputTokens: s.out})
	}
}

// add counts what one more call used, without telling it.
func (s *scribe) add(in, cacheRead, cacheWrite, out int64) {
	const most = 1 << 50 // far from where sums overflow
	for _, n := range []int64{in, cacheRead, cacheWrite, out} {
		if n < 0 || n > most {
			return
		}
	}
	s.in, s.out = min(s.in+in+cacheRead+cacheWrite, most), min(s.out+out, most)
}

// finish tells the end.
func (s *scribe) finish() {
	s.join()
	s.told = 0
	e := Event{Kind: End, Session: s.session, Model: s.model, InputTokens: s.in, OutputTokens: s.out, Failed: s.failed, Text: s.answer}
	if e.Text == "" {
		e.Text = s.last
	}
	if !s.ended && !s.plain {
		e.Failed = true
		if s.failure == "" {
			s.failure = "it ended before it was done"
		}
	}
	if e.Failed && s.failure != "" {
		e.Text = s.failure
	}
	s.say(e)
}

// messageOf is the text of an error that may be the provider's answer as it came.
func messageOf(s string) string {
	var answer struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if strings.HasPrefix(s, "{") && json.Unmarshal([]byte(s), &answer) == nil && answer.Error.Message != "" {
		return answer.Error.Message
	}
	return s
}

// ids are those of tools that were begun. There are few at once.
type ids map[string]bool

func (i ids) add(id string) bool {
	id = cut(id, maxName)
	if i[id] {
		return false
	}
	if len(i) >= maxEvents {
		clear(i)
	}
	i[id] = true
	return true
}

// toJSON writes what was made here, which always has a form.
func toJSON(v any, indent string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return nil
	}
	return b.Bytes()
}

func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most] + "…"
}

// textOf is the text of what is a string, or a list of parts with texts.
func textOf(raw json.RawMessage) string {
	var whole string
	if json.Unmarshal(raw, &whole) == nil {
		return whole
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return ""
	}
	var b strings.Builder
	for _, p := range parts {
		if b.Len() > maxText {
			break
		}
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		switch {
		case p.Text != "":
			b.WriteString(p.Text)
		case p.Type != "" && p.Type != "text":
			b.WriteString("[" + cut(p.Type, maxName) + "]")
		}
	}
	return b.String()
}

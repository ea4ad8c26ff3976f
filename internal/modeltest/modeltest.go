// Package modeltest is a model provider that plays a script, over real HTTP and server-sent events, in the dialects of
// Anthropic's Messages, OpenAI's Responses and Chat Completions, and Gemini. It is for tests, and for trying an agent
// program without a provider. It listens where it is told, and dials nothing.
//
// Which turn of the script is played is told by the request alone: how many rounds of tool results it carries since the
// last text of the user's. So what is asked besides (titles, probes) and what is asked again disturb nothing.
package modeltest

import (
	"encoding/json"
	"slices"
	"time"
)

// Dialects and endpoints of a Request.
const (
	Anthropic = "anthropic"
	OpenAI    = "openai"
	Gemini    = "gemini"

	Messages    = "messages"
	CountTokens = "count_tokens"
	Responses   = "responses"
	Chat        = "chat"
	Models      = "models"
	Generate    = "generate"
	Probe       = "probe" // HEAD of whatever, with which programs look whether somebody is there
)

// Script is what the model says.
type Script struct {
	// Turns are played one for each round of tool results. After the last one the model says that it has done all.
	Turns []Turn
	// Then are the scripts for the second text of the user's in one conversation, the third and so on; the last one
	// goes on for ever. None: this one is played anew.
	Then []Script
	// Others are scripts for conversations that hold a text, such as those of sub-agents. At most one text may be in a request.
	Others map[string]Script
	// Side is the answer to requests that offer no tools, such as for a title. Empty: a short text, or an example of
	// what the request says that it wants.
	Side string
}

// Turn is one answer of the model's.
type Turn []Item

// Item is a part of an answer, or something that happens to it at this place.
type Item struct {
	kind    kind
	text    string
	tool    string
	input   json.RawMessage
	status  int
	errType string
	wait    time.Duration
	times   int // 0: each time
	usage   Usage
}

type kind int

const (
	none kind = iota
	text
	thinking
	shell
	call
	fail
	pause
	slow
	cut
	silent
	uses
)

// Text is something that the model says.
func Text(s string) Item { return Item{kind: text, text: s} }

// Thinking is something that the model thinks.
func Thinking(s string) Item { return Item{kind: thinking, text: s} }

// Shell is a call of whatever tool the request offers for commands.
func Shell(command string) Item { return Item{kind: shell, text: command} }

// Call is a call of a tool, whether or not it is offered. An input that cannot be JSON is a mistake of the script's, and panics.
func Call(tool string, input any) Item {
	return Item{kind: call, tool: tool, input: encodeJSON(input)}
}

// Error is the provider's. At the beginning of a turn it is the answer's status, later it is an event of the stream.
func Error(status int, errType, message string) Item {
	return Item{kind: fail, status: status, errType: errType, text: message}
}

// Overloaded is what a provider says that has too much to do, each in its own words: once, and then the turn is played.
func Overloaded() Item { return Item{kind: fail, times: 1} }

// Pause waits; at the beginning of a turn, before the answer begins.
func Pause(d time.Duration) Item { return Item{kind: pause, wait: d} }

// Slow waits before each piece from here on.
func Slow(d time.Duration) Item { return Item{kind: slow, wait: d} }

// Cut breaks the connection; at the beginning of a turn, before the first byte.
func Cut() Item { return Item{kind: cut} }

// Silent says nothing any more, until the asker goes away.
func Silent() Item { return Item{kind: silent} }

// Times has an Error, a Cut or a Silent happen the first n times that its turn is played, and be passed over then.
func (i Item) Times(n int) Item {
	i.times = n
	return i
}

// RetryAfter has an Error say when to ask again.
func (i Item) RetryAfter(d time.Duration) Item {
	i.wait = d
	return i
}

// Uses says what the turn is to have used, instead of a guess by its length.
func Uses(u Usage) Item { return Item{kind: uses, usage: u} }

// Usage is counted in tokens. Input leaves out what was read from a cache and what was written to one; Output has what was thought.
type Usage struct {
	Input, Output, CacheRead, CacheWrite int64
}

func (u Usage) input() int64 { return u.Input + u.CacheRead + u.CacheWrite }

// ends says whether nothing comes after the item.
func (i Item) ends() bool { return i.kind == fail || i.kind == cut || i.kind == silent }

// says tells whether the item is content.
func (i Item) says() bool {
	return i.kind == text || i.kind == thinking || i.kind == shell || i.kind == call
}

// overloaded is the error in the words of a dialect.
func (i Item) overloaded(dialect string) Item {
	if i.status != 0 {
		return i
	}
	switch dialect {
	case Anthropic:
		i.status, i.errType, i.text = 529, "overloaded_error", "Overloaded"
	case Gemini:
		i.status, i.errType, i.text = 503, "UNAVAILABLE", "The model is overloaded. Please try again later."
	default:
		i.status, i.errType, i.text = 503, "server_error", "The server is currently overloaded. Please try again later."
	}
	return i
}

// whose is the script for a request, and by which text it was chosen.
func (s *Script) whose(r *Request) (name string, _ *Script) {
	for text, other := range s.Others {
		if r.Has(text) {
			return text, &other
		}
	}
	return "", s
}

// of is the script for a text of the user's, counted from 0.
func (s *Script) of(prompt int) *Script {
	if prompt == 0 || len(s.Then) == 0 {
		return s
	}
	return &s.Then[min(prompt, len(s.Then))-1]
}

// place is where in a conversation a request stands: which text of the user's it is about, and how many rounds of tool
// results came since.
type place struct{ prompt, round int }

// Speakers of what a request carries.
const (
	byModel = 'm'
	byUser  = 'u'
	result  = 'r' // of a tool
)

// placeOf reads the speakers in turn. What programs put beside the results of tools (reminders) is part of the round.
// Where the script broke an answer off, the text that comes next is the program's, which wants the rest of it.
func (s *Script) placeOf(speakers []rune) place {
	p := place{prompt: -1}
	for i := 0; i < len(speakers); {
		if speakers[i] == byModel {
			i++
			continue
		}
		results := false
		for ; i < len(speakers) && speakers[i] != byModel; i++ {
			results = results || speakers[i] == result
		}
		switch {
		case results:
			p.round++
		case p.prompt < 0 || !s.breaks(p):
			p.prompt++
			p.round = 0
		}
	}
	p.prompt = max(p.prompt, 0)
	return p
}

// breaks says whether the turn is one that ends in its middle, after something was said.
func (s *Script) breaks(p place) bool {
	turns := s.of(p.prompt).Turns
	if p.round >= len(turns) {
		return false
	}
	t := turns[p.round]
	said := slices.IndexFunc(t, Item.says)
	return said >= 0 && slices.ContainsFunc(t[said:], Item.ends)
}

// Package provider asks the models of the usual providers, by their makers' own libraries, for package agent.
//
// What it is told is all that it uses: it reads no variable of the environment, in which there may be keys and addresses
// that are meant for others. It calls what it is given as a base address, and nothing else.
package provider

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"ravi/agent"
)

// Options say whom to ask.
type Options struct {
	// BaseURL is the provider's, without a version: http://broker.example/anthropic.
	BaseURL string
	// Key is sent with each call.
	Key   string
	Model string
	// Client makes the calls; nil is one that follows no redirect.
	Client *http.Client
}

func (o Options) base(path string) string { return strings.TrimSuffix(o.BaseURL, "/") + path }

func (o Options) client() *http.Client {
	if o.Client != nil {
		return o.Client
	}
	direct := http.DefaultTransport.(*http.Transport).Clone()
	direct.Proxy = nil // the environment says it
	return &http.Client{Transport: direct, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

const (
	// tries beyond the first are for what a provider says is for a moment only.
	tries = 4
	// answerTime bounds one try; what is in the answer comes as it is made.
	answerTime = 15 * time.Minute
	// mostAnswer bounds what is kept of one answer, in bytes.
	mostAnswer = 32 << 20
)

// gathered is an answer of which pieces come.
type gathered struct {
	say   func(string)
	text  strings.Builder
	calls []*piece
	size  int
}

// piece is a call of which pieces come.
type piece struct {
	index    int64
	id, name string
	args     strings.Builder
}

// add has s be a part of the answer, unless that is too long already.
func (g *gathered) add(to *strings.Builder, s string) bool {
	if g.size += len(s); g.size > mostAnswer {
		return false
	}
	to.WriteString(s)
	return true
}

func (g *gathered) speak(s string) bool {
	if s == "" {
		return true
	}
	g.say(s)
	return g.add(&g.text, s)
}

// call is the newest of a number.
func (g *gathered) call(index int64) *piece {
	for _, p := range slices.Backward(g.calls) {
		if p.index == index {
			return p
		}
	}
	return g.another(index)
}

func (g *gathered) another(index int64) *piece {
	p := &piece{index: index}
	g.calls = append(g.calls, p)
	return p
}

func (g *gathered) message() agent.Message {
	m := agent.Message{Role: agent.Assistant, Text: g.text.String()}
	for _, p := range g.calls {
		m.Calls = append(m.Calls, agent.NewCall(p.id, p.name, p.args.String()))
	}
	return m
}

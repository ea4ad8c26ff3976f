// Package broker forwards the model calls of one run. The agent holds a lease, which is worth nothing elsewhere and ends
// with the run; the broker holds the provider's key, which never gets near the sandbox. Only endpoints that generate are
// there, and only bodies that internal/broker/check has found harmless pass.
//
// It dials the providers that it was given, and nothing else. It knows no store, no secrets' store and no audit: it is
// handed functions. It believes nothing that it reads, of either side.
package broker

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"

	"ravi/internal/broker/check"
	"ravi/internal/redact"
)

// Dialect is the way in which a provider is spoken to.
type Dialect string

// The dialects. OpenAI's has two endpoints, Responses and Chat Completions.
const (
	Anthropic Dialect = "anthropic"
	OpenAI    Dialect = "openai"
	Gemini    Dialect = "gemini"
)

// Provider is an upstream.
type Provider struct {
	Name    string // small letters, digits and -
	Dialect Dialect
	// BaseURL is what comes before the dialect's own path, such as https://api.anthropic.com. With a version in it, such
	// as https://api.openai.com/v1, that stands in place of the dialect's.
	BaseURL *url.URL
	// Keys are tried in turn: one that is refused, or has used up what it may, rests a while. None: it needs none.
	Keys []Key
	// Bearer has the key sent as Authorization: Bearer whatever the dialect's own header is.
	Bearer bool
	// Models are patterns with * of what may be asked for; none: all.
	Models []string
	// Headers are sent along with each call.
	Headers map[string]string
	// Prices are by pattern of a model's name; the longest that matches counts.
	Prices map[string]Price
}

// Key is a provider's key. Value is asked for each call, since it may come to an end and be made anew.
type Key struct {
	Name  string // for people: of the variable or the secret
	Value func(context.Context) (string, error)
}

// Price is in US dollars a million tokens.
type Price struct {
	Input      float64 `json:"input"`
	Output     float64 `json:"output"`
	CacheRead  float64 `json:"cache_read"`
	CacheWrite float64 `json:"cache_write"`
}

// Limits bound a lease; 0 is no bound.
type Limits struct {
	Requests  int64   `json:"requests"`
	Tokens    int64   `json:"tokens"` // in and out, cached ones too
	USD       float64 `json:"usd"`    // a model without a price is refused while it is set
	PerMinute int     `json:"requests_per_minute"`
}

// Lease is what the agent of one run holds.
type Lease struct {
	Hash   string // of the token, as TokenHash gives it
	Limits Limits
}

// Usage is what was used. Input leaves out what was read from a cache and what was written to one.
type Usage struct {
	Input      int64 `json:"input"`
	Output     int64 `json:"output"`
	CacheRead  int64 `json:"cache_read"`
	CacheWrite int64 `json:"cache_write"`
	// MicroUSD is millionths of a dollar; Priced says whether there is a price at all.
	MicroUSD int64 `json:"micro_usd"`
	Priced   bool  `json:"priced"`
}

// Call is one model call, for the audit and for the bill. It has no content, but for a place where that is kept.
type Call struct {
	Provider string
	Endpoint string // such as messages, responses, chat, generate, count_tokens
	Model    string
	Stream   bool
	// Refused says why it was not sent; empty if it was.
	Refused string
	// Content is what Options.Keep gave for it; nil: nothing of it is kept.
	Content io.Writer
	// What follows is for End.
	Key       string // its name
	Status    int    // what the agent got; 0 if it had gone before that
	Failed    string // what went wrong, empty if nothing did
	Usage     Usage
	Estimated bool // Usage is an estimate, since the provider did not say
	Took      time.Duration
	FirstByte time.Duration
}

// Options are what a broker is made of.
type Options struct {
	Providers []Provider
	Lease     Lease
	Grants    check.Grants
	// Within, which may be nil, is the broker of the lease that this one's is carved out of: whatever is used here counts
	// there too, and is let through only if that lease's limits let it.
	Within *Broker
	// Begin writes a call down before it is sent, or that it was refused. If it fails the call is not sent.
	Begin func(context.Context, Call) error
	// End is told how a call that was sent ended.
	End func(Call)
	// Keep, which may be nil, keeps what a call that is about to begin forwards, and gives what its answer is written to,
	// as the agent gets it; errors of that are not looked at. If Keep fails the call is not sent.
	Keep func(c Call, body []byte) (io.Writer, error)
	// Transport does the calls; nil: one of its own, by the environment's proxies.
	Transport http.RoundTripper
	// Redact knows the keys, and takes them out of what comes back; may be nil. The broker adds those that it uses.
	Redact *redact.Redactor
	// FirstByte bounds how long an answer may take to begin, Idle how long it may pause; 0: as the defaults say.
	FirstByte, Idle time.Duration
	Now             func() time.Time // nil: time.Now
}

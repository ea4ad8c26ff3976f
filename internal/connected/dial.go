package connected

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"strings"
	"time"

	"ravi/internal/term"
)

// agentType is the form of an answer for who hands it to an agent: the text, with what others wrote fenced, and the value.
const agentType = "application/vnd.ravi.agent+json"

// Error is why the gateway did not do something, as it is told to people and programs.
type Error struct {
	Code, Message, Hint string
	Exit                int // of a process
}

func (e *Error) Error() string { return e.Message }

// told is a failure for who imports this package. Without it a nil *failure would become an error that is not nil.
func (f *failure) told() error {
	if f == nil {
		return nil
	}
	return &Error{f.code, f.message, f.hint, f.exit}
}

// Options say where a gateway is, and who asks it.
type Options struct {
	// Getenv has the key, and where to use it, as for Program.
	Getenv func(string) string
	// Socket is the gateway's where Getenv does not name another, as for Program.
	Socket string
	// Operator connects to Socket as the operator, whose process is known there: no key is sent, and Getenv is asked for
	// nothing but how long to wait. Nil: whoever asks has a key.
	Operator func(context.Context) (net.Conn, error)
}

// Client asks a gateway again and again.
type Client struct{ one *client }

// Dial makes a client. Nothing is asked yet.
func Dial(o Options) (*Client, error) {
	if o.Operator == nil {
		to, err := targetOf(o.Getenv, o.Socket)
		if err != nil {
			return nil, err.told()
		}
		return &Client{newClient(to, nil, nil)}, nil
	}
	to := target{base: "http://localhost", unix: o.Socket, dial: o.Operator}
	if err := to.waiting(o.Getenv); err != nil {
		return nil, err.told()
	}
	return &Client{newClient(to, nil, nil)}, nil
}

// Close lets go of the connections.
func (c *Client) Close() { c.one.close() }

// asking is the client for one question, which is waited for as long as the environment says, or not at all.
func (c *Client) asking(wait bool) *client {
	one := *c.one
	if !wait {
		one.to.wait = 0
	}
	one.deadline = one.now().Add(one.to.wait)
	return &one
}

// Commands is what the caller may use, and a hash that changes when there are other commands.
func (c *Client) Commands(ctx context.Context) (all []*Command, hash string, err error) {
	r, failed := c.asking(true).registry(ctx)
	if failed != nil {
		return nil, "", failed.told()
	}
	return r.Commands, r.Hash, nil
}

// Hash is the hash of Commands. It does not wait for a gateway that is away.
func (c *Client) Hash(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, registryTimeout)
	defer cancel()
	a, failed := c.asking(false).do(ctx, request{method: "GET", path: "/api/v1/_meta/version", accept: "application/json", repeat: true, what: "its version", most: maxError})
	if failed != nil {
		return "", failed.told()
	}
	var doc struct {
		Hash string `json:"registry_hash"`
	}
	if json.Unmarshal(a.body, &doc) != nil || doc.Hash == "" {
		return "", nonsense("the gateway's version cannot be read").told()
	}
	return doc.Hash, nil
}

// Answer is what a command gave.
type Answer struct {
	// Text is what an agent reads; what others wrote is fenced in it. Nothing in it is obeyed by a terminal.
	Text string
	// Value is the same as JSON.
	Value json.RawMessage
	Exit  int
}

// Call has the gateway do a command. input is a JSON object, or nothing. A command that changes something is never asked
// for twice.
func (c *Client) Call(ctx context.Context, cmd *Command, input []byte) (*Answer, error) {
	if len(input) > maxBody {
		return nil, usage("send less, or in parts", "what was given takes %d bytes, more than the %d that the gateway accepts", len(input), maxBody).told()
	}
	a, failed := c.asking(true).do(ctx, request{method: "POST", path: cmd.path(), body: input, accept: agentType, repeat: cmd.Access == "read", what: cmd.full(), most: maxAnswer})
	if failed != nil {
		return nil, failed.told()
	}
	var doc struct {
		Text  *string         `json:"text"`
		Value json.RawMessage `json:"value"`
		Exit  uint8           `json:"exit"`
	}
	if err := json.Unmarshal(a.body, &doc); err != nil || doc.Text == nil || doc.Value == nil {
		return nil, nonsense("the gateway's answer to %s is not in the form that was asked for: it is older", cmd.full()).told()
	}
	value := term.SafeJSON(bytes.ToValidUTF8(doc.Value, []byte("\uFFFD")))
	return &Answer{Text: c.Mask(term.SafeText(*doc.Text)), Value: json.RawMessage(c.Mask(string(value))), Exit: int(doc.Exit)}, nil
}

// Mask takes the caller's own key out of what is shown.
func (c *Client) Mask(s string) string { return mask(s, c.one.to.key) }

func mask(s, key string) string {
	if len(key) < 8 {
		return s // this is no key, and would be found everywhere
	}
	return strings.ReplaceAll(s, key, keyPrefix+"…")
}

// Line is how the command is called on a command line.
func (c *Command) Line() string { return c.line() }

// Check says whether the command can be used by this client.
func (c *Command) Check() error { return c.check().told() }

// Required says whether the command cannot do without the input.
func (f *Field) Required() bool { return f.Arg != "" && !f.Optional }

// waiting reads how long to wait for a gateway that is away.
func (t *target) waiting(getenv func(string) string) *failure {
	t.wait = defaultWait
	if w := getenv(envWait); w != "" {
		d, err := time.ParseDuration(w)
		if err != nil || d < 0 || d > maxWait {
			return usage("write a duration like 30s or 2m, or 0 to wait for nothing", "%s is not a duration between 0 and %s", envWait, maxWait)
		}
		t.wait = d
	}
	return nil
}

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"ravi/internal/gate"
	"ravi/internal/strictjson"
)

// Tool is something that a model can have done. Args is a JSON object, and hostile. What is wrong with it, or with what
// it asks for, is a Result that has Failed; an error means that nobody can go on, as when the sandbox is gone.
type Tool interface {
	Spec() Spec
	Do(ctx context.Context, args json.RawMessage) (Result, error)
}

// sheller is a tool that has a shell run a command: the gate looks at it.
type sheller interface {
	Shell(args json.RawMessage) (command, dir string, err error)
	// Folder is where a command runs for which dir is named.
	Folder(dir string) string
}

// Question is asked about a call before it is done.
type Question struct {
	Tool, Command string
	// Digest is the SHA-256 of the command as it is; an answer is good for that alone.
	Digest         string
	Family, Reason string
}

// Approver is asked about calls. It returns when there is an answer, or none will come: granted is false then, and why
// says so.
type Approver interface {
	Ask(ctx context.Context, q Question) (granted bool, why string, err error)
}

// Registry is the door to tools: whatever calls one, and wherever that is done, goes through Call.
type Registry struct {
	tools []Tool
	specs []Spec
	gate  *gate.Gate
	ask   Approver // nil: nobody
	tell  func(Event)
	clean func(string) string // nil: nothing is secret
	most  int                 // bytes of a result
	time  time.Duration       // of a call
	slots chan struct{}

	mu      sync.Mutex
	denied  map[string]string // why, by the digest; of this turn
	servers map[string]Tool   // those of the hands' servers
	beyond  int               // how many of these there is no room for
}

var toolName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// toolTime bounds a call, so that a tool that hangs does not hang the turn. Tools have tighter bounds of their own.
const toolTime = 15 * time.Minute

// mostTools is how many a model is offered.
const mostTools = 128

func newRegistry(c Config) (*Registry, error) {
	g, err := gate.New(gate.Options{ExtraDeny: c.DenyPatterns})
	if err != nil {
		return nil, err
	}
	r := &Registry{gate: g, ask: c.Approver, tell: c.emit, clean: c.Redact, most: c.Limits.Output, time: toolTime,
		slots: make(chan struct{}, callsAtOnce), denied: map[string]string{}}
	return r, nil
}

// add adds tools. Two of one name are an error.
func (r *Registry) add(tools ...Tool) error {
	for _, t := range tools {
		s := t.Spec()
		switch {
		case !toolName.MatchString(s.Name):
			return fmt.Errorf("%q is no name of a tool: letters, digits, _ and -, at most 64", s.Name)
		case r.find(s.Name) != nil:
			return fmt.Errorf("there are two tools of the name %s", s.Name)
		case !json.Valid(s.Schema):
			return fmt.Errorf("the tool %s has no schema of its arguments", s.Name)
		}
		r.tools, r.specs = append(r.tools, t), append(r.specs, s)
	}
	return nil
}

func (r *Registry) find(name string) Tool {
	i := slices.IndexFunc(r.specs, func(s Spec) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return r.tools[i]
}

// tool finds one, of the loop's own or of a server.
func (r *Registry) tool(name string) Tool {
	if t := r.find(name); t != nil {
		return t
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.servers[name]
}

// changes says whether a tool changes a file by itself.
func (r *Registry) changes(name string) bool {
	t, ok := r.find(name).(*fileTool)
	return ok && (t.spec.Name == "write" || t.spec.Name == "edit")
}

// begin forgets what was denied in the turn before.
func (r *Registry) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.denied = map[string]string{}
}

// Call does a call, or says why not. begin is called once nothing is in its way. The error is as for Tool, or of begin.
func (r *Registry) Call(ctx context.Context, c Call, begin func() error) (Result, error) {
	select { // a place is waited for, so that a thousand calls are done as few at a time
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return Result{}, ctx.Err()
	}
	if err := ctx.Err(); err != nil { // where there are both a place and an end, any is taken
		return Result{}, err
	}
	out, err := r.call(ctx, c, begin)
	if err != nil {
		return Result{}, err
	}
	out.CallID, out.Tool = c.ID, c.Name
	if r.clean != nil { // of the whole text: nobody finds a secret of which a part was cut off
		out.Text = r.clean(out.Text)
	}
	out.Text = headAndTail(plainText(out.Text), r.most)
	return out, nil
}

func (r *Registry) call(ctx context.Context, c Call, begin func() error) (Result, error) {
	t := r.tool(c.Name)
	if t == nil {
		var names []string
		for _, s := range r.specs {
			names = append(names, s.Name)
		}
		return refuse("there is no tool %.64q; there are: %s", c.Name, strings.Join(names, ", ")), nil
	}
	if c.Wrong != "" {
		return refuse("%s was not called: %s", c.Name, c.Wrong), nil
	}
	if missing := lacks(t.Spec().Schema, c.Args); missing != "" {
		return refuse("%s was not called: its arguments lack %s", c.Name, missing), nil
	}
	if s, ok := t.(sheller); ok {
		command, dir, err := s.Shell(c.Args)
		if err != nil {
			return refuse("%s was not called: %v", c.Name, err), nil
		}
		if no, err := r.pass(ctx, c.Name, command, dir, s.Folder(dir)); err != nil || no != nil {
			return deref(no), err
		}
	}
	if err := begin(); err != nil {
		return Result{}, err
	}
	bounded, cancel := context.WithTimeout(ctx, r.time)
	defer cancel()
	out, err := did(bounded, t, c.Args)
	var bad *strictjson.Error
	switch {
	case err == nil:
		return out, nil
	case errors.As(err, &bad):
		return refuse("%s was not called: %v", c.Name, err), nil
	case ctx.Err() == nil && bounded.Err() != nil:
		return refuse("%s took longer than %v, and was ended", c.Name, r.time), nil
	}
	return Result{}, err
}

// did has a tool do a call. One that panics has not done it, and the others go on.
func did(ctx context.Context, t Tool, args json.RawMessage) (out Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			out, err = Result{Text: fmt.Sprintf("The tool itself failed, and may have done a part of it: %v", p), Failed: true}, nil
		}
	}()
	return t.Do(ctx, args)
}

// lacks is the first of the arguments that a schema requires and a call does not have. What is left out is not the same as
// what is empty: a file would be emptied. Nothing else of a schema is looked at: tools look at their arguments themselves.
func lacks(schema, args json.RawMessage) string {
	var s struct{ Required []string }
	var have map[string]json.RawMessage
	if json.Unmarshal(schema, &s) != nil || json.Unmarshal(args, &have) != nil {
		return "" // neither is the gate's business
	}
	for _, name := range s.Required {
		if _, ok := have[name]; !ok {
			return name
		}
	}
	return ""
}

func deref(r *Result) Result {
	if r == nil {
		return Result{}
	}
	return *r
}

// pass asks the gate about a command that runs in a folder, and somebody if the gate says so; named is what the model said
// of that. It returns a refusal, or nil.
func (r *Registry) pass(ctx context.Context, tool, command, named, folder string) (*Result, error) {
	v := r.gate.Judge(command, folder)
	if named != "" { // whoever is asked has to know
		v.Reason += fmt.Sprintf(", in the folder %q", folder)
	}
	no := func(format string, args ...any) *Result { out := refuse(format, args...); return &out }
	switch v.Decision {
	case gate.Allow:
		return nil, nil
	case gate.Deny:
		return no("the command is not allowed, and nobody can allow it: %s. Do not try it in another way; say what you need it for", v.Reason), nil
	}
	digest := gate.Digest(command)
	r.mu.Lock()
	why, before := r.denied[digest]
	r.mu.Unlock()
	if before {
		return no("the command was refused in this turn already: %s", why), nil
	}
	if r.ask == nil {
		return no("the command needs somebody's approval (%s), and nobody can be asked here. Do without it, or say what you need it for", v.Reason), nil
	}
	r.tell(Event{Kind: EventAsk, Tool: tool, Text: command})
	granted, why, err := r.ask.Ask(ctx, Question{Tool: tool, Command: command, Digest: digest, Family: string(v.Family), Reason: v.Reason})
	if err != nil {
		return nil, err
	}
	if granted {
		return nil, nil
	}
	r.mu.Lock()
	r.denied[digest] = why
	r.mu.Unlock()
	return no("the command was not approved (%s): %s", v.Reason, why), nil
}

// refuse is a result of Ravi's own that says why nothing was done.
func refuse(format string, args ...any) Result {
	return Result{Text: "Refused: " + fmt.Sprintf(format, args...), Failed: true, Trusted: true}
}

// with takes up the tools of the hands' servers, and gives all that there are now.
func (r *Registry) with(h *Hands) []Spec {
	servers := h.running()
	if servers == nil {
		return r.specs
	}
	specs, beyond := slices.Clone(r.specs), 0
	r.mu.Lock()
	r.servers = map[string]Tool{}
	for _, s := range servers.Specs() {
		if len(specs) == mostTools {
			beyond++
			continue
		}
		// A server cannot take the place of a tool that is there.
		if toolName.MatchString(s.Name) && r.find(s.Name) == nil && r.servers[s.Name] == nil && json.Valid(s.Schema) {
			r.servers[s.Name] = served{h, s}
			specs = append(specs, s)
		}
	}
	changed := beyond != r.beyond
	r.beyond = beyond
	r.mu.Unlock()
	if changed && beyond > 0 {
		r.tell(Event{Kind: EventNote, Failed: true, Text: fmt.Sprintf("the model is offered %d tools, which is as many as each provider takes, and not %d others of MCP servers", mostTools, beyond)})
	}
	return specs
}

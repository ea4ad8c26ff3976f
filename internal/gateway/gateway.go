// Package gateway is the API: POST /api/v1/<group>/<command> for every command of the table, what there is to know about
// the table under /api/v1/_meta, and what happens under /api/v1/_stream.
//
// It says who calls: the operator, over the socket, if its process is positively that; else whoever holds a context key.
// An address is never an identity. What the caller may do is not decided here: every call goes through Command.Call,
// which asks the capabilities and writes down what was decided.
//
// The package knows no command, and no command line; the table is handed to it. It listens through package guard only.
package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"ravi/internal/access"
	"ravi/internal/audit"
	"ravi/internal/command"
	"ravi/internal/contextkey"
	"ravi/internal/guard"
	"ravi/internal/store"
	"ravi/internal/strictjson"
)

// Root is where the API begins.
const Root = "/api/v1/"

// ExitHeader is the exit code that a command's result has on a command line, in answers as text.
const ExitHeader = "Ravi-Exit"

// AgentType is what an answer is asked for as by who hands it to an agent, whoever that works for: an object with the text
// for people, in which what others wrote is fenced, the value, and the exit code.
const AgentType = "application/vnd.ravi.agent+json"

// Server answers for a table of commands.
type Server struct {
	Table   *command.Table
	Version string
	Keys    contextkey.Keys
	Auditor command.Auditor
	// NewEnv makes what a command works in; the server adds who calls. It is closed after the call.
	NewEnv func() *command.Env
	// Limit bounds the calls of one key; nil: none.
	Limit *guard.Limiter
	// Streams serves /api/v1/_stream; nil: there is none.
	Streams *Streams

	index index
}

// caller is who sent a request, and by which way.
type caller struct {
	access.Caller
	wire contextkey.Wire
}

// recheckEvery is how often the key of a stream, or of a call that takes long, is looked at.
const recheckEvery = time.Second

// still says whether the caller, who was let in before, would be let in now.
func (c caller) still(ctx context.Context, keys contextkey.Keys) error {
	if c.IsOperator() {
		return nil
	}
	_, err := keys.Recheck(ctx, c.Name(), c.wire)
	return err
}

// whileAlive ends a call that takes long with its caller's key, as a stream ends: what it waits for is for nobody who has
// none any more. over is asked when the call is done, and says whether the answer may be given.
func (s *Server) whileAlive(ctx context.Context, who caller) (_ context.Context, over func() error) {
	if who.IsOperator() {
		return ctx, func() error { return nil }
	}
	still := func() error { return who.still(context.WithoutCancel(ctx), s.Keys) }
	calling, cancel := context.WithCancelCause(ctx)
	done, ended := make(chan struct{}), make(chan struct{})
	late := time.AfterFunc(recheckEvery, func() {
		defer close(ended)
		tick := time.NewTicker(recheckEvery)
		defer tick.Stop()
		for {
			if err := still(); err != nil {
				cancel(err)
				return
			}
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	})
	return calling, func() error {
		defer cancel(nil)
		if late.Stop() {
			return nil
		}
		close(done)
		<-ended
		return still()
	}
}

// Handler serves what comes by one way: the socket or a port, or the wires of a run.
func (s *Server) Handler(w contextkey.Wire) http.Handler {
	s.index.build(s)
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) { s.serve(out, r, w) })
}

// Service serves the connections that the processes of a run make to name:80 and name:443.
func (s *Server) Service(runID string, name string) (serve func(context.Context, net.Conn), end func(context.Context) error) {
	const most = 64
	g := guard.New(s.Handler(contextkey.Wire{RunID: runID}), guard.Options{})
	door := guard.NewDoor(most, name, name+":80", name+":443")
	return func(ctx context.Context, c net.Conn) { g.ServeConn(ctx, c, door) }, g.Shutdown
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, wire contextkey.Wire) {
	path, ours := strings.CutPrefix(r.URL.EscapedPath(), Root)
	if !ours {
		guard.WriteError(w, http.StatusNotFound, command.CodeNotFound, "there is nothing here", "the API begins at "+Root)
		return
	}
	who, err := s.who(r, wire)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	if after := s.tooMany(who); after > 0 {
		guard.WriteTooMany(w, after, "this key asks too often")
		return
	}
	switch group, rest, _ := strings.Cut(path, "/"); group {
	case "_meta":
		s.meta(w, r, who, rest)
	case "_stream":
		s.stream(w, r, who, rest)
	default:
		s.command(w, r, who, group, rest)
	}
}

func (s *Server) tooMany(who caller) time.Duration {
	if s.Limit == nil || who.IsOperator() {
		return 0
	}
	// A run makes children of its key as it likes; they share what it may ask.
	name := who.Name()
	if run := who.RunID(); run != "" {
		name = run
	}
	if ok, after := s.Limit.Allow(name); !ok {
		return max(after, time.Millisecond)
	}
	return 0
}

// who finds out who sent a request.
func (s *Server) who(r *http.Request, wire contextkey.Wire) (caller, error) {
	given := r.Header.Values("Authorization")
	if len(given) == 0 && wire.RunID == "" {
		peer := guard.ConnOf(r.Context()).Peer
		if peer == nil {
			return caller{}, contextkey.ErrMissing
		}
		if err := peer.SameWorld(); err != nil {
			return caller{}, fmt.Errorf("%w, and without one only the operator is let in: %w", contextkey.ErrMissing, err)
		}
		return caller{access.AsOperator(), wire}, nil
	}
	if len(given) == 0 {
		return caller{}, contextkey.ErrMissing
	}
	scheme, token, _ := strings.Cut(given[0], " ")
	if len(given) > 1 || !strings.EqualFold(scheme, "Bearer") {
		return caller{}, contextkey.ErrMalformed
	}
	who, err := s.Keys.Resolve(r.Context(), strings.TrimSpace(token), wire)
	return caller{who, wire}, err
}

// refuse answers who is not known.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if !errors.Is(err, contextkey.ErrRefused) {
		s.fail(w, err)
		return
	}
	// The path is the caller's own text, and whoever it is may write any number of them.
	werr := s.Auditor.Denied(r.Context(), audit.Record{Action: "gateway.unauthorized", Decision: store.Denied, Caller: "nobody", Reason: err.Error()})
	if werr != nil {
		s.fail(w, command.NoAudit(werr))
		return
	}
	w.Header().Set("WWW-Authenticate", "Bearer")
	hint := "set RAVI_CONTEXT_KEY to a key that is alive; the operator makes one with: ravi context issue"
	guard.WriteError(w, http.StatusUnauthorized, command.CodeUnauthorized, err.Error(), hint)
}

// fail answers with an error.
func (s *Server) fail(w http.ResponseWriter, err error) {
	told := command.AsError(err)
	if told.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "5")
	}
	guard.WriteError(w, told.Status, told.Code, told.Message, told.Hint)
}

// command runs a command for a caller.
func (s *Server) command(w http.ResponseWriter, r *http.Request, who caller, group, name string) {
	c := s.index.find(group, name)
	if c == nil {
		guard.WriteError(w, http.StatusNotFound, command.CodeNotFound, "there is no such command", "GET "+Root+"_meta/registry lists them")
		return
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		guard.WriteError(w, http.StatusMethodNotAllowed, command.CodeUsage, "commands are called with POST", "")
		return
	}
	env := s.NewEnv()
	defer env.Close()
	env.Caller, env.Auditor, env.JSON = who.Caller, s.Auditor, true
	env.ForAgent = !who.IsOperator() || strings.HasPrefix(r.Header.Get("Accept"), AgentType)
	in, err := s.input(r, c)
	if err != nil {
		// Who may not call it at all hears that first, and it is written down.
		if !c.May(env) {
			_, err = c.Call(r.Context(), env, c.NewInput())
		}
		s.fail(w, err)
		return
	}
	ctx, err := guard.Lift(w, r) // some commands take long, and bound themselves
	if err != nil {
		s.fail(w, err)
		return
	}
	ctx, over := s.whileAlive(ctx, who)
	out, err := c.Call(ctx, env, in)
	if err := over(); err != nil {
		s.refuse(w, r, err)
		return
	}
	if err != nil {
		s.fail(w, err)
		return
	}
	s.answer(w, r, env, c, out)
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, env *command.Env, c *command.Command, out any) {
	var body bytes.Buffer
	kind, err := "application/json", error(nil)
	switch accept := r.Header.Get("Accept"); {
	case strings.HasPrefix(accept, AgentType):
		kind = AgentType
		err = writeForAgent(&body, env, c, out)
	case c.HasPrint() && strings.HasPrefix(accept, "text/plain"):
		kind = "text/plain; charset=utf-8"
		env.JSON = false
		err = c.Print(env, &body, out)
		if exit := c.Exit(out); exit != command.ExitOK {
			w.Header().Set(ExitHeader, strconv.Itoa(exit))
		}
	default:
		err = writeValue(&body, out)
	}
	if err != nil {
		w.Header().Del(ExitHeader)
		s.fail(w, err)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
	_, _ = w.Write(body.Bytes()) // whoever asked has gone away
}

// writeValue writes a result as JSON. There is always something to read: nothing is an empty list or an empty object.
func writeValue(w io.Writer, out any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out); err != nil {
		return err
	}
	if bytes.Equal(bytes.TrimSpace(b.Bytes()), []byte("null")) {
		b.Reset()
		if t := reflect.TypeOf(out); t != nil && t.Kind() == reflect.Slice && t != reflect.TypeFor[json.RawMessage]() {
			b.WriteString("[]\n")
		} else {
			b.WriteString("{}\n")
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// writeForAgent writes a result in both forms.
func writeForAgent(w io.Writer, env *command.Env, c *command.Command, out any) error {
	var value, text bytes.Buffer
	if err := writeValue(&value, out); err != nil {
		return err
	}
	if c.HasPrint() {
		env.JSON = false
		if err := c.Print(env, &text, out); err != nil {
			return err
		}
	}
	return writeValue(w, struct {
		Text  string          `json:"text"` // empty for a command that shows nothing to people but its value
		Value json.RawMessage `json:"value"`
		Exit  int             `json:"exit"`
	}{text.String(), value.Bytes(), c.Exit(out)})
}

// input reads a request's body.
func (s *Server) input(r *http.Request, c *command.Command) (any, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return nil, &command.Error{Code: guard.CodeTooLarge, Message: fmt.Sprintf("the request has more than %d bytes", large.Limit), Status: http.StatusRequestEntityTooLarge, Err: err}
		}
		return nil, command.Usage("the request could not be read: "+err.Error(), "")
	}
	in := c.NewInput()
	if len(bytes.TrimSpace(body)) == 0 {
		return in, c.Complete(in)
	}
	if bytes.TrimSpace(body)[0] != '{' {
		return nil, command.Usage("the request is no JSON object", "send the command's inputs as a flat object, such as {\"limit\": 10}")
	}
	if err := strictjson.Decode(body, in); err != nil {
		var e *strictjson.Error
		if errors.As(err, &e) {
			err = command.Usage(strings.TrimPrefix(e.Path+": ", ": ")+e.Message, "GET "+Root+"_meta/registry says what "+c.FullName()+" takes")
		}
		return nil, err
	}
	return in, c.Complete(in)
}

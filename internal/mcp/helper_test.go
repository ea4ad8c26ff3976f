package mcp

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"ravi/internal/access"
	"ravi/internal/audit"
	"ravi/internal/command"
	"ravi/internal/connected"
	"ravi/internal/contextkey"
	"ravi/internal/gateway"
	"ravi/internal/guard"
	"ravi/internal/store"
	"ravi/internal/term"
)

type noteInput struct {
	Note    string            `json:"note" arg:"NOTE" host:"none" usage:"a note"`
	Text    string            `json:"long_text" flag:"text" host:"none" usage:"its text"`
	Limit   int               `json:"limit" flag:"limit" host:"none" usage:"so many"`
	Share   float64           `json:"share" flag:"share" host:"none" usage:"a share"`
	Wait    time.Duration     `json:"wait" flag:"wait" host:"size" usage:"so long"`
	Pairs   map[string]string `json:"pairs" flag:"pair" host:"none" usage:"pairs"`
	Words   []string          `json:"words" flag:"word" host:"none" usage:"words"`
	Backend string            `json:"backend" flag:"backend" host:"backend" usage:"a backend"`
	All     bool              `json:"all" flag:"all" host:"none" usage:"all of them"`
}

type noteOutput struct {
	Said  string    `json:"said"`
	Input noteInput `json:"input"`
}

// world is a gateway on a socket, whose table can be changed for another.
type world struct {
	t      *testing.T
	home   string
	store  *store.Store
	keys   contextkey.Keys
	audit  *audit.Writer
	socket string
	table  atomic.Pointer[http.Handler]
	calls  atomic.Int64 // of notes.write
	text   string       // what notes.print shows
}

func newWorld(t *testing.T) *world {
	t.Helper()
	home := t.TempDir()
	if err := os.Chmod(home, 0o700); err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, home: home, store: st, keys: contextkey.Keys{Store: st}, audit: audit.NewWriter(audit.Log{Store: st}), socket: filepath.Join(home, "s.sock")}
	w.use("show", "write", "print", "list", "fail", "own", "local")
	g := guard.New(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) { (*w.table.Load()).ServeHTTP(out, r) }), guard.Options{})
	l, err := guard.ListenUnix(w.socket, "gateway.ravi.internal")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, err := range []error{g.Shutdown(ctx), <-served, w.audit.Close(), st.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	return w
}

// use makes the gateway's table one of these commands.
func (w *world) use(names ...string) {
	table := &command.Table{}
	table.AddGroup(command.Group{Name: "notes", Summary: "Notes"})
	for _, name := range names {
		s := command.Spec[noteInput, any]{
			Group: "notes", Name: name, Summary: "Do it to a note", Long: "All about\nnotes.", Access: command.Read,
			Handler: func(_ context.Context, env *command.Env, in noteInput) (any, error) {
				return noteOutput{Said: env.Caller.Name(), Input: in}, nil
			},
			Object: func(_ context.Context, _ *command.Env, in noteInput) (string, error) { return in.Note, nil },
		}
		switch name {
		case "write":
			s.Access = command.Write
			s.Handler = func(_ context.Context, _ *command.Env, in noteInput) (any, error) {
				w.calls.Add(1)
				return noteOutput{Said: strings.Repeat("x", in.Limit), Input: in}, nil
			}
		case "print":
			s.Print = func(env *command.Env, out io.Writer, v any) error {
				if !env.ForAgent {
					_, err := io.WriteString(out, "unfenced")
					return err
				}
				return term.Fence(out, "note", w.text+v.(noteOutput).Input.Text)
			}
			s.Exit = func(v any) int { return v.(noteOutput).Input.Limit }
		case "list":
			s.Handler = func(context.Context, *command.Env, noteInput) (any, error) { return []string{"a", "b"}, nil }
		case "fail":
			s.Handler = func(context.Context, *command.Env, noteInput) (any, error) {
				return nil, &command.Error{Code: "BROKEN", Message: "it broke\x1b[2J " + strings.Repeat("y", 40<<10), Hint: "mend it", Status: http.StatusConflict}
			}
		case "own":
			s.Reach = command.OperatorOnly
		case "local":
			s.Reach = command.LocalOnly
		}
		command.Add(table, s)
	}
	server := &gateway.Server{Table: table, Version: "1.2.3", Keys: w.keys, Auditor: w.audit, NewEnv: func() *command.Env { return command.In(w.home, w.store) }}
	h := server.Handler(contextkey.Wire{})
	w.table.Store(&h)
}

func (w *world) key(capabilities ...string) (token string, key store.Key) {
	w.t.Helper()
	held, err := access.ParseCapabilities(capabilities)
	if err == nil {
		token, key, err = w.keys.Issue(w.t.Context(), access.AsOperator(), contextkey.Request{Capabilities: held})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return token, key
}

// dial is a client of a key, or without one of the operator.
func (w *world) dial(token string) *connected.Client {
	w.t.Helper()
	env := map[string]string{"RAVI_CONTEXT_KEY": token, "RAVI_GATEWAY_WAIT": "1m"}
	o := connected.Options{Getenv: func(name string) string { return env[name] }, Socket: w.socket}
	if token == "" {
		o.Operator = func(ctx context.Context) (net.Conn, error) { return guard.DialUnix(ctx, w.socket) }
	}
	c, err := connected.Dial(o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(c.Close)
	return c
}

// serve starts a server, and gives the streams to it. It must end without an error when in is closed.
func (w *world) serve(token string) (in io.WriteCloser, out io.ReadCloser) {
	w.t.Helper()
	inReader, in := io.Pipe()
	out, outWriter := io.Pipe()
	served := make(chan error, 1)
	go func() {
		err := Serve(context.Background(), Options{Gateway: w.dial(token), Version: "1.2.3", In: inReader, Out: outWriter})
		outWriter.Close()
		served <- err
	}()
	w.t.Cleanup(func() {
		in.Close()
		go io.Copy(io.Discard, out) // until the server is done
		if err := <-served; err != nil {
			w.t.Errorf("the server ended with %v", err)
		}
		inReader.Close()
	})
	return in, out
}

// session is the SDK's client at a server.
type session struct {
	*sdk.ClientSession
	w       *world
	changed chan struct{}
}

func (w *world) session(token string) *session {
	w.t.Helper()
	in, out := w.serve(token)
	s := &session{w: w, changed: make(chan struct{}, 10)}
	client := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, &sdk.ClientOptions{
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { s.changed <- struct{}{} },
	})
	var err error
	if s.ClientSession, err = client.Connect(w.t.Context(), &sdk.IOTransport{Reader: io.NopCloser(out), Writer: in}, nil); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { s.Close() })
	return s
}

func (s *session) names() string {
	s.w.t.Helper()
	var names []string
	for tool, err := range s.Tools(s.w.t.Context(), nil) {
		if err != nil {
			s.w.t.Fatal(err)
		}
		names = append(names, tool.Name)
	}
	return strings.Join(names, " ")
}

// call calls a tool, and gives its texts, one a line.
func (s *session) call(name string, input any) (*sdk.CallToolResult, string) {
	s.w.t.Helper()
	r, err := s.CallTool(s.w.t.Context(), &sdk.CallToolParams{Name: name, Arguments: input})
	if err != nil {
		s.w.t.Fatalf("%s: %v", name, err)
	}
	var texts []string
	for _, c := range r.Content {
		texts = append(texts, c.(*sdk.TextContent).Text)
	}
	return r, strings.Join(texts, "\n")
}

func note(id string, more ...any) map[string]any {
	in := map[string]any{"note": id}
	for i := 0; i+1 < len(more); i += 2 {
		in[fmt.Sprint(more[i])] = more[i+1]
	}
	return in
}

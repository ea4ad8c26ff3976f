package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"ravi/internal/access"
	"ravi/internal/audit"
	"ravi/internal/command"
	"ravi/internal/contextkey"
	"ravi/internal/guard"
	"ravi/internal/store"
)

// noteInput is what the commands of the tests take.
type noteInput struct {
	Note    string            `json:"note" arg:"NOTE" optional:"true" host:"none" usage:"a note"`
	Text    string            `json:"long_text" flag:"text" short:"t" value:"TEXT" host:"none" usage:"its text"`
	Limit   int               `json:"limit" flag:"limit" host:"none" usage:"so many"`
	Wait    time.Duration     `json:"wait" flag:"wait" host:"none" usage:"so long"`
	Pairs   map[string]string `json:"pairs" flag:"pair" host:"none" usage:"pairs"`
	Words   []string          `json:"words" flag:"word" host:"none" usage:"words"`
	Backend string            `json:"backend" flag:"backend" host:"backend" usage:"a backend"`
}

type noteOutput struct {
	Said  string    `json:"said"`
	Input noteInput `json:"input"`
}

// world is a gateway on a socket and a port, with a store.
type world struct {
	t      *testing.T
	store  *store.Store
	keys   contextkey.Keys
	audit  *audit.Writer
	server *Server
	socket string
	tcp    string
	block  chan struct{} // of the command notes.hang
}

func newTestTable(w *world) *command.Table {
	t := &command.Table{}
	t.AddGroup(command.Group{Name: "notes", Summary: "Notes"})
	add := func(name string, change func(*command.Spec[noteInput, *noteOutput])) {
		s := command.Spec[noteInput, *noteOutput]{
			Group: "notes", Name: name, Summary: "Do it", Access: command.Read,
			Handler: func(_ context.Context, env *command.Env, in noteInput) (*noteOutput, error) {
				return &noteOutput{Said: env.Caller.Name(), Input: in}, nil
			},
		}
		change(&s)
		command.Add(t, s)
	}
	object := func(_ context.Context, _ *command.Env, in noteInput) (string, error) {
		if in.Note != "not1" && in.Note != "not2" {
			return in.Note, fmt.Errorf("note %q: %w", in.Note, store.ErrNotFound)
		}
		return in.Note, nil
	}
	add("show", func(s *command.Spec[noteInput, *noteOutput]) { s.Object = object })
	add("ls", func(s *command.Spec[noteInput, *noteOutput]) { s.Scoped, s.Aliases = true, []string{"list"} })
	add("write", func(s *command.Spec[noteInput, *noteOutput]) { s.Object, s.Access = object, command.Write })
	add("print", func(s *command.Spec[noteInput, *noteOutput]) {
		s.Print = func(env *command.Env, w io.Writer, o *noteOutput) error {
			_, err := fmt.Fprintf(w, "said %s (fenced: %v)\n", o.Said, env.ForAgent)
			return err
		}
		s.Exit = func(*noteOutput) int { return 3 }
	})
	add("nothing", func(s *command.Spec[noteInput, *noteOutput]) {
		s.Handler = func(context.Context, *command.Env, noteInput) (*noteOutput, error) { return nil, nil }
	})
	add("panic", func(s *command.Spec[noteInput, *noteOutput]) {
		s.Handler = func(context.Context, *command.Env, noteInput) (*noteOutput, error) { panic("secret inside") }
	})
	add("hang", func(s *command.Spec[noteInput, *noteOutput]) {
		s.Handler = func(ctx context.Context, _ *command.Env, _ noteInput) (*noteOutput, error) {
			<-w.block // it has begun
			select {
			case <-w.block:
			case <-ctx.Done():
			}
			return &noteOutput{Said: "at last"}, nil
		}
	})
	add("own", func(s *command.Spec[noteInput, *noteOutput]) { s.Reach = command.OperatorOnly })
	add("local", func(s *command.Spec[noteInput, *noteOutput]) { s.Reach = command.LocalOnly })
	return t
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
	w := &world{t: t, store: st, keys: contextkey.Keys{Store: st}, audit: audit.NewWriter(audit.Log{Store: st}), socket: filepath.Join(home, "s.sock"), block: make(chan struct{})}
	w.server = &Server{
		Table: newTestTable(w), Version: "1.2.3", Keys: w.keys, Auditor: w.audit, NewEnv: func() *command.Env { return command.In(home, st) },
		Streams: &Streams{Store: st, Keys: w.keys, Runs: filepath.Join(home, "runs")},
	}
	g := guard.New(w.server.Handler(contextkey.Wire{}), guard.Options{})
	unix, err := guard.ListenUnix(w.socket)
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := guard.ListenTCP("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	w.tcp = tcp.Addr().String()
	served := make(chan error, 2)
	for _, l := range []*guard.Listener{unix, tcp} {
		go func() { served <- g.Serve(l) }()
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := g.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := <-served; err != nil {
				t.Error(err)
			}
		}
		if err := w.audit.Close(); err != nil {
			t.Error(err)
		}
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) key(r contextkey.Request, capabilities ...string) (token string, key store.Key) {
	w.t.Helper()
	var err error
	if r.Capabilities, err = access.ParseCapabilities(capabilities); err != nil {
		w.t.Fatal(err)
	}
	token, key, err = w.keys.Issue(w.t.Context(), access.AsOperator(), r)
	if err != nil {
		w.t.Fatal(err)
	}
	return token, key
}

// reply is an answer of the gateway.
type reply struct {
	status int
	header http.Header
	body   string
	Error  struct{ Code, Message, Hint string }
}

// do sends a request: over the socket without a host in to, else to that address.
func (w *world) do(method, to, path, token, body string, header ...string) reply {
	w.t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: time.Minute}
	host := to
	if to == "" {
		host = "localhost"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", w.socket)
		}
	}
	req, err := http.NewRequestWithContext(w.t.Context(), method, "http://"+host+path, bytes.NewReader([]byte(body)))
	if err != nil {
		w.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	r := reply{status: res.StatusCode, header: res.Header, body: string(b)}
	if res.StatusCode >= 400 {
		var doc struct {
			Error struct{ Code, Message, Hint string } `json:"error"`
		}
		if err := json.Unmarshal(b, &doc); err != nil || doc.Error.Code == "" {
			w.t.Errorf("%s %s: an error without a form: %s", method, path, b)
		}
		r.Error = doc.Error
	}
	return r
}

func (w *world) call(to, token, command, body string, header ...string) reply {
	w.t.Helper()
	return w.do(http.MethodPost, to, Root+command, token, body, header...)
}

func (w *world) records() []audit.Record {
	w.t.Helper()
	rows, err := w.store.Audit(w.t.Context(), audit.Filter{})
	if err != nil {
		w.t.Fatal(err)
	}
	return rows
}

// overPipe asks over a connection as a run's processes have one.
func overPipe(t *testing.T, serve func(context.Context, net.Conn), host, token string) reply {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		c, err := l.Accept()
		if err == nil {
			serve(context.Background(), c)
		}
	}()
	req, err := http.NewRequest(http.MethodPost, "http://"+l.Addr().String()+Root+"notes/ls", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	<-served
	return reply{status: res.StatusCode, header: res.Header, body: string(b)}
}

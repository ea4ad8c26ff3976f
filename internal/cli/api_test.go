package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"ravi/internal/access"
	"ravi/internal/command"
	"ravi/internal/connected"
	"ravi/internal/contextkey"
	"ravi/internal/gateway"
	"ravi/internal/guard"
	"ravi/internal/mcp"
)

// api is the gateway of the program's own table, over the home of a world.
type api struct {
	*world
	socket string
}

func newAPI(t *testing.T) *api {
	t.Helper()
	w := newWorld(t)
	w.table = newTable(program())
	s := &gateway.Server{Table: w.table, Version: "1.2.3", Keys: contextkey.Keys{Store: w.store}, Auditor: w, NewEnv: func() *command.Env { return command.In(w.home, w.store) }}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	a := &api{w, filepath.Join(dir, "s.sock")}
	l, err := guard.ListenUnix(a.socket, "gateway.ravi.internal")
	if err != nil {
		t.Fatal(err)
	}
	g := guard.New(s.Handler(contextkey.Wire{}), guard.Options{})
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, err := range []error{g.Shutdown(ctx), <-served} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	return a
}

// do asks as the operator.
func (a *api) do(method, path, body string) (status int, answer []byte) {
	a.t.Helper()
	return a.doAs("", method, path, body)
}

// doAs asks with a key.
func (a *api) doAs(token, method, path, body string) (status int, answer []byte) {
	a.t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return guard.DialUnix(ctx, a.socket) }}
	req, err := http.NewRequestWithContext(a.t.Context(), method, "http://localhost"+gateway.Root+path, strings.NewReader(a.fill(body)))
	if err != nil {
		a.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err = io.ReadAll(res.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return res.StatusCode, answer
}

func (a *api) key(capabilities ...string) string {
	a.t.Helper()
	held, err := access.ParseCapabilities(capabilities)
	if err != nil {
		a.t.Fatal(err)
	}
	token, _, err := contextkey.Keys{Store: a.store}.Issue(a.t.Context(), access.AsOperator(), contextkey.Request{Capabilities: held})
	if err != nil {
		a.t.Fatal(err)
	}
	return token
}

// closed has every object in a document be one without other keys: what an answer has, the document must know.
func closed(v any) {
	switch v := v.(type) {
	case map[string]any:
		if _, object := v["properties"].(map[string]any); object && v["additionalProperties"] == nil {
			v["additionalProperties"] = false
		}
		for _, inner := range v {
			closed(inner)
		}
	case []any:
		for _, inner := range v {
			closed(inner)
		}
	}
}

func TestOpenAPIOfTheTable(t *testing.T) {
	a := newAPI(t)
	status, doc := a.do(http.MethodGet, "_meta/openapi.json", "")
	document, err := openapi3.NewLoader().LoadFromData(doc)
	if err == nil {
		err = document.Validate(t.Context())
	}
	if err != nil || status != http.StatusOK {
		t.Fatalf("%d: %v", status, err)
	}
	for _, c := range a.table.Commands() {
		if known := document.Paths.Value(gateway.Root+c.Group+"/"+c.Name) != nil; known != (c.Reach != command.LocalOnly) {
			t.Errorf("%s is in the document: %v", c.FullName(), known)
		}
	}
	if _, again := newAPI(t).do(http.MethodGet, "_meta/openapi.json", ""); !bytes.Equal(doc, again) {
		t.Error("another gateway has another document")
	}
}

// What commands really answer is what the document says of them, and nothing else.
func TestAnswersFitOpenAPI(t *testing.T) {
	a := newAPI(t)
	_, doc := a.do(http.MethodGet, "_meta/openapi.json", "")
	var tree map[string]any
	if err := json.Unmarshal(doc, &tree); err != nil {
		t.Fatal(err)
	}
	closed(tree)
	doc, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	document, err := openapi3.NewLoader().LoadFromData(doc)
	if err != nil {
		t.Fatal(err)
	}
	a.asks(a.mine, "npm publish")
	for _, c := range []struct {
		command, input string
		status         int // 0 is 200
	}{
		{"agents/ls", "", 0}, {"agents/show", `{"agent":"anna"}`, 0}, {"agents/create", `{"name":"carl"}`, 0}, {"agents/edit", `{"agent":"carl","profile":"default"}`, 0}, {"agents/archive", `{"agent":"carl"}`, 0},
		{"sessions/ls", "", 0}, {"sessions/show", `{"session":"anna-web"}`, 0}, {"sessions/transcript", `{"session":"anna-web"}`, 0}, {"sessions/send", `{"session":"anna-web","text":"x"}`, 0},
		{"sessions/reply", `{"session":"anna-web","text":"x"}`, 0}, {"sessions/create", `{"agent":"anna"}`, 0}, {"sessions/close", `{"session":"bert-web"}`, 0},
		{"memory/ls", `{"agent":"anna"}`, 0}, {"memory/show", `{"agent":"anna","path":"facts.md"}`, 0}, {"memory/write", `{"agent":"anna","path":"a.md","text":"x"}`, 0}, {"memory/pending", "", 0},
		{"memory/history", `{"agent":"anna","path":"facts.md"}`, 0}, {"memory/rm", `{"agent":"anna","path":"a.md"}`, 0},
		{"tasks/ls", "", 0}, {"tasks/create", `{"title":"x"}`, 0}, {"tasks/comment", `{"task":"MINE.TASK","text":"x"}`, 0}, {"tasks/report", `{"task":"MINE.TASK","text":"x"}`, 0},
		{"tasks/start", `{"task":"MINE.TASK"}`, 0}, {"tasks/done", `{"task":"MINE.TASK"}`, 0}, {"tasks/show", `{"task":"MINE.TASK"}`, 0},
		{"runs/ls", "", 0}, {"runs/show", `{"run":"MINE.RUN"}`, 0}, {"runs/logs", `{"run":"MINE.RUN"}`, 0}, {"runs/patch", `{"run":"MINE.RUN"}`, 0},
		{"approvals/ls", "", 0}, {"approvals/show", `{"id":"apr"}`, 0}, {"approvals/grant", `{"id":"apr","note":"once"}`, 0}, {"approvals/deny", `{"id":"apr"}`, 409},
		{"approvals/ls", `{"all":true}`, 0},
		{"context/issue", `{"agent":"anna","allow":["read:*"]}`, 0}, {"context/whoami", "", 0}, {"context/ls", "", 0},
		{"profiles/ls", "", 0}, {"profiles/show", `{"name":"default"}`, 0}, {"audit/tail", "", 0}, {"audit/search", "", 0},
		{"secrets/ls", "", 0}, {"sandbox/ls", "", 0}, {"config/show", "", 0}, {"config/check", "", 0},
		// And refusals.
		{"agents/show", `{"agent":"nobody"}`, 404}, {"tasks/show", `{"x":1}`, 400}, {"daemon/info", "", 503}, {"sandbox/inspect", `{"sandbox":"x"}`, 404},
	} {
		status, answer := a.do(http.MethodPost, c.command, c.input)
		responses := document.Paths.Value(gateway.Root + c.command).Post.Responses
		response := responses.Default()
		if status == http.StatusOK {
			response = responses.Status(status)
		}
		if want := max(c.status, http.StatusOK); status != want {
			t.Errorf("%s %s: %d %s", c.command, c.input, status, answer)
		}
		var value any
		if err := json.Unmarshal(answer, &value); err != nil {
			t.Fatal(err)
		}
		if err := response.Value.Content["application/json"].Schema.Value.VisitJSON(value, openapi3.EnableJSONSchema2020()); err != nil {
			t.Errorf("%s %s: %v in %s", c.command, c.input, err, answer)
		}
	}
}

// Each input of each tool has its class, and no tool is there that a key may not use.
func TestToolsAreClassified(t *testing.T) {
	a := newAPI(t)
	token := a.key("read:*", "write:*")
	classes := []string{"none", "path", "backend", "image", "secret", "volume", "size", "network", "command"}
	for who, o := range map[string]connected.Options{
		"operator": {Operator: func(ctx context.Context) (net.Conn, error) { return guard.DialUnix(ctx, a.socket) }},
		"key":      {},
	} {
		o.Socket, o.Getenv = a.socket, func(name string) string { return map[string]string{"RAVI_CONTEXT_KEY": token}[name] }
		tools := a.tools(o)
		for _, c := range a.table.Commands() {
			name := c.Group + "_" + c.Name
			tool := tools[name]
			if want := c.Reach == command.Everywhere || c.Reach == command.OperatorOnly && who == "operator"; (tool != nil) != want {
				t.Errorf("the %s has %s: %v", who, name, tool != nil)
			}
			if tool == nil {
				continue
			}
			delete(tools, name)
			schema := tool.InputSchema.(map[string]any)
			properties := schema["properties"].(map[string]any)
			if schema["additionalProperties"] != false || len(properties) != len(c.Fields) {
				t.Errorf("%s takes other inputs", name)
			}
			for _, f := range c.Fields {
				property, _ := properties[f.JSON].(map[string]any)
				class, _ := property["x-ravi-host"].(string)
				if !slices.Contains(classes, class) || class != string(f.Host) {
					t.Errorf("%s of %s has the class %q, not %q", f.JSON, name, class, f.Host)
				}
			}
		}
		if len(tools) > 0 {
			t.Errorf("the %s has %d tools that are no commands", who, len(tools))
		}
	}
}

// tools are the tools that an MCP client finds.
func (a *api) tools(o connected.Options) map[string]*sdk.Tool {
	a.t.Helper()
	client, err := connected.Dial(o)
	if err != nil {
		a.t.Fatal(err)
	}
	defer client.Close()
	inReader, in := io.Pipe()
	out, outWriter := io.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- mcp.Serve(context.Background(), mcp.Options{Gateway: client, Version: "1", In: inReader, Out: outWriter})
		outWriter.Close()
	}()
	session, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(a.t.Context(), &sdk.IOTransport{Reader: io.NopCloser(out), Writer: in}, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	tools := map[string]*sdk.Tool{}
	for tool, err := range session.Tools(a.t.Context(), nil) {
		if err != nil {
			a.t.Fatal(err)
		}
		tools[tool.Name] = tool
	}
	if err := session.Close(); err != nil {
		a.t.Error(err)
	}
	go io.Copy(io.Discard, out)
	if err := <-served; err != nil {
		a.t.Error(err)
	}
	return tools
}

// With a key in the environment, this is the one command that runs here; all that it does is ask the gateway. Whatever
// becomes of it, nothing but the protocol is on stdout.
func TestMCPServeForAKey(t *testing.T) {
	a := newAPI(t)
	token := a.key("read:tasks")
	asked := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
junk
{"jsonrpc":"2.0","id":2,"method":"tools/list"}
{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"tasks_ls"}}
`
	t.Setenv("RAVI_HOME", filepath.Join(t.TempDir(), "not-there")) // where a holder of a key has no business
	for name, c := range map[string]struct {
		key, args string
		exit      int
		out, err  string
	}{
		"tools":           {token, "mcp serve", 0, `"name":"tasks_show"`, ""},
		"quiet, and JSON": {token, "mcp serve --quiet --json", 0, "of anna", ""},
		"wrong key":       {"rctx_AAAAAAAAAAAAAAAAAAAAAAAA", "mcp serve --json", 1, "", "it is unknown"},
		"no key":          {"", "mcp serve", 1, "", "there is no key to ask with"},
		"too much":        {token, "mcp serve x", 2, "", `"x" is one argument too many`},
		"help":            {"", "mcp serve --help", 0, "Inside a sandbox there is no ravi mcp serve", ""},
		"the group":       {token, "mcp", 2, "", `there is no command "mcp"`},
		"after a flag":    {token, "--json=false mcp serve", 2, "", `there is no command "mcp"`},
	} {
		t.Setenv("RAVI_CONTEXT_KEY", c.key)
		t.Setenv("RAVI_GATEWAY_URL", "unix:"+a.socket)
		var out, errs strings.Builder
		exit := Main(append([]string{"ravi"}, strings.Fields(c.args)...), strings.NewReader(asked), &out, &errs)
		if exit != c.exit || !strings.Contains(out.String(), c.out) || c.out == "" && out.Len() > 0 || !strings.Contains(errs.String(), c.err) || c.err == "" && errs.Len() > 0 {
			t.Errorf("%s: exit %d, stdout %.2000s, stderr %s", name, exit, out.String(), errs.String())
		}
		if c.exit != 0 || name == "help" {
			continue
		}
		lines := 0
		for line := range strings.Lines(out.String()) {
			lines++
			if !json.Valid([]byte(line)) || !strings.Contains(line, `"jsonrpc":"2.0"`) {
				t.Errorf("%s: this is not the protocol: %s", name, line)
			}
		}
		if lines != 4 || strings.Contains(out.String(), "agents_") || strings.Contains(out.String(), "tasks_comment") {
			t.Errorf("%s: %d lines: %s", name, lines, out.String())
		}
	}
	if _, err := os.Stat(os.Getenv("RAVI_HOME")); !os.IsNotExist(err) {
		t.Errorf("a home was made: %v", err)
	}
}

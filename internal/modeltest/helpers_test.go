package modeltest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"ravi/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// start serves a script, and gives its address.
func start(t *testing.T, script Script, options ...Option) (*Server, string) {
	t.Helper()
	s := New(script, options...)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return s, "http://" + l.Addr().String()
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
	err    error // of reading it
}

func ask(t rapid.TB, method, url string, body any, headers ...string) answer {
	t.Helper()
	var in io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		in = strings.NewReader(b)
	default:
		out, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		in = bytes.NewReader(out)
	}
	r, err := http.NewRequestWithContext(context.Background(), method, url, in)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header, body: string(b), err: err}
}

// event is one of a stream.
type event struct {
	name string
	data string
}

// events reads a stream strictly: each event is an optional name, one line of data and an empty line.
func events(t rapid.TB, a answer) []event {
	t.Helper()
	if a.err != nil || a.status != http.StatusOK || !strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") {
		t.Fatalf("no stream: %d %v %v\n%s", a.status, a.err, a.header, a.body)
	}
	return eventsOf(t, a.body)
}

func eventsOf(t rapid.TB, body string) []event {
	t.Helper()
	body, ok := strings.CutSuffix(body, "\n\n")
	if !ok {
		t.Fatalf("the stream does not end with an event: %q", body)
	}
	var out []event
	for block := range strings.SplitSeq(body, "\n\n") {
		var e event
		if rest, ok := strings.CutPrefix(block, "event: "); ok {
			e.name, block, _ = strings.Cut(rest, "\n")
		}
		data, ok := strings.CutPrefix(block, "data: ")
		if !ok || strings.Contains(data, "\n") {
			t.Fatalf("an event that is none: %q", block)
		}
		e.data = data
		out = append(out, e)
	}
	return out
}

// way is one of the four ways to ask.
type way struct {
	dialect, endpoint string
	path              func(stream bool) string
	// body is of a conversation with these speakers, which offers these tools.
	body func(speakers string, stream bool, tools []object) object
	// tool offers one with a schema.
	tool func(name string, schema object) object
	read func(t rapid.TB, stream []event) said
	// whole reads an answer in one piece.
	whole func(t rapid.TB, body string) said
}

func always(path string) func(bool) string { return func(bool) string { return path } }

var ways = []way{
	{
		dialect: Anthropic, endpoint: Messages, path: always("/anthropic/v1/messages?beta=true"),
		body: func(speakers string, stream bool, tools []object) object {
			var messages []object
			for _, by := range speakers {
				switch by {
				case 'u':
					messages = append(messages, object{"role": "user", "content": "do it"})
				case 'm':
					messages = append(messages, object{"role": "assistant", "content": []object{{"type": "text", "text": "so"}, {"type": "tool_use", "id": "t", "name": "Bash", "input": object{}}}})
				case 'r':
					messages = append(messages, object{"role": "user", "content": []object{{"type": "tool_result", "tool_use_id": "t", "content": "ok"}, {"type": "text", "text": "a reminder"}}})
				}
			}
			return object{"model": "m-1", "max_tokens": 9, "stream": stream, "messages": messages, "tools": tools}
		},
		tool: func(name string, schema object) object { return object{"name": name, "input_schema": schema} },
		read: readMessages, whole: wholeMessage,
	},
	{
		dialect: OpenAI, endpoint: Responses, path: always("/openai/v1/responses"),
		body: func(speakers string, stream bool, tools []object) object {
			input := []object{{"role": "developer", "content": "be good"}}
			for _, by := range speakers {
				switch by {
				case 'u':
					input = append(input, object{"type": "message", "role": "user", "content": []object{{"type": "input_text", "text": "do it"}}})
				case 'm':
					input = append(input, object{"type": "reasoning", "summary": []object{}}, object{"type": "function_call", "name": "shell", "call_id": "t", "arguments": "{}"})
				case 'r':
					input = append(input, object{"type": "function_call_output", "call_id": "t", "output": "ok"})
				}
			}
			return object{"model": "m-1", "stream": stream, "input": input, "tools": tools, "store": false}
		},
		tool: func(name string, schema object) object {
			return object{"type": "function", "name": name, "parameters": schema}
		},
		read: readResponses, whole: wholeResponse,
	},
	{
		dialect: OpenAI, endpoint: Chat, path: always("/v1/chat/completions"),
		body: func(speakers string, stream bool, tools []object) object {
			messages := []object{{"role": "system", "content": "be good"}}
			for _, by := range speakers {
				switch by {
				case 'u':
					messages = append(messages, object{"role": "user", "content": "do it"})
				case 'm':
					messages = append(messages, object{"role": "assistant", "content": nil, "tool_calls": []object{{"id": "t", "type": "function", "function": object{"name": "bash", "arguments": "{}"}}}})
				case 'r':
					messages = append(messages, object{"role": "tool", "tool_call_id": "t", "content": "ok"})
				}
			}
			out := object{"model": "m-1", "messages": messages, "tools": tools}
			if stream {
				out["stream"], out["stream_options"] = true, object{"include_usage": true}
			}
			return out
		},
		tool: func(name string, schema object) object {
			return object{"type": "function", "function": object{"name": name, "parameters": schema}}
		},
		read: readChat, whole: wholeChat,
	},
	{
		dialect: Gemini, endpoint: Generate,
		path: func(stream bool) string {
			if stream {
				return "/gemini/v1beta/models/m-1:streamGenerateContent?alt=sse"
			}
			return "/gemini/v1beta/models/m-1:generateContent"
		},
		body: func(speakers string, _ bool, tools []object) object {
			var contents []object
			for _, by := range speakers {
				switch by {
				case 'u':
					contents = append(contents, object{"role": "user", "parts": []object{{"text": "do it"}}})
				case 'm':
					contents = append(contents, object{"role": "model", "parts": []object{{"functionCall": object{"name": "run_shell_command", "args": object{}}}}})
				case 'r':
					contents = append(contents, object{"role": "user", "parts": []object{{"functionResponse": object{"name": "run_shell_command", "response": object{"output": "ok"}}}}})
				}
			}
			out := object{"contents": contents}
			if tools != nil {
				out["tools"] = []object{{"functionDeclarations": tools}}
			}
			return out
		},
		tool: func(name string, schema object) object { return object{"name": name, "parametersJsonSchema": schema} },
		read: readGemini, whole: wholeGemini,
	},
}

// commandSchema is of a tool that takes a command, and wants more than that.
var commandSchema = object{
	"type":       "object",
	"properties": object{"command": object{"type": "string"}, "description": object{"type": "string"}},
	"required":   []string{"command", "description"},
}

// offers are the tools of an agent program.
func (w way) offers() []object {
	return []object{w.tool("read_file", object{"type": "object"}), w.tool("bash", commandSchema)}
}

// name of the way in tests.
func (w way) name() string { return w.dialect + "." + w.endpoint }

// says asks for the next turn of a conversation, both ways, and wants the same of both.
func (w way) says(t *testing.T, url, speakers string, tools []object) said {
	t.Helper()
	streamed := w.read(t, events(t, ask(t, "POST", url+w.path(true), w.body(speakers, true, tools))))
	whole := ask(t, "POST", url+w.path(false), w.body(speakers, false, tools))
	if whole.status != http.StatusOK || whole.header.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %v\n%s", whole.status, whole.header, whole.body)
	}
	got := w.whole(t, whole.body)
	if diff := cmp.Diff(streamed, got, cmpopts.IgnoreFields(said{}, "Usage"), cmpopts.IgnoreFields(gotCall{}, "ID")); diff != "" {
		t.Errorf("%s: a stream is not the same as the whole:\n%s", w.name(), diff)
	}
	return streamed
}

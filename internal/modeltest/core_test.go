package modeltest

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

func ask(t *testing.T, method, url string, body any, headers ...string) answer {
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
	r, err := http.NewRequestWithContext(t.Context(), method, url, in)
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
func events(t *testing.T, a answer) []event {
	t.Helper()
	if a.err != nil || a.status != http.StatusOK || !strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") {
		t.Fatalf("no stream: %d %v %v\n%s", a.status, a.err, a.header, a.body)
	}
	body, ok := strings.CutSuffix(a.body, "\n\n")
	if !ok {
		t.Fatalf("the stream does not end with an event: %q", a.body)
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

// names are those of events, each run of the same one once.
func names(all []event) string {
	var out []string
	for _, e := range all {
		if len(out) == 0 || out[len(out)-1] != e.name {
			out = append(out, e.name)
		}
	}
	return strings.Join(out, " ")
}

const claudeAsks = `{"model":"claude-x","max_tokens":100,"stream":true,"messages":[{"role":"user","content":"make it"}],"tools":[
	{"name":"Read","input_schema":{"type":"object","properties":{"path":{"type":"string"}}}},
	{"name":"Bash","input_schema":{"type":"object","properties":{"command":{"type":"string"},"description":{"type":"string"}},"required":["command","description"]}}]}`

func TestAnthropicStream(t *testing.T) {
	_, url := start(t, Script{Turns: []Turn{{Thinking("a thought of some length"), Text("I shall write it, naïvely."), Shell("echo hi > f")}}})
	all := events(t, ask(t, "POST", url+"/anthropic/v1/messages?beta=true", claudeAsks))
	want := "message_start content_block_start ping content_block_delta content_block_stop content_block_start content_block_delta content_block_stop " +
		"content_block_start content_block_delta content_block_stop message_delta message_stop"
	if got := names(all); got != want {
		t.Errorf("the events are %s", got)
	}
}

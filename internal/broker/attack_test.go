package broker

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"runtime"
	"strings"
	"testing"
)

// raw sends bytes as they are, and reads so many answers.
func (w *world) raw(text string, answers int) []reply {
	w.t.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	text = strings.NewReplacer("HOST", w.addr, "TOKEN", w.token).Replace(text)
	if _, err := io.WriteString(c, text); err != nil {
		w.t.Fatal(err)
	}
	r := bufio.NewReader(c)
	var out []reply
	for range answers {
		res, err := http.ReadResponse(r, &http.Request{Method: "POST"})
		if err != nil {
			w.t.Fatalf("answer %d: %v", len(out)+1, err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if res.Close {
			res.Header.Set("Connection", "close")
		}
		out = append(out, reply{res.StatusCode, res.Header, string(b), err})
	}
	return out
}

func head(lines ...string) string {
	return "POST /anthropic/v1/messages HTTP/1.1\r\nHost: HOST\r\nContent-Type: application/json\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n"
}

// What is behind a body is a request of its own, which needs the lease of its own.
func TestRequestBehindAnother(t *testing.T) {
	w := newWorld(t, func(out http.ResponseWriter, r *http.Request) { writeJSON(out, 200, anthropicAnswer) }, nil)
	length := fmt.Sprintf("Content-Length: %d", len(anthropicBody))
	got := w.raw(head("X-Api-Key: TOKEN", length)+anthropicBody+head(length)+anthropicBody, 2)
	if got[0].status != 200 || got[1].status != 401 {
		t.Errorf("%d and %d", got[0].status, got[1].status)
	}
	sent := w.came()
	if len(sent) != 1 || sent[0].body != anthropicBody {
		t.Errorf("sent: %+v", sent)
	}
}

// Requests of which two servers could find different ends are refused before anything is read of them.
func TestTwoEnds(t *testing.T) {
	for name, lines := range map[string][]string{
		"two lengths":        {"Content-Length: 5", "Content-Length: 80"},
		"length in a list":   {"Content-Length: 5, 80"},
		"length with a sign": {"Content-Length: +80"},
		"odd coding":         {"Transfer-Encoding: chunked, identity"},
		"two codings":        {"Transfer-Encoding: chunked", "Transfer-Encoding: chunked"},
		"folded":             {"X-A: b", " c"},
		"blank in a name":    {"X-Api-Key : TOKEN"},
	} {
		w := newWorld(t, nil, nil)
		got := w.raw(head(append([]string{"X-Api-Key: TOKEN"}, lines...)...)+anthropicBody, 1)[0]
		if name == "folded" { // it is one value then, which is no harm
			continue
		}
		if got.status != 400 && got.status != 501 || len(w.came()) != 0 || len(w.begun()) != 0 {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	// A body in chunks with a length beside it has the chunks' end, and the connection is not used again.
	w := newWorld(t, func(out http.ResponseWriter, r *http.Request) { writeJSON(out, 200, anthropicAnswer) }, nil)
	text := head("X-Api-Key: TOKEN", "Content-Length: 3", "Transfer-Encoding: chunked") + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(anthropicBody), anthropicBody)
	got := w.raw(text, 1)[0]
	if got.status == 200 && (got.header.Get("Connection") != "close" || w.came()[0].body != anthropicBody || len(w.came()) != 1) {
		t.Errorf("%d %v %+v", got.status, got.header, w.came())
	}
}

func TestHugeHeaders(t *testing.T) {
	w := newWorld(t, nil, nil)
	got := w.raw(head("X-Api-Key: TOKEN", "Anthropic-Beta: "+strings.Repeat("a", 100<<10)), 1)[0]
	if got.status != 431 {
		t.Errorf("%d %s", got.status, got.body)
	}
	w = newWorld(t, func(out http.ResponseWriter, r *http.Request) { writeJSON(out, 200, anthropicAnswer) }, nil)
	if got := w.post("/anthropic/v1/messages", anthropicBody, "Anthropic-Beta", strings.Repeat("a,", 10<<10)); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if n := len(w.came()[0].header.Get("Anthropic-Beta")); n > maxBetas*2 {
		t.Errorf("%d bytes of betas were sent", n)
	}
	w = newWorld(t, func(out http.ResponseWriter, r *http.Request) {
		out.Header().Set("X-Ratelimit-Huge", strings.Repeat("a", 2000))
		for i := range 200 {
			out.Header().Set(fmt.Sprint("X-Ratelimit-", i), "1")
		}
		writeJSON(out, 200, anthropicAnswer)
	}, nil)
	if got := w.post("/anthropic/v1/messages", anthropicBody); got.status != 200 || len(got.header) > 60 || got.header.Get("X-Ratelimit-Huge") != "" {
		t.Errorf("%d, %d headers", got.status, len(got.header))
	}
}

// endless is a body that does not end, but for a length.
type endless struct{ left int }

func (e *endless) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), e.left)
	for i := range n {
		p[i] = ' '
	}
	e.left -= n
	return n, nil
}

func TestHugeBodies(t *testing.T) {
	for _, length := range []int64{100 << 20, -1, MaxBody + 1} {
		w := newWorld(t, nil, nil)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got := w.huge(length)
		runtime.ReadMemStats(&after)
		if got.status != 413 || len(w.came()) != 0 {
			t.Errorf("%d %s", got.status, got.body)
		}
		// In chunks it has to be read to be found too large.
		if grown := after.TotalAlloc - before.TotalAlloc; length > 0 && grown > 4<<20 || grown > 5*MaxBody {
			t.Errorf("%d bytes were taken for a body of %d", grown, length)
		}
	}
}

// huge sends a body of blanks with a length, or 100 MB in chunks without one, and reads the answer, which comes before all
// was sent: for net/http's client it would be a matter of chance whether that is an answer or a connection that broke.
func (w *world) huge(length int64) reply {
	w.t.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	how, body, size := fmt.Sprint("Content-Length: ", length), io.Writer(c), length
	if length < 0 {
		how, body, size = "Transfer-Encoding: chunked", httputil.NewChunkedWriter(c), 100<<20
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		text := strings.NewReplacer("HOST", w.addr, "TOKEN", w.token).Replace(head("X-Api-Key: TOKEN", how))
		if _, err := io.WriteString(c, text); err == nil {
			_, _ = io.Copy(body, &endless{int(size)}) // nobody has to take all of it
		}
	}()
	defer func() { c.Close(); <-sent }()
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(b), err}
}

// A body of very many values is refused, in the dialect's own form.
func TestManyValues(t *testing.T) {
	many := "[" + strings.Repeat("1,", 1<<20) + "1]"
	for name, call := range calls {
		w := newWorld(t, nil, nil)
		w.mustRefuse(w.post(call.path, strings.Replace(call.body, `"hi"`, many, 1)), dialectOf(name), 400, "more than 262144 values")
	}
}

// An answer without an end is cut, in one piece too.
func TestTenGigabytes(t *testing.T) {
	sent := make(chan int64, 1)
	w := newWorld(t, func(out http.ResponseWriter, r *http.Request) {
		out.Header().Set("Content-Type", "application/json")
		n, _ := io.Copy(out, &endless{10 << 30})
		sent <- n
	}, nil)
	got := w.post("/anthropic/v1/messages", anthropicBody)
	if message := errorOf(t, got, Anthropic); got.status != 502 || !strings.Contains(message, "64 MiB") {
		t.Errorf("%d %s", got.status, message)
	}
	if n := <-sent; n > 100<<20 {
		t.Errorf("%d bytes were read", n)
	}
}

// However much several answers are together, it is bounded.
func TestAnswersTogether(t *testing.T) {
	w := newWorld(t, func(out http.ResponseWriter, r *http.Request) {
		out.Header().Set("Content-Type", "application/json")
		io.Copy(out, &endless{8 << 20})
		fmt.Fprint(out, anthropicAnswer)
	}, nil)
	if got := w.post("/anthropic/v1/messages", anthropicBody); got.status != 200 {
		t.Fatalf("%d %.100s", got.status, got.body)
	}
	all := w.broker.answers.left
	w.broker.answers.grab(all - 4<<20)
	got := w.post("/anthropic/v1/messages", anthropicBody)
	if message := errorOf(t, got, Anthropic); got.status != 502 || !strings.Contains(message, "together") {
		t.Errorf("%d %s", got.status, message)
	}
	if left := w.broker.answers.left; left != 4<<20 {
		t.Errorf("%d bytes are free", left)
	}
}

// The key comes back in no form, however it is cut, and never in a header.
func TestEchoesOfTheKey(t *testing.T) {
	quoted, _ := json.Marshal(realKey)
	escaped := ""
	for _, c := range realKey {
		escaped += fmt.Sprintf(`\u%04x`, c)
	}
	echo := fmt.Sprintf(`{"plain":%s,"base64":"%s","percent":"%s","escaped":"%s"}`, quoted, base64.StdEncoding.EncodeToString([]byte("x:"+realKey)), url.QueryEscape(realKey), escaped)
	clean := func(got reply) {
		t.Helper()
		text := got.body + fmt.Sprint(got.header)
		for _, form := range []string{realKey, escaped, base64.StdEncoding.EncodeToString([]byte("x:" + realKey))[4:20]} {
			if strings.Contains(text, form) {
				t.Errorf("the key came back: %s", text)
			}
		}
	}
	for _, status := range []int{200, 400, 401, 403, 500} {
		w := newWorld(t, func(out http.ResponseWriter, r *http.Request) {
			out.Header().Set("Request-Id", realKey)
			out.Header().Set("X-Ratelimit-"+realKey, "1")
			out.Header().Set("Content-Type", "application/json")
			out.WriteHeader(status)
			body := `{"error":{"message":"bad key ` + realKey + `"},"echo":` + echo + `}`
			for i := range len(body) {
				io.WriteString(out, body[i:i+1])
				out.(http.Flusher).Flush()
			}
		}, nil)
		got := w.post("/anthropic/v1/messages", anthropicBody)
		clean(got)
		if status == 200 && !strings.Contains(got.body, "[key REAL_KEY]") {
			t.Errorf("%s", got.body)
		}
		if c := fmt.Sprintf("%+v", w.finished(1)[0]); strings.Contains(c, realKey) {
			t.Errorf("the record has the key: %s", c)
		}
	}
	events := anthropicStream("the key is " + realKey)
	w := newWorld(t, func(out http.ResponseWriter, r *http.Request) {
		all := strings.Join(events, "")
		sse(out, strings.Split(all, "")...)
	}, nil)
	got := w.post("/anthropic/v1/messages", streamed(anthropicBody))
	clean(got)
	if got.body != strings.ReplaceAll(strings.Join(events, ""), realKey, "[key REAL_KEY]") {
		t.Error(got.body)
	}
	// What is no real key is a word that models say.
	w = newWorld(t, func(out http.ResponseWriter, r *http.Request) {
		writeJSON(out, 200, `{"type":"message","text":"ollama"}`)
	}, func(o *Options) {
		o.provider("anthropic").Keys = []Key{fixedKey("K", "ollama")}
	})
	if got := w.post("/anthropic/v1/messages", anthropicBody); !strings.Contains(got.body, "ollama") {
		t.Error(got.body)
	}
}

// Nothing of a request that is not let through stays in what is written down, beyond its beginning.
func TestRefusalsAreShort(t *testing.T) {
	w := newWorld(t, nil, nil)
	got := w.post("/anthropic/v1/messages", strings.Replace(anthropicBody, "claude-x", strings.Repeat("x", 10000), 1))
	if refused := w.begun()[0]; len(refused.Refused) > 1000 || len(refused.Model) > 200 || got.status != 400 {
		t.Errorf("%d: %+v", got.status, refused)
	}
}

func TestOutgoing(t *testing.T) {
	o := &outgoing{data: []byte("hello"), size: 5}
	a, b := o.reader(), o.reader()
	o.let()
	if all, err := io.ReadAll(a); err != nil || string(all) != "hello" {
		t.Errorf("%q %v", all, err)
	}
	if o.data == nil {
		t.Error("it went away under a reader")
	}
	b.Close()
	b.Close()
	if o.data != nil {
		t.Error("it is kept")
	}
	if n, err := b.Read(make([]byte, 8)); n != 0 || err != io.EOF {
		t.Error(n, err)
	}
}

func FuzzTally(f *testing.F) {
	for _, s := range streams {
		for _, part := range strings.Split(s.first+s.last, "\n") {
			f.Add([]byte(part))
		}
		f.Add([]byte(s.first + s.last))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		carried := dataOf(data)
		for _, e := range []endpoint{messages, countTokens, responses, chat, generate, generateStream, generateCount} {
			y := tally{endpoint: e}
			if y.read(carried) && !json.Valid(carried) && string(bytes.TrimSpace(carried)) != "[DONE]" {
				t.Errorf("%q is taken for JSON", carried)
			}
			u, _ := y.sum(len(data))
			if u.Input < 0 || u.Output < 0 || u.CacheRead < 0 || u.CacheWrite < 0 || u.tokens() < 0 || u.tokens() > 8*maxCount {
				t.Errorf("%+v", u)
			}
		}
		w := &Broker{answers: newBudget(1 << 30)}
		k := &kept{b: w}
		r := bufio.NewReaderSize(bytes.NewReader(data), 16)
		var all []byte
		for {
			err := k.readEvent(r)
			all = append(all, k.Bytes()...)
			k.free()
			if err != nil {
				break
			}
		}
		if !bytes.Equal(all, data) {
			t.Errorf("%q came out as %q", data, all)
		}
	})
}

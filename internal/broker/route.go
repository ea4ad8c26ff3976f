package broker

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"ravi/internal/broker/check"
)

// endpoint is one of what is there, by the name that the audit has.
type endpoint string

const (
	hello          endpoint = "hello" // answered here, to anyone
	models         endpoint = "models"
	messages       endpoint = "messages"
	countTokens    endpoint = "count_tokens"
	responses      endpoint = "responses"
	chat           endpoint = "chat"
	generate       endpoint = "generate"
	generateStream endpoint = "generate_stream"
	generateCount  endpoint = "generate_count"
)

// route is where a request goes.
type route struct {
	endpoint endpoint
	path     string // upstream, without the base
	query    string
	model    string // if the path says it
}

// fixed are the paths that are always the same.
var fixed = map[Dialect]map[string]endpoint{
	Anthropic: {"/v1/messages": messages, "/v1/messages/count_tokens": countTokens},
	OpenAI:    {"/v1/responses": responses, "/v1/chat/completions": chat, "/v1/models": models},
}

// geminiPath has the model in it, in its plain form.
var geminiPath = regexp.MustCompile(`^/v1beta/models/([A-Za-z0-9][A-Za-z0-9._@-]{0,127}):(generateContent|streamGenerateContent|countTokens)$`)

var geminiMethods = map[string]endpoint{
	"generateContent": generate, "streamGenerateContent": generateStream, "countTokens": generateCount,
}

// find says what a request asks of a provider of a dialect, by the path behind the provider's name. A path is compared
// as it was sent: one that says the same in another way (escaped, with dots or empty parts) is another.
func find(d Dialect, method string, u *url.URL, path string) (route, *refusal) {
	if d == Anthropic && (path == "" || path == "/") && (method == http.MethodHead || method == http.MethodGet) {
		return route{endpoint: hello}, nil
	}
	to := route{path: path}
	to.endpoint = fixed[d][path]
	if found := geminiPath.FindStringSubmatch(path); d == Gemini && found != nil && !strings.Contains(path, "..") {
		to.model, to.endpoint = found[1], geminiMethods[found[2]]
	}
	if to.endpoint == "" {
		return to, &refusal{status: http.StatusNotFound, message: fmt.Sprintf("there is no %s here; %s", quoted(path), wayOf(d))}
	}
	want := http.MethodPost
	if to.endpoint == models {
		want = http.MethodGet
	}
	if method != want {
		return to, &refusal{status: http.StatusMethodNotAllowed, message: fmt.Sprintf("%s is asked for with %s", path, want)}
	}
	queries := []string{""}
	switch to.endpoint {
	case messages, countTokens:
		queries = append(queries, "beta=true")
	case generateStream:
		queries = []string{"alt=sse"}
	}
	if !slices.Contains(queries, u.RawQuery) {
		return to, &refusal{status: http.StatusBadRequest, message: fmt.Sprintf("what %s has behind a ? is to be %s here, and a lease is never part of an address",
			path, strings.Join(named(queries), " or "))}
	}
	to.query = u.RawQuery
	return to, nil
}

func named(queries []string) []string {
	out := slices.Clone(queries)
	if i := slices.Index(out, ""); i >= 0 {
		out[i] = "nothing"
	}
	return out
}

// wayOf says what is there of a dialect.
func wayOf(d Dialect) string {
	switch d {
	case Anthropic:
		return "only POST /v1/messages and /v1/messages/count_tokens"
	case Gemini:
		return "only POST /v1beta/models/MODEL: with generateContent, streamGenerateContent or countTokens"
	default:
		return "only POST /v1/responses and /v1/chat/completions, and GET /v1/models"
	}
}

// read has a body checked.
func (to route) read(body []byte, g check.Grants) (check.Request, *refusal) {
	var r check.Request
	var refused *check.Refusal
	switch to.endpoint {
	case messages:
		r, refused = check.Messages(body, g)
	case countTokens:
		r, refused = check.CountTokens(body, g)
	case responses:
		r, refused = check.Responses(body, g)
	case chat:
		r, refused = check.Chat(body, g)
	case generateCount:
		r, refused = check.GeminiCount(to.model, body, g)
	default:
		r, refused = check.Gemini(to.model, body, g)
	}
	if refused != nil {
		return r, &refusal{status: refused.Status, message: refused.Message}
	}
	switch to.endpoint {
	case countTokens, generateCount, generate:
		r.Stream = false
	case generateStream:
		r.Stream = true
	}
	return r, nil
}

// counts says that an endpoint only counts: it uses nothing.
func (e endpoint) counts() bool { return e == countTokens || e == generateCount }

var version = regexp.MustCompile(`^v[0-9]+(alpha|beta)?[0-9]*$`)

// target is the address of an endpoint. A base that says a version itself, as OpenAI's is commonly written, has it in
// place of the dialect's own.
func target(base *url.URL, to route) *url.URL {
	u := *base
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	path := to.path
	if slices.ContainsFunc(parts, version.MatchString) {
		path = path[strings.Index(path[1:], "/")+1:]
	}
	u.Path, u.RawPath, u.RawQuery = strings.TrimRight(u.Path, "/")+path, "", to.query
	return &u
}

// quoted is what a stranger wrote, cut and without anything that a terminal would obey.
func quoted(s string) string {
	const most = 100
	if len(s) > most {
		s = s[:most] + "…"
	}
	return fmt.Sprintf("%+q", s)
}

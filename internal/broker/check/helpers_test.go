package check

import (
	"strings"
	"testing"
)

// checker is one of the functions under test, by its dialect.
type checker func(string, Grants) (Request, *Refusal)

func messages(body string, g Grants) (Request, *Refusal)  { return Messages([]byte(body), g) }
func responses(body string, g Grants) (Request, *Refusal) { return Responses([]byte(body), g) }
func chat(body string, g Grants) (Request, *Refusal)      { return Chat([]byte(body), g) }
func gemini1(body string, g Grants) (Request, *Refusal) {
	return Gemini("gemini-3-pro", []byte(body), g)
}
func geminiCount(body string, g Grants) (Request, *Refusal) {
	return GeminiCount("gemini-3-pro", []byte(body), g)
}

// The wraps put a field, a tool, a part of content and the like into a body that is harmless but for it.
var wraps = map[string]struct {
	check checker
	body  string
}{
	"a field":     {messages, `{"model":"claude-x","max_tokens":9,"messages":[],@}`},
	"a tool":      {messages, `{"model":"claude-x","max_tokens":9,"messages":[],"tools":[{"name":"n","input_schema":{}},@]}`},
	"a part":      {messages, `{"model":"claude-x","max_tokens":9,"messages":[{"role":"user","content":[{"type":"text","text":"t"},@]}]}`},
	"a result":    {messages, `{"model":"claude-x","max_tokens":9,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"i","content":[@]}]}]}`},
	"a system":    {messages, `{"model":"claude-x","max_tokens":9,"messages":[],"system":[@]}`},
	"r field":     {responses, `{"model":"gpt-x","store":false,"input":"hi",@}`},
	"r tool":      {responses, `{"model":"gpt-x","store":false,"input":"hi","tools":[{"type":"function","name":"n"},@]}`},
	"r item":      {responses, `{"model":"gpt-x","store":false,"input":[{"role":"user","content":"hi"},@]}`},
	"r part":      {responses, `{"model":"gpt-x","store":false,"input":[{"role":"user","content":[@]}]}`},
	"r output":    {responses, `{"model":"gpt-x","store":false,"input":[{"type":"function_call_output","call_id":"c","output":[@]}]}`},
	"r bare":      {responses, `{"model":"gpt-x","input":"hi"@}`},
	"c field":     {chat, `{"model":"gpt-x","messages":[],@}`},
	"c tool":      {chat, `{"model":"gpt-x","messages":[],"tools":[@]}`},
	"c message":   {chat, `{"model":"gpt-x","messages":[{"role":"user","content":"hi"},@]}`},
	"c part":      {chat, `{"model":"gpt-x","messages":[{"role":"user","content":[@]}]}`},
	"g field":     {gemini1, `{"contents":[],@}`},
	"g tool":      {gemini1, `{"contents":[],"tools":[{"functionDeclarations":[]},@]}`},
	"g one tool":  {gemini1, `{"contents":[],"tools":@}`},
	"g part":      {gemini1, `{"contents":[{"role":"user","parts":[{"text":"t"},@]}]}`},
	"g one part":  {gemini1, `{"contents":{"role":"user","parts":@}}`},
	"g response":  {gemini1, `{"contents":[{"parts":[{"functionResponse":{"name":"n","response":{},"parts":[@]}}]}]}`},
	"g system":    {gemini1, `{"contents":[],"systemInstruction":{"parts":[@]}}`},
	"g config":    {gemini1, `{"contents":[],"generationConfig":{@}}`},
	"g count":     {geminiCount, `{"generateContentRequest":{"model":"models/gemini-3-pro","contents":[],@}}`},
	"g top count": {geminiCount, `{"contents":[],@}`},
}

// run checks what stands in a wrap.
func run(t testing.TB, in, what string, g Grants) (Request, *Refusal) {
	t.Helper()
	w, ok := wraps[in]
	if !ok {
		t.Fatalf("there is no wrap %q", in)
	}
	return w.check(strings.Replace(w.body, "@", what, 1), g)
}

// all are the named grants.
func all() Grants {
	g := Grants{}
	for name := range reasons {
		g[name] = true
	}
	return g
}

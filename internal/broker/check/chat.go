package check

import (
	"slices"

	"ravi/internal/strictjson"
)

// What follows are the tables of OpenAI's Chat Completions, which many others speak too: the fields that some of those
// have of their own are here if they only shape the answer.

var chatPart = by("type", map[string]rule{
	"text": part("text cache_control prompt_cache_breakpoint", nil),
	"image_url": part("cache_control prompt_cache_breakpoint", map[string]rule{
		"image_url": object("detail", map[string]rule{"url": data}),
	}),
	"input_audio": part("prompt_cache_breakpoint", map[string]rule{
		"input_audio": object("format", map[string]rule{"data": content}),
	}),
	"file": part("prompt_cache_breakpoint", map[string]rule{
		"file": object("filename", map[string]rule{"file_data": content, "file_id": granted(Files)}),
	}),
	"refusal":  part("refusal", nil),
	"thinking": part("thinking signature", nil),
}, nil)

var chatMessage = object(`role name tool_call_id refusal function_call reasoning reasoning_content reasoning_details
	reasoning_text reasoning_opaque cache_control`,
	map[string]rule{
		"content": textOr(each(chatPart)),
		"tool_calls": each(by("type", map[string]rule{
			"function": chatCall, "custom": chatCall,
		}, chatCall)),
		// The id of something said in an earlier answer.
		"audio": granted(Store),
	})

// chatCall is a call that the model made.
var chatCall = part("id index function custom extra_content", nil)

var chatBody = object(`frequency_penalty function_call functions logit_bias logprobs metadata modalities
	parallel_tool_calls presence_penalty prompt_cache_key prompt_cache_options prompt_cache_retention reasoning_effort
	response_format safety_identifier seed service_tier stop temperature top_logprobs top_p user verbosity
	top_k min_p repetition_penalty reasoning thinking enable_thinking usage tool_stream`,
	map[string]rule{
		"model":                 text,
		"stream":                flag,
		"stream_options":        object("include_obfuscation", map[string]rule{"include_usage": flag}),
		"max_tokens":            whole,
		"max_completion_tokens": whole,
		"n":                     whole,
		"messages":              each(chatMessage),
		"tools": each(by("type", map[string]rule{
			"function": part("cache_control", map[string]rule{"function": object("name description parameters strict", nil)}),
			"custom":   part("cache_control", map[string]rule{"custom": object("name description format", nil)}),

			"web_search":         granted(WebSearch),
			"web_search_preview": granted(WebSearch),
			"code_interpreter":   granted(CodeExecution),
			"file_search":        granted(FileSearch),
			"mcp":                granted(MCP),
			"image_generation":   granted(ImageGeneration),
		}, nil)),
		"tool_choice": openaiChoice,
		// The template's own switches; the template itself is code, and not for a stranger to give.
		"chat_template_kwargs": object("thinking enable_thinking preserve_thinking", nil),
		// A voice of the account's own is an object with its id.
		"audio":              object("format", map[string]rule{"voice": textOr(granted(Files))}),
		"prediction":         part("", map[string]rule{"content": textOr(each(chatPart))}),
		"store":              off(Store),
		"web_search_options": granted(WebSearch),
	})

// Chat reads the body of OpenAI's POST /v1/chat/completions. A streamed answer says what was used only when asked to,
// so it is asked for.
func Chat(body []byte, g Grants) (Request, *Refusal) {
	v, f := read(body, g, chatBody)
	if f != nil {
		return Request{}, f.refusal()
	}
	r, f := common(body, v, "max_tokens", "max_completion_tokens")
	if f != nil {
		return Request{}, f.refusal()
	}
	n := number(v, "n")
	if n > 128 {
		return Request{}, bad("more than 128 answers").in("n").refusal()
	}
	if n > 1 {
		// Each of the answers may be as long. What cannot be multiplied is a limit that limits nothing.
		r.MaxTokens = min(r.MaxTokens, 1<<40) * n
	}
	if r.Stream {
		r.Body, r.HideUsage = askForUsage(body, v)
	}
	return r, nil
}

// askForUsage has stream_options.include_usage be true, and says whether it was not. Every other byte stays.
func askForUsage(body []byte, v strictjson.Value) ([]byte, bool) {
	const whole, inside = `{"include_usage":true}`, `"include_usage":true`
	options, ok := v.Get("stream_options")
	if !ok {
		start, _ := v.Span()
		// The body is not empty: it has a model.
		return splice(body, start+1, start+1, `"stream_options":`+whole+`,`), true
	}
	start, end := options.Span()
	if usage, ok := options.Get("include_usage"); ok {
		from, to := usage.Span()
		return splice(body, from, to, "true"), string(usage.Raw()) != "true"
	}
	for range options.Members() {
		return splice(body, start+1, start+1, inside+`,`), true
	}
	return splice(body, start, end, whole), true
}

func splice(body []byte, from, to int, with string) []byte {
	return slices.Concat(body[:from], []byte(with), body[to:])
}

package check

import "ravi/internal/strictjson"

// What follows are the tables of OpenAI's Responses.

// responsesPart are the parts of a message, and of what a tool gave.
var responsesPart = by("type", map[string]rule{
	"input_text": part("text prompt_cache_breakpoint", nil),
	"input_image": part("detail prompt_cache_breakpoint", map[string]rule{
		"image_url": data, "file_id": granted(Files),
	}),
	"input_file": part("detail filename prompt_cache_breakpoint", map[string]rule{
		"file_data": content, "file_url": granted(URLs), "file_id": granted(Files),
	}),
	"input_audio":    part("", map[string]rule{"input_audio": object("format", map[string]rule{"data": content})}),
	"output_text":    part("text annotations logprobs", nil),
	"refusal":        part("refusal", nil),
	"text":           part("text", nil),
	"summary_text":   part("text", nil),
	"reasoning_text": part("text", nil),
}, nil)

var responsesMessage = part("id role status phase", map[string]rule{"content": textOr(each(responsesPart))})

// responsesOwn are the tools that are only named and described.
var responsesOwn = map[string]rule{
	"function": part("name description parameters strict allowed_callers defer_loading output_schema", nil),
	"custom":   part("name description format allowed_callers defer_loading", nil),
}

// responsesHosted are the tools of the provider, and those that are a connection to others.
var responsesHosted = map[string]rule{
	"web_search":                granted(WebSearch),
	"web_search_preview":        granted(WebSearch),
	"file_search":               granted(FileSearch),
	"code_interpreter":          granted(CodeExecution),
	"programmatic_tool_calling": granted(CodeExecution),
	"mcp":                       granted(MCP),
	"image_generation":          granted(ImageGeneration),
}

// responsesTool are the tools. The search among the tools of the request is the provider's, and sees nothing else.
var responsesTool = by("type", with(responsesOwn, responsesHosted, map[string]rule{
	"namespace":            part("name description", map[string]rule{"tools": each(by("type", responsesOwn, nil))}),
	"local_shell":          part("", nil),
	"shell":                responsesShell,
	"apply_patch":          part("allowed_callers", nil),
	"computer":             part("", nil),
	"computer_use_preview": part("display_width display_height environment", nil),
	"tool_search":          part("description execution parameters", nil),
}), nil)

// responsesEnvironment is where a shell runs.
var responsesEnvironment = by("type", map[string]rule{
	"local":               part("skills", nil),
	"container_auto":      granted(CodeExecution),
	"container_reference": granted(CodeExecution),
}, nil)

// responsesShell is the agent's own only if it says so.
func responsesShell(g Grants, v strictjson.Value) *fault {
	if where, ok := v.Get("environment"); (!ok || where.Kind() == strictjson.Null) && !g[CodeExecution] {
		f := denied(CodeExecution)
		f.what += `, as it does not say "environment": {"type": "local"}`
		return f
	}
	return part("allowed_callers", map[string]rule{"environment": responsesEnvironment})(g, v)
}

// responsesItem are the items of the input.
var responsesItem = by("type", map[string]rule{
	"message":       responsesMessage,
	"function_call": part("id call_id name arguments namespace status caller", nil),
	"function_call_output": part("id call_id status caller", map[string]rule{
		"output": textOr(each(responsesPart)),
	}),
	"custom_tool_call": part("id call_id name input namespace status caller", nil),
	"custom_tool_call_output": part("id call_id name status caller", map[string]rule{
		"output": textOr(each(responsesPart)),
	}),
	"reasoning": part("id status encrypted_content", map[string]rule{
		"summary": each(responsesPart), "content": each(responsesPart),
	}),
	"compaction":              part("id encrypted_content", nil),
	"compaction_summary":      part("id encrypted_content", nil),
	"compaction_trigger":      part("", nil),
	"local_shell_call":        part("id call_id action status", nil),
	"local_shell_call_output": part("id call_id output status", nil),
	"shell_call": part("id call_id action status caller", map[string]rule{
		"environment": responsesEnvironment,
	}),
	"shell_call_output":       part("id call_id output status caller max_output_length", nil),
	"apply_patch_call":        part("id call_id operation status caller", nil),
	"apply_patch_call_output": part("id call_id output status caller", nil),
	"computer_call":           part("id call_id action actions pending_safety_checks status", nil),
	"computer_call_output": part("id call_id acknowledged_safety_checks status", map[string]rule{
		"output": by("type", map[string]rule{
			"computer_screenshot": part("", map[string]rule{"image_url": data, "file_id": granted(Files)}),
		}, nil),
	}),
	// Both bring tools along.
	"additional_tools":   part("id role", map[string]rule{"tools": each(responsesTool)}),
	"tool_search_call":   part("id call_id arguments execution status", nil),
	"tool_search_output": part("id call_id execution status", map[string]rule{"tools": each(responsesTool)}),

	"item_reference":        granted(Store),
	"web_search_call":       granted(WebSearch),
	"file_search_call":      granted(FileSearch),
	"code_interpreter_call": granted(CodeExecution),
	"program":               granted(CodeExecution),
	"program_output":        granted(CodeExecution),
	"image_generation_call": granted(ImageGeneration),
	"mcp_list_tools":        granted(MCP),
	"mcp_call":              granted(MCP),
	"mcp_approval_request":  granted(MCP),
	"mcp_approval_response": granted(MCP),
}, responsesUntyped)

// responsesUntyped is an item without a type: a message if it has a role, else the id of something that is kept.
func responsesUntyped(g Grants, v strictjson.Value) *fault {
	if _, ok := v.Get("role"); ok {
		return responsesMessage(g, v)
	}
	if _, ok := v.Get("id"); ok {
		return granted(Store)(g, v)
	}
	return bad("it has no type")
}

// responsesInclude only add to the answer what was there anyway.
func responsesInclude(_ Grants, v strictjson.Value) *fault {
	if v.Kind() != strictjson.String {
		return bad("expected a string, got %s", v.Kind())
	}
	switch v.Text() {
	case "reasoning.encrypted_content", "message.output_text.logprobs", "message.input_image.image_url",
		"computer_call_output.output.image_url", "web_search_call.results", "web_search_call.action.sources",
		"file_search_call.results", "code_interpreter_call.outputs":
		return nil
	}
	return bad("%s is not known here", quote(v.Text()))
}

// openaiChoice says which tool is to be called, in both of OpenAI's endpoints.
var openaiChoice = textOr(by("type", with(openaiNamed, map[string]rule{
	"allowed_tools": part("mode", map[string]rule{
		"tools":         each(by("type", openaiNamed, nil)),
		"allowed_tools": object("mode", map[string]rule{"tools": each(by("type", openaiNamed, nil))}),
	}),
}), nil))

var openaiNamed = with(responsesHosted, map[string]rule{
	"function":             part("name namespace", map[string]rule{"function": object("name", nil)}),
	"custom":               part("name namespace", map[string]rule{"custom": object("name", nil)}),
	"namespace":            part("name", nil),
	"local_shell":          part("", nil),
	"shell":                part("", nil),
	"apply_patch":          part("", nil),
	"computer":             part("", nil),
	"computer_use_preview": part("", nil),
})

var responsesBody = object(`instructions metadata client_metadata parallel_tool_calls prompt_cache_key
	prompt_cache_options prompt_cache_retention reasoning safety_identifier service_tier stream_options temperature
	text top_logprobs top_p truncation user context_management max_tool_calls`,
	map[string]rule{
		"model":                text,
		"stream":               flag,
		"max_output_tokens":    whole,
		"input":                textOr(each(responsesItem)),
		"tools":                each(responsesTool),
		"tool_choice":          openaiChoice,
		"include":              each(responsesInclude),
		"previous_response_id": text,
		"store":                flag,
		"background":           off(Background),
		"conversation":         granted(Store),
		"prompt":               granted(Store),
	})

// Responses reads the body of OpenAI's POST /v1/responses.
func Responses(body []byte, g Grants) (Request, *Refusal) {
	v, f := read(body, g, responsesBody)
	if f == nil && !literal(v, "store", "false") && !g[Store] {
		// What is not said means true there.
		f = denied(Store).in("store")
		f.what += `; send "store": false`
	}
	if f != nil {
		return Request{}, f.refusal()
	}
	r, f := common(body, v, "max_output_tokens")
	if f != nil {
		return Request{}, f.refusal()
	}
	if id, ok := v.Get("previous_response_id"); ok && id.Kind() == strictjson.String {
		r.Previous = []string{id.Text()}
	}
	return r, nil
}

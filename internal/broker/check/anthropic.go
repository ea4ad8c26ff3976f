package check

// What follows are the tables of Anthropic's Messages.

// anthropicSource is what a picture or a document is made of.
func anthropicSource(more map[string]rule) rule {
	return by("type", with(map[string]rule{
		"base64": part("media_type", map[string]rule{"data": text}),
		"url":    granted(URLs),
		"file":   granted(Files),
	}, more), nil)
}

// anthropicSimple are parts that stand inside of other parts too.
var anthropicSimple = map[string]rule{
	"text":  part("text cache_control citations", nil),
	"image": part("cache_control transformations", map[string]rule{"source": anthropicSource(nil)}),
}

// anthropicResult are the parts of a tool's result. The model gets the source of a search result as text, and the
// state of the caller's browser too.
var anthropicResult = with(anthropicSimple, map[string]rule{
	"document": part("cache_control citations context title", map[string]rule{
		"source": anthropicSource(map[string]rule{
			"text":    part("media_type", map[string]rule{"data": text}),
			"content": part("", map[string]rule{"content": textOr(each(by("type", anthropicSimple, nil)))}),
		}),
	}),
	"search_result": part("source title cache_control citations", map[string]rule{
		"content": each(by("type", anthropicSimple, nil)),
	}),
	"tool_reference": part("tool_name cache_control", nil),
	"browser_state":  part("tabs state_changes cache_control", nil),
})

// anthropicTool are the tools. The agent itself runs those that pass, but for the search among the tools of the
// request: that is the provider's, and sees nothing else. An advisor is another model that nobody has looked at, and
// so not in the table.
var anthropicTool = by("type", map[string]rule{
	"custom":                 anthropicClientTool,
	"bash":                   anthropicClientTool,
	"text_editor":            anthropicClientTool,
	"memory":                 anthropicClientTool,
	"computer":               anthropicClientTool,
	"computer_toolset":       anthropicClientTool,
	"browser_toolset":        anthropicClientTool,
	"tool_search_tool_bm25":  anthropicClientTool,
	"tool_search_tool_regex": anthropicClientTool,
	"web_search":             granted(WebSearch),
	"web_fetch":              granted(WebFetch),
	"code_execution":         granted(CodeExecution),
	"mcp_toolset":            granted(MCP),
}, anthropicClientTool)

var anthropicClientTool = part(`name description input_schema cache_control defer_loading strict eager_input_streaming
	input_examples allowed_callers display_width_px display_height_px display_number enable_zoom max_characters
	configs`, nil)

// anthropicChange are parts that add a tool in the middle of a conversation, or take one away.
var anthropicChange = map[string]rule{
	"tool_addition": part("cache_control", map[string]rule{"tool": by("type", map[string]rule{
		"tool_reference":        nil,
		"mcp_tool_reference":    granted(MCP),
		"mcp_toolset_reference": granted(MCP),
		"tool_definition":       part("", map[string]rule{"definition": anthropicTool}),
	}, nil)}),
	"tool_removal": nil,
}

var anthropicPart = by("type", with(anthropicResult, anthropicChange, map[string]rule{
	"thinking":          part("thinking signature cache_control", nil),
	"redacted_thinking": part("data cache_control", nil),
	"tool_use":          part("id name input cache_control caller toolset_name", nil),
	"tool_result": part("tool_use_id is_error cache_control toolset_name", map[string]rule{
		"content": textOr(each(by("type", anthropicResult, nil))),
	}),
	"compaction": part("content encrypted_content signature cache_control", map[string]rule{
		"tool_changes": each(by("type", anthropicChange, nil)),
	}),
	// The place where another model took over; it is not read.
	"fallback": nil,
	"server_tool_use": by("name", map[string]rule{
		"tool_search_tool_bm25":      nil,
		"tool_search_tool_regex":     nil,
		"web_search":                 granted(WebSearch),
		"web_fetch":                  granted(WebFetch),
		"code_execution":             granted(CodeExecution),
		"bash_code_execution":        granted(CodeExecution),
		"text_editor_code_execution": granted(CodeExecution),
	}, nil),
	"tool_search_tool_result":                nil,
	"web_search_tool_result":                 granted(WebSearch),
	"web_fetch_tool_result":                  granted(WebFetch),
	"code_execution_tool_result":             granted(CodeExecution),
	"bash_code_execution_tool_result":        granted(CodeExecution),
	"text_editor_code_execution_tool_result": granted(CodeExecution),
	"mcp_tool_use":                           granted(MCP),
	"mcp_tool_result":                        granted(MCP),
	"mcp_tool_listing":                       granted(MCP),
	"container_upload":                       granted(Files),
}), nil)

// anthropicBody leaves out fallbacks (other models, which nobody has looked at) and what names an account or a region.
var anthropicBody = object(`metadata temperature top_p top_k stop_sequences thinking service_tier context_management
	output_config output_format cache_control speed compaction diagnostics fallback_credit_token`,
	map[string]rule{
		"model":      text,
		"stream":     flag,
		"max_tokens": whole,
		"system":     textOr(each(by("type", anthropicSimple, nil))),
		"messages": each(object("role clear_at output_config", map[string]rule{
			"content": textOr(each(anthropicPart)),
		})),
		"tools": each(anthropicTool),
		"tool_choice": by("type", map[string]rule{
			"auto": part("disable_parallel_tool_use", nil),
			"any":  part("disable_parallel_tool_use", nil),
			"tool": part("name disable_parallel_tool_use", nil),
			"none": part("", nil),
		}, nil),
		"mcp_servers": granted(MCP),
		"container":   granted(CodeExecution),
		"thread":      granted(Store),
	})

// Messages reads the body of Anthropic's POST /v1/messages.
func Messages(body []byte, g Grants) (Request, *Refusal) {
	v, f := read(body, g, anthropicBody)
	if f != nil {
		return Request{}, f.refusal()
	}
	r, f := common(body, v, "max_tokens")
	if f != nil {
		return Request{}, f.refusal()
	}
	return r, nil
}

// CountTokens reads the body of Anthropic's POST /v1/messages/count_tokens, which has what Messages has.
func CountTokens(body []byte, g Grants) (Request, *Refusal) { return Messages(body, g) }

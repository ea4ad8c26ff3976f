package check

import (
	"strings"
	"testing"
)

// TestNoRequest is what no grant lets through: it is no proper request, or means different things to different readers.
func TestNoRequest(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 300) + "1" + strings.Repeat("}", 300)
	for _, c := range []struct{ in, what, want string }{
		{"a field", `"Tools":[{"type":"web_search_20250305"}]`, `the field "tools" is spelled "Tools"`},
		{"a field", `"mcp-servers":[{}]`, `the field "mcp_servers" is spelled "mcp-servers"`},
		{"a field", `"MCPServers":[{}]`, `the field "mcp_servers" is spelled "MCPServers"`},
		{"a field", `"tool\u017f":[{}]`, "a field of the name"},
		{"a field", `"x\u0000":1`, "a field of the name"},
		{"a field", `"model":"other"`, "given twice"},
		{"a field", `"\u006dodel":"other"`, "given twice"},
		{"a field", `"Model":"other"`, `spelled "Model"`},
		{"a field", `"metadata":{"a":1,"a":2}`, "metadata.a: given twice"},
		{"a field", `"stream":"true"`, "stream: expected true or false, got a string"},
		{"a field", `"stream":1`, "stream: expected true or false"},
		{"a field", `"system":{"type":"text"}`, "system: expected a list, got an object"},
		{"a field", `"tools":{"type":"web_search_20250305"}`, "tools: expected a list, got an object"},
		{"a field", `"metadata":"\ud800"`, "surrogate"},
		{"a field", `"metadata":` + deep, "inside each other"},
		{"a field", `"metadata":"` + "\xff" + `"`, "not UTF-8"},
		{"a field", `"tool_choice":"auto"`, "tool_choice: expected an object"},
		{"a field", `"metadata":{}}{"model":"x"`, "not valid JSON"},
		{"a tool", `"web_search"`, "tools[1]: expected an object, got a string"},
		{"a tool", `{"type":["web_search_20250305"],"name":"n"}`, "tools[1].type: expected a string, got a list"},
		{"a tool", `{"Type":"web_search_20250305","name":"n"}`, `the field "type" is spelled "Type"`},
		{"a tool", `{"type":"custom","TYPE":"web_search_20250305"}`, `the field "type" is spelled "TYPE"`},
		{"a tool", `{"type":"x\u001b[31m"}`, `"x\x1b[31m" is no type that could be allowed`},
		{"a part", `{"text":"t"}`, "it has no type"},
		{"a part", `{"type":"image","Source":{"type":"url","url":"https://x"}}`, `the field "source" is spelled "Source"`},
		{"a part", `{"type":"image","source":{"url":"https://x"}}`, "source: it has no type"},
		{"a part", `{"type":"image","source":"https://x"}`, "source: expected an object"},
		{"a part", `[{"type":"image"}]`, "content[1]: expected an object, got a list"},
		{"a part", `{"type":"server_tool_use","Name":"web_search"}`, `the field "name" is spelled "Name"`},
		{"r field", `"previous_response_id":["r"]`, "expected a string"},
		{"r field", `"include":["other"]`, `include[0]: "other" is not known here`},
		{"r field", `"include":[{}]`, "include[0]: expected a string"},
		{"r field", `"stream":"true"`, "stream: expected true or false"},
		{"r bare", `,"store":"false"`, "store: expected true or false"},
		{"c field", `"stream":"true"`, "stream: expected true or false"},
		{"c field", `"stream_options":{"include_usage":{}}`, "include_usage: expected true or false"},
		{"c field", `"max_completion_tokens":"9"`, "whole number"},
		{"c field", `"n":"2"`, "n: expected a whole number"},
		{"g config", `"candidateCount":"9"`, "whole number"},
		{"r field", `"Store":true`, `the field "store" is spelled "Store"`},
		{"r field", `"max_output_tokens":-1`, "whole number"},
		{"r field", `"max_output_tokens":1e3`, "whole number"},
		{"r item", `{"content":"x"}`, "it has no type"},
		{"r part", `{"type":"input_image","image_url":{"url":"https://x"}}`, "image_url: expected a string, got an object"},
		{"c field", `"n":129`, "more than 128 answers"},
		{"c field", `"max_tokens":99999999999999999999`, "whole number"},
		{"c field", `"stream_options":{"Include_usage":false}`, "is spelled"},
		{"c field", `"stream_options":[]`, "expected an object"},
		{"c part", `{"type":"image_url","image_url":"https://x"}`, "expected an object"},
		{"c part", `{"type":"image_url","image_url":{"url":"data:x","URL":"https://x"}}`, `the field "url" is spelled "URL"`},
		{"g field", `"tools":[{"googleSearch":null,"google_search":{}}]`, "given twice, in both of its spellings"},
		{"g field", `"cachedContent":null,"cached_content":"x"`, "given twice, in both of its spellings"},
		{"g field", `"CachedContent":"x"`, "is spelled"},
		{"g field", `"cachedcontent":"x"`, "is spelled"},
		{"g field", `"model":"models/other"`, "is not the model of the path"},
		{"g tool", `{"GoogleSearch":{}}`, "is spelled"},
		{"g tool", `{"google-search":{}}`, "is spelled"},
		{"g part", `{"FileData":{"fileUri":"https://x"}}`, "is spelled"},
		{"g part", `{"fileData":{"fileUri":["https://x"]}}`, "expected a string"},
		{"g config", `"maxOutputTokens":"9"`, "whole number"},
		{"g count", `"model":"x"`, "given twice"},
	} {
		t.Run(c.in+" "+c.what[:min(len(c.what), 60)], func(t *testing.T) {
			g := all()
			for _, name := range []string{"Tools", "Model", "MCPServers", "mcp-servers", "Store", "Source", "URL", "CachedContent", "GoogleSearch", "FileData"} {
				g[FieldPrefix+name] = true
			}
			_, refused := run(t, c.in, c.what, g)
			if refused == nil || !strings.Contains(refused.Message, c.want) {
				t.Fatalf("got %v, want %s", refused, c.want)
			}
			if refused.Status != 400 || refused.Grant != "" {
				t.Fatalf("got %+v", refused)
			}
			for _, r := range refused.Message {
				if r < ' ' || r > '~' {
					t.Fatalf("the message has %q: %q", r, refused.Message)
				}
			}
		})
	}
}

// TestMaxTokens is apart, since the wraps have one already.
func TestMaxTokens(t *testing.T) {
	for _, n := range []string{"-1", `"9"`, "1.5", "1e3", "{}"} {
		if _, refused := messages(`{"model":"m","messages":[],"max_tokens":`+n+`}`, all()); refused == nil || refused.Status != 400 {
			t.Errorf("%s: got %v", n, refused)
		}
	}
}

func TestBodies(t *testing.T) {
	for name, body := range map[string]string{
		"nothing": "", "null": "null", "a list": "[]", "a string": `"x"`, "a mark": "\xef\xbb\xbf{}",
		"no model": `{"messages":[]}`, "a model that is none": `{"model":7}`, "no object": `[{"model":"x"}]`,
	} {
		for dialect, check := range map[string]checker{"messages": messages, "responses": responses, "chat": chat} {
			if _, refused := check(body, all()); refused == nil {
				t.Errorf("%s, %s: got %v", dialect, name, refused)
			}
		}
	}
	if _, refused := gemini1("[]", all()); refused == nil || refused.Status != 400 {
		t.Errorf("gemini: got %v", refused)
	}
}

func TestModel(t *testing.T) {
	good := []string{"claude-opus-5-5", "gpt-5.1", "anthropic/claude-x:free", "a", "us.anthropic.claude-x-v1:0", "x@2025", strings.Repeat("m", 128)}
	bad := []string{"", "..", "a..b", "../x", "/x", "-x", "a b", "a\n", "a?b", "a#b", "a%2fb", "a\\b", "é", strings.Repeat("m", 129)}
	for _, name := range good {
		if r, refused := Gemini(name, []byte(`{}`), nil); refused != nil || r.Model != name {
			t.Errorf("%q: %v", name, refused)
		}
	}
	for _, name := range bad {
		if _, refused := Gemini(name, []byte(`{}`), all()); refused == nil {
			t.Errorf("%q passes in Gemini's path", name)
		}
		if _, refused := chat(`{"model":`+quote(name)+`,"messages":[]}`, all()); refused == nil {
			t.Errorf("%q passes in a body", name)
		}
	}
}

// TestHarmless is what must pass as it is.
func TestHarmless(t *testing.T) {
	for _, c := range []struct{ in, what string }{
		{"a field", `"mcp_servers":[],"container":null,"temperature":1.0,"metadata":{"A":1,"a":2}`},
		{"a field", `"tool_choice":{"type":"tool","name":"n","disable_parallel_tool_use":true}`},
		{"a field", `"thinking":{"type":"adaptive"},"output_config":{"effort":"high"},"context_management":{"edits":[{"type":"compact_20260112"}]}`},
		{"a tool", `{"type":"bash_20250124","name":"bash"}`},
		{"a tool", `{"type":"text_editor_20250728","name":"str_replace_based_edit_tool","max_characters":9}`},
		{"a tool", `{"type":"memory_20250818","name":"memory"}`},
		{"a tool", `{"type":"computer_20251124","name":"computer","display_width_px":1,"display_height_px":1}`},
		{"a tool", `{"type":"computer_toolset_20260801","configs":{}}`},
		{"a tool", `{"type":"tool_search_tool_regex_20251119","name":"tool_search_tool_regex"}`},
		{"a tool", `{"type":null,"name":"n","input_schema":{"properties":{"-A":{},"-a":{},"mcp_servers":{},"type":{"type":"web_search"}}}}`},
		{"a part", `{"type":"tool_use","id":"i","name":"web_search","input":{"url":"https://x","A":1,"a":2},"caller":{"type":"direct"}}`},
		{"a part", `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"QQ=="}}`},
		{"a part", `{"type":"document","source":{"type":"text","media_type":"text/plain","data":"https://x"},"title":"t"}`},
		{"a part", `{"type":"document","source":{"type":"content","content":[{"type":"text","text":"t"}]}}`},
		{"a part", `{"type":"search_result","source":"https://x","title":"t","content":[{"type":"text","text":"t"}]}`},
		{"a part", `{"type":"tool_result","tool_use_id":"i","content":"text","is_error":false}`},
		{"a part", `{"type":"server_tool_use","id":"i","name":"tool_search_tool_bm25","input":{}}`},
		{"a part", `{"type":"redacted_thinking","data":"x"}`},
		{"a result", `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"QQ=="}},{"type":"tool_reference","tool_name":"n"}`},
		{"r field", `"background":false,"conversation":null,"prompt":null,"client_metadata":{"x":"y"},"include":["reasoning.encrypted_content"]`},
		{"r field", `"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"n"}]}`},
		{"r tool", `{"type":"shell","environment":{"type":"local","skills":[{"name":"n","description":"d","path":"/p"}]}}`},
		{"r tool", `{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"},{"type":"custom","name":"c"}]}`},
		{"r tool", `{"type":"local_shell"},{"type":"apply_patch"},{"type":"tool_search"},{"type":"computer_use_preview"}`},
		{"r item", `{"type":"function_call","call_id":"c","name":"n","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"x"}`},
		{"r item", `{"type":"custom_tool_call","call_id":"c","name":"n","input":"x"},{"type":"custom_tool_call_output","call_id":"c","output":[{"type":"input_text","text":"x"}]}`},
		{"r item", `{"type":"reasoning","id":"r","summary":[{"type":"summary_text","text":"x"}],"content":null,"encrypted_content":"x"}`},
		{"r item", `{"type":"message","role":"assistant","content":[{"type":"output_text","text":"t","annotations":[{"type":"url_citation","url":"https://x"}]}],"phase":"commentary"}`},
		{"r item", `{"type":"additional_tools","role":"developer","tools":[{"type":"function","name":"n"}]}`},
		{"r part", `{"type":"input_image","image_url":"data:image/png;base64,QQ==","file_id":null}`},
		{"r part", `{"type":"input_file","filename":"a.pdf","file_data":"QQ=="},{"type":"input_file","file_data":"data:application/pdf;base64,QQ=="}`},
		{"c field", `"store":false,"temperature":0.5,"reasoning_effort":"high","response_format":{"type":"json_object"}`},
		{"c field", `"audio":{"format":"wav","voice":"alloy"},"prediction":{"type":"content","content":"x"}`},
		{"c tool", `{"type":"function","function":{"name":"n","parameters":{"properties":{"A":{},"a":{}}}}},{"type":"custom","custom":{"name":"n"}}`},
		{"c message", `{"role":"assistant","content":null,"tool_calls":[{"id":"i","type":"function","function":{"name":"n","arguments":"{}"}}]}`},
		{"c part", `{"type":"image_url","image_url":{"url":"data:image/png;base64,QQ==","detail":"low"}}`},
		{"c part", `{"type":"file","file":{"filename":"f","file_data":"data:application/pdf;base64,QQ=="}}`},
		{"g field", `"system_instruction":{"parts":{"text":"x"}},"safetySettings":[],"toolConfig":{"functionCallingConfig":{"mode":"ANY"}}`},
		{"g field", `"model":"models/gemini-3-pro","generation_config":{"max_output_tokens":9,"thinking_config":{"thinkingBudget":1}}`},
		{"g tool", `{"function_declarations":[{"name":"n","parameters_json_schema":{"A":1,"a":2}}]},{"computerUse":{}}`},
		{"g part", `{"inlineData":{"mimeType":"image/png","data":"QQ=="}},{"inline_data":{"mime_type":"image/png","data":"QQ=="}}`},
		{"g part", `{"functionCall":{"name":"n","args":{"googleSearch":1,"google_search":2}},"thoughtSignature":"x"}`},
		{"g count", `"systemInstruction":{"parts":[{"text":"x"}]}`},
	} {
		t.Run(c.in+" "+c.what, func(t *testing.T) {
			r, refused := run(t, c.in, c.what, nil)
			if refused != nil {
				t.Fatal(refused)
			}
			if got, want := string(r.Body), strings.Replace(wraps[c.in].body, "@", c.what, 1); got != want {
				t.Fatalf("forwarded is\n%s\nnot\n%s", got, want)
			}
		})
	}
}

func TestFacts(t *testing.T) {
	for name, c := range map[string]struct {
		in, what string
		want     Request
	}{
		"messages":    {"a field", `"stream":true`, Request{Model: "claude-x", Stream: true, MaxTokens: 9}},
		"not stream":  {"a field", `"stream":false`, Request{Model: "claude-x", MaxTokens: 9}},
		"responses":   {"r field", `"max_output_tokens":77,"previous_response_id":"resp_1"`, Request{Model: "gpt-x", MaxTokens: 77, Previous: []string{"resp_1"}}},
		"no previous": {"r field", `"max_output_tokens":null,"previous_response_id":null`, Request{Model: "gpt-x"}},
		"chat":        {"c field", `"max_tokens":5,"max_completion_tokens":7`, Request{Model: "gpt-x", MaxTokens: 7}},
		"chat n":      {"c field", `"max_completion_tokens":7,"n":3`, Request{Model: "gpt-x", MaxTokens: 21}},
		"chat n huge": {"c field", `"max_tokens":9223372036854775807,"n":128`, Request{Model: "gpt-x", MaxTokens: 128 << 40}},
		"gemini":      {"g field", `"generation_config":{"max_output_tokens":5,"candidate_count":2}`, Request{Model: "gemini-3-pro", MaxTokens: 10}},
	} {
		r, refused := run(t, c.in, c.what, nil)
		if refused != nil {
			t.Errorf("%s: %v", name, refused)
			continue
		}
		if r.Model != c.want.Model || r.Stream != c.want.Stream || r.MaxTokens != c.want.MaxTokens ||
			strings.Join(r.Previous, ",") != strings.Join(c.want.Previous, ",") || r.HideUsage {
			t.Errorf("%s: got %+v, want %+v", name, r, c.want)
		}
	}
}

func TestChatUsage(t *testing.T) {
	for _, c := range []struct {
		body, want string
		hide       bool
	}{
		{`{"model":"m","n":1}`, `{"model":"m","n":1}`, false},
		{`{"model":"m","stream":false}`, `{"model":"m","stream":false}`, false},
		{` { "model":"m","stream":true,"seed":12345678901234567890123,"user":"<&>"}`,
			` {"stream_options":{"include_usage":true}, "model":"m","stream":true,"seed":12345678901234567890123,"user":"<&>"}`, true},
		{`{"model":"m","stream":true,"stream_options":null}`, `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, true},
		{`{"model":"m","stream":true,"stream_options": { } }`, `{"model":"m","stream":true,"stream_options": {"include_usage":true} }`, true},
		{`{"stream_options":{"include_obfuscation":false},"model":"m","stream":true}`,
			`{"stream_options":{"include_usage":true,"include_obfuscation":false},"model":"m","stream":true}`, true},
		{`{"model":"m","stream":true,"stream_options":{"include_usage":false}}`, `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, true},
		{`{"model":"m","stream":true,"stream_options":{"include_usage":null}}`, `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, true},
		{`{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, false},
		{`{"model":"m","stream":true,"\u0073tream_options":{"include_\u0075sage":false}}`, `{"model":"m","stream":true,"\u0073tream_options":{"include_\u0075sage":true}}`, true},
	} {
		r, refused := chat(c.body, nil)
		if refused != nil || string(r.Body) != c.want || r.HideUsage != c.hide {
			t.Errorf("%s\ngot  %s, %v, %v\nwant %s, %v", c.body, r.Body, r.HideUsage, refused, c.want, c.hide)
		}
	}
}

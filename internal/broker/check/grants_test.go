package check

import (
	"strings"
	"testing"
)

// granting is what is refused unless its grant is there.
var granting = []struct{ in, what, grant string }{
	// Anthropic.
	{"a field", `"mcp_servers":[{"type":"url","url":"https://x"}]`, MCP},
	{"a field", `"container":"c_1"`, CodeExecution},
	{"a field", `"container":{"skills":[{"type":"custom","skill_id":"s"}]}`, CodeExecution},
	{"a field", `"thread":{"type":"create"}`, Store},
	{"a field", `"fallbacks":[{"model":"other"}]`, "field:fallbacks"},
	{"a field", `"betas":["files-api"]`, "field:betas"},
	{"a field", `"inference_geo":"x"`, "field:inference_geo"},
	{"a tool", `{"type":"web_search_20250305","name":"web_search"}`, WebSearch},
	{"a tool", `{"type":"web_search_20990101","name":"web_search"}`, WebSearch},
	{"a tool", `{"type":"web_fetch_20250910","name":"web_fetch"}`, WebFetch},
	{"a tool", `{"type":"code_execution_20250825","name":"code_execution"}`, CodeExecution},
	{"a tool", `{"type":"mcp_toolset","mcp_server_name":"x"}`, MCP},
	{"a tool", `{"type":"advisor_20260301","name":"advisor","model":"m"}`, "type:advisor_20260301"},
	{"a tool", `{"type":"bash_2025","name":"bash"}`, "type:bash_2025"},
	{"a tool", `{"type":"\u0077eb_search_20250305","name":"web_search"}`, WebSearch},
	{"a tool", `{"name":"n","input_schema":{},"url":"https://x"}`, "field:url"},
	{"a part", `{"type":"image","source":{"type":"url","url":"https://x/y.png"}}`, URLs},
	{"a part", `{"type":"image","source":{"type":"file","file_id":"f"}}`, Files},
	{"a part", `{"type":"document","source":{"type":"url","url":"https://x/y.pdf"}}`, URLs},
	{"a part", `{"type":"document","source":{"type":"file","file_id":"f"}}`, Files},
	{"a part", `{"type":"document","source":{"type":"content","content":[{"type":"image","source":{"type":"url","url":"https://x"}}]}}`, URLs},
	{"a part", `{"type":"image","source":{"type":"base64","data":"QQ==","url":"https://x"}}`, "field:url"},
	{"a part", `{"type":"tool_addition","tool":{"type":"mcp_tool_reference","server_name":"x"}}`, MCP},
	{"a part", `{"type":"server_tool_use","id":"i","name":"code_execution","input":{}}`, CodeExecution},
	{"a part", `{"type":"server_tool_use","id":"i","name":"text_editor_code_execution","input":{}}`, CodeExecution},
	{"a part", `{"type":"bash_code_execution_tool_result","tool_use_id":"i"}`, CodeExecution},
	{"a part", `{"type":"text_editor_code_execution_tool_result","tool_use_id":"i"}`, CodeExecution},
	{"a part", `{"type":"container_upload","file_id":"f"}`, Files},
	{"a part", `{"type":"server_tool_use","id":"i","name":"web_search","input":{}}`, WebSearch},
	{"a part", `{"type":"server_tool_use","id":"i","name":"web_fetch","input":{}}`, WebFetch},
	{"a part", `{"type":"server_tool_use","id":"i","name":"bash_code_execution","input":{}}`, CodeExecution},
	{"a part", `{"type":"server_tool_use","id":"i","name":"other","input":{}}`, "type:other"},
	{"a part", `{"type":"web_search_tool_result","tool_use_id":"i","content":[]}`, WebSearch},
	{"a part", `{"type":"web_fetch_tool_result","tool_use_id":"i","content":{}}`, WebFetch},
	{"a part", `{"type":"code_execution_tool_result","tool_use_id":"i","content":{}}`, CodeExecution},
	{"a part", `{"type":"mcp_tool_use","id":"i"}`, MCP},
	{"a part", `{"type":"mcp_tool_result","tool_use_id":"i"}`, MCP},
	{"a part", `{"type":"mcp_tool_listing","tools":[]}`, MCP},
	{"a part", `{"type":"tool_addition","tool":{"type":"tool_definition","definition":{"type":"web_search_20250305","name":"web_search"}}}`, WebSearch},
	{"a part", `{"type":"tool_addition","tool":{"type":"mcp_toolset_reference","server_name":"x"}}`, MCP},
	{"a part", `{"type":"compaction","content":"c","tool_changes":[{"type":"tool_addition","tool":{"type":"tool_definition","definition":{"type":"mcp_toolset"}}}]}`, MCP},
	{"a part", `{"type":"novelty"}`, "type:novelty"},
	{"a part", `{"type":"text","text":"t","image_url":"https://x"}`, "field:image_url"},
	{"a result", `{"type":"image","source":{"type":"url","url":"https://x"}}`, URLs},
	{"a result", `{"type":"document","source":{"type":"file","file_id":"f"}}`, Files},
	{"a result", `{"type":"server_tool_use","id":"i","name":"web_search"}`, "type:server_tool_use"},
	{"a system", `{"type":"image","source":{"type":"url","url":"https://x"}}`, URLs},
	// Responses.
	{"r bare", ``, Store},
	{"r bare", `,"store":true`, Store},
	{"r bare", `,"store":null`, Store},
	{"r field", `"background":true`, Background},
	{"r field", `"background":"true"`, Background},
	{"r field", `"conversation":"conv_1"`, Store},
	{"r field", `"prompt":{"id":"pmpt_1"}`, Store},
	{"r field", `"moderation":{}`, "field:moderation"},
	{"r field", `"models":["a"]`, "field:models"},
	{"r tool", `{"type":"web_search"}`, WebSearch},
	{"r tool", `{"type":"web_search","external_web_access":false}`, WebSearch},
	{"r tool", `{"type":"web_search_2025_08_26"}`, WebSearch},
	{"r tool", `{"type":"web_search_preview_2025_03_11"}`, WebSearch},
	{"r tool", `{"type":"file_search","vector_store_ids":["v"]}`, FileSearch},
	{"r tool", `{"type":"code_interpreter","container":{"type":"auto"}}`, CodeExecution},
	{"r tool", `{"type":"programmatic_tool_calling"}`, CodeExecution},
	{"r tool", `{"type":"mcp","server_url":"https://x"}`, MCP},
	{"r tool", `{"type":"image_generation"}`, ImageGeneration},
	{"r tool", `{"type":"shell"}`, CodeExecution},
	{"r tool", `{"type":"shell","environment":null}`, CodeExecution},
	{"r tool", `{"type":"shell","environment":{"type":"container_auto"}}`, CodeExecution},
	{"r tool", `{"type":"shell","environment":{"type":"container_reference","container_id":"c"}}`, CodeExecution},
	{"r tool", `{"type":"namespace","name":"n","tools":[{"type":"mcp","server_url":"https://x"}]}`, "type:mcp"},
	{"r tool", `{"type":"novelty"}`, "type:novelty"},
	{"r field", `"tool_choice":{"type":"mcp","server_label":"x"}`, MCP},
	{"r field", `"tool_choice":{"type":"allowed_tools","tools":[{"type":"web_search"}]}`, WebSearch},
	{"r item", `{"type":"item_reference","id":"msg_1"}`, Store},
	{"r item", `{"type":null,"id":"msg_1"}`, Store},
	{"r item", `{"id":"msg_1"}`, Store},
	{"r item", `{"type":"web_search_call","id":"w"}`, WebSearch},
	{"r item", `{"type":"file_search_call","id":"w"}`, FileSearch},
	{"r item", `{"type":"code_interpreter_call","id":"w"}`, CodeExecution},
	{"r item", `{"type":"program","id":"w"}`, CodeExecution},
	{"r item", `{"type":"program_output","id":"w"}`, CodeExecution},
	{"r item", `{"type":"image_generation_call","id":"w"}`, ImageGeneration},
	{"r item", `{"type":"mcp_list_tools","id":"w"}`, MCP},
	{"r item", `{"type":"mcp_call","id":"w"}`, MCP},
	{"r item", `{"type":"mcp_approval_request","id":"w"}`, MCP},
	{"r item", `{"type":"mcp_approval_response","id":"w"}`, MCP},
	{"r item", `{"type":"additional_tools","role":"developer","tools":[{"type":"web_search"}]}`, WebSearch},
	{"r item", `{"type":"tool_search_output","tools":[{"type":"mcp","server_url":"https://x"}]}`, MCP},
	{"r item", `{"type":"shell_call","environment":{"type":"container_reference","container_id":"c"}}`, CodeExecution},
	{"r item", `{"type":"computer_call_output","output":{"type":"computer_screenshot","image_url":"https://x"}}`, URLs},
	{"r item", `{"type":"computer_call_output","output":{"type":"computer_screenshot","file_id":"f"}}`, Files},
	{"r item", `{"type":"reasoning","summary":[{"type":"input_image","image_url":"https://x"}]}`, URLs},
	{"r item", `{"type":"novelty"}`, "type:novelty"},
	{"r part", `{"type":"input_image","image_url":"https://x/y.png"}`, URLs},
	{"r part", `{"type":"input_image","image_url":"\u0064ata:image/png;base64,QQ=="}`, URLs},
	{"r part", `{"type":"input_image","image_url":" data:image/png;base64,QQ=="}`, URLs},
	{"r part", `{"type":"input_image","image_url":"file:///etc/passwd"}`, URLs},
	{"r part", `{"type":"input_image","file_id":"f"}`, Files},
	{"r part", `{"type":"input_file","file_url":"https://x"}`, URLs},
	{"r part", `{"type":"input_file","file_id":"f"}`, Files},
	{"r part", `{"type":"input_file","file_data":"https://x"}`, URLs},
	{"r part", `{"type":"input_file","file_data":"https\u003a//x"}`, URLs},
	{"r part", `{"type":"input_audio","input_audio":{"data":"https://x","format":"wav"}}`, URLs},
	{"r part", `{"type":"input_text","text":"t","file_url":"https://x"}`, "field:file_url"},
	{"r output", `{"type":"input_image","image_url":"https://x/y.png"}`, URLs},
	{"r output", `{"type":"input_file","file_id":"f"}`, Files},
	// Chat.
	{"c field", `"web_search_options":{}`, WebSearch},
	{"c field", `"store":true`, Store},
	{"c field", `"store":"false"`, Store},
	{"c field", `"plugins":[{"id":"web"}]`, "field:plugins"},
	{"c field", `"web_search":true`, "field:web_search"},
	{"c field", `"search_parameters":{}`, "field:search_parameters"},
	{"c field", `"models":["a"]`, "field:models"},
	{"c field", `"chat_template":"{{ x }}"`, "field:chat_template"},
	{"c field", `"chat_template_kwargs":{"other":1}`, "field:other"},
	{"c field", `"audio":{"format":"wav","voice":{"id":"v"}}`, Files},
	{"c field", `"tool_choice":{"type":"mcp","server_label":"x"}`, MCP},
	{"c tool", `{"type":"web_search"}`, WebSearch},
	{"c tool", `{"type":"mcp","server_url":"https://x"}`, MCP},
	{"c tool", `{"type":"code_interpreter"}`, CodeExecution},
	{"c tool", `{"type":"web_search_preview"}`, WebSearch},
	{"c tool", `{"type":"file_search"}`, FileSearch},
	{"c tool", `{"type":"image_generation"}`, ImageGeneration},
	{"c tool", `{"type":"openrouter:web_search"}`, ""},
	{"c tool", `{"type":"retrieval"}`, "type:retrieval"},
	{"c message", `{"role":"assistant","audio":{"id":"a"}}`, Store},
	{"c message", `{"role":"user","content":"x","file_ids":["f"]}`, "field:file_ids"},
	{"c part", `{"type":"image_url","image_url":{"url":"https://x"}}`, URLs},
	{"c part", `{"type":"image_url","image_url":{"url":"DATA:image/png,x"}}`, URLs},
	{"c part", `{"type":"file","file":{"file_id":"f"}}`, Files},
	{"c part", `{"type":"file","file":{"file_data":"https://x"}}`, URLs},
	{"c part", `{"type":"input_audio","input_audio":{"data":"https://x","format":"wav"}}`, URLs},
	{"c part", `{"type":"video_url","video_url":{"url":"https://x"}}`, "type:video_url"},
	{"c part", `{"type":"text","text":"t","image_url":{"url":"https://x"}}`, "field:image_url"},
	// Gemini.
	{"g field", `"cachedContent":"cachedContents/1"`, Files},
	{"g field", `"cached_content":"cachedContents/1"`, Files},
	{"g field", `"store":true`, Store},
	{"g field", `"routingConfig":{}`, "field:routingConfig"},
	{"g config", `"routingConfig":{}`, "field:routingConfig"},
	{"g config", `"modelSelectionConfig":{}`, "field:modelSelectionConfig"},
	{"g tool", `{"googleSearch":{}}`, WebSearch},
	{"g tool", `{"google_search":{}}`, WebSearch},
	{"g tool", `{"functionDeclarations":[],"google_search":{}}`, WebSearch},
	{"g tool", `{"googleSearchRetrieval":{}}`, WebSearch},
	{"g tool", `{"googleMaps":{}}`, WebSearch},
	{"g tool", `{"enterpriseWebSearch":{}}`, WebSearch},
	{"g tool", `{"exaAiSearch":{}}`, WebSearch},
	{"g tool", `{"parallelAiSearch":{}}`, WebSearch},
	{"g tool", `{"urlContext":{}}`, WebFetch},
	{"g tool", `{"url_context":{}}`, WebFetch},
	{"g tool", `{"codeExecution":{}}`, CodeExecution},
	{"g tool", `{"fileSearch":{}}`, FileSearch},
	{"g tool", `{"retrieval":{}}`, FileSearch},
	{"g tool", `{"mcpServers":[{}]}`, MCP},
	{"g tool", `{"novelty":{}}`, "field:novelty"},
	{"g one tool", `{"googleSearch":{}}`, WebSearch},
	{"g part", `{"fileData":{"fileUri":"https://www.youtube.com/watch?v=x"}}`, URLs},
	{"g part", `{"file_data":{"file_uri":"gs://bucket/x"}}`, URLs},
	{"g part", `{"fileData":{"fileUri":"https://generativelanguage.googleapis.com.evil/x"}}`, URLs},
	{"g part", `{"fileData":{"fileUri":"https://generativelanguage.googleapis.com/v1beta/files/x"}}`, Files},
	{"g part", `{"executableCode":{}}`, CodeExecution},
	{"g part", `{"codeExecutionResult":{}}`, CodeExecution},
	{"g part", `{"toolCall":{}}`, WebSearch},
	{"g part", `{"toolResponse":{}}`, WebSearch},
	{"g one part", `{"fileData":{"fileUri":"https://x"}}`, URLs},
	{"g response", `{"fileData":{"fileUri":"https://x"}}`, URLs},
	{"g system", `{"fileData":{"fileUri":"https://x"}}`, URLs},
	{"g count", `"tools":[{"googleSearch":{}}]`, WebSearch},
	{"g count", `"cachedContent":"x"`, Files},
	{"g top count", `"tools":[{"googleSearch":{}}]`, WebSearch},
}

func TestGrants(t *testing.T) {
	for _, c := range granting {
		t.Run(c.in+" "+c.what, func(t *testing.T) {
			_, refused := run(t, c.in, c.what, nil)
			if c.grant == "" {
				if refused == nil || refused.Status != 400 || refused.Grant != "" {
					t.Fatalf("got %+v", refused)
				}
				return
			}
			if refused == nil || refused.Grant != c.grant || refused.Status != 403 {
				t.Fatalf("without a grant: got %+v, want the grant %s", refused, c.grant)
			}
			if !strings.Contains(refused.Error(), `"`+c.grant+`"`) {
				t.Fatalf("the message does not name the grant: %s", refused)
			}
			// Every other grant, and one for the name of what is refused, opens nothing.
			others := all()
			delete(others, c.grant)
			for name := range reasons {
				others[FieldPrefix+name], others[TypePrefix+name] = true, true
			}
			delete(others, c.grant)
			for _, name := range []string{"mcp_servers", "container", "thread", "store", "background", "tools", "googleSearch", "fileData", "image_url", "file_url"} {
				if c.grant != FieldPrefix+name {
					others[FieldPrefix+name] = true
				}
			}
			for _, name := range []string{"web_search_20250305", "image", "url", "file", "item_reference"} {
				others[TypePrefix+name] = true
			}
			if _, refused := run(t, c.in, c.what, others); refused == nil {
				t.Fatal("it passes with the other grants")
			}
			if _, refused := run(t, c.in, c.what, Grants{c.grant: true}); refused != nil {
				t.Fatalf("with the grant: %v", refused)
			}
		})
	}
}

// TestKnown says that every grant that a refusal names can be written into the configuration.
func TestKnown(t *testing.T) {
	for _, c := range granting {
		if c.grant != "" && !Known(c.grant) {
			t.Errorf("%s is not known", c.grant)
		}
	}
	for _, name := range []string{"", "websearch", "field:", "type:", "field:a b", "*"} {
		if Known(name) {
			t.Errorf("%q is known", name)
		}
	}
}

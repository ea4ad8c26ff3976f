package check

import (
	"strings"

	"ravi/internal/strictjson"
)

// What follows are the tables of Gemini's generateContent. Each field has two spellings there, and a list of one may
// be written without its brackets.

// camel is an object of which each field may be in camelCase or in snake_case, but not in both.
func camel(harmless string, special map[string]rule) rule {
	both := map[string]rule{}
	add := func(name string, r rule) { both[name], both[strictjson.Snake(name)] = r, r }
	for _, name := range strings.Fields(harmless) {
		add(name, nil)
	}
	for name, r := range special {
		add(name, r)
	}
	inner := object("", both)
	return func(g Grants, v strictjson.Value) *fault {
		var seen []string
		for name := range v.Members() {
			one := strictjson.Camel(name)
			for _, other := range seen {
				if one == other {
					return bad("the field %s is given twice, in both of its spellings", quote(one))
				}
			}
			// What is not in the table is for the inner rule to judge, and must not cost more with each one.
			if _, ok := both[name]; ok {
				seen = append(seen, one)
			}
		}
		return inner(g, v)
	}
}

// some is a list, or one without its brackets.
func some(r rule) rule {
	return func(g Grants, v strictjson.Value) *fault {
		if v.Kind() == strictjson.Array {
			return each(r)(g, v)
		}
		return r(g, v)
	}
}

// geminiFiles is where Gemini keeps files; other addresses are fetched.
const geminiFiles = "https://generativelanguage.googleapis.com/"

var geminiFile = camel("mimeType displayName", map[string]rule{
	"fileUri": func(g Grants, v strictjson.Value) *fault {
		if f := text(g, v); f != nil {
			return f
		}
		if strings.HasPrefix(v.Text(), geminiFiles) {
			return granted(Files)(g, v)
		}
		return granted(URLs)(g, v)
	},
})

var geminiBlob = camel("mimeType displayName", map[string]rule{"data": text})

var geminiPart = camel(`text thought thoughtSignature functionCall videoMetadata mediaResolution partMetadata
	audioTranscription speechMetadata`,
	map[string]rule{
		"inlineData": geminiBlob,
		"fileData":   geminiFile,
		"functionResponse": camel("id name response willContinue scheduling", map[string]rule{
			"parts": some(camel("", map[string]rule{"inlineData": geminiBlob, "fileData": geminiFile})),
		}),
		"executableCode":      granted(CodeExecution),
		"codeExecutionResult": granted(CodeExecution),
		"toolCall":            granted(WebSearch),
		"toolResponse":        granted(WebSearch),
	})

var geminiContent = camel("role", map[string]rule{"parts": some(geminiPart)})

var geminiTool = camel("computerUse", map[string]rule{
	"functionDeclarations": some(camel(`name description behavior parameters parametersJsonSchema response
		responseJsonSchema`, nil)),
	"googleSearch":          granted(WebSearch),
	"googleSearchRetrieval": granted(WebSearch),
	"enterpriseWebSearch":   granted(WebSearch),
	"exaAiSearch":           granted(WebSearch),
	"parallelAiSearch":      granted(WebSearch),
	"googleMaps":            granted(WebSearch),
	"urlContext":            granted(WebFetch),
	"codeExecution":         granted(CodeExecution),
	"fileSearch":            granted(FileSearch),
	"retrieval":             granted(FileSearch),
	"mcpServers":            granted(MCP),
})

// geminiFields are those of a body. What chooses another model (routingConfig and its like) is in no table.
var geminiFields = map[string]rule{
	"contents":          some(geminiContent),
	"systemInstruction": geminiContent,
	"tools":             some(geminiTool),
	"generationConfig": camel(`temperature topP topK stopSequences responseLogprobs logprobs
		presencePenalty frequencyPenalty seed responseMimeType responseSchema responseJsonSchema responseModalities
		mediaResolution speechConfig thinkingConfig imageConfig enableEnhancedCivicAnswers`,
		map[string]rule{"maxOutputTokens": whole, "candidateCount": whole}),
	"cachedContent": granted(Files),
	"store":         off(Store),
}

const geminiHarmless = "toolConfig safetySettings labels serviceTier"

var geminiBody = camel(geminiHarmless, with(geminiFields, map[string]rule{"model": text}))

var geminiCountBody = camel(geminiHarmless, with(geminiFields, map[string]rule{
	"model": text, "generateContentRequest": geminiBody,
}))

// Gemini reads the body of POST /v1beta/models/MODEL:generateContent and :streamGenerateContent; which of them, the
// path says.
func Gemini(model string, body []byte, g Grants) (Request, *Refusal) {
	return gemini(model, body, g, geminiBody)
}

// GeminiCount reads the body of POST /v1beta/models/MODEL:countTokens.
func GeminiCount(model string, body []byte, g Grants) (Request, *Refusal) {
	return gemini(model, body, g, geminiCountBody)
}

func gemini(model string, body []byte, g Grants, r rule) (Request, *Refusal) {
	if f := checkModel(model); f != nil {
		return Request{}, f.refusal()
	}
	v, f := read(body, g, r)
	if f != nil {
		return Request{}, f.refusal()
	}
	inner, ok := either(v, "generateContentRequest")
	if f := sameModel(v, model); f != nil {
		return Request{}, f.refusal()
	}
	if ok {
		if f := sameModel(inner, model); f != nil {
			return Request{}, f.in("generateContentRequest").refusal()
		}
	}
	out := Request{Model: model, Body: body}
	if config, ok := either(v, "generationConfig"); ok {
		out.MaxTokens = max(number(config, "maxOutputTokens"), number(config, "max_output_tokens"))
		if n := max(number(config, "candidateCount"), number(config, "candidate_count")); n > 1 {
			out.MaxTokens = min(out.MaxTokens, 1<<40) * min(n, 128)
		}
	}
	return out, nil
}

// sameModel says that a body does not name another model than the path.
func sameModel(v strictjson.Value, model string) *fault {
	name, ok := v.Get("model")
	if !ok || name.Kind() == strictjson.Null {
		return nil
	}
	if got := strings.TrimPrefix(name.Text(), "models/"); got != model {
		return bad("%s is not the model of the path, %s", quote(got), quote(model)).in("model")
	}
	return nil
}

func either(v strictjson.Value, name string) (strictjson.Value, bool) {
	if item, ok := v.Get(name); ok {
		return item, ok
	}
	return v.Get(strictjson.Snake(name))
}

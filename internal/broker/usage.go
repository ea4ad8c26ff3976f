package broker

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// count is a number of tokens as providers give them: perhaps none, and nothing that is believed beyond sense.
type count int64

const maxCount = 1 << 40

// UnmarshalJSON takes any number, and null.
func (c *count) UnmarshalJSON(b []byte) error {
	*c = 0
	if n, err := strconv.ParseFloat(string(b), 64); err == nil && n > 0 {
		*c = count(min(n, maxCount))
	}
	return nil
}

// answer is what is read of a whole answer, or of an event of a stream, in all dialects.
type answer struct {
	Type  string
	ID    string
	Usage *tokens

	Message *struct{ Usage *tokens } // Anthropic's first event
	Delta   json.RawMessage          // Anthropic's is an object, Responses' a text
	Error   json.RawMessage

	Response *struct { // of Responses' events
		ID    string
		Usage *tokens
		Error json.RawMessage
	}

	Choices []struct {
		FinishReason *string `json:"finish_reason"`
		Delta        json.RawMessage
	}

	Candidates []struct {
		FinishReason string `json:"finishReason"`
	}
	PromptFeedback *struct {
		BlockReason string `json:"blockReason"`
	} `json:"promptFeedback"`
	UsageMetadata *struct {
		Prompt     count `json:"promptTokenCount"`
		Cached     count `json:"cachedContentTokenCount"`
		Candidates count `json:"candidatesTokenCount"`
		Thoughts   count `json:"thoughtsTokenCount"`
		ToolUse    count `json:"toolUsePromptTokenCount"`
	} `json:"usageMetadata"`
}

// tokens are Anthropic's and OpenAI's, which do not have the same names.
type tokens struct {
	Input         count `json:"input_tokens"`
	Output        count `json:"output_tokens"`
	CacheCreation count `json:"cache_creation_input_tokens"`
	CacheRead     count `json:"cache_read_input_tokens"`
	InputDetails  struct {
		Cached count `json:"cached_tokens"`
	} `json:"input_tokens_details"`

	Prompt        count `json:"prompt_tokens"`
	Completion    count `json:"completion_tokens"`
	PromptDetails struct {
		Cached count `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// tally follows an answer, and knows what was used and whether it came to its end.
type tally struct {
	endpoint endpoint
	usage    Usage
	text     int    // bytes of what the model said in pieces
	final    bool   // usage is what the provider says of the whole
	ended    bool   // what the agent waits for has come
	closed   bool   // nothing comes after that
	failed   string // the provider's own word for what went wrong
	id       string
	onlySum  bool // the last piece has nothing but usage in it
}

// read reads a piece, and says whether it is JSON.
func (t *tally) read(data []byte) bool {
	t.onlySum = false
	if t.endpoint == chat && string(bytes.TrimSpace(data)) == "[DONE]" {
		t.ended, t.closed = true, true
		return true
	}
	var a answer
	if err := json.Unmarshal(data, &a); err != nil {
		// A field of an unexpected kind is nothing to refuse, as long as it is JSON.
		if !json.Valid(data) {
			return false
		}
	}
	switch t.endpoint {
	case messages:
		t.anthropic(&a)
	case responses:
		t.responses(&a)
	case chat:
		t.chat(&a)
	case generate, generateStream:
		t.gemini(&a)
	}
	return true
}

func (t *tally) anthropic(a *answer) {
	u := a.Usage
	if a.Message != nil {
		u = a.Message.Usage
	}
	if u != nil {
		// Later ones count from the beginning, and may leave out what was said before.
		t.usage.Input = max(t.usage.Input, int64(u.Input))
		t.usage.Output = max(t.usage.Output, int64(u.Output))
		t.usage.CacheRead = max(t.usage.CacheRead, int64(u.CacheRead))
		t.usage.CacheWrite = max(t.usage.CacheWrite, int64(u.CacheCreation))
	}
	switch a.Type {
	case "message":
		t.ended, t.final = true, u != nil
	case "content_block_delta":
		t.text += len(a.Delta)
	case "message_delta":
		t.final = t.final || u != nil
	case "message_stop":
		t.ended, t.closed = true, true
	case "error":
		t.fail(a.Error)
	}
}

func (t *tally) responses(a *answer) {
	switch {
	case a.Response != nil:
		t.id = a.Response.ID
		t.openAI(a.Response.Usage)
	case a.Type == "" || a.ID != "" && a.Delta == nil && a.Usage != nil: // whole
		t.id, t.ended = a.ID, true
		t.openAI(a.Usage)
	}
	switch a.Type {
	case "response.completed", "response.incomplete":
		t.ended, t.closed = true, true
	case "response.failed":
		t.fail(nil)
		if a.Response != nil {
			t.fail(a.Response.Error)
		}
	case "error":
		t.fail(a.Error)
	default:
		if len(a.Delta) > 2 && a.Delta[0] == '"' {
			t.text += len(a.Delta) - 2
		}
	}
}

func (t *tally) chat(a *answer) {
	t.openAI(a.Usage)
	t.onlySum = a.Usage != nil && len(a.Choices) == 0
	for _, c := range a.Choices {
		t.text += len(c.Delta)
		if c.FinishReason != nil && *c.FinishReason != "" {
			t.ended = true
		}
	}
	if len(a.Error) > 0 && string(a.Error) != "null" {
		t.fail(a.Error)
	}
}

func (t *tally) openAI(u *tokens) {
	if u == nil {
		return
	}
	cached := max(u.InputDetails.Cached, u.PromptDetails.Cached)
	in := max(u.Input, u.Prompt)
	t.usage.CacheRead = int64(min(cached, in))
	t.usage.Input = int64(in) - t.usage.CacheRead
	t.usage.Output = int64(max(u.Output, u.Completion))
	t.final = true
}

func (t *tally) gemini(a *answer) {
	if u := a.UsageMetadata; u != nil {
		in := u.Prompt + u.ToolUse
		t.usage.CacheRead = int64(min(u.Cached, in))
		t.usage.Input = int64(in) - t.usage.CacheRead
		t.usage.Output = int64(u.Candidates + u.Thoughts)
		t.final = true
	}
	for _, c := range a.Candidates {
		t.ended = t.ended || c.FinishReason != ""
	}
	if f := a.PromptFeedback; f != nil && f.BlockReason != "" {
		t.ended = true
	}
	if len(a.Error) > 0 {
		t.fail(a.Error)
	}
}

// fail notes the provider's own error, of which only the word for its kind is kept.
func (t *tally) fail(raw json.RawMessage) {
	var e struct {
		Type, Status string
		Code         json.RawMessage
	}
	t.ended, t.closed = true, true
	t.failed = "the provider's answer is an error"
	if len(raw) == 0 || json.Unmarshal(raw, &e) != nil {
		return
	}
	for _, word := range []string{e.Type, e.Status, string(bytes.Trim(e.Code, `"`))} {
		if betaForm.MatchString(word) {
			t.failed += ": " + word
			return
		}
	}
}

// sum is what was used. Where the provider did not say it, since it was cut off or never does, it is estimated from what
// was sent and what came: who goes away before the end has used it all the same.
func (t *tally) sum(sent int) (u Usage, estimated bool) {
	u = t.usage
	if t.final || t.endpoint.counts() {
		return u, false
	}
	if u.tokens() == u.Output { // nothing is known of what was sent
		u.Input = estimate(sent)
	}
	u.Output = max(u.Output, estimate(t.text))
	return u, true
}

// estimate is about how many tokens so many bytes are.
func estimate(n int) int64 { return int64(n+3) / 4 }

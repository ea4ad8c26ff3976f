package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/anthropics/anthropic-sdk-go/packages/param"

	"ravi/agent"
)

// messages asks by Anthropic's Messages API.
type messages struct {
	service anthropic.MessageService
	model   string
}

// Anthropic makes a Model of a provider of that dialect.
func Anthropic(o Options) agent.Model {
	return &messages{anthropic.NewMessageService(option.WithBaseURL(o.base("/")), option.WithAPIKey(o.Key), option.WithHTTPClient(o.client()),
		option.WithMaxRetries(tries), option.WithRequestTimeout(answerTime)), o.Model}
}

// thought is what the model thought, which its provider has signed and wants back.
type thought struct {
	Thinking  string `json:"thinking,omitempty"`
	Signature string `json:"signature,omitempty"`
	Data      string `json:"data,omitempty"` // of one that nobody may read
}

func (m *messages) Next(ctx context.Context, r agent.Request, say func(string)) (agent.Answer, error) {
	params, err := m.params(r)
	if err != nil {
		return agent.Answer{}, err
	}
	stream := m.service.NewStreaming(ctx, params)
	defer stream.Close()
	g := &gathered{say: say}
	var out agent.Answer
	thoughts := map[int64]*thought{}
	var order []int64
	ended, declined := false, false
	for stream.Next() {
		fits := true
		switch e := stream.Current(); e.Type {
		case "message_start":
			u := e.Message.Usage
			out.Usage = agent.Usage{Input: u.InputTokens + u.CacheReadInputTokens + u.CacheCreationInputTokens, Output: u.OutputTokens}
		case "content_block_start":
			switch b := e.ContentBlock; b.Type {
			case "text":
				fits = g.speak(b.Text)
			case "tool_use":
				c := g.call(e.Index)
				c.id, c.name = b.ID, b.Name
			case "thinking", "redacted_thinking":
				thoughts[e.Index] = &thought{b.Thinking, b.Signature, b.Data}
				order = append(order, e.Index)
			}
		case "content_block_delta":
			switch d := e.Delta; d.Type {
			case "text_delta":
				fits = g.speak(d.Text)
			case "input_json_delta":
				fits = g.add(&g.call(e.Index).args, d.PartialJSON)
			case "thinking_delta":
				if t := thoughts[e.Index]; t != nil {
					t.Thinking += d.Thinking
					g.size += len(d.Thinking)
					fits = g.size <= mostAnswer
				}
			case "signature_delta":
				if t := thoughts[e.Index]; t != nil {
					t.Signature += d.Signature
					g.size += len(d.Signature)
					fits = g.size <= mostAnswer
				}
			}
		case "message_delta":
			out.Usage.Output = max(out.Usage.Output, e.Usage.OutputTokens)
			out.Cut = e.Delta.StopReason == anthropic.StopReasonMaxTokens
			declined = e.Delta.StopReason == anthropic.StopReasonRefusal
		case "message_stop":
			ended = true
		}
		if !fits {
			return out, errTooLong
		}
	}
	if err := stream.Err(); err != nil {
		return out, told(err)
	}
	switch {
	case declined:
		return out, errDeclined
	case !ended:
		return out, errHalf
	}
	out.Message = g.message()
	var kept []thought
	for _, at := range order {
		if t := thoughts[at]; t.Signature != "" || t.Data != "" { // one that was cut in the middle is not taken back
			kept = append(kept, *t)
		}
	}
	if len(kept) > 0 {
		if out.Message.Opaque, err = json.Marshal(kept); err != nil {
			return out, err
		}
	}
	return out, nil
}

var (
	errTooLong  = fmt.Errorf("its answer has more than %d bytes", mostAnswer)
	errHalf     = errors.New("its answer ended in the middle")
	errDeclined = errors.New("it declined to answer")
)

// told is what a provider's error says, without what the library says about the call.
func told(err error) error {
	var e *anthropic.Error
	if !errors.As(err, &e) {
		return err
	}
	return &apiError{status: e.StatusCode, body: e.RawJSON(), err: err}
}

func (m *messages) params(r agent.Request) (anthropic.MessageNewParams, error) {
	cached := anthropic.NewCacheControlEphemeralParam()
	p := anthropic.MessageNewParams{
		Model: anthropic.Model(m.model), MaxTokens: r.MaxTokens,
		System: []anthropic.TextBlockParam{{Text: r.System, CacheControl: cached}},
	}
	for _, t := range r.Tools {
		// As it is: what is written in another order each time is no provider's cache.
		p.Tools = append(p.Tools, anthropic.ToolUnionParam{OfTool: &anthropic.ToolParam{
			Name: t.Name, Description: anthropic.String(t.Description), InputSchema: param.Override[anthropic.ToolInputSchemaParam](t.Schema),
		}})
	}
	for _, msg := range r.Messages {
		blocks, err := blocks(msg)
		switch {
		case err != nil:
			return p, err
		case len(blocks) == 0: // no provider takes a message with nothing in it
		case msg.Role == agent.Assistant:
			p.Messages = append(p.Messages, anthropic.NewAssistantMessage(blocks...))
		default:
			p.Messages = append(p.Messages, anthropic.NewUserMessage(blocks...))
		}
	}
	if n := len(p.Messages); n > 0 { // what was said so far need not be read anew with the next call
		last := p.Messages[n-1].Content
		if c := last[len(last)-1].GetCacheControl(); c != nil {
			*c = cached
		}
	}
	return p, nil
}

func blocks(m agent.Message) ([]anthropic.ContentBlockParamUnion, error) {
	var out []anthropic.ContentBlockParamUnion
	speaks := strings.TrimSpace(m.Text) != "" // no text of spaces alone is taken
	if m.Opaque != nil && (speaks || len(m.Calls) > 0) {
		var thoughts []thought
		if err := json.Unmarshal(m.Opaque, &thoughts); err != nil {
			return nil, fmt.Errorf("the thoughts of a message: %w", err)
		}
		for _, t := range thoughts {
			if t.Data != "" {
				out = append(out, anthropic.NewRedactedThinkingBlock(t.Data))
			} else {
				out = append(out, anthropic.NewThinkingBlock(t.Signature, t.Thinking))
			}
		}
	}
	for _, r := range m.Results { // a provider wants them before all else
		text := r.Text
		if strings.TrimSpace(text) == "" {
			text = "(nothing)"
		}
		out = append(out, anthropic.NewToolResultBlock(r.CallID, text, r.Failed))
	}
	if speaks {
		out = append(out, anthropic.NewTextBlock(m.Text))
	}
	for _, c := range m.Calls {
		out = append(out, anthropic.NewToolUseBlock(c.ID, c.Args, c.Name))
	}
	return out, nil
}

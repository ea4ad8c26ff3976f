package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/shared"

	"ravi/agent"
)

// completions asks by OpenAI's Chat Completions API, which most other providers speak as well.
type completions struct {
	service openai.ChatCompletionService
	model   string
}

// OpenAI makes a Model of a provider of that dialect.
func OpenAI(o Options) agent.Model {
	return &completions{openai.NewChatCompletionService(option.WithBaseURL(o.base("/v1/")), option.WithAPIKey(o.Key), option.WithHTTPClient(o.client()),
		option.WithMaxRetries(tries), option.WithRequestTimeout(answerTime), option.WithMiddleware(readable)), o.Model}
}

func (m *completions) Next(ctx context.Context, r agent.Request, say func(string)) (agent.Answer, error) {
	params, err := m.params(r)
	if err != nil {
		return agent.Answer{}, err
	}
	stream := m.service.NewStreaming(ctx, params)
	defer stream.Close()
	g := &gathered{say: say}
	var out agent.Answer
	ended, declined := false, false
	for stream.Next() {
		chunk := stream.Current()
		if u := chunk.Usage; u.TotalTokens > 0 {
			out.Usage = agent.Usage{Input: u.PromptTokens, Output: u.CompletionTokens}
		}
		for _, choice := range chunk.Choices {
			if choice.Index != 0 {
				continue // one was asked for
			}
			fits := g.speak(choice.Delta.Content) && g.speak(choice.Delta.Refusal)
			for _, d := range choice.Delta.ToolCalls {
				c := g.call(d.Index)
				if d.ID != "" && c.id != "" && d.ID != c.id {
					// Some servers number none of several calls, and tell them apart by their ids.
					c = g.another(d.Index)
				}
				if d.ID != "" {
					c.id = d.ID
				}
				if c.name == "" {
					c.name = d.Function.Name
				}
				fits = fits && g.add(&c.args, d.Function.Arguments)
			}
			if !fits {
				return out, errTooLong
			}
			if choice.FinishReason != "" {
				ended, out.Cut = true, choice.FinishReason == "length"
				declined = choice.FinishReason == "content_filter"
			}
		}
	}
	if err := stream.Err(); err != nil {
		var e *openai.Error
		var broken *ssestream.StreamError
		switch {
		case errors.As(err, &e):
			return out, &apiError{status: e.StatusCode, body: e.RawJSON(), err: err}
		case errors.As(err, &broken):
			return out, &apiError{status: http.StatusOK, body: string(broken.Event.Data), err: err}
		}
		return out, err
	}
	switch {
	case declined:
		return out, errDeclined
	case !ended:
		return out, errHalf
	}
	out.Message = g.message()
	return out, nil
}

func (m *completions) params(r agent.Request) (openai.ChatCompletionNewParams, error) {
	p := openai.ChatCompletionNewParams{
		Model: shared.ChatModel(m.model), Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage(r.System)},
		MaxCompletionTokens: openai.Int(r.MaxTokens), StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	}
	for _, t := range r.Tools {
		var schema map[string]any
		if err := json.Unmarshal(t.Schema, &schema); err != nil {
			return p, fmt.Errorf("the schema of the tool %s: %w", t.Name, err)
		}
		p.Tools = append(p.Tools, openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{
			Name: t.Name, Description: openai.String(t.Description), Parameters: schema,
		}))
	}
	for _, msg := range r.Messages {
		if msg.Role == agent.Assistant {
			a := openai.ChatCompletionAssistantMessageParam{}
			if msg.Text != "" {
				a.Content.OfString = openai.String(msg.Text)
			}
			for _, c := range msg.Calls {
				a.ToolCalls = append(a.ToolCalls, openai.ChatCompletionMessageToolCallUnionParam{OfFunction: &openai.ChatCompletionMessageFunctionToolCallParam{
					ID: c.ID, Function: openai.ChatCompletionMessageFunctionToolCallFunctionParam{Name: c.Name, Arguments: string(c.Args)},
				}})
			}
			if msg.Text != "" || len(a.ToolCalls) > 0 {
				p.Messages = append(p.Messages, openai.ChatCompletionMessageParamUnion{OfAssistant: &a})
			}
			continue
		}
		for _, r := range msg.Results {
			p.Messages = append(p.Messages, openai.ToolMessage(r.Text, r.CallID))
		}
		if msg.Text != "" {
			p.Messages = append(p.Messages, openai.UserMessage(msg.Text))
		}
	}
	return p, nil
}

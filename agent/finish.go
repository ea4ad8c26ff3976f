package agent

import (
	"context"
	"encoding/json"

	"ravi/internal/strictjson"
)

const finishName = "finish"

// finishTool ends a turn with a last word.
type finishTool struct{}

func (finishTool) Spec() Spec {
	return Spec{Name: finishName, Description: "Ends the work. Call it once all is done, or once it is clear that it cannot be done.",
		Schema: json.RawMessage(`{"type":"object","properties":{"summary":{"type":"string","description":"what was done, and what was not"}},"required":["summary"],"additionalProperties":false}`)}
}

func (finishTool) Do(_ context.Context, raw json.RawMessage) (Result, error) {
	var a struct {
		Summary string `json:"summary"`
	}
	if err := strictjson.Decode(raw, &a); err != nil {
		return Result{}, err
	}
	return Result{Text: a.Summary, Final: true, Trusted: true}, nil
}

package agent

import "encoding/json"

// The kinds of events.
const (
	EventText   = "text"   // a piece of what the model says
	EventTool   = "tool"   // a call begins
	EventResult = "result" // what came of it
	EventUsage  = "usage"  // what the turn has used so far
	EventAsk    = "ask"    // somebody is asked whether a call may be done
	EventNote   = "note"   // something about the loop itself
	EventEnd    = "end"    // the last of a turn: how it ended
)

// Event is something that happens in a turn. What the model and the tools wrote is in it as it is: it is to be made fit
// for a terminal by who shows it there.
type Event struct {
	Kind   string          `json:"kind"`
	Text   string          `json:"text,omitempty"`
	Tool   string          `json:"tool,omitempty"`
	ID     string          `json:"id,omitempty"` // of the call
	Input  json.RawMessage `json:"input,omitempty"`
	Failed bool            `json:"failed,omitempty"`
	Usage  *Usage          `json:"usage,omitempty"`
	// Reason is how a turn ended.
	Reason Reason `json:"reason,omitempty"`
	// Agent is the sub-agent that this is about; empty: the loop's own.
	Agent string `json:"agent,omitempty"`
}

// Reason is how a turn ended.
type Reason string

// How turns end. All but Finished and Canceled are failures, told apart.
const (
	Finished   Reason = "finished"
	Canceled   Reason = "canceled"
	Iterations Reason = "iterations" // the model was asked as often as it may be
	OutOfTime  Reason = "time"
	OutOfToken Reason = "tokens" // or what else is counted of models is used up
	Failed     Reason = "failed" // the model could not be asked, or the hands could not be had
)

// Outcome is how a turn ended.
type Outcome struct {
	Reason Reason `json:"reason"`
	// Text is what the model said last, or with finish.
	Text string `json:"text"`
	// Why says in words what was missing, unless it finished.
	Why        string `json:"why,omitempty"`
	Iterations int    `json:"iterations"`
	Usage      Usage  `json:"usage"`
}

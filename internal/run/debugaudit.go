package run

import (
	"context"

	"ravi/internal/audit"
	"ravi/internal/store"
	"ravi/sandbox"
)

// debugPrefix goes before what was asked for by way of a debug socket, exec or shell.
const debugPrefix = "debug."

var _ sandbox.Auditor = Recorder{}

// DebugCall implements sandbox.Auditor: a row is there before the command is. Who can ask at all is the operator.
func (r Recorder) DebugCall(ctx context.Context, action, id string, args []string) error {
	row, err := audit.Call{
		Caller: audit.Operator, Action: debugPrefix + action, Object: id, Decision: store.Allowed, RunID: r.RunID, SandboxID: id,
		Input: map[string]any{"args": args},
	}.Record(r.Redact.String)
	if err != nil {
		return err
	}
	return audit.Log{Store: r.Store, Head: r.AuditHead}.Append(ctx, row)
}

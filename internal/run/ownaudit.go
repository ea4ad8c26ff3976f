package run

import (
	"context"

	"ravi/internal/audit"
	"ravi/sandbox"
)

// NetAudit brings into the audit what the network of a sandbox decides that was made for no run. It must be closed.
type NetAudit struct{ of *netAudit }

// NewNetAudit begins. failed hears of what could not be written; it is tried again.
func NewNetAudit(log audit.Log, failed func(error)) *NetAudit {
	a := newNetAudit(log, "")
	a.start(context.Background(), failed)
	return &NetAudit{a}
}

// Of names the sandbox. It is called before the sandbox can have decided anything.
func (a *NetAudit) Of(sandboxID string) { a.of.of(sandboxID) }

// Add takes one decision. It is quick, whatever the database does.
func (a *NetAudit) Add(e sandbox.NetEvent) { a.of.add(e) }

// Close writes what is left. Its error means that decisions have no record.
func (a *NetAudit) Close(ctx context.Context) error { return a.of.close(ctx) }

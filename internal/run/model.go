package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"ravi/internal/adapter"
	"ravi/internal/audit"
	"ravi/internal/broker"
	"ravi/internal/broker/check"
	"ravi/internal/contextkey"
	"ravi/internal/guard"
	"ravi/internal/redact"
	"ravi/internal/store"
	"ravi/sandbox"
)

// Broker is the name of the service that runs reach their models by.
const Broker = "broker"

// Models are what a run's lease holds.
type Models struct {
	Providers []broker.Provider // at least one; an agent program calls the first
	Grants    check.Grants
	Limits    broker.Limits
	// Record has the content of calls kept, in ModelsFile.
	Record bool
}

// modeled is what a run with a lease holds.
type modeled struct {
	token    string
	id       string // of the lease's record
	broker   *broker.Broker
	serve    func(context.Context, net.Conn)
	end      func(context.Context) error
	requests atomic.Int64
	// began is when the command was started, and first when it first called a model, as durations since there is the lease;
	// 0: not yet.
	since        time.Time
	began, first atomic.Int64
	// uncounted are tokens that could not be written down.
	uncounted atomic.Int64
	url       string // of the broker, once the sandbox is there
	closers   []func() error
	slide     *beat
	record    *modelRecord // nil: no content is kept
}

// ModelUse is what the models were asked for in a run.
type ModelUse struct {
	Requests int64 `json:"requests"`
	// FirstMS is how long the command took until its first call, in milliseconds; 0 if it made none.
	FirstMS int64 `json:"first_ms"`
	broker.Usage
}

// takeModels makes the lease with which the run calls models. It is there before the sandbox.
func (s *state) takeModels(ctx context.Context) error {
	if s.Models == nil {
		return nil
	}
	return s.takeLease(ctx, &s.models, s.Models.Limits, nil)
}

// takeLease makes a lease of the run's, with limits, perhaps within those of another one.
func (s *state) takeLease(ctx context.Context, m *modeled, limits broker.Limits, within *broker.Broker) error {
	token, hash := broker.NewToken()
	names := make([]string, len(s.Models.Providers))
	var allowed []string // as they are recorded
	for i, p := range s.Models.Providers {
		names[i] = p.Name
		for _, m := range p.Models {
			allowed = append(allowed, p.Name+"/"+m)
		}
	}
	lease, err := s.Store.InsertModelLease(ctx, store.ModelLease{
		Hash: hash, RunID: s.task.ID, AgentID: s.AgentID, SessionID: s.SessionID, CreatedBy: s.CreatedBy, Owner: s.self,
		Providers: names, Models: allowed, Limits: store.ModelLimits(limits), ExpiresAt: store.Now().Add(contextkey.RunTTL),
	})
	if err != nil {
		return fmt.Errorf("recording the run's model lease: %w", err)
	}
	m.token, m.id, m.since = token, lease.ID, time.Now()
	s.Redact.Add(redact.Pair{Secret: token, Instead: "[the run's model lease]", Name: modelLeaseName})
	if err := s.audit.log.Append(ctx, audit.Record{Action: audit.LeaseIssue, Object: lease.ID, Decision: store.Allowed, Caller: s.CreatedBy, RunID: s.task.ID}); err != nil {
		return err
	}
	writer := audit.NewWriter(s.audit.log)
	m.closers = append(m.closers, writer.Close)
	var keep func(broker.Call, []byte) (io.Writer, error)
	if s.Models.Record {
		if s.models.record == nil { // one file has the content of all leases of the run
			if err := s.recordModels(); err != nil {
				return err
			}
		}
		keep = s.models.record.keep
	}
	m.broker, err = broker.New(broker.Options{
		Providers: s.Models.Providers, Grants: s.Models.Grants, Redact: s.Redact,
		Lease: broker.Lease{Hash: hash, Limits: limits}, Within: within,
		Begin: func(ctx context.Context, c broker.Call) error { return s.recordCall(ctx, m, writer, c) },
		Keep:  keep,
		End: func(c broker.Call) {
			s.countCall(m, c)
			s.recordAnswer(m, writer, c)
		},
	})
	if err != nil {
		return err
	}
	m.serve, m.end = m.broker.Service(Broker + ".ravi.internal")
	s.dir.event("models", map[string]any{"lease": lease.ID, "providers": names})
	m.slide = begin(context.WithoutCancel(ctx), contextkey.SlideEvery, func(ctx context.Context) {
		if err := s.Store.SlideModelLease(ctx, lease.ID, store.Now().Add(contextkey.RunTTL)); err != nil && ctx.Err() == nil {
			s.dir.event("lease_not_extended", map[string]any{"error": err.Error()})
		}
	})
	return nil
}

// modelLeaseName stands for a run's lease wherever it was taken out.
const modelLeaseName = "the run's model lease"

// recordCall writes a model call down before it is sent, or that it was refused.
func (s *state) recordCall(ctx context.Context, m *modeled, w *audit.Writer, c broker.Call) error {
	m.first.CompareAndSwap(0, int64(time.Since(m.since)))
	input := map[string]any{"endpoint": c.Endpoint}
	if c.Stream {
		input["stream"] = true
	}
	if k, ok := c.Content.(*recordedCall); ok {
		input["call"] = k.number
		if k.request != "" {
			input["request_sha256"] = k.request
		}
	}
	call := audit.Call{
		Caller: m.id, Action: audit.ModelCall, Object: c.Provider + "/" + c.Model, Decision: store.Allowed,
		RunID: s.task.ID, SandboxID: s.task.Sandbox, Input: input,
	}
	if c.Refused != "" {
		call.Decision, call.Reason = store.Denied, c.Refused
	}
	r, err := call.Record(s.Redact.String)
	if err != nil {
		return err
	}
	if c.Refused != "" {
		return w.Denied(ctx, r)
	}
	return w.Append(ctx, r)
}

// countCall adds what a call used. What cannot be counted is said: the bill would lack it.
func (s *state) countCall(m *modeled, c broker.Call) {
	m.requests.Add(1)
	failed := int64(0)
	if c.Failed != "" {
		failed = 1
		s.dir.event("model_failed", map[string]any{"provider": c.Provider, "model": c.Model, "status": c.Status, "error": c.Failed})
	}
	u := c.Usage
	err := s.Store.AddModelUsage(context.Background(), m.id, c.Provider, c.Model, store.ModelUse{
		Requests: 1, Failed: failed, Input: u.Input, Output: u.Output, CacheRead: u.CacheRead, CacheWrite: u.CacheWrite, MicroUSD: u.MicroUSD, Priced: u.Priced,
	})
	if err != nil {
		m.uncounted.Add(u.Input + u.Output + u.CacheRead + u.CacheWrite)
		s.dir.event("model_uncounted", map[string]any{"provider": c.Provider, "model": c.Model, "error": err.Error()})
	}
}

// leaveModels ends the run's lease, and says what was used by it and those within.
func (s *state) leaveModels(ctx context.Context) error {
	m := &s.models
	err := s.endLease(ctx, m, "the run ended")
	if m.broker == nil {
		return err
	}
	if n := m.uncounted.Load(); n > 0 {
		s.note("%d tokens are missing in ravi usage, since they could not be written down; events.jsonl says why", n)
	}
	s.task.Models = &ModelUse{Requests: m.requests.Load(), Usage: m.broker.Usage()}
	if first := m.first.Load(); first > 0 {
		s.task.Models.FirstMS = time.Duration(first - m.began.Load()).Milliseconds()
	}
	return err
}

// endLease ends a lease, and what is under way by it.
func (s *state) endLease(ctx context.Context, m *modeled, why string) error {
	if m.id == "" {
		return nil
	}
	m.slide.end()
	if m.broker != nil {
		m.broker.End(why)
	}
	var errs []error
	if _, err := s.Store.EndModelLease(ctx, m.id, why); err != nil {
		errs = append(errs, fmt.Errorf("ending the run's model lease: %w", err))
	}
	if m.end != nil {
		ending, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		// What does not end in time is cut off, which is all that can be done.
		_ = m.end(ending)
	}
	for _, c := range slices.Backward(m.closers) {
		errs = append(errs, c())
	}
	return errors.Join(append(errs, s.audit.log.Append(ctx, audit.Record{Action: audit.LeaseRevoke, Object: m.id, Decision: store.Allowed, RunID: s.task.ID, Reason: why}))...)
}

// modelOptions are what the sandbox is made with for its models.
func (s *state) modelOptions() []sandbox.Option {
	// Ravi's own loop asks from here: nothing in its sandbox has any use for a model.
	if s.models.serve == nil || s.Config.Backend == sandbox.BackendHost || s.Agent != nil && s.Agent.Loop != nil {
		return nil
	}
	return []sandbox.Option{sandbox.WithService(Broker, s.models.serve)}
}

// modelEnv is what a command finds in its environment to call models: the variables that programs read.
func (s *state) modelEnv() map[string]string {
	env := map[string]string{}
	if s.models.token == "" {
		return env
	}
	for _, p := range slices.Backward(s.Models.Providers) { // the first of a dialect is what its variables name
		maps.Copy(env, adapter.ProviderEnv(string(p.Dialect), s.models.url+"/"+p.Name, s.models.token))
	}
	return env
}

// reachModels says where the sandbox's processes reach the broker. On the host there is no wire of theirs, so it is a
// port of loopback, where the lease is all that lets anybody in.
func (s *state) reachModels(context.Context) error {
	m := &s.models
	if m.broker == nil || s.Agent != nil && s.Agent.Loop != nil {
		return nil
	}
	if s.sb.Backend() != sandbox.BackendHost {
		m.url = s.sb.ServiceURL(Broker)
		return nil
	}
	l, err := guard.ListenTCP("127.0.0.1:0", nil)
	if err != nil {
		return err
	}
	m.url = "http://" + l.Addr().String()
	server := guard.New(m.broker, broker.ServerOptions())
	over := make(chan error, 1)
	go func() { over <- server.Serve(l) }()
	m.closers = append(m.closers, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = server.Shutdown(ctx)
		l.Close()
		<-over
		return nil
	})
	return nil
}

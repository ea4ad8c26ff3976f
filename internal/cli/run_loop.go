package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"ravi/agent"
	"ravi/agent/provider"
	"ravi/internal/adapter"
	"ravi/internal/approval"
	"ravi/internal/broker"
	"ravi/internal/command"
	"ravi/internal/config"
	"ravi/internal/gate"
	"ravi/internal/mcphost"
	runs "ravi/internal/run"
	"ravi/sandbox"
)

// runLoop sets up Ravi's own loop as what does a run's task. What is wrong with the configuration is told here.
func runLoop(env *command.Env, in runInput, file *config.Config, providers []broker.Provider, o *runs.Options) error {
	speaks := loopSpeaks(providers)
	if len(speaks) == 0 {
		return command.Usage("the loop speaks to providers of the dialects anthropic and openai, and there is none", "set a key, such as ANTHROPIC_API_KEY, or models in config.json (docs/models.md)")
	}
	o.Models.Providers = speaks
	if o.Agent.Model == "" {
		if o.Agent.Model = onlyModel(speaks[0]); o.Agent.Model == "" {
			return command.Usage("the loop takes no model by itself", "name one, such as: --model claude-sonnet-4-5, or list one alone in models.providers."+speaks[0].Name+".models of config.json")
		}
	}
	if in.Approval != nil && (*in.Approval < 0 || *in.Approval > approval.MaxTTL) {
		return command.Usage(fmt.Sprintf("--approval-timeout is not from 0 to %v", approval.MaxTTL), "")
	}
	exec, most := file.Tools.Exec, file.Agents.Defaults
	if err := checkDenied(exec); err != nil {
		return err
	}
	if file.Tools.RestrictToWorkspace && len(in.Volumes) > 0 {
		return command.Usage("--volume shows the agent more than its workspace, and tools.restrict_to_workspace of config.json forbids that", "leave one of them out")
	}
	loop := &runs.Loop{
		WorkspaceOnly: file.Tools.RestrictToWorkspace,
		Model:         askModel,
		Exec:          agent.ExecTool{Timeout: time.Duration(exec.Timeout) * time.Second, PathAppend: exec.Dirs(), MostOutput: most.MaxToolOutput},
		DenyPatterns:  exec.ExtraDenyPatterns,
		Limits:        agent.Limits{Iterations: most.MaxIterations, Tokens: most.MaxTokens, Output: most.MaxToolOutput},
		Subagents: agent.SubLimits{
			AtOnce: most.MaxConcurrentSubagents, Queue: most.MaxQueuedSubagents, PerHour: most.MaxSubagentSpawnsPerHour,
			Wall: time.Duration(most.MaxSubagentMinutes) * time.Minute,
		},
		Depth: 1, ApprovalTime: approval.DefaultTTL,
	}
	servers, err := configuredServers(file)
	if err != nil {
		return err
	}
	if len(servers) > 0 {
		loop.Servers = func(ctx context.Context, sb *sandbox.Sandbox, tell func(string, bool)) (agent.Servers, error) {
			return loopServers{mcphost.Open(ctx, sb, servers, func(e mcphost.Event) {
				tell(fmt.Sprintf("MCP server %s: %s: %s", e.Server, e.Kind, e.Text), e.Kind == mcphost.KindFailed)
			})}, nil
		}
	}
	if most.MaxSubagentDepth != nil {
		loop.Depth = *most.MaxSubagentDepth
	}
	// Where nobody looks nobody is waited for, unless it was said how long.
	switch {
	case in.Approval != nil:
		loop.ApprovalTime = *in.Approval
		loop.NobodyApproves = loop.ApprovalTime == 0
	default:
		loop.NobodyApproves = !env.StderrTerminal
	}
	o.Agent.Loop = loop
	return nil
}

// checkDenied refuses a pattern that is none: it would refuse no command.
func checkDenied(exec config.Exec) error {
	if _, err := gate.New(gate.Options{ExtraDeny: exec.ExtraDenyPatterns}); err != nil {
		return command.Usage("tools.exec.extra_deny_patterns in config.json: "+err.Error(), "write it as https://pkg.go.dev/regexp/syntax has it")
	}
	return nil
}

// loopSpeaks are the providers whose dialect the loop speaks.
func loopSpeaks(providers []broker.Provider) (out []broker.Provider) {
	for _, p := range providers {
		if p.Dialect == broker.Anthropic || p.Dialect == broker.OpenAI {
			out = append(out, p)
		}
	}
	return out
}

// onlyModel is a provider's model if it has one alone.
func onlyModel(p broker.Provider) string {
	if len(p.Models) == 1 && !strings.Contains(p.Models[0], "*") {
		return p.Models[0]
	}
	return ""
}

// askModel asks a model by the broker, over no network.
func askModel(dialect, baseURL, token, model string, dial func(context.Context) (net.Conn, error)) (agent.Model, error) {
	o := provider.Options{BaseURL: baseURL, Key: token, Model: model, Client: &http.Client{
		Transport:     &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }, MaxIdleConnsPerHost: 8},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	switch dialect {
	case adapter.Anthropic:
		return provider.Anthropic(o), nil
	case adapter.OpenAI:
		return provider.OpenAI(o), nil
	}
	return nil, errors.New("the loop does not speak to providers of the dialect " + dialect)
}

// loopServers are those of tools.mcp_servers, as a loop has them.
type loopServers struct{ *mcphost.Host }

// Specs implements agent.Servers.
func (m loopServers) Specs() []agent.Spec {
	var out []agent.Spec
	for _, t := range m.Tools() {
		out = append(out, agent.Spec{Name: t.Name, Description: "Of the MCP server " + t.Server + ", in its words: " + t.Description, Schema: t.InputSchema})
	}
	return out
}

// Call implements agent.Servers: what a server cannot do is no reason to end a turn.
func (m loopServers) Call(ctx context.Context, name string, args json.RawMessage) (string, bool, error) {
	text, failed, err := m.Host.Call(ctx, name, args)
	if err != nil && ctx.Err() == nil {
		return err.Error(), true, nil
	}
	return text, failed, err
}

package config

import (
	"fmt"
	"path"
	"strings"

	"ravi/internal/strictjson"
)

// Exec is the block tools.exec.
type Exec struct {
	// Timeout is for commands that name none, in seconds; 0 is two minutes.
	Timeout int `json:"timeout"`
	// PathAppend are folders of the sandbox in which programs are looked for last, with : between.
	PathAppend string `json:"path_append"`
	// ExtraDenyPatterns are regular expressions; commands that match one are refused.
	ExtraDenyPatterns []string `json:"extra_deny_patterns"`
}

// mostExecSeconds is the longest time that a command may take by itself.
const mostExecSeconds = 600

// UnmarshalJSON reads the block, and refuses what cannot be meant. Whether a pattern is one is looked at by who uses it.
func (e *Exec) UnmarshalJSON(b []byte) error {
	type plain Exec
	if err := strictjson.Decode(b, (*plain)(e)); err != nil {
		return err
	}
	if e.Timeout < 0 || e.Timeout > mostExecSeconds {
		return fmt.Errorf("timeout is %d, which is not from 1 to %d seconds", e.Timeout, mostExecSeconds)
	}
	for _, dir := range e.Dirs() {
		if !path.IsAbs(dir) {
			return fmt.Errorf("path_append has %q, which is no absolute path", dir)
		}
	}
	return nil
}

// Dirs are the folders of PathAppend.
func (e Exec) Dirs() []string {
	if e.PathAppend == "" {
		return nil
	}
	return strings.Split(e.PathAppend, ":")
}

// Agents is the block agents.
type Agents struct {
	Defaults AgentDefaults `json:"defaults"`
}

// AgentDefaults bound every agent loop. What is 0 has the loop's own default.
type AgentDefaults struct {
	MaxIterations            int   `json:"max_iterations"`
	MaxTokens                int64 `json:"max_tokens"`
	MaxToolOutput            int   `json:"max_tool_output"` // bytes
	MaxConcurrentSubagents   int   `json:"max_concurrent_subagents"`
	MaxQueuedSubagents       int   `json:"max_queued_subagents"`
	MaxSubagentSpawnsPerHour int   `json:"max_subagent_spawns_per_hour"`
	MaxSubagentMinutes       int   `json:"max_subagent_minutes"`
	MaxSubagentDepth         *int  `json:"max_subagent_depth"` // missing: 1; 0: none may be spawned
}

// mostDepth bounds how deep sub-agents may be below each other.
const mostDepth = 3

// UnmarshalJSON reads the block, and refuses what bounds nothing.
func (d *AgentDefaults) UnmarshalJSON(b []byte) error {
	type plain AgentDefaults
	if err := strictjson.Decode(b, (*plain)(d)); err != nil {
		return err
	}
	for name, n := range map[string]int64{
		"max_iterations": int64(d.MaxIterations), "max_tokens": d.MaxTokens, "max_tool_output": int64(d.MaxToolOutput),
		"max_concurrent_subagents": int64(d.MaxConcurrentSubagents), "max_queued_subagents": int64(d.MaxQueuedSubagents),
		"max_subagent_spawns_per_hour": int64(d.MaxSubagentSpawnsPerHour), "max_subagent_minutes": int64(d.MaxSubagentMinutes),
	} {
		if n < 0 {
			return fmt.Errorf("%s is %d; leave it out for its default", name, n)
		}
	}
	if d.MaxSubagentDepth != nil && (*d.MaxSubagentDepth < 0 || *d.MaxSubagentDepth > mostDepth) {
		return fmt.Errorf("max_subagent_depth is %d, which is not from 0 to %d", *d.MaxSubagentDepth, mostDepth)
	}
	return nil
}

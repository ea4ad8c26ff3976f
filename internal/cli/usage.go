package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"ravi/internal/command"
	"ravi/internal/store"
	safe "ravi/internal/term"
)

func addUsage(t *command.Table) {
	t.AddGroup(command.Group{Name: "usage", Summary: "Say what models were used, and what it cost"})
	add(t, command.Spec[usageInput, usageSums]{
		Group: "usage", Name: "usage", Access: command.Read, Self: true,
		Summary: "Say what models were used, and what it cost",
		Long: `Sums up what runs used of models: calls, tokens and, where a price is
configured, money. Tokens in leave out what the provider had in its cache.
--by says what sums are made for: run, session, agent, caller, provider, model
or day (UTC). It is counted by the hour; --since takes in the hour in which it
is.

A holder of a key sees what was used by its own run, in its own session, and by
what was made with its key; more with read:usage@ID for a run, a session, an
agent or a key.`,
		Examples: []command.Example{
			{What: "of each model", Line: "ravi usage"},
			{What: "this week, day by day", Line: "ravi usage --by day --since 7d"},
			{What: "of a client in November, for the bill", Line: "ravi usage --caller ctx_AbC --since 2026-11-01T00:00:00Z \\\n      --until 2026-12-01T00:00:00Z --json"},
		},
		Defaults: usageInput{By: string(store.ByModel), Limit: pageSize},
		Handler:  sumUsage, Print: printUsage,
	})
}

type usageInput struct {
	By      string `json:"by" flag:"by" value:"WHAT" host:"none" usage:"sums for each run, session, agent, caller, provider, model or day"`
	Since   string `json:"since" flag:"since" value:"WHEN" host:"none" usage:"a time ago such as 7d or 2h, or a moment such as 2026-03-01T10:00:00Z"`
	Until   string `json:"until" flag:"until" value:"WHEN" host:"none" usage:"the same; up to there"`
	Run     string `json:"run" flag:"run" short:"r" value:"RUN" host:"none" usage:"of this run"`
	Session string `json:"session" flag:"session" short:"s" value:"SESSION" host:"none" usage:"of this session"`
	Agent   string `json:"agent" flag:"agent" short:"a" value:"AGENT" host:"none" usage:"of this agent"`
	Caller  string `json:"caller" flag:"caller" value:"KEY|operator" host:"none" usage:"of what this one asked for"`
	Limit   int    `json:"limit" flag:"limit" short:"n" value:"N" host:"none" usage:"at most N sums, those that grew last, up to 500"`
}

// usageSums are what was used, in parts and as a whole.
type usageSums struct {
	By string `json:"by"`
	// Items are the sums that grew last; More says that there are others.
	Items []store.UsageSum `json:"items"`
	More  bool             `json:"more"`
	Total store.UsageSum   `json:"total"`
}

var usageBys = []store.UsageBy{store.ByRun, store.BySession, store.ByAgent, store.ByCaller, store.ByProvider, store.ByModel, store.ByDay}

func sumUsage(ctx context.Context, env *command.Env, in usageInput) (usageSums, error) {
	out := usageSums{By: in.By, Items: []store.UsageSum{}}
	f := store.UsageFilter{By: store.UsageBy(in.By), Limit: in.Limit + 1}
	if !slices.Contains(usageBys, f.By) {
		return out, command.Usage(fmt.Sprintf("--by %.40q is nothing that sums are made for", in.By), fmt.Sprintf("it is one of %v", usageBys))
	}
	err := checkLimit(in.Limit)
	if err != nil {
		return out, err
	}
	if f.Since, err = when("--since", in.Since); err != nil {
		return out, err
	}
	if f.Until, err = when("--until", in.Until); err != nil {
		return out, err
	}
	if f.RunID, err = runKind.filter(ctx, env, in.Run); err != nil {
		return out, err
	}
	if f.SessionID, err = sesKind.filter(ctx, env, in.Session); err != nil {
		return out, err
	}
	if f.AgentID, err = agentKind.filter(ctx, env, in.Agent); err != nil {
		return out, err
	}
	f.CreatedBy = in.Caller
	s, err := env.Store(ctx)
	if err != nil {
		return out, err
	}
	if f.Of, err = usageOf(ctx, env, s); err != nil {
		return out, err
	}
	if out.Items, err = s.ModelUsage(ctx, f); err != nil {
		return out, err
	}
	if len(out.Items) > in.Limit {
		out.Items, out.More = out.Items[:in.Limit], true
	}
	f.By, f.Limit = store.ByAll, 0
	total, err := s.ModelUsage(ctx, f)
	if len(total) > 0 {
		out.Total = total[0]
	}
	return out, err
}

// usageOf is whose usage a caller sees; nil: everybody's.
func usageOf(ctx context.Context, env *command.Env, s *store.Store) ([]string, error) {
	see := scopeOf(ctx, env, "usage", "usage")
	if see.all {
		return nil, nil
	}
	key := own(env)
	if key.ID == "" {
		return nil, errors.New("usage is for the operator and for holders of keys")
	}
	of := append([]string{key.ID, key.RunID, key.SessionID}, see.patterns...)
	// What was made with keys that descend from this one is this one's.
	callers, err := s.ModelUsage(ctx, store.UsageFilter{By: store.ByCaller})
	if err != nil {
		return nil, err
	}
	for _, c := range callers {
		made, err := env.Made(ctx, c.Key)
		if err != nil {
			return nil, err
		}
		if made {
			of = append(of, c.Key)
		}
	}
	return of, nil
}

func printUsage(env *command.Env, w io.Writer, u usageSums) error {
	if env.Quiet {
		return printIDs(w, u.Items, func(s store.UsageSum) string { return s.Key })
	}
	if len(u.Items) == 0 {
		fmt.Fprintln(w, "no models were used")
		return nil
	}
	rows := make([][]string, 0, len(u.Items)+1)
	for _, s := range u.Items {
		rows = append(rows, usageRow(nameOfSum(u.By, s.Key), s))
	}
	if len(u.Items) > 1 || u.More {
		rows = append(rows, usageRow("total", u.Total))
	}
	next := ""
	if u.More {
		next = "--limit, or bounds"
	}
	return printRows(env, w, "usage", []safe.Column{{Title: strings.ToUpper(u.By), Flex: true}, {Title: "CALLS", Right: true}, {Title: "FAILED", Right: true},
		{Title: "IN", Right: true}, {Title: "CACHED", Right: true}, {Title: "OUT", Right: true}, {Title: "USD", Right: true}}, rows, next)
}

func usageRow(name string, s store.UsageSum) []string {
	return []string{name, tokens(s.Requests), tokens(s.Failed), tokens(s.Input), tokens(s.CacheRead + s.CacheWrite), tokens(s.Output), dollars(s)}
}

// nameOfSum is what a sum is for; what has none has a word.
func nameOfSum(by, key string) string {
	if key == "" {
		return "no " + by
	}
	return key
}

// tokens is a number in at most six characters, as long as it is below a quadrillion.
func tokens(n int64) string {
	for _, unit := range []struct {
		size int64
		name string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}} {
		if n >= unit.size {
			return fmt.Sprintf("%.1f%s", float64(n)/float64(unit.size), unit.name)
		}
	}
	return strconv.FormatInt(n, 10)
}

// dollars is what it cost; a + says that some calls have no price, and - that none has.
func dollars(s store.UsageSum) string {
	if s.MicroUSD == 0 && s.Unpriced > 0 {
		return "-"
	}
	text := fmt.Sprintf("%.4f", float64(s.MicroUSD)/1e6)
	if s.MicroUSD >= 100e6 {
		text = fmt.Sprintf("%.2f", float64(s.MicroUSD)/1e6)
	}
	if s.Unpriced > 0 {
		text += "+"
	}
	return text
}

package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// ModelUse is what was used of a model by one call, or by a few.
type ModelUse struct {
	Requests, Failed int64
	// Input leaves out what was read from a cache and what was written to one.
	Input, Output, CacheRead, CacheWrite int64
	MicroUSD                             int64 // millionths of a dollar
	Priced                               bool  // whether there is a price at all
}

// unpriced is how many of the requests used something of which no price is known.
func (u ModelUse) unpriced() int64 {
	if u.Priced || u.Input == 0 && u.Output == 0 && u.CacheRead == 0 && u.CacheWrite == 0 {
		return 0
	}
	return u.Requests
}

// AddModelUsage adds to what was used with a lease, named by its full id, also when it has ended: the last calls come
// after that.
func (s *Store) AddModelUsage(ctx context.Context, leaseID, provider, model string, u ModelUse) error {
	if err := checkLines(line{"the provider", provider}, line{"the model", model}); err != nil {
		return err
	}
	if min(u.Requests, u.Failed, u.Input, u.Output, u.CacheRead, u.CacheWrite, u.MicroUSD) < 0 {
		return fmt.Errorf("less than nothing of a model is %w: %+v", ErrInvalid, u)
	}
	now := Now()
	return s.tx(ctx, func(tx *sql.Tx) error {
		done, err := tx.ExecContext(ctx, `INSERT INTO model_usage (lease_id, provider, model, hour, run_id, agent_id, session_id, created_by,
				requests, failed, unpriced, input, output, cache_read, cache_write, micro_usd, first_at, last_at)
			SELECT id, ?, ?, ?, run_id, agent_id, session_id, created_by, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? FROM model_leases WHERE id = ?
			ON CONFLICT DO UPDATE SET requests = requests + excluded.requests, failed = failed + excluded.failed,
				unpriced = unpriced + excluded.unpriced, input = input + excluded.input, output = output + excluded.output,
				cache_read = cache_read + excluded.cache_read, cache_write = cache_write + excluded.cache_write,
				micro_usd = micro_usd + excluded.micro_usd, last_at = max(last_at, excluded.last_at)`,
			provider, model, now.Truncate(time.Hour).UnixMilli(), u.Requests, u.Failed, u.unpriced(), u.Input, u.Output,
			u.CacheRead, u.CacheWrite, u.MicroUSD, now.UnixMilli(), now.UnixMilli(), leaseID)
		if err != nil {
			return fmt.Errorf("cannot record what model lease %s used: %w", leaseID, err)
		}
		n, err := done.RowsAffected()
		if err == nil && n == 0 {
			err = fmt.Errorf("model lease %q: %w", leaseID, ErrNotFound)
		}
		return err
	})
}

// UsageBy is what the sums of usage are made for.
type UsageBy string

// What sums are made for. ByAll gives one of everything, ByDay one for each day in UTC.
const (
	ByAll      UsageBy = ""
	ByRun      UsageBy = "run"
	BySession  UsageBy = "session"
	ByAgent    UsageBy = "agent"
	ByCaller   UsageBy = "caller"
	ByProvider UsageBy = "provider"
	ByModel    UsageBy = "model" // of a provider
	ByDay      UsageBy = "day"
)

// usageKeys are what rows have in common that are summed. Each is ours, so it may stand in a query.
var usageKeys = map[UsageBy]string{
	ByAll: `''`, ByRun: `run_id`, BySession: `session_id`, ByAgent: `agent_id`, ByCaller: `created_by`, ByProvider: `provider`,
	ByModel: `provider || '/' || model`, ByDay: `strftime('%Y-%m-%d', hour / 1000, 'unixepoch')`,
}

// UsageFilter chooses what is summed; the zero filter chooses all.
type UsageFilter struct {
	RunID, SessionID, AgentID, CreatedBy string // empty: any
	// Of are runs, sessions, agents and creators, by their full ids or by beginnings with * behind them: only what was used by
	// any of these. Empty, but not nil: nothing.
	Of []string
	// Since and Until bound the hours in which it was used: Until leaves out the hour that begins then, and Since takes in the one in
	// which it is.
	Since, Until time.Time
	By           UsageBy
	Limit        int // the sums that grew last; 0 is no limit
}

func (f UsageFilter) choice() (c choice) {
	c.is(`run_id`, f.RunID)
	c.is(`session_id`, f.SessionID)
	c.is(`agent_id`, f.AgentID)
	c.is(`created_by`, f.CreatedBy)
	if f.Of != nil {
		c.anyOf(f.Of, `run_id`, `session_id`, `agent_id`, `created_by`)
	}
	c.add(!f.Since.IsZero(), `hour >= ?`, f.Since.UTC().Truncate(time.Hour).UnixMilli())
	c.add(!f.Until.IsZero(), `hour < ?`, f.Until.UnixMilli())
	return c
}

// UsageSum is what was used by all that have something in common.
type UsageSum struct {
	Key      string `json:"key"` // an id, a name, a day; empty: what has none, or the sum of everything
	Requests int64  `json:"requests"`
	Failed   int64  `json:"failed"`
	// Unpriced is how many requests used something of which no price is known, and so are not in MicroUSD.
	Unpriced   int64     `json:"unpriced"`
	Input      int64     `json:"input"` // without what was read from a cache and written to one
	Output     int64     `json:"output"`
	CacheRead  int64     `json:"cache_read"`
	CacheWrite int64     `json:"cache_write"`
	MicroUSD   int64     `json:"micro_usd"` // millionths of a dollar
	FirstAt    time.Time `json:"first_at"`
	LastAt     time.Time `json:"last_at"`
}

// ModelUsage gives the sums of the chosen usage, those first that grew last. Where nothing was used there is none.
func (s *Store) ModelUsage(ctx context.Context, f UsageFilter) ([]UsageSum, error) {
	key, ok := usageKeys[f.By]
	if !ok {
		return nil, fmt.Errorf("usage by %q: %w", string(f.By), errors.ErrUnsupported)
	}
	c := f.choice()
	query := `SELECT ` + key + ` AS key, sum(requests), sum(failed), sum(unpriced), sum(input), sum(output), sum(cache_read),
		sum(cache_write), sum(micro_usd), min(first_at), max(last_at) AS last FROM model_usage` + c.where() +
		` GROUP BY key ORDER BY last DESC, key`
	if f.Limit > 0 {
		query += ` LIMIT ?`
		c.args = append(c.args, f.Limit)
	}
	return collect(ctx, s.reads, func(rows *sql.Rows) (u UsageSum, err error) {
		var first, last int64
		err = rows.Scan(&u.Key, &u.Requests, &u.Failed, &u.Unpriced, &u.Input, &u.Output, &u.CacheRead, &u.CacheWrite, &u.MicroUSD, &first, &last)
		u.FirstAt, u.LastAt = fromMilli(first), fromMilli(last)
		return u, err
	}, query, c.args...)
}

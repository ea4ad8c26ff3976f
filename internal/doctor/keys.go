package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"ravi/internal/store"
)

const (
	// unusedFor is after how long a key that nobody used is worth a word.
	unusedFor = 7 * 24 * time.Hour
	// mostKeys bounds how many keys are looked at one by one.
	mostKeys = 500
)

// keyName is a key for people: its id, and its label. The key itself is nowhere.
func keyName(k store.Key) string {
	if k.Label == "" {
		return k.ID
	}
	return fmt.Sprintf("%s (%s)", k.ID, k.Label)
}

func keysExpired(ctx context.Context, p *patient) (r result) {
	if why := p.noStore(); why != nil {
		return *why
	}
	all, err := p.store.ListKeys(ctx, store.KeyFilter{Limit: mostKeys})
	if err != nil {
		return skipped("%v", err)
	}
	now := p.now()
	var expired, ids, over []string
	for _, k := range all {
		switch {
		case k.RevokedAt != nil:
		case k.Kind == store.KeyPlain && !now.Before(k.ExpiresAt):
			expired, ids = append(expired, keyName(k)+", expired at "+k.ExpiresAt.Format(time.RFC3339)), append(ids, k.ID)
		case k.Kind == store.KeyRun && now.Before(k.ExpiresAt):
			if run, err := p.store.Run(ctx, k.RunID); errors.Is(err, store.ErrNotFound) || err == nil && run.Status.Final() {
				over = append(over, keyName(k)+", of run "+k.RunID)
			}
		}
	}
	r.several(Info, "keys.expired", "ravi context revoke "+strings.Join(ids, " "), expired, "key is expired, and was never revoked", "keys are expired, and were never revoked")
	r.several(Warn, "keys.run_over", prune, over, "key of a run that is over still opens something", "keys of runs that are over still open something")
	return r.saying("%s, none is expired", count(len(all), "key", "keys"))
}

func keysUnused(ctx context.Context, p *patient) (r result) {
	if why := p.noStore(); why != nil {
		return *why
	}
	live, err := p.store.ListKeys(ctx, store.KeyFilter{Live: true, Kind: store.KeyPlain, Limit: mostKeys})
	if err != nil {
		return skipped("%v", err)
	}
	var unused, ids []string
	for _, k := range live {
		if p.now().Sub(k.CreatedAt) < unusedFor {
			continue
		}
		calls, err := p.store.Audit(ctx, store.AuditFilter{Caller: k.ID, Limit: 1})
		if err != nil {
			return skipped("%v", err)
		}
		if len(calls) == 0 {
			unused, ids = append(unused, keyName(k)+", made at "+k.CreatedAt.Format(time.RFC3339)), append(ids, k.ID)
		}
	}
	r.several(Warn, "keys.unused", "ravi context revoke "+strings.Join(ids, " "), unused, "key lives for a week or more, and was never used", "keys live for a week or more, and were never used")
	return r.saying("%s, of those that have had a week", count(len(live), "key lives", "keys live"))
}

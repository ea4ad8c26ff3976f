-- +goose Up
-- What agents hold instead of a model provider's key (package broker): one for each run that may ask models. The token is
-- not here, only its hash, and nothing of the provider's key.
CREATE TABLE model_leases (
    place       INTEGER PRIMARY KEY,
    id          TEXT NOT NULL UNIQUE,
    hash        TEXT NOT NULL UNIQUE CHECK (length(hash) = 64),
    run_id      TEXT NOT NULL CHECK (run_id <> ''),
    agent_id    TEXT NOT NULL DEFAULT '',
    session_id  TEXT NOT NULL DEFAULT '',
    created_by  TEXT NOT NULL DEFAULT '',
    providers   TEXT NOT NULL CHECK (json_valid(providers)),
    models      TEXT NOT NULL CHECK (json_valid(models)),
    limits      TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(limits)),
    owner_pid   INTEGER NOT NULL DEFAULT 0,
    owner_start INTEGER NOT NULL DEFAULT 0,
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    ended_at    INTEGER,
    reason      TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX model_leases_live ON model_leases (ended_at);
CREATE INDEX model_leases_run ON model_leases (run_id);

-- What was used of models, by lease, model and hour, so that a day and a month end where they do. Whose it was stands in
-- each row: the sums are of this table alone, and stay when runs are forgotten.
CREATE TABLE model_usage (
    lease_id    TEXT NOT NULL,
    provider    TEXT NOT NULL,
    model       TEXT NOT NULL,
    hour        INTEGER NOT NULL, -- when it began
    run_id      TEXT NOT NULL,
    agent_id    TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    created_by  TEXT NOT NULL,
    requests    INTEGER NOT NULL CHECK (requests >= 0),
    failed      INTEGER NOT NULL CHECK (failed >= 0),
    unpriced    INTEGER NOT NULL CHECK (unpriced >= 0), -- requests that used something of which no price is known
    input       INTEGER NOT NULL CHECK (input >= 0),
    output      INTEGER NOT NULL CHECK (output >= 0),
    cache_read  INTEGER NOT NULL CHECK (cache_read >= 0),
    cache_write INTEGER NOT NULL CHECK (cache_write >= 0),
    micro_usd   INTEGER NOT NULL CHECK (micro_usd >= 0),
    first_at    INTEGER NOT NULL,
    last_at     INTEGER NOT NULL,
    PRIMARY KEY (lease_id, provider, model, hour)
) STRICT;
CREATE INDEX model_usage_hour ON model_usage (hour);
CREATE INDEX model_usage_run ON model_usage (run_id, hour);
CREATE INDEX model_usage_session ON model_usage (session_id, hour);
CREATE INDEX model_usage_agent ON model_usage (agent_id, hour);
CREATE INDEX model_usage_creator ON model_usage (created_by, hour);

-- What the sweep looks for: runs whose process has not yet written down what came of them.
CREATE INDEX runs_owned ON runs (created_at, id) WHERE owner_pid <> 0;

-- The agent program of another maker that works as this agent; empty: none is named.
ALTER TABLE agents ADD COLUMN program TEXT NOT NULL DEFAULT '';

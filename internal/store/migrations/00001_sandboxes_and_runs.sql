-- +goose Up
CREATE TABLE runs (
    id         TEXT PRIMARY KEY,
    status     TEXT NOT NULL CHECK (status IN ('queued','running','succeeded','failed','timeout','oom','canceled','error')),
    reason     TEXT NOT NULL DEFAULT '',
    command    TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(command)),
    repo       TEXT NOT NULL DEFAULT '',
    base       TEXT NOT NULL DEFAULT '',
    task       TEXT NOT NULL DEFAULT '',
    exit_code  INTEGER,
    dir        TEXT NOT NULL DEFAULT '',
    sandbox_id TEXT REFERENCES sandboxes (id) ON DELETE SET NULL,
    patch      TEXT CHECK (patch IS NULL OR json_valid(patch)),
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    ended_at   INTEGER
) STRICT;

CREATE TABLE sandboxes (
    id           TEXT PRIMARY KEY,
    run_id       TEXT REFERENCES runs (id) ON DELETE SET NULL,
    backend      TEXT NOT NULL,
    image        TEXT NOT NULL DEFAULT '',
    workspace    TEXT NOT NULL DEFAULT '',
    desired      TEXT NOT NULL CHECK (desired IN ('running','paused','ended')),
    seen         TEXT NOT NULL CHECK (seen IN ('creating','running','paused','ended','failed')),
    reason       TEXT NOT NULL DEFAULT '',
    owner_pid    INTEGER NOT NULL DEFAULT 0,
    owner_start  INTEGER NOT NULL DEFAULT 0,
    keeper_pid   INTEGER NOT NULL DEFAULT 0,
    keeper_start INTEGER NOT NULL DEFAULT 0,
    dir          TEXT NOT NULL DEFAULT '',
    cgroups      TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(cgroups)),
    uid_base     INTEGER NOT NULL DEFAULT 0,
    limits       TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(limits)),
    created_at   INTEGER NOT NULL,
    started_at   INTEGER,
    ended_at     INTEGER
) STRICT;

-- The sweep asks for what still lives, the lists for the newest.
CREATE INDEX sandboxes_live ON sandboxes (created_at) WHERE seen NOT IN ('ended', 'failed');
CREATE INDEX sandboxes_run ON sandboxes (run_id);
CREATE INDEX runs_sandbox ON runs (sandbox_id);
CREATE INDEX runs_created ON runs (created_at);

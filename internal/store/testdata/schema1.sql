PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE goose_db_version (
		id INTEGER PRIMARY KEY AUTOINCREMENT,
		version_id INTEGER NOT NULL,
		is_applied INTEGER NOT NULL,
		tstamp TIMESTAMP DEFAULT (datetime('now'))
	);
INSERT INTO goose_db_version VALUES(1,0,1,'2026-11-30 00:48:53');
INSERT INTO goose_db_version VALUES(2,1,1,'2026-11-30 00:48:53');
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
INSERT INTO runs VALUES('run01kdefmzr5v3m2qyqs5xhsnc4f','failed','exit','["sh","-c","it''s\na \"test\""]','/r é','abc','mend ''it''',3,'/d','sbx01kdefmzr6d3m2qyqs5xhsnc4f','{"files":1,"insertions":2,"deletions":3,"bytes":4,"sha256":"x","applies":true}',1793534400005,1793534400005,1793534400005);
INSERT INTO runs VALUES('run01kdefmzr5v3m2qyqs5xhsnc4g','queued','','[]','','','',NULL,'',NULL,NULL,1793534401005,NULL,NULL);
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
INSERT INTO sandboxes VALUES('sbx01kdefmzr6d3m2qyqs5xhsnc4f','run01kdefmzr5v3m2qyqs5xhsnc4f','gvisor','host','/w','running','creating','',7,-9223372036854775808,8,9,'/s','["/sys/fs/cgroup/x"]',4294967295,'{"cpus":1.5,"memory_mib":2048,"disk_mib":4096,"pids":512}',1793534400005,1793534400005,NULL);
INSERT INTO sandboxes VALUES('sbx01kdefmzr6d3m2qyqs5xhsnc4g',NULL,'host','','','ended','ended','done',0,0,0,0,'','[]',0,'{"cpus":0,"memory_mib":0,"disk_mib":0,"pids":0}',1793534401005,NULL,1793534400005);
DELETE FROM sqlite_sequence;
INSERT INTO sqlite_sequence VALUES('goose_db_version',2);
CREATE INDEX sandboxes_live ON sandboxes (created_at) WHERE seen NOT IN ('ended', 'failed');
CREATE INDEX sandboxes_run ON sandboxes (run_id);
CREATE INDEX runs_sandbox ON runs (sandbox_id);
CREATE INDEX runs_created ON runs (created_at);
COMMIT;

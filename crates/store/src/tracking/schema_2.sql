-- Versions of models that are checkpoints and what was done with them, the runs of jobs, and webhooks.

CREATE TABLE checkpoint_version (
    version INTEGER PRIMARY KEY,
    folder TEXT NOT NULL,
    step INTEGER NOT NULL,
    content_hash TEXT NOT NULL,
    pin TEXT NOT NULL,
    lineage TEXT NOT NULL
) STRICT;
CREATE INDEX checkpoint_version_pin ON checkpoint_version (folder, content_hash);

CREATE TABLE model_event (
    id INTEGER PRIMARY KEY,
    version INTEGER NOT NULL,
    at INTEGER NOT NULL,
    by TEXT NOT NULL,
    action TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT;
CREATE INDEX event_of_version ON model_event (version, id);

-- Pins of checkpoints that exist or may exist. A row is there before its pin is made, and until that is removed.
CREATE TABLE pin (
    folder TEXT NOT NULL, content_hash TEXT NOT NULL, PRIMARY KEY (folder, content_hash)
) STRICT, WITHOUT ROWID;

-- The run of each job whose ranks report metrics, and the first row of rank 0 in its newest attempt that isn't logged yet.
CREATE TABLE job_run (
    job INTEGER PRIMARY KEY,
    run TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    next INTEGER NOT NULL,
    is_open INTEGER NOT NULL
) STRICT;
CREATE INDEX open_job_run ON job_run (job) WHERE is_open = 1;

CREATE TABLE webhook (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    uuid TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    url TEXT NOT NULL,
    description TEXT,
    secret TEXT,
    is_active INTEGER NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL
) STRICT;

CREATE TABLE webhook_event (
    webhook INTEGER NOT NULL, entity TEXT NOT NULL, action TEXT NOT NULL, PRIMARY KEY (webhook, entity, action)
) STRICT, WITHOUT ROWID;

-- Messages that are to be posted, in the order of their changes, and written with them.
CREATE TABLE webhook_delivery (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    webhook INTEGER NOT NULL,
    entity TEXT NOT NULL,
    action TEXT NOT NULL,
    data TEXT NOT NULL,
    tries INTEGER NOT NULL,
    due INTEGER NOT NULL
) STRICT;
CREATE INDEX delivery_of_webhook ON webhook_delivery (webhook, id);

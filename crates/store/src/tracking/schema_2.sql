-- Versions of models that are checkpoints and what was done with them, and the runs of jobs.

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
    deed TEXT NOT NULL,
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

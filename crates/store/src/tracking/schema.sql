-- What experiment tracking keeps. Times are milliseconds since 1970. A value that is NaN is NULL, as SQLite has no NaN.

CREATE TABLE experiment (
    -- No number is given twice (A-14).
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    artifact_location TEXT NOT NULL,
    lifecycle TEXT NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL
) STRICT;

CREATE TABLE experiment_tag (
    owner INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (owner, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE run (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    uuid TEXT NOT NULL UNIQUE,
    experiment INTEGER NOT NULL,
    name TEXT NOT NULL,
    user_id TEXT NOT NULL,
    status TEXT NOT NULL,
    start_time INTEGER NOT NULL,
    end_time INTEGER,
    artifact_uri TEXT NOT NULL,
    lifecycle TEXT NOT NULL
) STRICT;
CREATE INDEX run_of_experiment ON run (experiment, start_time DESC, uuid);

CREATE TABLE run_tag (
    owner INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (owner, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE run_param (
    owner INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (owner, key)
) STRICT, WITHOUT ROWID;

-- The latest value of each metric, and the number of the part that new points go into.
CREATE TABLE metric (
    owner INTEGER NOT NULL,
    key TEXT NOT NULL,
    value REAL,
    step INTEGER NOT NULL,
    at INTEGER NOT NULL,
    part INTEGER NOT NULL,
    PRIMARY KEY (owner, key)
) STRICT, WITHOUT ROWID;

-- The history of each metric, in the order in which it was logged.
CREATE TABLE metric_part (
    run INTEGER NOT NULL,
    key TEXT NOT NULL,
    part INTEGER NOT NULL,
    points BLOB NOT NULL,
    PRIMARY KEY (run, key, part)
) STRICT, WITHOUT ROWID;

CREATE TABLE dataset (
    id INTEGER PRIMARY KEY,
    experiment INTEGER NOT NULL,
    name TEXT NOT NULL,
    digest TEXT NOT NULL,
    source_type TEXT NOT NULL,
    source TEXT NOT NULL,
    schema TEXT,
    profile TEXT,
    UNIQUE (experiment, name, digest)
) STRICT;

CREATE TABLE input (
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    dataset INTEGER NOT NULL,
    UNIQUE (run, dataset)
) STRICT;

CREATE TABLE input_tag (
    owner INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (owner, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE model_input (run INTEGER NOT NULL, model TEXT NOT NULL, PRIMARY KEY (run, model)) STRICT, WITHOUT ROWID;

CREATE TABLE model_output (
    run INTEGER NOT NULL, model TEXT NOT NULL, step INTEGER NOT NULL, PRIMARY KEY (run, model)
) STRICT, WITHOUT ROWID;

CREATE TABLE logged_model (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    uuid TEXT NOT NULL UNIQUE,
    experiment INTEGER NOT NULL,
    name TEXT NOT NULL,
    model_type TEXT,
    source_run TEXT,
    artifact_uri TEXT NOT NULL,
    status INTEGER NOT NULL,
    lifecycle TEXT NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL
) STRICT;
CREATE INDEX logged_model_of_experiment ON logged_model (experiment, created DESC);

CREATE TABLE logged_model_tag (
    owner INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (owner, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE logged_model_param (
    owner INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (owner, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE logged_model_metric (
    owner INTEGER NOT NULL,
    key TEXT NOT NULL,
    run TEXT NOT NULL,
    at INTEGER NOT NULL,
    step INTEGER NOT NULL,
    value REAL,
    dataset_name TEXT,
    dataset_digest TEXT,
    PRIMARY KEY (owner, key, run, at, step)
) STRICT, WITHOUT ROWID;

CREATE TABLE registered_model (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    description TEXT,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    -- The highest number that was given to a version; none is given twice (A-14).
    last_version INTEGER NOT NULL
) STRICT;

CREATE TABLE registered_model_tag (
    owner INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (owner, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE alias (
    model INTEGER NOT NULL, alias TEXT NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (model, alias)
) STRICT, WITHOUT ROWID;

CREATE TABLE model_version (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    model INTEGER NOT NULL,
    version INTEGER NOT NULL,
    description TEXT,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    source TEXT NOT NULL,
    storage_uri TEXT NOT NULL,
    run_id TEXT,
    run_link TEXT,
    logged_model TEXT,
    stage TEXT NOT NULL,
    UNIQUE (model, version)
) STRICT;
CREATE INDEX version_of_logged_model ON model_version (logged_model) WHERE logged_model IS NOT NULL;

CREATE TABLE model_version_tag (
    owner INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (owner, key)
) STRICT, WITHOUT ROWID;

-- Artifacts by their path; the file is named by the digest of its contents.
CREATE TABLE artifact (
    path TEXT PRIMARY KEY,
    digest BLOB NOT NULL,
    bytes INTEGER NOT NULL,
    stored INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX artifact_digest ON artifact (digest);

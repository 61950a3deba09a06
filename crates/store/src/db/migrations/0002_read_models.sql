-- Read models: what the API shows, written in the transaction of the records it follows from.
-- doc is the JobRecord of model/record.rs as JSON, with its own version.
CREATE TABLE jobs (
    job     INTEGER PRIMARY KEY,
    is_live INTEGER NOT NULL,
    doc     TEXT    NOT NULL
) STRICT;
CREATE INDEX jobs_live ON jobs (job) WHERE is_live = 1;

-- The ledger: one row for each node's share of an attempt; the key books it exactly once (A-8).
-- Times in buckets are nano-GPU-seconds and sum to (to - from) * devices.
CREATE TABLE ledger (
    job                         INTEGER NOT NULL,
    attempt                     INTEGER NOT NULL,
    node                        TEXT    NOT NULL,
    queue                       TEXT    NOT NULL,
    devices                     INTEGER NOT NULL,
    from_unix_nanos             INTEGER NOT NULL,
    to_unix_nanos               INTEGER NOT NULL,
    price_nano_dollars_per_hour INTEGER NOT NULL,
    cost_nano_dollars           INTEGER NOT NULL,
    compute                     INTEGER NOT NULL,
    data_stall                  INTEGER NOT NULL,
    checkpoint_stall            INTEGER NOT NULL,
    communication               INTEGER NOT NULL,
    straggler_wait              INTEGER NOT NULL,
    restart                     INTEGER NOT NULL,
    lost_work                   INTEGER NOT NULL,
    idle                        INTEGER NOT NULL,
    PRIMARY KEY (job, attempt, node)
) STRICT, WITHOUT ROWID;

-- Points of the training curves, numbered by the supervisor that sent them, so that a repeated report adds nothing.
CREATE TABLE samples (
    job           INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    node_rank     INTEGER NOT NULL,
    number        INTEGER NOT NULL,
    at_unix_nanos INTEGER NOT NULL,
    step          INTEGER NOT NULL,
    loss          REAL,
    tokens        INTEGER NOT NULL,
    PRIMARY KEY (job, attempt, node_rank, number)
) STRICT, WITHOUT ROWID;

-- What each node offered from a time on, until its next row (codec/capacity.rs). Bills are made of these rows and of the
-- ledger's, and retention removes neither. price is NULL where the node has none.
CREATE TABLE capacity (
    node                        TEXT    NOT NULL,
    from_unix_nanos             INTEGER NOT NULL,
    state                       TEXT    NOT NULL,
    accelerator                 TEXT    NOT NULL,
    devices                     INTEGER NOT NULL,
    others                      INTEGER NOT NULL,
    price_nano_dollars_per_hour INTEGER,
    sum                         BLOB    NOT NULL,
    PRIMARY KEY (node, from_unix_nanos)
) STRICT, WITHOUT ROWID;

-- Whom an ended job is charged to, and what came of it: kept when its record is removed. Jobs that ended under an earlier
-- release have a record only.
CREATE TABLE accounts (
    job    INTEGER PRIMARY KEY,
    user   TEXT    NOT NULL,
    name   TEXT    NOT NULL,
    state  TEXT    NOT NULL,
    step   INTEGER NOT NULL,
    sum    BLOB    NOT NULL
) STRICT;

-- Bills of a period read the bookings that end after its start.
CREATE INDEX ledger_ends ON ledger (to_unix_nanos);

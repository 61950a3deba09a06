-- What a user's change with an Idempotency-Key was answered with, stored in the transaction of the change.
-- request is the BLAKE3 hash of method, path and body; sequence is the last journal record of that transaction;
-- bytes_through sums the bodies up to this row, so that what is kept has a limit in bytes.
CREATE TABLE answers (
    number        INTEGER PRIMARY KEY,
    user          TEXT    NOT NULL,
    key           TEXT    NOT NULL,
    request       BLOB    NOT NULL,
    at_unix_nanos INTEGER NOT NULL,
    sequence      INTEGER NOT NULL,
    bytes_through INTEGER NOT NULL,
    body          TEXT    NOT NULL,
    UNIQUE (user, key)
) STRICT;

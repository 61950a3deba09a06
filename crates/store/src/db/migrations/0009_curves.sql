-- Curves of jobs that have ended, packed: a row has some hundred neighbouring samples of an attempt's first node, whose rows in
-- samples it takes the place of. body is that of model/block.rs, with its own version; sum is its checksum (db/row.rs).
CREATE TABLE curves (
    id      INTEGER PRIMARY KEY,
    job     INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    first   INTEGER NOT NULL,
    last    INTEGER NOT NULL,
    points  INTEGER NOT NULL,
    body    BLOB    NOT NULL,
    sum     BLOB    NOT NULL,
    UNIQUE (job, attempt, first)
) STRICT;

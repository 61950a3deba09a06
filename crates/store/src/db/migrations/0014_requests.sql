-- What the ranks of an attempt asked of object storage, from its beginning to its end (codec/requests.rs, whose JSON is in entry).
-- Bills are made of these rows, and retention removes none.
CREATE TABLE requests (
    job             INTEGER NOT NULL,
    attempt         INTEGER NOT NULL,
    to_unix_nanos   INTEGER NOT NULL,
    entry           BLOB    NOT NULL,
    sum             BLOB    NOT NULL,
    PRIMARY KEY (job, attempt)
) STRICT, WITHOUT ROWID;
CREATE INDEX requests_ends ON requests (to_unix_nanos);

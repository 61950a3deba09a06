-- What nodes fetched for jobs that waited is beside what attempts asked for: it has attempt 0, and the node with the time in place.
CREATE TABLE requests_and_fetches (
    job             INTEGER NOT NULL,
    attempt         INTEGER NOT NULL,
    place           TEXT    NOT NULL,
    to_unix_nanos   INTEGER NOT NULL,
    entry           BLOB    NOT NULL,
    sum             BLOB    NOT NULL,
    PRIMARY KEY (job, attempt, place)
) STRICT, WITHOUT ROWID;
INSERT INTO requests_and_fetches SELECT job, attempt, '', to_unix_nanos, entry, sum FROM requests;
DROP TABLE requests;
ALTER TABLE requests_and_fetches RENAME TO requests;
CREATE INDEX requests_ends ON requests (to_unix_nanos);

-- Jobs whose rows were removed because they had ended long before: ids from first to last, neighbours in one row. So a rebuild
-- tells what is gone on purpose from what is lost.
CREATE TABLE removed (
    first INTEGER PRIMARY KEY,
    last  INTEGER NOT NULL
) STRICT;

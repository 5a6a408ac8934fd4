-- The deployment clock: the start of the statement, so that an instant written after a lock was
-- taken is never earlier than the instant its previous holder wrote. STABLE keeps index scans.
CREATE FUNCTION clock() RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
RETURN statement_timestamp();

-- The same clock, read at this moment. Statements that travel together share the start of the first;
-- one that follows a wait for a lock is given this, so that the sentence above holds for it too.
CREATE FUNCTION clock_now() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN clock() + (clock_timestamp() - statement_timestamp());

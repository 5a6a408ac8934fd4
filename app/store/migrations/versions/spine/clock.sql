-- The house clock: the start of the statement, so that an instant written after a lock was
-- taken is never earlier than the instant its previous holder wrote. STABLE keeps index scans.
CREATE FUNCTION clock() RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
RETURN statement_timestamp();

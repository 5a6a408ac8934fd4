-- Who goes first inside a user, as one number that can be stored and indexed: lower goes first.
-- Waiting makes a task more urgent at a constant rate, so instead of every age growing, each task
-- is written down later by as much as it was made later, and the order never changes. Only a
-- deadline bends the line; those tasks are written anew as it nears. app/overnight_server/domain/priority.py has the
-- same formula and its reasons, and a test compares the two.
CREATE FUNCTION sort_key(priority int, boost_per_minute float8, made_at timestamptz, dependency_boost float8,
                         deadline_at timestamptz, at timestamptz) RETURNS float8
LANGUAGE sql STABLE PARALLEL SAFE
RETURN priority
       + 0.1 * extract(epoch FROM made_at)::float8 / 60
       -- a task that ages faster than the others is given what it would gain on them in a night
       - (boost_per_minute - 0.1) * 480
       - dependency_boost
       -- 40 points at the deadline, half as many with each hour that is left
       - CASE WHEN deadline_at IS NULL THEN 0
              ELSE 40 * power(2, - least(1000, greatest(0, extract(epoch FROM deadline_at - at)::float8 / 3600))) END
       -- the critical are a band of their own
       - CASE WHEN priority < 10 THEN 1e9 ELSE 0 END;

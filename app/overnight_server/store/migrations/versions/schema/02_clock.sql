-- The schema of Overnight, in reading order:
--
-- A *user* has limits and a night window. Beside each user there is one narrow *lane* with everything
-- the gate needs to know about that user; it is locked before any of the user's tasks changes. A *task*
-- belongs to a *dag* and may wait for others through *task_edges*. Each claim of a task inserts an
-- *attempt*, numbered by the task's epoch. While a task is active, *held_locks* has a row for every key
-- it locks. Each attempt that ran leaves rows in *usage_ledger* (seconds per billing month) and in
-- *spending* (USD per night). Every change of state inserts an *event*; every change of rights, limits
-- or budgets inserts a row in *audit_log*. Tasks that failed for good have a row in *dead_letters*.
-- *agents* are workers and pull agents, grouped in *pools*.
--
-- Database triggers keep all counters, events, locks and audit rows in the statement that changes the task,
-- so that no code can forget them. docs/database-triggers.md lists them in the order in which they fire. They
-- write with the owner's rights, so each first checks that it fires on its own table: on a table of somebody
-- else it would write what that table's owner put into the row.

-- The clock of the deployment: the start of the statement. A statement that waited for a lock starts
-- after the transaction that held it committed, so its instants are never earlier than those it reads.
-- STABLE, because a VOLATILE function would prevent index scans. Tests replace this function.
CREATE FUNCTION clock() RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
RETURN statement_timestamp();

-- The same clock at this moment. All statements of one batch have the start time of the batch; one that
-- follows a wait for a lock uses this function instead.
CREATE FUNCTION clock_now() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN clock() + (clock_timestamp() - statement_timestamp());

-- Raise an error, because a trigger function of the schema fires on another table than its own.
CREATE FUNCTION refuse_trigger(trigger_name text, at_table oid) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'trigger "%" of table "%" may not execute this function', trigger_name, at_table::regclass
        USING ERRCODE = 'insufficient_privilege',
              HINT = 'The function writes with the rights of overnight_owner and serves only tables of Overnight.';
END
$$;

-- What each role may touch. Rows are never deleted by either; triggers write lanes' counters,
-- locks and events with their owner's rights.
GRANT SELECT ON
    users, lanes, api_keys, dags, tasks, task_edges, attempts, usage_ledger, events, dead_letters,
    stale_results, pools, pauses, agents, paces, sweeps, legal_moves, user_limits, graphs,
    held_locks, lock_waits, spending, notices, dag_triggers, artifacts, inbox
TO overnight_app, overnight_dispatcher;
-- How far the log of events goes, for those who stream it.
GRANT SELECT ON SEQUENCE events_id_seq TO overnight_app, overnight_dispatcher;

GRANT INSERT, UPDATE ON users, api_keys TO overnight_app;
GRANT INSERT, UPDATE ON dags, tasks, task_edges, dead_letters TO overnight_app, overnight_dispatcher;
GRANT UPDATE ON lanes, attempts TO overnight_app, overnight_dispatcher;
GRANT INSERT, UPDATE ON pauses, spending TO overnight_app, overnight_dispatcher;
GRANT INSERT ON usage_ledger, notices TO overnight_app, overnight_dispatcher;
GRANT INSERT ON attempts, stale_results TO overnight_dispatcher;
GRANT INSERT, UPDATE ON artifacts, pools, agents, paces, sweeps TO overnight_dispatcher;
GRANT UPDATE ON pools TO overnight_app;
GRANT INSERT, UPDATE ON dag_triggers TO overnight_app;
GRANT UPDATE ON dag_triggers TO overnight_dispatcher;
GRANT UPDATE ON inbox TO overnight_dispatcher;
-- Whoever is in the database may try; without a key nothing comes of it.
GRANT EXECUTE ON FUNCTION overnight_inbox_submit TO PUBLIC;

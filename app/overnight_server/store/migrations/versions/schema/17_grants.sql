-- The rights of each role on tables; row-level security restricts the rows. No role may delete rows.
-- Database triggers write counters, locks, events and the audit log with the owner's rights.
GRANT SELECT ON
    users, lanes, api_keys, audit_log, dags, tasks, task_edges, attempts, usage_ledger, events, dag_events, dead_letters,
    stale_results, pools, pauses, agents, type_durations, sweeps, legal_moves, user_limits, graphs, audit_trail,
    held_locks, lock_waits, spending, notices, dag_triggers, artifacts, staged_artifacts, artifact_usage, log_chunks, inbox, bulk_operations,
    source_jobs, agent_profiles, schedules, schedule_fires
TO overnight_app, overnight_admin, overnight_dispatcher;
-- Forecasts need neither keys nor the audit log.
GRANT SELECT ON
    users, lanes, dags, tasks, task_edges, attempts, usage_ledger, events, dag_events, dead_letters,
    stale_results, pools, pauses, agents, type_durations, sweeps, legal_moves, user_limits, graphs,
    held_locks, lock_waits, spending, notices, dag_triggers, artifacts, staged_artifacts, artifact_usage, log_chunks, inbox, bulk_operations,
    source_jobs, agent_profiles, schedules, schedule_fires
TO overnight_reader, overnight_gate;
GRANT SELECT ON holds, lane_history, worker_sessions TO overnight_reader, overnight_admin, overnight_dispatcher;
GRANT SELECT ON lane_history TO overnight_app;
GRANT SELECT ON metric_totals, task_queue_metrics TO overnight_reader, overnight_admin, overnight_dispatcher;
GRANT INSERT, UPDATE ON metric_totals, task_queue_metrics TO overnight_dispatcher;
GRANT SELECT ON retention_rules TO overnight_admin, overnight_dispatcher;
-- The last event id given out, for event streams.
GRANT SELECT ON SEQUENCE events_id_seq TO overnight_app, overnight_reader, overnight_admin, overnight_dispatcher;

GRANT INSERT, UPDATE ON users TO overnight_admin;
-- Users may change their night window but not their limits.
GRANT UPDATE (window_zone, window_from, window_to, window_at_closing) ON users TO overnight_app;
GRANT INSERT, UPDATE ON api_keys TO overnight_app, overnight_admin;
-- Every admin of the dashboard uses their own sessions as a user; nobody reads those of others.
GRANT SELECT, INSERT, UPDATE ON sessions TO overnight_app;
GRANT INSERT, UPDATE ON dags, tasks, task_edges, dead_letters, pauses, spending
   TO overnight_app, overnight_admin, overnight_dispatcher;
GRANT UPDATE ON lanes, attempts TO overnight_app, overnight_admin, overnight_dispatcher;
GRANT INSERT ON usage_ledger, notices TO overnight_app, overnight_admin, overnight_dispatcher;
GRANT INSERT ON attempts TO overnight_dispatcher, overnight_gate;
-- Reports of pull agents are written as the task's owner, under row-level security.
GRANT INSERT ON stale_results TO overnight_app, overnight_dispatcher;
GRANT INSERT, UPDATE ON staged_artifacts TO overnight_app, overnight_dispatcher;
GRANT INSERT, UPDATE ON log_chunks TO overnight_dispatcher;
GRANT INSERT, UPDATE ON pools, agents TO overnight_dispatcher, overnight_gate;
-- The secret of an HTTP agent is written through the API and read by the agent driver alone.
GRANT SELECT (user_id, name, url, private_allowed, added_at, removed_at, driven_by, driven_until, health, health_detail,
              checked_at, boot_id, boot_seen_at)
   ON http_agents TO overnight_app, overnight_reader, overnight_admin, overnight_gate;
GRANT SELECT, UPDATE ON http_agents TO overnight_dispatcher;
GRANT INSERT, UPDATE ON http_agents TO overnight_gate;
-- The addresses and secrets of channels are written through the API and read by the notifier alone.
GRANT SELECT (id, user_id, name, kind, address, old_secret_until, private_allowed, subscribed, quiet_zone, quiet_from, quiet_to,
              digest_after, digest_minutes, created_at, removed_at, disabled_at, failures, blocked_until)
   ON notification_channels TO overnight_app, overnight_reader, overnight_admin, overnight_gate;
GRANT INSERT ON notification_channels TO overnight_app;
GRANT UPDATE (name, address, full_address, private_allowed, secret, old_secret_until, subscribed, quiet_zone, quiet_from, quiet_to, digest_after, digest_minutes, removed_at, disabled_at,
              failures, blocked_until)
   ON notification_channels TO overnight_app;
GRANT SELECT, UPDATE ON notification_channels TO overnight_dispatcher;
-- The API checks who sent a webhook, so it reads the secrets of sources; of other users through secrets_of_source alone.
GRANT SELECT, INSERT, UPDATE ON webhook_sources, received_hooks TO overnight_app;
GRANT SELECT, INSERT, UPDATE ON improvement_rules TO overnight_app;
GRANT SELECT, UPDATE ON improvement_rules TO overnight_dispatcher;
GRANT SELECT ON improvement_tasks TO overnight_app;
GRANT SELECT, INSERT ON improvement_tasks TO overnight_dispatcher;
GRANT SELECT ON received_hooks TO overnight_admin, overnight_dispatcher;
GRANT SELECT ON notifications, notification_deliveries TO overnight_app, overnight_reader, overnight_admin, overnight_dispatcher;
GRANT INSERT ON notifications, notification_deliveries TO overnight_app, overnight_admin, overnight_dispatcher;
GRANT UPDATE ON notification_deliveries TO overnight_app, overnight_dispatcher;
GRANT SELECT ON report_times TO overnight_app, overnight_reader, overnight_admin, overnight_dispatcher;
GRANT INSERT, UPDATE ON report_times TO overnight_app;
GRANT UPDATE ON report_times TO overnight_dispatcher;
GRANT INSERT, UPDATE ON type_durations, sweeps TO overnight_dispatcher;
GRANT SELECT, INSERT, UPDATE ON handled_types TO overnight_dispatcher;
GRANT UPDATE ON pools, agents TO overnight_admin;
-- A claim refreshes due lanes; it ends no task.
GRANT UPDATE ON tasks, lanes, dags TO overnight_gate;
GRANT INSERT ON notices TO overnight_gate;
GRANT INSERT, UPDATE ON dag_triggers, bulk_operations TO overnight_app, overnight_admin;
GRANT UPDATE ON dag_triggers, bulk_operations TO overnight_dispatcher;
GRANT SELECT ON audit_findings, audit_positions TO overnight_dispatcher, overnight_admin;
GRANT INSERT, UPDATE ON audit_findings, audit_positions TO overnight_dispatcher;
GRANT UPDATE ON audit_findings TO overnight_admin;
GRANT UPDATE ON inbox TO overnight_dispatcher, overnight_admin;
GRANT INSERT, UPDATE ON source_jobs TO overnight_app;
GRANT INSERT, UPDATE ON schedules, schedule_fires TO overnight_app, overnight_admin, overnight_dispatcher;
GRANT INSERT, UPDATE ON agent_profiles TO overnight_admin;

-- Who may execute functions; docs/security.md lists it. Functions that run with the caller's rights give
-- nobody a right, so every role may execute them. Nobody needs a right to execute a trigger function: only
-- who creates a trigger does.
DO $function_rights$
DECLARE
    callable regprocedure;
BEGIN
    FOR callable IN
        SELECT oid FROM pg_proc
         WHERE proowner = 'overnight_owner'::regrole AND NOT prosecdef AND prorettype <> 'trigger'::regtype
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO overnight_app, overnight_reader, overnight_admin,'
                       ' overnight_dispatcher, overnight_gate', callable);
    END LOOP;
END
$function_rights$;
-- Functions that run with the owner's rights.
GRANT EXECUTE ON FUNCTION holder_of_key, hand_over_made_keys, record_key_use, user_by_id_or_name TO overnight_app, overnight_admin;
GRANT EXECUTE ON FUNCTION holder_of_session, open_sign_in_link TO overnight_app;
GRANT EXECUTE ON FUNCTION secrets_of_source, note_refused_hook TO overnight_app;
GRANT EXECUTE ON FUNCTION check_key TO overnight_app, overnight_admin, overnight_gate;
GRANT EXECUTE ON FUNCTION holder_of_claim TO overnight_app, overnight_admin, overnight_dispatcher;
GRANT EXECUTE ON FUNCTION lease_of_agent TO overnight_app, overnight_admin, overnight_dispatcher, overnight_gate;
GRANT EXECUTE ON FUNCTION delete_artifact TO overnight_app, overnight_admin;
GRANT EXECUTE ON FUNCTION count_old_rows, delete_events_of_gone_tasks, delete_graphs, delete_old_rows, delete_tasks,
    drop_events_partition TO overnight_admin, overnight_dispatcher;
GRANT EXECUTE ON FUNCTION append_log TO overnight_app, overnight_dispatcher;
GRANT EXECUTE ON FUNCTION needed_blobs TO overnight_app, overnight_admin, overnight_dispatcher;
GRANT EXECUTE ON FUNCTION promote_artifacts TO overnight_app, overnight_dispatcher;
GRANT EXECUTE ON FUNCTION total_depth TO overnight_app, overnight_reader, overnight_admin, overnight_dispatcher, overnight_gate;
GRANT EXECUTE ON FUNCTION tasks_with_events TO overnight_reader;
GRANT EXECUTE ON FUNCTION cut_log, delete_ended_findings, delete_offline_agents, delete_old_artifacts, delete_old_logs, delete_stale_artifacts,
    add_partition, drop_logs_partition, recount_artifact_usage, repair_depth, repair_locks, skip_event_ids, take_priority_changes
TO overnight_dispatcher;
-- Every login of the database may call it; it checks the caller's key.
GRANT EXECUTE ON FUNCTION overnight_inbox_submit TO PUBLIC;

-- Figures for machines: the sweep that counts events, and what /metrics reads.

-- name: lock_metrics_position
-- The event up to which everything is counted. The lock makes a second pass wait for the first.
INSERT INTO sweeps AS s (name, started_at)
VALUES ('metrics', clock())
    ON CONFLICT (name) DO UPDATE SET name = excluded.name
RETURNING s.position;

-- name: count_events
-- What happened between two events, in groups. A claim waited since the event before it, which made the task ready. The
-- attempt of an event that ends a run has its cost, its agent and how it ended.
WITH batch AS MATERIALIZED (
    SELECT e.task_id, e.seq, e.from_state, e.to_state, e.priority, e.epoch, e.reason, e.at,
           e.from_state IN ('claimed', 'running', 'validating')
           AND e.to_state NOT IN ('claimed', 'running', 'validating') AS ends_run,
           e.from_state = 'ready' AND e.to_state IN ('claimed', 'running') AS claims
      FROM events e
     WHERE e.id > CAST(:after AS bigint)
       AND e.id <= CAST(:until AS bigint)
)
SELECT date_trunc('hour', b.at, 'UTC') AS hour, b.from_state, b.to_state, b.priority, b.reason, a.outcome,
       a.sandbox, coalesce(b.claims, false) AS claims, coalesce(b.ends_run, false) AS ends_run,
       CASE WHEN b.to_state = 'completed' OR b.ends_run THEN left(t.type, 100) END AS type,
       CASE WHEN b.ends_run THEN left(coalesce(g.name, split_part(a.agent, ':', 1)), 100) END AS agent,
       CASE WHEN b.ends_run THEN left(t.spec ->> 'model', 100) END AS model,
       CASE WHEN b.claims THEN floor(4 * log(2, greatest(extract(epoch FROM b.at - before.at), 0.001)))::int END AS wait_bucket,
       count(*) AS number,
       coalesce(sum(extract(epoch FROM b.at - t.created_at)) FILTER (WHERE b.to_state = 'completed'), 0)::float8 AS latency_seconds,
       coalesce(sum(a.cost_usd), 0) AS cost_usd
  FROM batch b
  -- A join without an id looks nothing up.
  LEFT JOIN tasks t ON t.id = CASE WHEN b.ends_run OR b.to_state = 'completed' THEN b.task_id END
  LEFT JOIN attempts a ON a.task_id = CASE WHEN b.ends_run THEN b.task_id END AND a.epoch = b.epoch
  LEFT JOIN agents g ON g.id = a.agent
  LEFT JOIN events before ON before.task_id = CASE WHEN b.claims THEN b.task_id END AND before.seq = b.seq - 1
 GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13;

-- name: take_priority_changes
SELECT state, from_priority, to_priority, number FROM take_priority_changes();

-- name: read_metric_totals
SELECT name, labels, value FROM metric_totals ORDER BY name, labels;

-- name: add_metric_totals
INSERT INTO metric_totals AS m (name, labels, value)
SELECT t.name, ARRAY(SELECT jsonb_array_elements_text(t.labels)), t.value
  FROM jsonb_to_recordset(CAST(:totals AS jsonb)) AS t(name text, labels jsonb, value numeric)
    ON CONFLICT (name, labels) DO UPDATE SET value = m.value + excluded.value;

-- name: read_metric_hours
SELECT hour, tasks_created, tasks_completed, tasks_failed, tasks_dead_lettered, tasks_cancelled, average_latency,
       worker_heartbeat_delay, error_rates_per_agent, latency_seconds, cost_usd, waits, agents
  FROM task_queue_metrics
 WHERE hour >= CAST(:first_hour AS timestamptz)
   AND hour < CAST(:end_hour AS timestamptz)
 ORDER BY hour;

-- name: write_metric_hours
INSERT INTO task_queue_metrics AS m (hour, tasks_created, tasks_completed, tasks_failed, tasks_dead_lettered,
                                     tasks_cancelled, average_latency, error_rates_per_agent, latency_seconds, cost_usd,
                                     waits, agents)
SELECT h.hour, h.tasks_created, h.tasks_completed, h.tasks_failed, h.tasks_dead_lettered, h.tasks_cancelled,
       h.average_latency, h.error_rates_per_agent, h.latency_seconds, h.cost_usd, h.waits, h.agents
  FROM jsonb_to_recordset(CAST(:hours AS jsonb)) AS h(
        hour timestamptz, tasks_created bigint, tasks_completed bigint, tasks_failed bigint, tasks_dead_lettered bigint,
        tasks_cancelled bigint, average_latency float8, error_rates_per_agent jsonb, latency_seconds float8,
        cost_usd numeric, waits jsonb, agents jsonb)
    ON CONFLICT (hour) DO UPDATE
   SET tasks_created = excluded.tasks_created, tasks_completed = excluded.tasks_completed,
       tasks_failed = excluded.tasks_failed, tasks_dead_lettered = excluded.tasks_dead_lettered,
       tasks_cancelled = excluded.tasks_cancelled, average_latency = excluded.average_latency,
       error_rates_per_agent = excluded.error_rates_per_agent, latency_seconds = excluded.latency_seconds,
       cost_usd = excluded.cost_usd, waits = excluded.waits, agents = excluded.agents;

-- name: note_heartbeat_delay
-- The longest silence of a worker that is not known to be offline, if it is longer than those of the hour before now.
INSERT INTO task_queue_metrics AS m (hour, worker_heartbeat_delay)
SELECT date_trunc('hour', clock(), 'UTC'), max(extract(epoch FROM clock() - last_heartbeat_at))
  FROM agents
 WHERE status <> 'offline'
HAVING count(*) > 0
    ON CONFLICT (hour) DO UPDATE SET worker_heartbeat_delay = excluded.worker_heartbeat_delay
 WHERE m.worker_heartbeat_delay IS NULL OR m.worker_heartbeat_delay < excluded.worker_heartbeat_delay;

-- name: live_metrics
-- What is true at this moment. Each figure reads what an index holds of active tasks, of lanes or of open rows, and at
-- most :limit of them; none reads the tasks that wait. Of the lanes it reads those that were served longest ago, in the
-- order of their index: 100 for each group of pools that skip them and each number of active tasks. A notification is
-- overdue since its channel may be sent to: not during quiet hours, nor while its receiver wants to be left alone.
WITH RECURSIVE active AS MATERIALIZED (
    SELECT state, claimed_at, expires_at, run_cost_usd FROM tasks WHERE state IN ('claimed', 'running', 'validating')
), lane_group AS (
    (SELECT skipped_by_hash, active FROM lanes WHERE eligible ORDER BY skipped_by_hash, active LIMIT 1)
    UNION ALL
    SELECT l.skipped_by_hash, l.active
      FROM lane_group g
     CROSS JOIN LATERAL (SELECT skipped_by_hash, active
                           FROM lanes
                          WHERE eligible AND (skipped_by_hash, active) > (g.skipped_by_hash, g.active)
                          ORDER BY skipped_by_hash, active
                          LIMIT 1) l
), head AS MATERIALIZED (
    -- The next task of each user whom the gate would serve; `skipped`: a pool has found no task there that it can run.
    SELECT extract(epoch FROM clock() - first.updated_at)::float8 AS seconds, l.skipped_by_pools <> '{}' AS skipped
      FROM (SELECT * FROM lane_group LIMIT 50) g
     CROSS JOIN LATERAL (SELECT user_id, skipped_by_pools
                           FROM lanes
                          WHERE eligible AND skipped_by_hash = g.skipped_by_hash AND active = g.active
                          ORDER BY last_served_at
                          LIMIT 100) l
     CROSS JOIN LATERAL (SELECT t.updated_at
                           FROM tasks t
                          WHERE t.user_id = l.user_id AND t.state = 'ready'
                          ORDER BY t.sort_key, t.id
                          LIMIT 1) first
), waiting_channel AS (
    (SELECT channel_id FROM notification_deliveries WHERE ended_at IS NULL ORDER BY channel_id LIMIT 1)
    UNION ALL
    SELECT (SELECT d.channel_id
              FROM notification_deliveries d
             WHERE d.ended_at IS NULL AND d.channel_id > w.channel_id
             ORDER BY d.channel_id
             LIMIT 1)
      FROM waiting_channel w
     WHERE w.channel_id IS NOT NULL
), slots AS (
    SELECT coalesce(sum(g.slots), 0) AS offered
      FROM agents g
     WHERE g.status = 'active' AND g.last_heartbeat_at > clock() - make_interval(secs => coalesce(g.stale_after_seconds, :liveness))
)
SELECT clock() AS at,
       (SELECT coalesce(max(seconds), 0) FROM head) AS oldest_ready,
       CASE WHEN (SELECT offered FROM slots) > (SELECT count(*) FROM active)
            THEN (SELECT coalesce(max(seconds), 0) FROM head WHERE NOT skipped) ELSE 0 END AS dispatch_lag,
       (SELECT coalesce(max(extract(epoch FROM clock() - claimed_at)), 0)::float8 FROM active WHERE state = 'claimed') AS oldest_unstarted,
       (SELECT greatest(coalesce(max(extract(epoch FROM clock() - expires_at)), 0), 0)::float8 FROM active) AS lease_past_due,
       (SELECT coalesce(sum(run_cost_usd), 0) FROM active) AS running_usd,
       (SELECT offered FROM slots) AS slots,
       (SELECT count(*) FROM active) AS slots_used,
       (SELECT count(*) FROM (SELECT FROM notification_deliveries WHERE ended_at IS NULL LIMIT :limit) d) AS outbox,
       (SELECT greatest(coalesce(max(extract(epoch FROM clock() - greatest(
                    d.due_at, c.blocked_until, next_daily(c.quiet_zone, c.quiet_to, clock() - interval '1 day')))), 0), 0)::float8
          FROM (SELECT channel_id FROM waiting_channel WHERE channel_id IS NOT NULL LIMIT :limit) w
          JOIN notification_channels c ON c.id = w.channel_id
          JOIN users u ON u.id = c.user_id
         CROSS JOIN LATERAL (SELECT due_at
                               FROM notification_deliveries
                              WHERE channel_id = c.id AND ended_at IS NULL
                              ORDER BY due_at
                              LIMIT 1) d
         WHERE u.disabled_at IS NULL
           -- As may_send says; that needs the whole row, with secrets that are not read here.
           AND c.removed_at IS NULL AND c.disabled_at IS NULL
           AND (c.blocked_until IS NULL OR c.blocked_until <= clock())
           AND NOT is_quiet(c.quiet_zone, c.quiet_from, c.quiet_to)) AS outbox_lag,
       (SELECT count(*)
          FROM (SELECT
                  FROM notification_deliveries d
                  JOIN users u ON u.id = d.user_id
                 WHERE d.state = 'dead'
                   AND d.ended_at > clock() - interval '1 hour'
                   AND d.kind <> 'test'
                   AND coalesce(d.error, '') <> ALL (CAST(:ended_by_users AS text[]))
                   AND u.disabled_at IS NULL
                 LIMIT :limit) d) AS dead_deliveries,
       (SELECT count(*) FROM (SELECT FROM inbox WHERE outcome IS NULL LIMIT :limit) i) AS inbox,
       greatest(
           (SELECT max(age(backend_xmin)) FROM pg_stat_activity WHERE pid <> pg_backend_pid()),
           (SELECT max(age(transaction)) FROM pg_prepared_xacts WHERE database = current_database()),
           (SELECT max(greatest(age(xmin), age(catalog_xmin))) FROM pg_replication_slots), 0) AS oldest_xmin,
       pg_database_size(current_database()) AS database_bytes;

-- name: metric_agents
-- Workers and pull agents that are not offline, and how many of their slots are in use; the workers of one host are one.
-- There are :most names: those of workers come first, then those with the most slots. The others are one, named :other.
WITH held AS MATERIALIZED (
    SELECT claimed_by, count(*) AS busy FROM tasks WHERE state IN ('claimed', 'running', 'validating') GROUP BY claimed_by
), named AS MATERIALIZED (
    SELECT left(coalesce(g.name, split_part(g.id, ':', 1)), 100) AS name, g.kind, g.slots, g.budget_remaining_usd,
           coalesce(h.busy, 0) AS busy,
           extract(epoch FROM clock() - g.last_heartbeat_at)::float8 AS silent_seconds,
           coalesce(g.stale_after_seconds, :liveness) AS stale_after
      FROM agents g
      LEFT JOIN held h ON h.claimed_by = g.id
     WHERE g.status <> 'offline'
), ranked AS (
    SELECT name, row_number() OVER (ORDER BY bool_and(kind = 'pull'), sum(slots) DESC, name) AS rank
      FROM named
     GROUP BY name
)
SELECT CASE WHEN r.rank < :most THEN n.name ELSE :other END AS name, sum(n.slots) AS slots, sum(n.busy) AS busy,
       sum(n.budget_remaining_usd) AS budget_remaining_usd, max(n.silent_seconds) AS silent_seconds,
       greatest(max(n.silent_seconds - n.stale_after), 0)::float8 AS overdue_seconds
  FROM named n
  JOIN ranked r ON r.name = n.name
 GROUP BY 1
 ORDER BY 1;

-- name: metric_sweeps
SELECT name, extract(epoch FROM clock() - coalesce(finished_at, started_at))::float8 AS age FROM sweeps ORDER BY name;

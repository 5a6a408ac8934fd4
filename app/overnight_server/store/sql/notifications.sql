-- name: record_notification
-- Tell the channels that are subscribed, in the transaction of the event.
SELECT record_notification(CAST(:user_id AS uuid), :kind, :subject, CAST(:task_id AS uuid), CAST(:dag_id AS uuid),
                           CAST(:detail AS jsonb)) AS deliveries;

-- name: channels_with_due_deliveries
-- Channels to which something may be sent now, those that work first. Jumps over the index from channel to channel, so
-- that a long backlog costs one look. `only_tests`: the channel is blocked or has quiet hours, and a test message is due.
WITH RECURSIVE waiting AS (
    (SELECT channel_id FROM notification_deliveries WHERE ended_at IS NULL ORDER BY channel_id LIMIT 1)
    UNION ALL
    SELECT (SELECT d.channel_id
              FROM notification_deliveries d
             WHERE d.ended_at IS NULL AND d.channel_id > w.channel_id
             ORDER BY d.channel_id
             LIMIT 1)
      FROM waiting w
     WHERE w.channel_id IS NOT NULL
)
SELECT c.id, c.kind, c.failures > 0 AS is_failing
  FROM waiting w
  JOIN notification_channels c ON c.id = w.channel_id
  JOIN users u ON u.id = c.user_id
 WHERE u.disabled_at IS NULL
   AND c.kind = ANY (CAST(CASE WHEN c.failures > 0 THEN :failing_kinds ELSE :kinds END AS text[]))
   AND CASE WHEN may_send(c)
            THEN EXISTS (SELECT 1 FROM notification_deliveries d
                          WHERE d.channel_id = c.id AND d.ended_at IS NULL AND d.due_at <= clock())
             AND (SELECT count(DISTINCT s.token) FROM notification_deliveries s
                   WHERE s.channel_id = c.id AND s.state = 'sending' AND s.claimed_until > clock())
                 < CASE WHEN c.failures > 0 THEN 1 ELSE CAST(:per_channel AS int) END
            ELSE c.removed_at IS NULL AND c.disabled_at IS NULL
             AND EXISTS (SELECT 1 FROM notification_deliveries d
                          WHERE d.channel_id = c.id AND d.kind = 'test' AND d.ended_at IS NULL AND d.due_at <= clock()) END
 ORDER BY c.failures > 0, random()
 LIMIT :limit;

-- name: lock_channel_to_send
-- A channel for one sender at a time, while it claims; another sender passes it over.
SELECT c.id, c.user_id, c.name, c.kind, c.full_address, c.secret, c.private_allowed, c.digest_after, c.digest_minutes, c.failures,
       CASE WHEN c.old_secret_until > clock() THEN c.old_secret END AS old_secret, may_send(c) AS may_send
  FROM notification_channels c
 WHERE c.id = :channel AND c.removed_at IS NULL AND c.disabled_at IS NULL
   FOR NO KEY UPDATE SKIP LOCKED;

-- name: due_deliveries_of_channel
-- What may be sent to a channel, with the nearest earlier delivery of the same thread that has not ended. A sender that
-- has ended without a result leaves a delivery that is due again.
SELECT d.id, d.notification_id, d.kind, d.attempts, p.id AS predecessor
  FROM (SELECT *
          FROM notification_deliveries
         WHERE channel_id = :channel AND ended_at IS NULL AND due_at <= clock() AND (NOT :only_tests OR kind = 'test')
         ORDER BY due_at, id
         LIMIT :limit) d
  LEFT JOIN LATERAL (SELECT e.id
                       FROM notification_deliveries e
                      WHERE e.channel_id = d.channel_id AND e.thread = d.thread AND e.id < d.id AND e.ended_at IS NULL
                      ORDER BY e.id DESC
                      LIMIT 1) p ON true
 ORDER BY d.due_at, d.id;

-- name: sending_of_channel
SELECT count(DISTINCT token)
  FROM notification_deliveries
 WHERE channel_id = :channel AND state = 'sending' AND claimed_until > clock();

-- name: messages_of_channel
-- How many messages of each kind were sent within the minutes of the digest, or are being sent, and when there may be
-- one more.
SELECT kind, count(DISTINCT message) AS messages, min(ended_at) + make_interval(mins => :minutes) AS more_at
  FROM (SELECT kind, message, ended_at
          FROM notification_deliveries
         WHERE channel_id = :channel AND kind = ANY (CAST(:kinds AS text[])) AND state = 'delivered'
           AND ended_at > clock() - make_interval(mins => :minutes)
        UNION ALL
        SELECT kind, message, NULL
          FROM notification_deliveries
         WHERE channel_id = :channel AND state = 'sending' AND claimed_until > clock()) sent
 GROUP BY kind;

-- name: claim_deliveries
-- The rows of one message have one token.
UPDATE notification_deliveries d
   SET state = 'sending', token = c.token, message = c.message,
       claimed_until = clock() + make_interval(secs => :lease), due_at = clock() + make_interval(secs => :lease)
  FROM unnest(CAST(:delivery_ids AS bigint[]), CAST(:tokens AS uuid[]), CAST(:message_ids AS text[])) AS c(id, token, message)
 WHERE d.id = c.id AND d.ended_at IS NULL AND d.due_at <= clock();

-- name: postpone_deliveries
UPDATE notification_deliveries
   SET due_at = greatest(coalesce(CAST(:due_again_at AS timestamptz), clock()), clock() + make_interval(secs => :seconds))
 WHERE id = ANY (CAST(:ids AS bigint[])) AND state = 'pending';

-- name: notifications_to_send
SELECT id, kind, subject, task_id, dag_id, detail, at
  FROM notifications
 WHERE id = ANY (CAST(:ids AS bigint[]))
 ORDER BY id;

-- name: lock_channels_in_order
SELECT id FROM notification_channels WHERE id = ANY (CAST(:channels AS uuid[])) ORDER BY id FOR NO KEY UPDATE;

-- name: finish_deliveries
-- What became of messages, for the sender that holds their claims.
UPDATE notification_deliveries d
   SET state = f.state, attempts = d.attempts + f.attempts, token = NULL, claimed_until = NULL,
       due_at = clock() + make_interval(secs => f.seconds), ended_at = CASE WHEN f.state <> 'pending' THEN clock() END,
       response_status = f.status, error = f.error
  FROM jsonb_to_recordset(CAST(:results AS jsonb)) AS f(id bigint, token uuid, state text, attempts int, seconds float8,
                                                        status int, error text)
 WHERE d.id = f.id AND d.token = f.token AND d.state = 'sending'
RETURNING d.id, d.state;

-- name: next_of_threads
-- The next delivery of each thread after one that has ended is due.
UPDATE notification_deliveries n
   SET due_at = clock()
  FROM (SELECT DISTINCT channel_id, thread
          FROM notification_deliveries
         WHERE id = ANY (CAST(:ids AS bigint[])) AND thread IS NOT NULL) t
 WHERE n.id = (SELECT f.id
                 FROM notification_deliveries f
                WHERE f.channel_id = t.channel_id AND f.thread = t.thread AND f.ended_at IS NULL
                ORDER BY f.id
                LIMIT 1)
   AND n.state = 'pending' AND n.attempts = 0 AND n.due_at > clock();

-- name: channels_answered
UPDATE notification_channels
   SET failures = 0, blocked_until = NULL
 WHERE id = ANY (CAST(:channels AS uuid[])) AND (failures > 0 OR blocked_until IS NOT NULL);

-- name: channel_failed
-- The first failures may concern one message. After some in a row the receiver itself is left alone, longer each time.
UPDATE notification_channels
   SET failures = failures + 1,
       blocked_until = greatest(blocked_until,
                                clock() + make_interval(secs => :retry_after),
                                clock() + make_interval(secs => CASE WHEN failures + 1 < :tolerated THEN 0
                                    ELSE least(:longest_block, :first_block * 2 ^ least(failures + 1 - :tolerated, 30)) END))
 WHERE id = :channel;

-- name: disable_channel
UPDATE notification_channels SET disabled_at = clock() WHERE id = :channel AND disabled_at IS NULL RETURNING id, user_id, name;

-- name: end_deliveries_of_channel
UPDATE notification_deliveries
   SET state = 'dead', ended_at = clock(), token = NULL, claimed_until = NULL, error = :error
 WHERE channel_id = :channel AND ended_at IS NULL;

-- name: give_up_deliveries
-- What could not be sent for days, also because its user or channel is disabled.
UPDATE notification_deliveries d
   SET state = 'dead', ended_at = clock(), token = NULL, claimed_until = NULL,
       error = coalesce(error || '; ', '') || 'it was not delivered within three days'
  FROM (SELECT id
          FROM notification_deliveries
         WHERE ended_at IS NULL AND give_up_at <= clock() AND (state = 'pending' OR claimed_until <= clock())
         ORDER BY give_up_at
         LIMIT :limit
           FOR NO KEY UPDATE SKIP LOCKED) o
 WHERE d.id = o.id
RETURNING d.id;

-- name: count_channels
SELECT count(*) FROM notification_channels WHERE user_id = :user_id AND removed_at IS NULL;

-- name: add_channel
-- No row if the name is taken.
INSERT INTO notification_channels (user_id, name, kind, address, full_address, secret, private_allowed, subscribed,
                                   quiet_zone, quiet_from, quiet_to, digest_after, digest_minutes)
VALUES (:user_id, :name, :kind, :address, :full_address, :secret, :private_allowed, CAST(:kinds AS text[]),
        :quiet_zone, :quiet_from, :quiet_to, :digest_after, :digest_minutes)
    ON CONFLICT DO NOTHING
RETURNING id;

-- name: own_channel
SELECT id, kind, disabled_at IS NOT NULL AS is_disabled
  FROM notification_channels
 WHERE user_id = :user_id AND name = :name AND removed_at IS NULL
   FOR NO KEY UPDATE;

-- name: change_channel
UPDATE notification_channels
   SET subscribed = coalesce(CAST(:kinds AS text[]), subscribed),
       digest_after = coalesce(CAST(:digest_after AS int), digest_after),
       digest_minutes = coalesce(CAST(:digest_minutes AS int), digest_minutes),
       quiet_zone = CASE WHEN :sets_quiet THEN CAST(:quiet_zone AS text) ELSE quiet_zone END,
       quiet_from = CASE WHEN :sets_quiet THEN CAST(:quiet_from AS time) ELSE quiet_from END,
       quiet_to = CASE WHEN :sets_quiet THEN CAST(:quiet_to AS time) ELSE quiet_to END
 WHERE id = :channel;

-- name: change_channel_address
-- What failed at the old address says nothing of the new one.
UPDATE notification_channels
   SET address = :address, full_address = :full_address, private_allowed = :private_allowed, failures = 0, blocked_until = NULL
 WHERE id = :channel;

-- name: enable_channel
UPDATE notification_channels SET disabled_at = NULL, failures = 0, blocked_until = NULL WHERE id = :channel;

-- name: remove_channel
-- Nothing needs its secrets any more; a trigger removes the old one.
UPDATE notification_channels
   SET removed_at = clock(), secret = NULL, old_secret_until = NULL, full_address = address
 WHERE user_id = :user_id AND name = :name AND removed_at IS NULL
RETURNING id;

-- name: rotate_channel_secret
-- A trigger keeps the old secret.
UPDATE notification_channels
   SET secret = :secret, old_secret_until = clock() + make_interval(secs => :seconds)
 WHERE id = :channel
RETURNING old_secret_until;

-- name: add_test_delivery
-- A message for one channel, whatever it is subscribed to.
WITH recorded AS (
    INSERT INTO notifications (user_id, kind, subject, detail)
    SELECT :user_id, 'test', :subject, jsonb_build_object('title', name, 'text', 'This channel works.')
      FROM notification_channels
     WHERE id = :channel
    RETURNING id, user_id
)
INSERT INTO notification_deliveries (notification_id, channel_id, user_id, kind)
SELECT id, :channel, user_id, 'test' FROM recorded
RETURNING id;

-- name: own_delivery
SELECT d.state, c.removed_at IS NULL AND c.disabled_at IS NULL AS is_usable
  FROM notification_deliveries d
  JOIN notification_channels c ON c.id = d.channel_id
 WHERE d.id = :delivery AND d.user_id = :user_id;

-- name: replay_delivery
-- It has all its tries and days again. Its message keeps its id.
UPDATE notification_deliveries
   SET state = 'pending', attempts = 0, due_at = clock(), give_up_at = clock() + interval '3 days', ended_at = NULL
 WHERE id = :delivery AND user_id = :user_id AND state IN ('dead', 'delivered')
RETURNING id;

-- name: replay_dead_deliveries
UPDATE notification_deliveries d
   SET state = 'pending', attempts = 0, due_at = clock(), give_up_at = clock() + interval '3 days', ended_at = NULL
  FROM (SELECT id
          FROM notification_deliveries
         WHERE channel_id = :channel AND state = 'dead'
         ORDER BY id
         LIMIT :limit
           FOR NO KEY UPDATE) o
 WHERE d.id = o.id
RETURNING d.id;

-- name: list_channels (not prepared)
SELECT c.name, c.kind, c.address, c.subscribed, c.quiet_zone, c.quiet_from, c.quiet_to, c.digest_after, c.digest_minutes,
       c.disabled_at, c.failures, c.created_at,
       CASE WHEN c.blocked_until > clock() THEN c.blocked_until END AS blocked_until,
       CASE WHEN c.old_secret_until > clock() THEN c.old_secret_until END AS old_secret_until,
       (SELECT count(*) FROM (SELECT 1 FROM notification_deliveries d
                               WHERE d.channel_id = c.id AND d.ended_at IS NULL LIMIT 1000) o) AS open,
       (SELECT count(*) FROM (SELECT 1 FROM notification_deliveries d
                               WHERE d.channel_id = c.id AND d.state = 'dead' LIMIT 1000) o) AS dead
  FROM notification_channels c
 WHERE c.user_id = :user_id AND c.removed_at IS NULL AND (CAST(:name AS text) IS NULL OR c.name = :name)
 ORDER BY c.name;

-- name: list_deliveries (not prepared)
SELECT d.id, c.name AS channel, d.kind, n.subject, n.detail ->> 'title' AS title, n.task_id, n.dag_id, d.state, d.attempts,
       n.at AS created_at, d.due_at, d.ended_at, d.response_status, d.error, d.message
  FROM notification_deliveries d
  JOIN notifications n ON n.id = d.notification_id
  JOIN notification_channels c ON c.id = d.channel_id
 WHERE d.user_id = :user_id
   AND (CAST(:delivery_id AS bigint) IS NULL OR d.id = :delivery_id)
   AND (CAST(:before_id AS bigint) IS NULL OR d.id < :before_id)
   AND (CAST(:state AS text) IS NULL OR d.state = :state)
   AND (CAST(:channel_name AS text) IS NULL OR c.name = :channel_name)
 ORDER BY d.id DESC
 LIMIT :limit;

-- name: set_report_time
-- `keeps`: only if the user has none yet.
INSERT INTO report_times AS r (user_id, zone, at, next_at)
VALUES (:user_id, :zone, CAST(:report_at AS time), next_daily(:zone, CAST(:report_at AS time), clock()))
    ON CONFLICT (user_id) DO UPDATE
   SET zone = excluded.zone, at = excluded.at, next_at = excluded.next_at
 WHERE NOT :keeps;

-- name: read_report_time
SELECT zone, at, next_at FROM report_times WHERE user_id = :user_id;

-- name: due_reports
-- Move the report times that are due on by a day, and return the local day of each report. After an outage there is one
-- report, for the last of the days.
UPDATE report_times r
   SET next_at = next_daily(r.zone, r.at, clock())
  FROM (SELECT user_id
          FROM report_times
         WHERE next_at <= clock()
         ORDER BY next_at
         LIMIT :limit
           FOR NO KEY UPDATE SKIP LOCKED) due
 WHERE r.user_id = due.user_id
RETURNING r.user_id, (clock() AT TIME ZONE r.zone)::date - ((clock() AT TIME ZONE r.zone)::time < r.at)::int AS day;

-- name: zone_of_user
SELECT coalesce(window_zone, 'UTC') AS zone, clock() AS now FROM users WHERE id = :user_id;

-- Webhooks that come in. The lane is locked when a delivery becomes tasks, before its row.

-- name: find_user_of_folder
-- The user whose files are in the folder of this name.
SELECT id, disabled_at IS NOT NULL AS is_disabled FROM users WHERE name = :name;

-- name: secrets_of_source
SELECT user_id, name, scheme, header, id_pointer, secrets, now FROM secrets_of_source(CAST(:source_id AS uuid));

-- name: note_refused_hook
SELECT note_refused_hook(CAST(:source_id AS uuid), :why);

-- name: add_webhook_source
INSERT INTO webhook_sources (id, user_id, name, scheme, header, id_pointer, secret, filter, template, is_graph, per_minute,
                             created_by)
VALUES (:source_id, :user_id, :name, :scheme, CAST(:header AS text), CAST(:id_pointer AS text), :secret,
        CAST(:filter AS jsonb), CAST(:template AS jsonb), :is_graph, :per_minute, :actor);

-- name: count_webhook_sources
SELECT count(*) AS total, count(*) FILTER (WHERE name = :name) AS same
  FROM webhook_sources
 WHERE user_id = :user_id
   AND removed_at IS NULL;

-- name: lock_webhook_source
-- Held while it is changed; the lane is locked.
SELECT id, name, scheme, header, id_pointer, filter, template, is_graph, per_minute, paused_at
  FROM webhook_sources
 WHERE id = :source_id
   AND user_id = :user_id
   AND removed_at IS NULL
   FOR NO KEY UPDATE;

-- name: change_webhook_source
UPDATE webhook_sources
   SET name = :name,
       header = CAST(:header AS text),
       id_pointer = CAST(:id_pointer AS text),
       filter = CAST(:filter AS jsonb),
       template = CAST(:template AS jsonb),
       is_graph = :is_graph,
       per_minute = :per_minute,
       paused_at = CASE WHEN CAST(:is_paused AS boolean) THEN coalesce(paused_at, clock()) END
 WHERE id = :source_id
   AND user_id = :user_id;

-- name: rotate_webhook_secret
-- The secret before the old one ends at once.
UPDATE webhook_sources
   SET old_secret = secret,
       old_secret_until = clock() + make_interval(secs => :overlap),
       secret = :secret,
       last_refused_at = NULL,
       last_refusal = NULL
 WHERE id = :source_id
   AND user_id = :user_id
   AND removed_at IS NULL
RETURNING old_secret_until;

-- name: remove_webhook_source
-- Nothing needs its secrets any more.
UPDATE webhook_sources
   SET removed_at = clock(), secret = NULL, old_secret = NULL, old_secret_until = NULL
 WHERE id = :source_id
   AND user_id = :user_id
   AND removed_at IS NULL
RETURNING id;

-- name: view_webhook_sources (not prepared)
-- The sources of a user by name, or one of them.
SELECT s.id, s.name, s.scheme, s.header, s.id_pointer, s.filter, s.template, s.is_graph, s.per_minute, s.created_at, s.paused_at,
       CASE WHEN s.old_secret_until > clock() THEN s.old_secret_until END AS old_secret_until,
       s.last_refused_at, s.last_refusal,
       (SELECT max(r.received_at) FROM received_hooks r WHERE r.source_id = s.id) AS last_received_at
  FROM webhook_sources s
 WHERE s.user_id = :user_id
   AND s.removed_at IS NULL
   AND (CAST(:source_id AS uuid) IS NULL OR s.id = CAST(:source_id AS uuid))
 ORDER BY s.name;

-- name: read_webhook_source
SELECT id, name, filter, template, is_graph, per_minute
  FROM webhook_sources
 WHERE id = :source_id
   AND user_id = :user_id
   AND removed_at IS NULL;

-- name: find_delivery
-- A delivery that the sender may have repeated.
SELECT id, outcome, dag_id, task_ids
  FROM received_hooks
 WHERE source_id = :source_id
   AND delivery_key = CAST(:delivery_key AS text);

-- name: count_recent_deliveries
SELECT count(*) AS total
  FROM received_hooks
 WHERE source_id = :source_id
   AND received_at > clock() - interval '1 minute';

-- name: record_delivery
-- No row if the delivery was recorded before and has not failed.
INSERT INTO received_hooks AS r (source_id, user_id, delivery_key, headers, body, outcome, reason, dag_id, task_ids, replay_of)
VALUES (:source_id, :user_id, CAST(:delivery_key AS text), CAST(:headers AS jsonb), :body, :outcome, CAST(:reason AS text),
        CAST(:dag_id AS uuid), CAST(:task_ids AS uuid[]), CAST(:replay_of AS bigint))
    ON CONFLICT ON CONSTRAINT received_hooks_once DO UPDATE
   SET outcome = excluded.outcome, reason = excluded.reason, dag_id = excluded.dag_id, task_ids = excluded.task_ids,
       received_at = clock()
 WHERE r.outcome = 'failed'
RETURNING id;

-- name: view_deliveries (not prepared)
-- The deliveries of a source, latest first, or one of them; the body of the latter only.
SELECT id, source_id, delivery_key, received_at, headers, octet_length(body) AS bytes,
       CASE WHEN CAST(:delivery_id AS bigint) IS NOT NULL THEN body END AS body,
       outcome, reason, dag_id, task_ids, replay_of
  FROM received_hooks
 WHERE user_id = :user_id
   AND (CAST(:source_id AS uuid) IS NULL OR source_id = CAST(:source_id AS uuid))
   AND (CAST(:delivery_id AS bigint) IS NULL OR id = CAST(:delivery_id AS bigint))
   AND (CAST(:outcome AS text) IS NULL OR outcome = CAST(:outcome AS text))
   AND (CAST(:before_number AS bigint) IS NULL OR id < CAST(:before_number AS bigint))
 ORDER BY id DESC
 LIMIT :limit;

-- name: read_delivery
-- A delivery to replay, and the name of its source.
SELECT r.source_id, r.headers, r.body, r.delivery_key, s.name, extract(epoch FROM clock())::double precision AS now
  FROM received_hooks r
  JOIN webhook_sources s ON s.id = r.source_id
 WHERE r.id = :delivery_id
   AND r.user_id = :user_id
   AND s.removed_at IS NULL;

-- The logs of runs.

-- name: commit_without_wait
-- Let the commit of this transaction return before it is on disk. The settle of the same run, which does wait,
-- comes later in the write-ahead log, so no ended run loses lines to a crash of Postgres.
SELECT set_config('synchronous_commit', 'off', true);

-- name: write_log_chunks
-- Only for claims that are still held: the rows of their tasks are locked, so whoever ends such a claim waits,
-- or came first. A chunk that is cut out later becomes the row that says how much is missing.
WITH chunk AS (
    SELECT *
      FROM json_to_recordset(CAST(:chunks AS json))
           AS c (task_id uuid, epoch int, token uuid, seq int, stream text, lines bigint, bytes bigint, text text)
), held AS (
    SELECT t.id, t.epoch, t.user_id
      FROM (SELECT DISTINCT task_id, epoch, token FROM chunk) c
      JOIN tasks t ON t.id = c.task_id AND t.epoch = c.epoch AND t.token = c.token
     ORDER BY t.id
       FOR NO KEY UPDATE OF t
), written AS (
    INSERT INTO log_chunks (task_id, epoch, seq, user_id, stream, lines, bytes, text)
    SELECT c.task_id, c.epoch, c.seq, h.user_id, c.stream, c.lines, c.bytes, c.text
      FROM chunk c
      JOIN held h ON h.id = c.task_id AND h.epoch = c.epoch
        ON CONFLICT (task_id, epoch, seq) DO UPDATE
       SET stream = excluded.stream, lines = excluded.lines, bytes = excluded.bytes, text = excluded.text
    RETURNING task_id, epoch
)
SELECT DISTINCT task_id, epoch FROM written;

-- name: append_log
SELECT append_log(:task_id, :epoch, :token, :stream, CAST(:parts AS jsonb), :head_bytes, :tail_bytes, :cut_text);

-- name: cut_log
SELECT cut_log(:task_id, :epoch, :token, :after_seq, :before_seq);

-- name: read_log
-- The chunks of a task after one of them, up to a run, in order, and whether more can follow. A log without such
-- chunks gives one row of NULLs; an unknown task gives no row. A run writes its log before it is settled, so
-- whoever sees the task ended sees all its chunks. The owner is checked on the task, as for events.
SELECT t.finished_at IS NOT NULL OR t.epoch > CAST(:last_epoch AS int)
           OR (t.epoch = CAST(:last_epoch AS int) AND t.token IS NULL) AS is_over,
       l.epoch, l.seq, l.at, l.stream, l.lines, l.bytes, l.text
  FROM tasks t
  LEFT JOIN LATERAL (SELECT *
                       FROM log_chunks c
                      WHERE c.task_id = t.id
                        AND (c.epoch, c.seq) > (CAST(:after_epoch AS int), CAST(:after_seq AS int))
                        AND c.epoch <= CAST(:last_epoch AS int)
                      ORDER BY c.epoch, c.seq
                      LIMIT :limit) l ON true
 WHERE t.id = :task_id
   AND t.user_id = :user_id
 ORDER BY l.epoch, l.seq;

-- name: delete_old_logs
SELECT delete_old_logs(:partition, CAST(:older_than AS interval), CAST(:failures_older_than AS interval), :tail_bytes, :limit);

-- name: drop_logs_partition
SELECT drop_logs_partition(:partition, CAST(:older_than AS interval), CAST(:failures_older_than AS interval), :tail_bytes,
                           :max_kept_bytes);

-- name: tail_log
-- The last chunks of the log of a task, or of one run of it, the latest first.
SELECT c.epoch, c.seq, c.at, c.stream, c.lines, c.bytes, c.text
  FROM tasks t
  JOIN log_chunks c ON c.task_id = t.id
 WHERE t.id = :task_id
   AND t.user_id = :user_id
   AND (CAST(:run AS int) IS NULL OR c.epoch = CAST(:run AS int))
 ORDER BY c.epoch DESC, c.seq DESC
 LIMIT :limit;

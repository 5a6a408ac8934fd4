-- name: record_notification
-- Tell the channels that are subscribed, in the transaction of the event.
SELECT record_notification(CAST(:user_id AS uuid), :kind, :subject, CAST(:task_id AS uuid), CAST(:dag_id AS uuid),
                           CAST(:detail AS jsonb)) AS deliveries;

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


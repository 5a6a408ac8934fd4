-- name: holder_of_session
-- Who holds the session of a cookie, if it is valid. The user is not known yet, so the function runs with its
-- owner's rights.
SELECT session_id, user_id, is_admin, key_id, token_subject, scopes, secret, expires_at, is_new, is_due, use_is_old
  FROM holder_of_session(:cookie_hash);

-- name: open_sign_in_link
-- The session that a sign-in link has become, for the first who opens it.
SELECT open_sign_in_link(:link_hash, :cookie_hash, :browser, make_interval(secs => :lifetime)) AS session_id;

-- name: open_session
-- A session that ends no later than the token it was made with; or, without `is_open`, a link that becomes one.
INSERT INTO sessions (user_id, hash, secret, key_id, token_subject, scopes, browser, opened_at, expires_at, ends_by)
VALUES (:user_id, :hash, :secret, :key_id, :token_subject, CAST(:scopes AS text[]), :browser,
        CASE WHEN :is_open THEN clock() END,
        least(clock() + make_interval(secs => :lifetime), CAST(:ends_by AS timestamptz)), :ends_by)
RETURNING expires_at;

-- name: end_surplus_sessions
-- A user keeps a number of sessions; the oldest end first.
UPDATE sessions
   SET ended_at = clock()
 WHERE id IN (SELECT id FROM sessions
               WHERE user_id = :user_id AND ended_at IS NULL
               ORDER BY created_at DESC, id
              OFFSET :most);

-- name: rotate_session
-- Give a session a new cookie. The old one stays valid until the browser has sent the new one, because the response
-- with it may be lost. Of two requests at once, one rotates.
UPDATE sessions
   SET old_hash = :cookie_hash, hash = :new_hash, rotated_at = clock(), last_used_at = clock()
 WHERE id = :session_id
   AND user_id = :user_id
   AND (hash = :cookie_hash AND rotated_at < clock() - interval '1 hour'
        OR old_hash = :cookie_hash AND rotated_at < clock() - interval '1 minute')
RETURNING id;

-- name: touch_session
-- Record that a session was used; its old cookie ends when the browser has sent the new one.
UPDATE sessions
   SET last_used_at = clock(), old_hash = CASE WHEN :is_new THEN NULL ELSE old_hash END
 WHERE id = :session_id
   AND user_id = :user_id;

-- name: end_session
-- End one session of a user; no row if there is no such session any more.
UPDATE sessions
   SET ended_at = clock()
 WHERE id = :session_id
   AND user_id = :user_id
   AND ended_at IS NULL
RETURNING id;

-- name: view_sessions
-- The open sessions of a user, the last used first.
SELECT s.id AS session_id, s.browser, s.key_id, k.name AS key_name, s.opened_at, s.last_used_at, s.expires_at
  FROM sessions s
  LEFT JOIN api_keys k ON k.id = s.key_id
 WHERE s.user_id = :user_id
   AND s.ended_at IS NULL
   AND s.opened_at IS NOT NULL
   AND s.expires_at > clock()
   AND s.last_used_at > clock() - interval '7 days'
   AND (s.key_id IS NULL OR k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock()))
 ORDER BY s.last_used_at DESC, s.id;

-- name: view_frame
-- What the frame of each page of the dashboard shows. Dead letters, and tasks that a budget has stopped, are counted up
-- to a limit; the groups are those of the dead letters that were counted.
SELECT u.name, u.plan_tier AS plan, u.window_zone, l.active AS running, l.waiting, clock() AS now, dead.number AS dead,
       dead.groups AS dead_groups,
       (SELECT count(*) FROM (SELECT 1 FROM tasks t
                               WHERE t.user_id = u.id AND t.awaits_budget IS NOT NULL
                               LIMIT :most) asking) AS asking
  FROM users u
  JOIN lanes l ON l.user_id = u.id
 CROSS JOIN LATERAL (SELECT count(*) AS number, count(DISTINCT letters.fingerprint) AS groups
                       FROM (SELECT d.fingerprint FROM dead_letters d
                              WHERE d.user_id = u.id AND d.resolution IS NULL
                              LIMIT :most) letters) dead
 WHERE u.id = :user_id;

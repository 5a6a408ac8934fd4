-- name: holder_of_key
-- Who shows this key, if it is good. Asked before anybody is served, so behind no wall but its own.
SELECT user_id, scopes, is_admin, use_is_old FROM holder_of_key(:key_id, :key_hash);

-- name: record_key_use
-- Noting every use would make each read a write: at most once a minute.
SELECT record_key_use(:key_id);

-- name: user_by_id_or_name
-- Whom the subject of a token names.
SELECT user_id, is_admin, is_disabled FROM user_by_id_or_name(:subject);

-- name: holder_of_claim
-- Whose run shows this token, and whether it still holds its task.
SELECT claim_status, user_id, token FROM holder_of_claim(:task_id, :epoch, :digest);

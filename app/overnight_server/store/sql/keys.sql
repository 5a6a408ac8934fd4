-- name: holder_of_key
-- The holder of a key, if it is valid. The user is not known yet, so the function runs with its owner's rights.
SELECT user_id, scopes, is_admin, use_is_old FROM holder_of_key(:key_id, :key_hash);

-- name: check_key
-- Raise an error unless this key of the user is still valid.
SELECT check_key(:key_id, :user_id);

-- name: hand_over_made_keys
-- Keys that were made with a key belong to the key that has replaced it.
SELECT hand_over_made_keys(:old_key, :new_key);

-- name: record_key_use
-- At most once a minute; otherwise every read would be a write.
SELECT record_key_use(:key_id);

-- name: user_by_id_or_name
-- The user that a token's subject names, and the time by which the token is judged.
SELECT user_id, is_admin, is_disabled, clock() AS read_at FROM user_by_id_or_name(:subject);

-- name: holder_of_claim
-- The run that a claim token belongs to, and whether it still holds its task.
SELECT claim_status, user_id, token FROM holder_of_claim(:task_id, :epoch, :digest);

-- Lock keys as spans of names. A path covers every name below it: from `src/` up to, but not
-- including, `src0`, for `0` follows `/` byte by byte. Two spans overlap exactly if one path lies
-- within the other, which an exclusion constraint can refuse without knowing how deep paths go.
CREATE TYPE textrange AS RANGE (subtype = text, collation = "C");

-- A path's range among the user's own; other keys have none, since equality says it all.
CREATE FUNCTION lock_path_range(user_id uuid, key text) RETURNS textrange
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN key = 'path:.' THEN textrange(user_id::text || '|path:', user_id::text || '|path;')
            WHEN starts_with(key, 'path:') THEN textrange(user_id::text || '|' || key || '/', user_id::text || '|' || key || '0')
       END;

-- The spans of all paths among some keys, or NULL if there is no path. STRICT: a task without locks
-- is not even asked.
CREATE FUNCTION lock_path_ranges(user_id uuid, keys text[]) RETURNS textmultirange
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (SELECT CASE WHEN count(lock_path_range(user_id, key)) > 0 THEN range_agg(lock_path_range(user_id, key)) END
          FROM unnest(keys) key);

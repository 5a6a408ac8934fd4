-- Partitions, and the deletion of what is older than its retention.

-- name: partitions_of
-- The partitions of a table for ranges of ids, oldest first, with the database's clock; without any, one row of NULLs.
SELECT clock() AS now, p.name, p.first_at, p.end_at
  FROM (SELECT) one
  LEFT JOIN partitions_of(:table_name) p ON true;

-- name: add_partition
SELECT add_partition(:table_name, CAST(:first_at AS timestamptz), CAST(:end_at AS timestamptz));


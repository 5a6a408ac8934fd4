-- Billing months are counted from the anchor, never from the last reset, so they cannot drift.
CREATE FUNCTION cycle_boundary(anchor timestamptz, cycle int) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ((anchor AT TIME ZONE 'UTC') + make_interval(months => cycle)) AT TIME ZONE 'UTC';

CREATE FUNCTION cycle_at(anchor timestamptz, instant timestamptz) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT months - (cycle_boundary(anchor, months) > instant)::int
      FROM (SELECT ((extract(year FROM instant AT TIME ZONE 'UTC')
                     - extract(year FROM anchor AT TIME ZONE 'UTC')) * 12
                    + extract(month FROM instant AT TIME ZONE 'UTC')
                    - extract(month FROM anchor AT TIME ZONE 'UTC'))::int AS months) guess
$$;

-- The billing months an interval touches, and its seconds in each.
CREATE FUNCTION billing_slices(anchor timestamptz, since timestamptz, until timestamptz)
RETURNS TABLE (period_started_at timestamptz, seconds numeric)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT cycle_boundary(anchor, cycle),
           round(extract(epoch FROM least(until, cycle_boundary(anchor, cycle + 1))
                                    - greatest(since, cycle_boundary(anchor, cycle))), 3)
      FROM generate_series(cycle_at(anchor, since), cycle_at(anchor, until)) cycle
$$;

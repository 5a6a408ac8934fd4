-- A bucket of tokens per caller, on the server's own clock. Answers 0 if a token was taken, else
-- the milliseconds until there is one; and how many are left.
--   KEYS[1]  what is left (`left`) and since when (`at`, milliseconds); gone when the bucket is full
--   ARGV[1]  tokens that come back per second   ARGV[2]  tokens a full bucket holds
local rate, size = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known = redis.call('HMGET', KEYS[1], 'left', 'at')
local left = math.min(size, (tonumber(known[1]) or size) + math.max(0, now - (tonumber(known[2]) or now)) * rate / 1000)
if left < 1 then
    return {math.ceil((1 - left) * 1000 / rate), 0}
end
redis.call('HSET', KEYS[1], 'left', left - 1, 'at', now)
redis.call('PEXPIRE', KEYS[1], math.ceil(size * 1000 / rate))
return {0, math.floor(left - 1)}

-- Takes tokens from the bucket of a caller, by the clock of the Redis server: those that are asked for, or more, up
-- to a twentieth of those left. Returns how many were taken, how many are left, and if none was taken, the
-- milliseconds until there are enough.
--   KEYS[1]  hash: the tokens left (`left`) at a time (`at`, milliseconds); it expires with a full bucket
--   ARGV[1]  new tokens per second   ARGV[2]  tokens of a full bucket   ARGV[3]  tokens that are asked for
local rate, size, asked = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local bucket = redis.call('HMGET', KEYS[1], 'left', 'at')
local left = math.min(size, (tonumber(bucket[1]) or size) + math.max(0, now - (tonumber(bucket[2]) or now)) * rate / 1000)
if left < asked then
    return {0, math.floor(left), math.ceil((asked - left) * 1000 / rate)}
end
local taken = math.max(asked, math.floor(left / 20))
redis.call('HSET', KEYS[1], 'left', left - taken, 'at', now)
redis.call('PEXPIRE', KEYS[1], math.ceil(size * 1000 / rate))
return {taken, math.floor(left - taken), 0}

"""What the store does in one step, as Lua scripts for Redis: exact under repeats and concurrent callers."""

from __future__ import annotations

RAISE_TO = """
local seen = redis.call('HGET', KEYS[1], 'u:' .. ARGV[2])
if seen then return tonumber(seen) end
local n = math.max(tonumber(redis.call('HGET', KEYS[1], 'n') or '0') + 1, tonumber(ARGV[1]))
local count = tonumber(redis.call('HGET', KEYS[1], 'count') or '0')
local slot = 's:' .. (count % tonumber(ARGV[3]))
local old = redis.call('HGET', KEYS[1], slot)
if old then redis.call('HDEL', KEYS[1], 'u:' .. old) end
local text = string.format('%.0f', n)
redis.call('HSET', KEYS[1], 'n', text, 'count', count + 1, slot, ARGV[2], 'u:' .. ARGV[2], text)
return n
"""
"""One hash holds the counter (n), how often it rose (count), and a ring of update ids (s:) with their results (u:)."""

HELD = ":held"
"""Ends the name of the key that expires with a lease; the one without it keeps who had it last, and its number."""

CLAIM = """
local held = redis.call('GET', KEYS[2])
local known = redis.call('HMGET', KEYS[1], 'holder', 'n', 'writes')
local n, writes = tonumber(known[2] or '0'), tonumber(known[3] or '0')
if held and held ~= ARGV[1] and held ~= ARGV[4] then return {held, n, writes} end
if n < tonumber(ARGV[5]) then return {held or '', n, writes} end
if known[1] ~= ARGV[1] or n < tonumber(ARGV[3]) then
    n = math.max(n + 1, tonumber(ARGV[3]))
    redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'n', string.format('%.0f', n))
end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return {ARGV[1], n, writes}
"""

RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('UNLINK', KEYS[1]) end"

UNDER = """
local known = redis.call('HMGET', KEYS[1], 'holder', 'n')
if known[1] ~= ARGV[1] or known[2] ~= ARGV[2] then return -1 end
"""
"""What the scripts begin with that do something under a lease only."""
PUT_UNDER = (
    UNDER
    + """
local writes = tonumber(redis.call('HGET', KEYS[1], 'writes') or '0')
if writes < tonumber(ARGV[3]) then return writes end
redis.call('HSET', KEYS[2], unpack(ARGV, 4))
return redis.call('HINCRBY', KEYS[1], 'writes', (#ARGV - 3) / 2)
"""
)
"""The count lies beside the lease, in the same log: what the server has lost of these writes, the count lacks."""
DELETE_UNDER = UNDER + "redis.call('UNLINK', unpack(KEYS, 2)) return 0"
HASH_DELETE_UNDER = UNDER + "redis.call('HDEL', KEYS[2], unpack(ARGV, 3)) return 0"

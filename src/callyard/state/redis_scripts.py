"""The scripts of a Redis store: each names all its keys, which have one hash tag, and changes all or nothing.

A stored value begins with 8 bytes that name the write, so that a write whose answer was lost is found again. Names and
expiries of values are in two sorted sets beside them. Times are those of the server.
"""

from hashlib import sha1
from typing import Final

__all__ = ["ACQUIRE", "COMPARE_AND_SET", "COUNT", "DELETE", "LIST", "MARK", "PUT", "RELEASE", "RENEW", "TAKE", "Script"]

MARK: Final = 8
"""The length of the name of a write."""


class Script:
    """A script and the hash by which Redis knows it."""

    def __init__(self, source: str) -> None:
        self.source: Final = source
        self.sha: Final = sha1(source.encode(), usedforsecurity=False).hexdigest()


_NOW: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
_SET: Final = """
local function set(place, name, value, ttl)
  if ttl == '' then
    redis.call('SET', place, value)
    redis.call('ZREM', KEYS[2], name)
  else
    local expiry = string.format('%.0f', now + ttl)
    redis.call('SET', place, value, 'PXAT', expiry)
    redis.call('ZADD', KEYS[2], expiry, name)
  end
  redis.call('ZADD', KEYS[1], 0, name)
end
"""
_PURGE: Final = """
local function purge()
  local names = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. string.format('%.0f', now), 'LIMIT', 0, 100)
  if #names > 0 then
    redis.call('ZREM', KEYS[1], unpack(names))
    redis.call('ZREM', KEYS[2], unpack(names))
  end
  return #names
end
"""
PUT: Final = Script(
    _NOW
    + _SET
    + _PURGE
    + """
for index = 3, #KEYS do
  set(KEYS[index], ARGV[2 * index - 4], ARGV[2 * index - 3], ARGV[1])
end
purge()
return 1
"""
)
"""KEYS: names, expiries, places; ARGV: the ttl, then name and value of each."""
COMPARE_AND_SET: Final = Script(
    _NOW
    + _SET
    + _PURGE
    + f"""
local current = redis.call('GET', KEYS[3])
if ARGV[4] == 'none' then
  if current then return 0 end
elseif not current or string.sub(current, {MARK + 1}) ~= ARGV[5] then
  return 0
end
set(KEYS[3], ARGV[2], ARGV[3], ARGV[1])
purge()
return 1
"""
)
"""KEYS: names, expiries, place; ARGV: ttl, name, value, 'none' or 'some', the expected value."""
DELETE: Final = Script("""
redis.call('DEL', KEYS[3])
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
""")
"""KEYS: names, expiries, place; ARGV: name."""
LIST: Final = Script(
    _NOW
    + _PURGE
    + """
while purge() > 0 do end
return redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
"""
)
"""KEYS: names, expiries; ARGV: first, last, limit."""
COUNT: Final = Script("""
local number = redis.call('INCRBY', KEYS[1], ARGV[1])
if ARGV[2] == '' then redis.call('PERSIST', KEYS[1]) else redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return number
""")
"""KEYS: counter; ARGV: by, ttl."""
ACQUIRE: Final = Script("""
if redis.call('EXISTS', KEYS[1]) == 1 then return false end
local time = redis.call('TIME')
local last = tonumber(redis.call('GET', KEYS[2]) or '0')
local token = string.format('%.0f', math.max(time[1] * 1000000 + time[2], last + 1))
redis.call('SET', KEYS[2], token)
redis.call('SET', KEYS[1], token .. ' ' .. ARGV[1], 'PX', ARGV[2])
return token
""")
"""KEYS: lease, last token; ARGV: the name of the write, ttl."""
_HELD: Final = """
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, #ARGV[1] + 1) ~= ARGV[1] .. ' ' then return 0 end
"""
RENEW: Final = Script(_HELD + "redis.call('PEXPIRE', KEYS[1], ARGV[2])\nreturn 1\n")
"""KEYS: lease; ARGV: token, ttl."""
RELEASE: Final = Script(_HELD + "redis.call('DEL', KEYS[1])\nreturn 1\n")
"""KEYS: lease; ARGV: token."""
TAKE: Final = Script(
    _NOW
    + """
local wanted, rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local left, saved = burst, redis.call('GET', KEYS[1])
if saved then
  local had, at = string.match(saved, '(%S+) (%S+)')
  left = math.min(had + math.max(now - at, 0) * rate / 1000, burst)
end
local taken = math.min(wanted, math.floor(left))
left = left - taken
redis.call('SET', KEYS[1], string.format('%.9f %.0f', left, now), 'PX', math.ceil(burst / rate * 1000))
return {taken, math.ceil(math.max(1 - left, 0) / rate * 1000)}
"""
)
"""KEYS: bucket; ARGV: wanted, tokens a second, burst."""

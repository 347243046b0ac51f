"""What is thought of the store."""

from __future__ import annotations

from collections.abc import Iterator

from elps.doctor.core.finding import Finding, numbers, ok, problem, size, warning
from elps.doctor.core.readings import StoreReading

LEAST, TESTED = (6,), (7,)
NEARLY_FULL, FULL = 0.8, 0.95
"""Parts of its memory from which checkpoints may soon, or do already, fail to be written."""
ROOM = (
    "raise its maxmemory, or free some: elps delete removes an ended job with its checkpoints, a shorter "
    "ELPS_KEEP_JOBS_S does so by itself"
)


def judge(store: StoreReading) -> Iterator[Finding]:
    """The findings, in the order in which they should be looked after."""
    if store.error:
        yield _away(store)
        return
    yield ok("store", f"{store.shown} answers")
    yield _version(store)
    yield _permissions(store)
    yield _takes(store)
    yield _policy(store)
    yield _persistence(store)
    yield _memory(store)
    if store.strays is not None or not store.denied:  # else nobody could look
        yield _strays(store)


def _away(store: StoreReading) -> Finding:
    found = f"{store.shown}: {store.error}"
    if store.refused:
        return problem("store", found, "correct the user, password or number in ELPS_REDIS_URL")
    todo = (
        "start it ('make up' for a local stack), or correct ELPS_REDIS_URL; training goes on meanwhile, and its "
        "checkpoints lag"
    )
    return problem("store", found, todo)


def _version(store: StoreReading) -> Finding:
    check, info = "store version", store.info
    valkey = info.get("valkey_version", "")
    version = valkey or info.get("redis_version", "")
    found = f"{'Valkey' if valkey else 'Redis'} {version or 'of unknown version'}"
    known = numbers(version)
    if known is None:
        return warning(
            check, found, "let this user call INFO; Redis 7 or later, or Valkey, is needed"
        )
    if known < LEAST:
        return problem(check, found, "install Redis 7 or later, or Valkey")
    if known < TESTED and not valkey:
        return warning(check, found, "elps is tested with Redis 7 and later")
    return ok(check, found)


def _permissions(store: StoreReading) -> Finding:
    if not store.denied:
        return ok("store permissions", "every command that is used is allowed")
    found = "; ".join(f"{what}: {words}" for what, words in store.denied.items())
    todo = "allow it: ACL SETUSER NAME ~elps:* +@read +@write +@scripting +@connection +info +time"
    needed = [what for what in store.denied if what not in ("INFO", "TIME")]
    if needed:
        return problem("store permissions", found, todo)
    return warning("store permissions", f"{found}; that hides what follows", todo)


def _takes(store: StoreReading) -> Finding:
    info, check = store.info, "store takes values"
    if store.refuses:
        return problem(
            check,
            store.refuses,
            "do as it says; training goes on meanwhile, and its checkpoints lag",
        )
    if info.get("role", "master") not in ("master", "primary"):
        todo = "name the primary in ELPS_REDIS_URL: a replica takes no values and may lag"
        return problem(check, f"it is a {info['role']}", todo)
    if info.get("aof_last_write_status", "ok") != "ok":
        return problem(
            check, "its last write to disk failed", "free space on its disk, see its log"
        )
    return ok(check, "it does")


def _policy(store: StoreReading) -> Finding:
    check, policy = "store memory policy", store.info.get("maxmemory_policy")
    if policy is None:
        return _untold(check, "maxmemory-policy is to be noeviction")
    if policy != "noeviction":
        todo = "redis-cli config set maxmemory-policy noeviction, and the same in its configuration file"
        return problem(check, f"{policy}: it throws parameters away when memory is short", todo)
    if int(store.info.get("evicted_keys", "0") or 0):
        found = f"noeviction, but {store.info['evicted_keys']} keys were thrown away before"
        return warning(
            check,
            found,
            "checkpoints may be damaged: export or pause each job that matters, and look",
        )
    return ok(check, policy)


def _persistence(store: StoreReading) -> Finding:
    check, info = "store persistence", store.info
    aof = info.get("aof_enabled")
    if aof is None:
        return _untold(check, "appendonly is to be yes")
    if aof not in ("1", "yes"):
        todo = "redis-cli config set appendonly yes, and the same in its configuration file"
        return problem(check, "appendonly is off: a crash loses every job", todo)
    if info.get("aof_last_bgrewrite_status", "ok") != "ok":
        todo = "free memory and disk on its host; its log says which is short"
        return warning(check, "its append-only file could not be rewritten, and grows", todo)
    if info.get("appendfsync") == "no":
        todo = "redis-cli config set appendfsync everysec"
        return warning(check, "appendfsync is no: a crash of its host may lose half a minute", todo)
    return ok(check, f"append-only file, flushed {info.get('appendfsync', 'as configured')}")


def _memory(store: StoreReading) -> Finding:
    check, info = "store memory", store.info
    used, bound = int(info.get("used_memory", "0") or 0), int(info.get("maxmemory", "0") or 0)
    if not used:
        return _untold(check, "it should be well below its maxmemory")
    limit = bound or int(info.get("total_system_memory", "0") or 0)
    of = "" if not limit else f" of {size(limit)}" + ("" if bound else " (all that its host has)")
    found = f"{size(used)} used{of}"
    if limit and used >= FULL * limit:
        return problem(check, found, ROOM)
    if limit and used >= NEARLY_FULL * limit:
        return warning(check, found, ROOM)
    return ok(check, found)


def _strays(store: StoreReading) -> Finding:
    check = "store keys"
    if store.strays is None:
        return ok(check, "too many to look at all of them")
    if not store.strays:
        return ok(check, "each belongs to a job that there is")
    shown = ", ".join(store.strays[:5]) + (" …" if len(store.strays) > 5 else "")
    found = f"of jobs of which there is no record: {shown}"
    command = "redis-cli --scan --pattern 'elps:job:JOB:*' | xargs redis-cli unlink"
    todo = f"if they are not wanted: {command}, for each of these"
    return warning(check, found, todo)


def _untold(check: str, what: str) -> Finding:
    return warning(
        check, "it does not tell", f"let this user call INFO, or see to it yourself: {what}"
    )

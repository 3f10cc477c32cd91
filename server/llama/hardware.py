"""What this process may use of the machine: CPUs and memory, cgroup limits included. Knows nothing about models."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_CGROUP_LIST = Path("/proc/self/cgroup")


def usable_cpus() -> int:
    """CPUs for computing threads: what affinity and the cgroup's CPU quota (rounded down) leave, at least 1."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        count = os.cpu_count() or 1
    quotas = [quota for quota in map(_cpu_quota, _own_cgroups("cpu")) if quota is not None]
    return max(1, int(min([count, *quotas])))


def free_memory() -> int:
    """Bytes that can be allocated without swapping or being killed; memory-mapped weights in the page cache count as free."""
    if sys.platform == "win32":
        return _free_windows()
    if sys.platform == "darwin":
        return _free_macos()
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line)
    free = int(facts["MemAvailable"].split()[0]) * 1024
    rooms = [room for room in map(_memory_room, _own_cgroups("memory")) if room is not None]
    return max(0, min([free, *rooms]))


def private_memory() -> int:
    """Bytes of this process that are its own and not a mapped file's; 0 where the system does not say."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:")), 0)


def _own_cgroups(controller: str) -> Iterator[Path]:
    """Directories of the cgroups that limit this process, innermost first (v2, then the v1 hierarchy of the controller)."""
    try:
        lines = _CGROUP_LIST.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _CGROUPS / controller if controllers else _CGROUPS
        directory = root / path.lstrip("/")
        while True:
            if directory.is_dir():
                yield directory
            if directory == root or root not in directory.parents:
                break
            directory = directory.parent


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text().split()[0])
    except (OSError, ValueError, IndexError):  # absent, or "max"
        return None


def _cpu_quota(directory: Path) -> float | None:
    try:
        quota, period = (directory / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    v1_quota, v1_period = _number(directory / "cpu.cfs_quota_us"), _number(directory / "cpu.cfs_period_us")
    return v1_quota / v1_period if v1_quota and v1_period and v1_quota > 0 else None


def _memory_room(directory: Path) -> int | None:
    """Limit minus usage; cached file pages give way, so they are not counted as used."""
    for limit_name, usage_name in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        limit, usage = _number(directory / limit_name), _number(directory / usage_name)
        if limit is not None and usage is not None:
            try:
                pairs = (line.split() for line in (directory / "memory.stat").read_text().splitlines())
                stat = {pair[0]: int(pair[1]) for pair in pairs}
            except (OSError, ValueError, IndexError):
                stat = {}
            cached = sum(stat.get(key, stat.get(f"total_{key}", 0)) for key in ("active_file", "inactive_file"))
            return limit - usage + cached
    return None


def _free_macos() -> int:
    """Memory size minus what is wired or in active use (unverified: written without a Mac at hand)."""
    libc = ctypes.CDLL(None)

    def read(name: bytes) -> int:
        value, size = ctypes.c_uint64(), ctypes.c_size_t(8)
        return value.value if libc.sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)) == 0 else 0

    total, page = read(b"hw.memsize"), read(b"hw.pagesize") or 4096
    free = sum(read(name) for name in (b"vm.page_free_count", b"vm.page_purgeable_count", b"vm.page_speculative_count")) * page
    return max(free, total // 2)  # file pages and inactive memory do not show up in these counts


def _free_windows() -> int:
    """Physical memory that is available (unverified: written without Windows at hand)."""

    class Status(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ulong), ("load", ctypes.c_ulong)] + [(f"field{i}", ctypes.c_ulonglong) for i in range(7)]

    status = Status(length=ctypes.sizeof(Status))
    getattr(ctypes, "windll").kernel32.GlobalMemoryStatusEx(ctypes.byref(status))  # noqa: B009 (unknown to type checkers elsewhere)
    return int(status.field1)

"""CPUs and memory as this process may use them: cgroup limits of either version count, caches do not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from server.llama import hardware
from server.llama.hardware import free_memory, private_memory, usable_cpus

MIB = 1 << 20


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An innermost cgroup inside one more; without limits."""
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    monkeypatch.setattr(hardware, "_own_cgroups", lambda controller: iter([inner, inner.parent]))
    return inner


def _write(directory: Path, **values: str) -> None:
    for name, value in values.items():
        (directory / name.replace("__", ".")).write_text(value + "\n")


def test_this_machine_has_something_to_offer() -> None:
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)
    assert free_memory() > 64 * MIB
    assert private_memory() > MIB


def test_affinity_limits_the_cpus(cgroup: Path) -> None:
    if not hasattr(os, "sched_setaffinity"):
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable_cpus() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(("quota", "expected"), [("max 100000", 8), ("350000 100000", 3), ("50000 100000", 1), ("1600000 100000", 8)])
def test_the_cpu_quota_is_rounded_down(cgroup: Path, monkeypatch: pytest.MonkeyPatch, quota: str, expected: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    _write(cgroup, cpu__max=quota)
    assert usable_cpus() == expected


def test_the_quota_of_an_outer_group_and_of_version_1_count(cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    _write(cgroup.parent, cpu__max="200000 100000")
    assert usable_cpus() == 2
    _write(cgroup, cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert usable_cpus() == 2
    _write(cgroup, cpu__cfs_quota_us="100000")
    assert usable_cpus() == 1


def test_a_memory_limit_counts_without_cached_files(cgroup: Path) -> None:
    _write(cgroup, memory__max=str(100 * MIB), memory__current=str(80 * MIB))
    assert free_memory() == 20 * MIB
    _write(cgroup, memory__stat=f"anon {50 * MIB}\nactive_file {10 * MIB}\ninactive_file {20 * MIB}")
    assert free_memory() == 50 * MIB
    _write(cgroup.parent, memory__max=str(90 * MIB), memory__current=str(80 * MIB))
    assert free_memory() == 10 * MIB
    _write(cgroup.parent, memory__max="max")
    assert free_memory() == 50 * MIB


def test_version_1_memory_limits_count(cgroup: Path) -> None:
    _write(
        cgroup, memory__limit_in_bytes=str(70 * MIB), memory__usage_in_bytes=str(80 * MIB), memory__stat=f"total_inactive_file {30 * MIB}"
    )
    assert free_memory() == 20 * MIB


def test_garbage_in_a_control_file_is_no_limit(cgroup: Path) -> None:
    free = free_memory()
    _write(cgroup, memory__max="lots", memory__current="", cpu__max="1")
    assert free_memory() > free // 2
    assert usable_cpus() >= 1


def test_the_own_groups_are_found_from_inside_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = tmp_path / "cgroup"
    root = tmp_path / "sys"
    (root / "a" / "b").mkdir(parents=True)
    (root / "memory" / "x").mkdir(parents=True)
    listing.write_text("4:memory:/x\n1:cpu,cpuacct:/\n0::/a/b\n")
    monkeypatch.setattr(hardware, "_CGROUPS", root)
    monkeypatch.setattr(hardware, "_CGROUP_LIST", listing)
    assert list(hardware._own_cgroups("memory")) == [root / "memory" / "x", root / "memory", root / "a" / "b", root / "a", root]

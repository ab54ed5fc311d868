"""Syncs that the kernel does by itself."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.journal import kernel as module
from penstock.journal.kernel import ANSWER, KernelSync
from tests.unit.journal.watched import bells


@pytest.fixture
def kernel() -> Iterator[KernelSync]:
    found = KernelSync.open()
    if found is None:
        pytest.skip("this kernel does not sync by itself")
    yield found
    found.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def is_ringing(kernel: KernelSync, timeout_s: float) -> bool:
    return bool(select.select([kernel.bell], [], [], timeout_s)[0])


def test_the_bell_rings_until_the_end_was_heard(kernel: KernelSync, file: int) -> None:
    for number in range(3):
        os.pwrite(file, b"x" * 100, 100 * number)
        assert not is_ringing(kernel, 0)
        kernel.begin(file)
        assert is_ringing(kernel, 30)
        kernel.end()
    assert not is_ringing(kernel, 0)


def test_who_does_not_wait_for_the_bell_waits_for_the_end(kernel: KernelSync, file: int) -> None:
    os.pwrite(file, bytes(1 << 20), 0)
    kernel.begin(file)
    kernel.end()
    assert not is_ringing(kernel, 0)


def test_a_file_that_is_not_open_cannot_be_synced(kernel: KernelSync) -> None:
    with pytest.raises(OSError) as caught:
        kernel.begin(10_000)
    assert caught.value.errno == errno.EBADF


def test_an_error_of_the_sync_is_raised_at_its_end(kernel: KernelSync) -> None:
    reading, writing = os.pipe()  # which nothing can sync
    try:
        with pytest.raises(OSError) as caught:  # noqa: PT012  # the kernel may notice it at once, or later
            kernel.begin(writing)
            kernel.end()
        assert caught.value.errno == errno.EINVAL
    finally:
        os.close(reading)
        os.close(writing)


def test_a_sync_that_failed_has_not_succeeded(kernel: KernelSync, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*_: object) -> int:
        ANSWER.pack_into(kernel._answer, 0, 0, 0, -errno.EIO, 0)
        return 1

    monkeypatch.setattr(kernel, "_wait", answer)
    with pytest.raises(OSError) as caught:
        kernel.end()
    assert caught.value.errno == errno.EIO
    monkeypatch.undo()


def test_closing_waits_for_what_is_under_way(file: int) -> None:
    kernel = KernelSync.open()
    if kernel is None:
        pytest.skip("this kernel does not sync by itself")
    os.pwrite(file, bytes(4 << 20), 0)
    kernel.begin(file)
    kernel.close()


def test_there_is_none_where_the_kernel_offers_none(monkeypatch: pytest.MonkeyPatch) -> None:
    before = bells()
    monkeypatch.setattr(module, "FDSYNC", 99)  # Linux before 4.18 had only the rest
    assert KernelSync.open() is None
    monkeypatch.setattr(module, "CALLS", {})
    assert KernelSync.open() is None
    monkeypatch.setattr(
        module, "CALLS", dict.fromkeys(("x86_64", "aarch64", "riscv64"), (9999, 9999, 9999, 9999))
    )
    assert KernelSync.open() is None
    assert bells() == before

"""One launch per output folder: a lock that the kernel releases when its process dies.

The lock is an ``flock`` on a file in the folder. The file names the process that holds it. On a
file system without ``flock`` the file alone is the lock; it is broken only if its process ran on
this host and is gone.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import psutil

from advreg.lab.runs.settings import SettingsError
from advreg.records.environment import now

logger = logging.getLogger(__name__)

LOCK_FILE = ".advreg.lock"
MARK_FILE = ".advreg.mark"  # the lock where there is no flock
_UNSUPPORTED = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL}
_TRIES = 100  # another process may remove the file or its folder between two of our calls
_descriptors: set[int] = set()


class LockedError(SettingsError):
    """Another process trains in the folder."""


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock; ``begun`` tells it from a later process of the same id."""

    pid: int
    host: str
    since: str
    begun: float

    @classmethod
    def this(cls) -> Self:
        process = psutil.Process()
        return cls(process.pid, socket.gethostname(), now(), process.create_time())

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """The process that a lock file names; None while it names none."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    @property
    def is_gone(self) -> bool:
        """Whether the process has certainly ended: only its own host can say."""
        if self.host != socket.gethostname():
            return False
        try:
            return bool(psutil.Process(self.pid).create_time() != self.begun)
        except psutil.Error:
            return not psutil.pid_exists(self.pid)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since},"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder, which is made if it is missing; nothing is left of it if it stays empty.

    Raises:
        LockedError: another process holds the folder.
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    process, descriptor = os.getpid(), _acquired(folder)
    _descriptors.add(descriptor)
    try:
        yield
    finally:
        if os.getpid() == process:  # a forked child does not unlock
            for name in (MARK_FILE, LOCK_FILE):
                (folder / name).unlink(missing_ok=True)
            _close(descriptor)
            with suppress(OSError):  # the folder holds runs now
                for place in missing:
                    place.rmdir()


def _acquired(folder: Path) -> int:
    """A descriptor of the lock file, whose lock we hold."""
    for _ in range(_TRIES):
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                _lock(descriptor, folder)
                if os.path.samestat(os.fstat(descriptor), (folder / LOCK_FILE).stat()):
                    _sign(descriptor)
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
    raise LockedError(f"'{folder}' cannot be locked: its {LOCK_FILE} vanishes; try again")


def flock(descriptor: int) -> None:
    """Lock an open file, or raise OSError at once."""
    try:
        from fcntl import LOCK_EX, LOCK_NB
        from fcntl import flock as lock
    except ImportError:  # Windows
        raise OSError(errno.ENOSYS, "no flock on this system") from None
    lock(descriptor, LOCK_EX | LOCK_NB)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        flock(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise _refusal(folder / LOCK_FILE) from None
        _mark(folder / MARK_FILE)


def _mark(path: Path) -> None:
    """The lock of a file system without ``flock``: a file that names its process."""
    holder = Holder.of(path)
    if holder is not None and holder.is_gone:
        path.unlink(missing_ok=True)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        raise _refusal(path) from None
    _sign(descriptor)
    os.close(descriptor)
    logger.warning(
        "the file system of '%s' has no locks: %s stands for one. If this process is killed, "
        "delete that file before you resume on another host",
        path.parent,
        path.name,
    )


def _sign(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(asdict(Holder.this())).encode(), 0)


def _refusal(path: Path) -> LockedError:
    """The process signs the file just after it takes the lock."""
    for _ in range(_TRIES):
        holder = Holder.of(path)
        if holder is not None and not holder.is_gone:
            break
        time.sleep(0.005)
    who = "another process" if holder is None else str(holder)
    broken = f"; if it is no more, delete {path}" if path.name == MARK_FILE else ""
    return LockedError(
        f"{who} trains in '{path.parent}'; wait for its end, stop it, or choose another "
        f"--output{broken}"
    )


def _close(descriptor: int) -> None:
    _descriptors.discard(descriptor)
    os.close(descriptor)


def _forget_locks() -> None:
    """A forked child, such as a data worker, would otherwise hold the lock after our death."""
    for descriptor in list(_descriptors):
        _close(descriptor)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)

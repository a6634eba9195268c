"""How a process handles memory on a CPU."""

import ctypes
import sys
from contextlib import suppress
from pathlib import Path

from protograph._internal.errors import InputError

LIMITS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))  # of a container


def available_memory() -> int | None:
    """Return how many bytes of memory this process may still take, or None where the system does not tell."""
    free: list[int] = []
    with suppress(OSError, ValueError, IndexError):
        free.append(1024 * int(Path("/proc/meminfo").read_text(encoding="utf-8").partition("MemAvailable:")[2].split()[0]))
    for limit, used in LIMITS:
        with suppress(OSError, ValueError):
            folder = Path("/sys/fs/cgroup")
            free.append(int((folder / limit).read_text(encoding="utf-8")) - int((folder / used).read_text(encoding="utf-8")))
    return min(free) if free else None


def require_memory(needed: int, work: str) -> None:
    """Raise an `InputError` if work needs more memory than there is.

    Args:
        needed: The bytes that it needs.
        work: What it is, as the subject of a sentence.

    """
    free = available_memory()
    if free is not None and needed > free:
        raise InputError(
            f"{work} takes about {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free: use a larger machine, "
            "fewer classes or fewer features"
        )


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory instead of returning it to the system.

    A step of training, or a batch of images, allocates and frees the same large tensors again and again; fetching fresh pages
    for them every time costs up to half of the time on a CPU. Threads that begin later take memory from the same place, since
    glibc would return that of a thread's own.
    """
    if sys.platform == "linux":
        trim_threshold, mmap_max, arena_max = -1, -4, -8  # M_TRIM_THRESHOLD, M_MMAP_MAX and M_ARENA_MAX of malloc.h
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(mmap_max, 0)
            libc.mallopt(trim_threshold, 2**31 - 1)
            libc.mallopt(arena_max, 1)

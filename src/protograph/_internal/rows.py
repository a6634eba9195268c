"""Large tables that change a little at a time, and whose versions share what stays.

A `Rows` is a matrix in blocks of rows: a change copies the blocks that it touches. A `Names` is a list of names with a table to
find them: a change notes what differs. So many versions cost little more than one, and none of them ever changes.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

import torch
from torch import Tensor

ROWS_AT_ONCE = 4096  # rows of a block at the most
MOST_NOTED = 1000  # changes that a list of names notes, before it is written anew


def distinct(*indices: Tensor) -> Tensor:
    """Return the indices [n] that are among some [m], each once, ascending."""
    found: Tensor = torch.cat(indices).unique()  # type: ignore[no-untyped-call]
    return found


class Rows:
    """A tensor [V, ...] in blocks of rows, none of which is ever written to.

    Args:
        blocks: The blocks [n, ...], at least one. Empty ones hold the shape of a row where there is none.

    """

    def __init__(self, blocks: Iterable[Tensor]) -> None:
        given = tuple(blocks)
        self.blocks = tuple(block for block in given if len(block)) or given[:1]
        self._whole: Tensor | None = None
        self._ends = torch.tensor([len(block) for block in self.blocks]).cumsum(0)

    @classmethod
    def of(cls, tensor: Tensor) -> "Rows":
        """Return the rows of a tensor, which is not copied."""
        rows = cls(torch.split(tensor, ROWS_AT_ONCE))
        rows._whole = tensor
        return rows

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        """Yield each block with the index of its first row."""
        start = 0
        for block in self.blocks:
            yield start, block
            start += len(block)

    def __getitem__(self, row: int) -> Tensor:
        """Return one row."""
        return self.take([row])[0]

    def take(self, rows: Tensor | Sequence[int]) -> Tensor:
        """Return the rows [n, ...] of indices [n], in their order."""
        chosen = torch.as_tensor(rows, dtype=torch.long)
        if self._whole is not None:
            return self._whole[chosen]
        taken = self.blocks[0].new_empty(len(chosen), *self.blocks[0].shape[1:])
        for block, start, places in self._by_block(chosen):
            taken[places] = self.blocks[block][chosen[places] - start]
        return taken

    def replaced(self, rows: Tensor | Sequence[int], values: Tensor) -> "Rows":
        """Return the matrix with other values [n, ...] in some rows [n]."""
        chosen, blocks = torch.as_tensor(rows, dtype=torch.long), list(self.blocks)
        for block, start, places in self._by_block(chosen):
            changed = blocks[block].clone()
            changed[chosen[places] - start] = values[places].to(changed)
            blocks[block] = changed
        return Rows(blocks)

    def extended(self, values: Tensor) -> "Rows":
        """Return the matrix with further rows [n, ...] behind it."""
        *blocks, last = self.blocks
        joined = torch.cat([last, values.to(last)])
        return Rows([*blocks, *torch.split(joined, ROWS_AT_ONCE)])

    def without(self, row: int) -> "Rows":
        """Return the matrix without one row."""
        blocks = list(self.blocks)
        ((block, start, _),) = self._by_block(torch.tensor([row]))
        blocks[block] = torch.cat([blocks[block][: row - start], blocks[block][row - start + 1 :]])
        return Rows(blocks)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Rows":
        """Return the matrix of what a function makes of each block."""
        return Rows([change(block) for block in self.blocks])

    def tensor(self) -> Tensor:
        """Return the matrix as one tensor."""
        if self._whole is None:
            whole = torch.cat(self.blocks) if len(self.blocks) > 1 else self.blocks[0]
            self.blocks = torch.split(whole, [len(block) for block in self.blocks])  # the same values, held once
            self._whole = whole
        return self._whole

    def _by_block(self, rows: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """Yield each block that has some of the rows [n]: its number, its first row, and where these rows stand in [n]."""
        order = torch.searchsorted(self._ends, rows, right=True).sort(stable=True)
        blocks, counts = torch.unique_consecutive(order.values, return_counts=True)
        for block, places in zip(blocks.tolist(), torch.split(order.indices, counts.tolist()), strict=True):
            yield block, int(self._ends[block]) - len(self.blocks[block]), places


class Names(Sequence[Any]):
    """Different names in order, found by hash.

    Versions share one list and one table, which only grow: a version knows how much of them is its own. What was removed or
    renamed since is noted by place in the shared list.

    Args:
        names: The names.

    """

    def __init__(self, names: Iterable[Any] = ()) -> None:
        self._start(list(names))

    def _start(self, names: list[Any]) -> None:
        self._shared, self._places = names, {name: place for place, name in enumerate(names)}
        self._count = len(names)
        self._removed: list[int] = []  # places, ascending
        self._renamed: dict[int, Any] = {}
        self._anew: dict[Any, int] = {}  # the places of names that were given later

    def __len__(self) -> int:
        return self._count - len(self._removed)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            if index.step is None and not self._removed and not self._renamed:
                start, stop, _ = index.indices(len(self))
                return self._shared[start:stop]
            return [self[row] for row in range(*index.indices(len(self)))]
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"there are {len(self)} names, so none at {index}")
        place = self._place(row)
        return self._renamed.get(place, self._shared[place])

    def __iter__(self) -> Iterator[Any]:
        removed = set(self._removed)
        for place in range(self._count):
            if place not in removed:
                yield self._renamed.get(place, self._shared[place]) if self._renamed else self._shared[place]

    def __contains__(self, name: object) -> bool:
        return self.find(name) is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def __add__(self, more: Iterable[Any]) -> "Names":
        return self.extended(more)

    def find(self, name: Any) -> int | None:
        """Return the index of a name, or None."""
        place = self._anew.get(name)
        if place is None:
            place = self._places.get(name)
            if place is None or place >= self._count or place in self._renamed:
                return None
        before = bisect_left(self._removed, place)
        return None if before < len(self._removed) and self._removed[before] == place else place - before

    def index(self, name: Any, start: int = 0, stop: int | None = None) -> int:
        """Return the index of a name."""
        row = self.find(name)
        if row is None or not start <= row < (len(self) if stop is None else stop):
            raise ValueError(f"there is no {name!r}")
        return row

    def extended(self, names: Iterable[Any]) -> "Names":
        """Return the names with further ones, which are new, behind them."""
        further = list(names)
        if len(self._shared) != self._count or any(name in self._places or name in self._anew for name in further):
            return Names([*self, *further])  # another version went on from here, or a name comes again
        grown = self._version()
        self._shared.extend(further)
        self._places.update((name, self._count + offset) for offset, name in enumerate(further))
        grown._count = self._count + len(further)
        return grown

    def without(self, row: int) -> "Names":
        """Return the names without one."""
        if len(self._removed) >= MOST_NOTED:
            names = list(self)
            return Names([*names[:row], *names[row + 1 :]])
        place, fewer = self._place(row), self._version()
        if place in fewer._renamed:
            del fewer._anew[fewer._renamed[place]]
        insort(fewer._removed, place)
        return fewer

    def renamed(self, row: int, name: Any) -> "Names":
        """Return the names with a new one in the place of one."""
        if len(self._renamed) >= MOST_NOTED:
            names = list(self)
            return Names([*names[:row], name, *names[row + 1 :]])
        place, changed = self._place(row), self._version()
        if place in changed._renamed:
            del changed._anew[changed._renamed[place]]
        changed._renamed[place] = name
        changed._anew[name] = place
        return changed

    def _place(self, row: int) -> int:
        """Return the place of a name in the shared list."""
        if not self._removed:
            return row
        low, high = 0, len(self._removed)
        while low < high:  # as many names as `low` were removed before this one
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._removed[middle] - middle <= row else (low, middle)
        return row + low

    def _version(self) -> "Names":
        version = Names.__new__(Names)
        version._shared, version._places, version._count = self._shared, self._places, self._count
        version._removed, version._renamed, version._anew = list(self._removed), dict(self._renamed), dict(self._anew)
        return version

    def __reduce__(self) -> tuple[type["Names"], tuple[list[Any]]]:
        return Names, (list(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Names":
        return Names(self)

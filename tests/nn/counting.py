"""A kernel that counts how often each row is somebody's, and notes to which part it is said to belong."""

import triton
import triton.language as tl

from protograph.kernels.norm_pool import rows_of


@triton.jit
def count(times, parts, rows, second_row, second_program, BLOCK: tl.constexpr):  # noqa: N803
    row, there, part = rows_of(tl.program_id(0), rows, second_row, second_program, BLOCK)
    tl.atomic_add(times + row, 1, mask=there)
    tl.store(parts + row, part + 0 * row, mask=there)

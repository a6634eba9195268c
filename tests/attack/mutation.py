"""Changes of right inputs by a random generator: of bytes, of JSON values, of tensors, of rows of text, and hostile names."""

import copy
import json
import math
from random import Random
from typing import Any

import torch

NUMBERS = (
    0, -1, 1, 2**31, 2**53, 2**63, -(2**63) - 1, 2**64, 10**30, -0.0, 1e-320, 1e300, -1e300, 1e39, math.inf, -math.inf,
    math.nan,
)  # fmt: skip
TEXTS = (
    "", " ", "\0", "a\0", "\x1b[31m", "\u202e", "\udcff", "é", "😀", "../..", "/etc/passwd", "$\\nosuch{$", "[x](y)", "<b>",
    "|", "CON", ".", "..", "-", "--help", "n" * 5000, "%s", "{0}", "nan", "1e999", "timm:net@/etc/passwd", "transformers:/etc",
)  # fmt: skip
VALUES = (*NUMBERS, *TEXTS, None, True, False, [], {}, [[]], [0] * 1000)
KINDS = ("U", "<U1", "<i8", "|O", "<f4", "|V8", "|S3", "<U999999999", "=M8[ns]", "|b1")


def mutate_bytes(random: Random, content: bytes, most: int = 4) -> bytes:
    """Return bytes with a few places changed, removed, repeated or overwritten by extreme sizes."""
    changed = bytearray(content)
    for _ in range(random.randint(1, most)):
        at, length = random.randint(0, len(changed)), random.choice((1, 1, 2, 4, 8, 64))
        match random.randrange(7):
            case 0:
                changed[at : at + length] = random.randbytes(length)
            case 1:
                del changed[at : at + length]
            case 2:
                changed[at:at] = changed[at : at + length] * random.choice((1, 2, 100))
            case 3:
                size = random.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0x80000000, 0xFFFF, len(content)))
                changed[at : at + 4] = size.to_bytes(4, random.choice(("little", "big")))
            case 4:
                del changed[at:]
            case 5 if at < len(changed):
                changed[at] ^= 1 << random.randrange(8)
            case _:
                start = random.randint(0, len(changed))
                changed[at : at + length] = changed[start : start + length]
    return bytes(changed)


def mutate_json(random: Random, value: Any, most: int = 3) -> Any:
    """Return a copy of JSON values in which a few nodes are replaced, removed, added, repeated or moved."""
    value = copy.deepcopy(value)
    for _ in range(random.randint(1, most)):
        nodes = list(_nodes(value))
        if not nodes:
            return random.choice(VALUES)
        parent, key = random.choice(nodes)
        match random.randrange(8):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, dict):
                parent[random.choice(TEXTS)] = parent[key]
            case 1:
                parent.insert(key, copy.deepcopy(parent[key]))
            case 2:
                other, place = random.choice(nodes)
                try:
                    parent[key] = copy.deepcopy(other[place])
                except (KeyError, IndexError):  # it was removed
                    continue
            case 3 if isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
                parent[key] = parent[key] * random.choice((-1, 2, 1000, 10**9)) + random.choice((-1, 0, 1))
            case 4 if isinstance(parent[key], str):
                parent[key] += random.choice(TEXTS)
            case _:
                parent[key] = copy.deepcopy(random.choice(VALUES))
    return value


def _nodes(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _nodes(inner)


def dumped(value: Any) -> str:
    """Return JSON as some other program may have written it: with NaN, and with characters of any kind."""
    return json.dumps(value, ensure_ascii=False)


def mutate_tensors(random: Random, tensors: dict[str, torch.Tensor], most: int = 2) -> dict[str, torch.Tensor]:
    """Return tensors of which a few have other values, types, shapes or names."""
    tensors = dict(tensors)
    for _ in range(random.randint(1, most)):
        if not tensors:
            return tensors
        name = random.choice(sorted(tensors))
        tensor = tensors[name].clone()
        match random.randrange(9):
            case 0:
                del tensors[name]
            case 1:
                tensors[random.choice((name + "x", "relation.7.similarities", "encoder.x", "model.x", ""))] = tensor
            case 2:
                tensors[name] = tensor.to(random.choice((torch.int64, torch.float16, torch.float64, torch.bool, torch.uint8)))
            case 3:
                tensors[name] = tensor.flatten()[: random.choice((0, 1, 2, 7))]
            case 4:
                tensors[name] = tensor[None] if random.random() < 0.5 else tensor.flatten()
            case 5:
                tensors[name] = torch.cat([tensor, tensor]) if tensor.ndim else tensor
            case 6:
                tensors[name] = tensor.transpose(0, -1).contiguous() if tensor.ndim > 1 else tensor.flip(0)
            case _ if tensor.numel() and tensor.dtype != torch.bool:
                flat = tensor.view(-1)
                floats = (math.nan, math.inf, 0.0, -1.0, 1e-38, 1e30, -1e30)
                number = random.choice(floats if tensor.is_floating_point() else (0, 1, 7))
                number = min(max(number, -6e4), 6e4) if tensor.dtype == torch.float16 else number
                if random.random() < 0.3:
                    flat.fill_(number)
                else:
                    flat[random.randrange(len(flat))] = number
                tensors[name] = tensor
    return tensors


def mutate_text(random: Random, text: str) -> bytes:
    """Return a table or another text with lines and cells changed, in UTF-8 or almost."""
    lines = text.split("\n")
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(lines))
        cells = lines[at].split(",")
        cell = random.randrange(len(cells))
        match random.randrange(6):
            case 0:
                del lines[at : at + 1]
                lines = lines or [""]
            case 1:
                lines.insert(at, lines[at])
            case 2:
                cells[cell] = str(random.choice(VALUES))
                lines[at] = ",".join(cells)
            case 3:
                cells.insert(cell, str(random.choice(NUMBERS)))
                lines[at] = ",".join(cells)
            case 4:
                lines[at] = '"' + lines[at]
            case _:
                lines[at] = "\t".join(cells) if random.random() < 0.5 else ",".join(cells[:cell])
    content = "\n".join(lines).encode(errors="surrogateescape")
    return mutate_bytes(random, content, 1) if random.random() < 0.2 else content


def hostile_name(random: Random) -> str:
    """Return a name of a class or a file."""
    parts = [random.choice((*TEXTS, "a", "b", chr(random.randrange(1, 0x3000)))) for _ in range(random.randint(1, 3))]
    return "".join(parts)

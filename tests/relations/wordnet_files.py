"""A WordNet small enough to write by hand, in the format of the real one."""

from pathlib import Path

LICENCE = (
    "  1 This software and database is being provided to you  \n  2 WordNet 3.0 Copyright 2006 by Princeton University.  \n"
)
#        words, the number of the kinds it belongs to (with the pointer), gloss; senses are numbered in this order
SYNSETS = [
    (["entity"], [], "all there is"),  # 0
    (["animal", "beast"], [("@", 0)], "it lives"),  # 1
    (["machine"], [("@", 0)], "it works"),  # 2
    (["bird"], [("@", 1)], "it flies"),  # 3
    (["crane"], [("@", 3)], "a large bird; long legs"),  # 4
    (["crane"], [("@", 2)], "lifts and moves heavy objects"),  # 5
    (["finch"], [("@", 3)], "a small bird"),  # 6
    (["house_finch", "Carpodacus_mexicanus"], [("@", 6)], "a small finch"),  # 7
    (["red-winged_blackbird"], [("@", 3)], "a black bird"),  # 8
    (["Brewer's_sparrow"], [("@", 6)], "a small finch"),  # 9
    (["goose"], [("@", 3), ("@", 2)], "a bird, and a machine to some"),  # 10: of two kinds
    (["Nils_Goose"], [("@i", 10)], "the one that went round Sweden"),  # 11
    (["island"], [], "under nothing at all"),  # 12
    (["box"], [("@", 2)], "a container"),  # 13
    (["man"], [("@", 1)], "an adult"),  # 14
]  # fmt: skip


def write_wordnet(folder: Path, licence: str = LICENCE) -> list[str]:
    """Write `data.noun`, `index.noun` and `noun.exc`; the ids of the synsets."""
    folder.mkdir(parents=True, exist_ok=True)

    def line(number: int, offsets: list[int]) -> str:
        words, kinds, gloss = SYNSETS[number]
        pointers = [("~", number + 1)] if number + 1 < len(SYNSETS) else []  # one that does not lead up
        ends = " ".join(f"{symbol} {offsets[kind]:08d} n 0000" for symbol, kind in [*kinds, *pointers])
        spelt = " ".join(f"{word} 0" for word in words)
        head = f"{offsets[number]:08d} 05 n {len(words):02x} {spelt} {len(kinds) + len(pointers):03d}"
        return f"{head} {ends} | {gloss}  \n".replace("  |", " |")

    offsets = [0] * len(SYNSETS)
    place = len(licence)
    for number in range(len(SYNSETS)):
        offsets[number] = place
        place += len(line(number, offsets))  # offsets are of one width, so the length is right before they are
    (folder / "data.noun").write_bytes((licence + "".join(line(n, offsets) for n in range(len(SYNSETS)))).encode("latin-1"))
    senses: dict[str, list[int]] = {}
    for (words, _, _), offset in zip(SYNSETS, offsets, strict=True):
        for word in words:
            senses.setdefault(word.lower(), []).append(offset)
    index = [
        f"{lemma} n {len(found)} 2 @ ~ {len(found)} 0 {' '.join(f'{offset:08d}' for offset in found)}  \n"
        for lemma, found in sorted(senses.items())
    ]
    (folder / "index.noun").write_text(licence + "".join(index), encoding="latin-1")
    (folder / "noun.exc").write_text("geese goose\nmen man\n", encoding="latin-1")
    return [f"n{offset:08d}" for offset in offsets]

"""Ask a classifier by many threads while others change it: every answer is that of a state that existed, and no change is lost.

    python benchmarks/threads.py --seconds 60 --changes 5000

A quarter of the threads add classes and examples, rename and remove classes of theirs; the others ask. Each state that the
classifier was in is kept, and afterwards asked the same by one thread. benchmarks/ATTACK.md has a section on it.
"""

import argparse
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import numpy as np  # noqa: E402
import torch  # noqa: E402

from attack_report import write_section  # noqa: E402
from kept import SPARSE, blobs  # noqa: E402
from protograph import Classifier  # noqa: E402

THREADS = 16
MOST_CLASSES = 6  # of a thread that changes
FEATURES, LABELS = blobs(images=8)
QUERIES = FEATURES[::9]

Answer = tuple[tuple[str, ...], bytes, tuple[str, ...]]


class Recorded(Classifier):
    """A classifier that keeps all states it was in."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_state":
            vars(self).setdefault("states", []).append(value)
        super().__setattr__(name, value)


def answer_of(known: Classifier) -> Answer:
    """Return all of an answer, to the last bit."""
    said = known.predictions(QUERIES)
    return tuple(map(str, said.classes)), said.probabilities.tobytes(), tuple(map(str, said.labels))


class Taught:
    """A classifier, what threads were answered and changed, and what went wrong.

    Args:
        known: The classifier.

    """

    def __init__(self, known: Recorded) -> None:
        self.known = known
        self.answers: set[Answer] = set()
        self.asked: Counter[str] = Counter()
        self.changes: Counter[str] = Counter()
        self.classes: dict[int, set[str]] = {}
        self.errors: list[str] = []
        self.over = threading.Event()

    def ask(self, thread: int) -> None:
        """Ask until it is over."""
        while not self.over.is_set():
            self.answers.add(answer_of(self.known))
            explained = self.known.explain(QUERIES[thread % len(QUERIES)], 2)
            assert len(explained) <= 2
            assert np.allclose(self.known.predict_proba(QUERIES).sum(1), 1, atol=1e-4)
            self.asked[f"{thread}"] += 3

    def change(self, thread: int) -> None:
        """Change classes of this thread until it is over."""
        random, mine = Random(thread), self.classes.setdefault(thread, set())
        number = 0
        while not self.over.is_set():
            number += 1
            name, examples = f"{thread}-{number}", FEATURES[random.randrange(len(FEATURES) - 1) :][:2] + random.random()
            kind = (
                "add"
                if not mine
                else "remove"
                if len(mine) >= MOST_CLASSES
                else random.choice(("add", "rename", "teach", "remove"))
            )
            some = random.choice(sorted(mine)) if mine else ""
            if kind == "add":
                self.known.add_class(name, examples, {"a": 0.5})
                mine.add(name)
            elif kind == "rename":
                self.known.rename_class(some, name)
                mine.symmetric_difference_update({some, name})
            elif kind == "teach":
                self.known.add_examples(some, examples)
            else:
                self.known.remove_class(some)
                mine.remove(some)
            self.changes[f"{thread}"] += 1

    def guarded(self, act: Any, thread: int) -> None:
        """Keep what an act raises."""
        try:
            act(thread)
        except BaseException as error:
            self.errors.append(f"{type(error).__name__}: {error}")
            self.over.set()

    def run(self, seconds: float, changes: int) -> None:
        """Let all threads work for a while, and until there were so many changes."""
        acts = [self.change if thread % 4 == 0 else self.ask for thread in range(THREADS)]
        threads = [threading.Thread(target=self.guarded, args=(act, thread)) for thread, act in enumerate(acts)]
        begun = time.monotonic()
        for thread in threads:
            thread.start()
        while not self.over.is_set() and (time.monotonic() < begun + seconds or self.changes.total() < changes):
            time.sleep(0.1)
        self.over.set()
        for thread in threads:
            thread.join()

    def unexplained(self) -> int:
        """Return how many answers are of no state that existed."""
        alone, missing = Recorded(), set(self.answers)
        vars(alone).update({name: value for name, value in vars(self.known).items() if name != "states"})
        for state in list(vars(self.known)["states"]):
            object.__setattr__(alone, "_state", state)
            missing.discard(answer_of(alone))
        return len(missing)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--changes", type=int, default=5000, help="At least so many.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines, wrong = [], 0
    for title, variant in (("Gaussian model", None), ("gcgpn-aux", "gcgpn-aux")):
        known = Recorded(variant=variant, steps=None if variant is None else 1)
        known.fit(FEATURES, LABELS, SPARSE)
        begun, taught = time.monotonic(), Taught(known)
        taught.run(arguments.seconds, arguments.changes)
        seconds = time.monotonic() - begun
        expected = sorted({*LABELS.tolist(), *(name for mine in taught.classes.values() for name in mine)})
        lost = len({*expected} ^ {*known.classes_.tolist()})
        unexplained = taught.unexplained()
        wrong += len(taught.errors) + lost + unexplained
        lines.append(
            f"| {title} | {seconds:.0f} s | {taught.changes.total():,} | {taught.asked.total():,} | {len(taught.answers):,} | "
            f"{unexplained} | {lost} | {len(taught.errors)} |"
        )
        print(lines[-1], *taught.errors[:5], sep="\n", flush=True)
    write_section(
        "Threads",
        [
            f"`python benchmarks/threads.py --seconds {arguments.seconds:g} --changes {arguments.changes}` let {THREADS} "
            f"threads work on one classifier, {THREADS // 4} of them changing it. Each different answer was compared, to the "
            "last bit, with those of all states that the classifier was in.",
            "",
            "| classifier | time | changes | calls that ask | different answers | of no state | classes lost | errors |",
            "|---|---:|---:|---:|---:|---:|---:|---:|",
            *lines,
        ],
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

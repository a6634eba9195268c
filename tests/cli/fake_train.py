"""Stands in for `protograph train` in subprocesses: quick, resumable, and it says in a log when it begins and ends.

FAKE_LOG: the log; FAKE_FAILS: words that make a run fail whose arguments have them; FAKE_SECONDS: how long a run takes;
FAKE_TOGETHER: how many runs must have begun before one ends; FAKE_HOLD: how many lines of the log hold all runs up
"""

import hashlib
import json
import os
import sys
import threading
import time
from pathlib import Path


def watch() -> None:
    while os.read(0, 1):
        pass
    os._exit(130)


def log(event: str, out: str) -> None:
    with Path(os.environ["FAKE_LOG"]).open("a") as file:
        file.write(json.dumps({"event": event, "out": out, "pid": os.getpid(), "time": time.time()}) + "\n")


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(content))
    scratch.replace(path)


threading.Thread(target=watch, daemon=True).start()
relations = [word.partition("=")[2] for word in sys.argv[2:] if word.startswith("--relations=")]
words = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[2:])
out = Path(words["out"])
log("begin", words["out"])
while Path(os.environ["FAKE_LOG"]).read_text().count("begin") < int(os.environ.get("FAKE_TOGETHER", "0")):
    time.sleep(0.01)
if os.environ.get("FAKE_FAILS") and os.environ["FAKE_FAILS"] in " ".join(sys.argv):
    print("error: made up to fail", file=sys.stderr)
    sys.exit(2)
if "start" in words and not (Path(words["start"]) / "measures.json").exists():
    print("error: the start is not trained", file=sys.stderr)
    sys.exit(2)
said = {
    "dataset": words["dataset"],
    "shots": int(words.get("shots", 1)),
    "variant": words["variant"],
    "seed": int(words["seed"]),
}
if not (out / "measures.json").exists():
    write(out / "environment.json", {"protograph": "0", "torch": "2", "gpu": None})
    recipe = json.loads(os.environ["FAKE_RECIPES"])[f"{words['variant']} {words['recipe']}"]
    more = {"backbone": "conv4-32", "relations": relations, "recipe": recipe, "fingerprint": "images-1"}
    write(out / "config.json", {**said, **more})
    step = json.loads((out / "step").read_text()) if (out / "step").exists() else 0
    while step < 5:
        while Path(os.environ["FAKE_LOG"]).read_text().count("\n") >= int(os.environ.get("FAKE_HOLD", sys.maxsize)):
            time.sleep(0.01)
        time.sleep(float(os.environ.get("FAKE_SECONDS", "0.1")) / 5)
        step += 1
        write(out / "step", step)
    digest = hashlib.blake2b(json.dumps(said).encode()).digest()
    names = ("seen_seen", "novel_novel", "joint_joint", "seen_joint", "novel_joint", "h_mean")
    measures = {name: {"mean": digest[place] / 4, "ci95": 0.5} for place, name in enumerate(names)}
    write(out / "measures.json", {**said, "recipe": words["recipe"], "measures": measures, "epoch": 1})
print("epoch 1", file=sys.stderr)
print("a table")
log("end", words["out"])

"""Several runs of the command at once: one small net does not fill a GPU, and each run is a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from tempfile import TemporaryFile
from threading import Lock
from typing import IO, Any

import typer

from protograph.errors import InputError
from protograph.progress import Progress

JOB = "PROTOGRAPH_JOB"  # set for the commands started here, which say where they stand although they answer as JSON


def arguments(context: typer.Context, **changed: Any) -> list[str]:
    """The options this command was given, as a command line would say them, some of them changed."""
    words: list[str] = []
    for parameter in context.command.params:
        value = changed.get(parameter.name or "", context.params.get(parameter.name or ""))
        if value is None or value is False or value == []:
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            words.append(parameter.opts[0] if each is True else f"{parameter.opts[0]}={each}")
    return words


def run_all(commands: Mapping[str, Sequence[str]], jobs: int, progress: Progress) -> dict[str, Any]:
    """Run the command with each of these lines of arguments, `jobs` at a time; what each answers as JSON, by name.

    What they say on the way is passed on with the name before it. After the first that fails no other begins, but those that
    run go on to their end; an interruption ends them.
    """
    if jobs < 1:
        raise InputError(f"jobs must be at least 1, not {jobs}")
    running: list[subprocess.Popen[str]] = []
    failures: list[str] = []
    starting, interrupted = Lock(), False

    def begin(name: str, answer: IO[str]) -> subprocess.Popen[str] | None:
        command = [sys.executable, "-m", "protograph", *commands[name]]
        with starting:
            if failures or interrupted:
                return None
            environment = {**os.environ, JOB: "1"}
            running.append(
                subprocess.Popen(command, stdout=answer, stderr=subprocess.PIPE, text=True, encoding="utf-8", env=environment)
            )
            return running[-1]

    def run(name: str) -> Any:
        with TemporaryFile("w+", encoding="utf-8") as answer:  # a pipe that is read only in the end could fill up before
            process, last = begin(name, answer), ""
            if process is None:
                return None
            with process:
                assert process.stderr is not None
                for line in process.stderr:
                    last = line.strip() or last
                    progress.say(f"{name}: {line.rstrip()}")
            if process.returncode:
                failures.append(f"{name} failed: {last.removeprefix('error: ') or f'exit code {process.returncode}'}")
                return None
            answer.seek(0)
            return json.loads(answer.read())

    with ThreadPoolExecutor(jobs) as threads:
        futures = {name: threads.submit(run, name) for name in commands}
        try:
            answers = {name: future.result() for name, future in futures.items()}
        except BaseException:
            with starting:
                interrupted = True
            for process in running:
                process.terminate()
            raise
    if failures:
        raise InputError(failures[0])
    return answers

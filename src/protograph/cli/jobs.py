"""Several runs of the command at once: one small net does not fill a GPU, and each run is a process of its own."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import typer

from protograph.errors import InputError
from protograph.progress import Progress


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

    What they say on the way is passed on with the name before it. The first that fails stops those that have not begun.
    """
    if jobs < 1:
        raise InputError(f"jobs must be at least 1, not {jobs}")
    running: list[subprocess.Popen[str]] = []

    def run(name: str) -> Any:
        command = [sys.executable, "-m", "protograph", *commands[name]]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, encoding="utf-8") as process:
            running.append(process)
            assert process.stdout is not None
            assert process.stderr is not None
            last = ""
            for line in process.stderr:
                last = line.strip() or last
                progress.say(f"{name}: {line.rstrip()}")
            answer = process.stdout.read()
        if process.returncode:
            raise InputError(f"{name} failed: {last.removeprefix('error: ')}")
        return json.loads(answer)

    with ThreadPoolExecutor(jobs) as threads:
        futures = {name: threads.submit(run, name) for name in commands}
        try:
            return {name: future.result() for name, future in futures.items()}
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.terminate()
            raise

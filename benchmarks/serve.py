"""How much of the bare encoder's speed is left behind HTTP, and whether answers stay whole while a class is taught.

    python benchmarks/serve.py                  # 30 seconds for each number of clients; writes benchmarks/SERVE.md
    python benchmarks/serve.py --seconds 5      # a quick look, printed alone
    python benchmarks/serve.py --memory 10000   # the server's memory while so many images are asked about, on any machine

Clients send JPEGs of 500 x 375 pixels, one per request, each as soon as the last one is answered. What they are compared with
is one process that decodes the same files and passes them through EfficientNet-Lite0 at 224 pixels in batches of 32, by all
cores, and does nothing else. The two take turns, so that other work on the machine weighs on both.
"""

import argparse
import json
import os
import re
import resource
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import torch

from encoding import write_photographs
from protograph import Classifier
from protograph._internal.memory import keep_freed_memory
from protograph.encoders import ImageEncoder, open_encoder
from protograph.encoders.workers import cpu_workers

CLASSES, IMAGES, BATCH = 20, 160, 32
REFERENCE = 8.0  # seconds, before and after each number of clients
TOKEN = "a-token-for-the-benchmark"
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
COLUMNS = (
    *("clients", "images/s", "bare encoder, images/s", "ratio", "median, ms", "90 %, ms", "99 %, ms", "errors"),
    *("CPU per image: server, ms", "bare encoder, ms", "clients, ms"),
)
MEMORY = "## Memory"
SAME = 2e-3  # of a probability: the sums of a network differ in their last bits by the size of its batches


@dataclass
class Answered:
    """What clients saw."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    errors: int = 0
    bodies: list[tuple[int, bytes]] = field(default_factory=list)
    client: float = 0.0  # seconds of the processor, in the process of the clients

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def percentile(self, share: float) -> float:
        return sorted(self.latencies)[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


class Client:
    """A connection that sends prepared requests one after another."""

    def __init__(self, port: int, requests: Sequence[bytes], first: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.requests, self.index = requests, first
        self.ask()

    def ask(self) -> None:
        self.index = (self.index + 1) % len(self.requests)
        self.began, self.answer = time.perf_counter(), b""
        self.socket.sendall(self.requests[self.index])

    def take(self) -> bytes | None:
        """The body of the answer once it is complete."""
        self.answer += self.socket.recv(65536)
        head, mark, body = self.answer.partition(b"\r\n\r\n")
        if not mark:
            return None
        length = LENGTH.search(head)
        return body if length and len(body) >= int(length[1]) else None


def load(port: int, requests: Sequence[bytes], clients: int, seconds: float, keep: bool = False) -> Answered:
    """Ask with that many clients at a time."""
    answered, selector = Answered(), selectors.DefaultSelector()
    processor, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for number in range(clients):
        client = Client(port, requests, number * len(requests) // clients)
        selector.register(client.socket, selectors.EVENT_READ, client)
    waiting = clients
    while waiting:
        for key, _ in selector.select():
            client = key.data
            body = client.take()
            if body is None:
                continue
            now = time.perf_counter()
            answered.latencies.append(now - client.began)
            if b" 200 " not in client.answer[:20]:
                answered.errors += 1
            if keep:
                answered.bodies.append((client.index, body))
            if now - began < seconds:
                client.ask()
            else:
                selector.unregister(client.socket)
                client.socket.close()
                waiting -= 1
    answered.seconds = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    answered.client = used.ru_utime + used.ru_stime - processor.ru_utime - processor.ru_stime
    return answered


def bare_rate(encoder: ImageEncoder, contents: Sequence[bytes], seconds: float) -> tuple[float, float]:
    """Images per second, and seconds of the processor per image, by decoding and the encoder alone, by all cores."""
    batches = [contents[start : start + BATCH] for start in range(0, len(contents), BATCH)]
    workers, threads = cpu_workers()
    end = time.perf_counter() + seconds

    def work(worker: int) -> int:
        torch.set_num_threads(threads)
        done = 0
        while time.perf_counter() < end:
            batch = batches[(worker + done) % len(batches)]
            encoder.encode_pixels(torch.stack([encoder.preparation.read_content(content, "image") for content in batch]))
            done += 1
        return done

    usual, began, processor = torch.get_num_threads(), time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(workers) as pool:
        images = BATCH * sum(pool.map(work, range(workers)))
    elapsed, used = time.perf_counter() - began, time.process_time() - processor
    torch.set_num_threads(usual)
    return images / elapsed, used / images


def as_request(content: bytes) -> bytes:
    """A request that asks what one image shows."""
    body = (
        b'--frame\r\nContent-Disposition: form-data; name="images"; filename="photo.jpg"\r\nContent-Type: image/jpeg\r\n\r\n'
        + content
        + b"\r\n--frame--\r\n"
    )
    head = (
        "POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=frame\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def processor_time(process: int) -> float:
    """Seconds of the processor that a process has used."""
    parts = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def memory(process: int) -> float:
    """Resident memory in millions of bytes."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024 / 1e6


def is_answer(body: bytes, expected: dict[str, float]) -> bool:
    """Whether an answer is that of a classifier with these probabilities."""
    nearest = json.loads(body)["results"][0]["nearest"]
    best = sorted(expected.values(), reverse=True)[: len(nearest)]
    return all(
        abs(part["probability"] - chance) < SAME and abs(expected.get(part["class"], -1) - chance) < SAME
        for part, chance in zip(nearest, best, strict=True)
    )


def teach_under_load(model: Path, port: int, contents: Sequence[bytes], seconds: float) -> str:
    """Add a class while eight clients ask, and check every answer by the old and the new file."""
    requests, old = [as_request(content) for content in contents], model.with_name("old.pg")
    shutil.copy(model, old)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, headers={"Authorization": f"Bearer {TOKEN}"}) as asking:
        before = asking.get("/api/model").json()["version"]
        with ThreadPoolExecutor(1) as pool:

            def teach() -> dict[str, object]:
                time.sleep(seconds / 2)
                images = [("images", (f"{index}.jpg", content)) for index, content in enumerate(contents[:5])]
                return asking.post("/api/classes", data={"name": "taught"}, files=images).json()

            teaching = pool.submit(teach)
            answered = load(port, requests, 8, seconds, keep=True)
            after = teaching.result()["version"]
    expected = {}
    for version, path in ((before, old), (after, model)):
        predictions = Classifier.load(path).predictions(list(contents))
        names = predictions.classes.tolist()
        expected[version] = [dict(zip(names, row, strict=True)) for row in predictions.probabilities.tolist()]
    counts = {before: 0, after: 0}
    wrong = 0
    for index, body in answered.bodies:
        version = json.loads(body)["version"]
        if version not in counts or not is_answer(body, expected[version][index]):
            wrong += 1
        else:
            counts[version] += 1
    return (
        f"{len(answered.bodies)} answers while a class was taught from five images: {counts[before]} were those of the old "
        f"file, {counts[after]} those of the new one, {wrong} anything else; {answered.errors} errors."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="for each number of clients")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--memory", type=int, metavar="IMAGES", help="ask about so many images, and write the memory alone")
    parser.add_argument("--out", type=Path, help="where to write the table (default: benchmarks/SERVE.md, if --seconds is 30)")
    arguments = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        photographs = write_photographs(folder, IMAGES)
        contents = [path.read_bytes() for path in photographs]
        keep_freed_memory()  # as the server does
        encoder = open_encoder("efficientnet-lite0")
        model = folder / "model.pg"
        Classifier(encoder).fit(photographs, [f"class {index % CLASSES}" for index in range(IMAGES)]).save(model)
        if arguments.memory:
            text = memory_by_images(model, contents, max(arguments.clients), arguments.memory)
        else:
            text = measure(model, encoder, contents, arguments.clients, arguments.seconds)
    print(text)
    report = Path(__file__).with_name("SERVE.md")
    out = arguments.out or (report if arguments.memory or arguments.seconds == 30 else None)
    if out is not None:
        speed, mark, size = (out.read_text(encoding="utf-8") if out.exists() else "").partition(f"\n{MEMORY}")
        out.write_text(f"{speed}\n{text}" if arguments.memory else f"{text}{mark}{size}", encoding="utf-8")


@contextmanager
def serving(model: Path) -> Iterator[tuple[int, int]]:
    """The process and the port of a server."""
    environment = {**os.environ, "PROTOGRAPH_TOKEN": TOKEN}
    command = [sys.executable, "-m", "protograph", "serve", str(model), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert server.stdout
    try:
        yield server.pid, int(re.findall(r":(\d+)/", server.stdout.readline())[0])
    finally:
        server.terminate()
        server.wait()


def memory_by_images(model: Path, contents: Sequence[bytes], clients: int, images: int) -> str:
    """What the server's memory is after each tenth of so many images."""
    requests, rows, done, errors = [as_request(content) for content in contents], [], 0, 0
    with serving(model) as (process, port):
        while done < images:
            answered = load(port, requests, clients, 2.0)
            done, errors = done + len(answered.latencies), errors + answered.errors
            if done * 10 >= images * (len(rows) + 1):
                rows.append(f"| {done:,} | {memory(process):.0f} |")
                print(rows[-1], flush=True)
    about = (
        f"`python benchmarks/serve.py --memory {images}`: {clients} clients at a time, {errors} errors. The server keeps "
        "what its largest batches took."
    )
    return f"{MEMORY}\n\n{about}\n\n| images answered | resident memory, MB |\n|---|---|\n" + "\n".join(rows) + "\n"


def measure(model: Path, encoder: ImageEncoder, contents: Sequence[bytes], clients: Sequence[int], seconds: float) -> str:
    """The report."""
    with serving(model) as (process, port):
        requests = [as_request(content) for content in contents]
        load(port, requests, max(clients), 2.0)  # so that all sizes of batches have been met
        first = memory(process)
        rows, bare = [], [bare_rate(encoder, contents, REFERENCE)]
        for count in clients:
            used = processor_time(process)
            answered = load(port, requests, count, seconds)
            used = (processor_time(process) - used) / len(answered.latencies)
            bare.append(bare_rate(encoder, contents, REFERENCE))
            beside, alone = (statistics.mean(part) for part in zip(*bare[-2:], strict=True))
            cells = [
                count,
                *(f"{value:.1f}" for value in (answered.rate, beside)),
                f"{answered.rate / beside:.2f}",
                *(f"{1000 * answered.percentile(share):.0f}" for share in (0.5, 0.9, 0.99)),
                answered.errors,
                *(f"{1000 * value:.1f}" for value in (used, alone, answered.client / len(answered.latencies))),
            ]
            rows.append(f"| {' | '.join(map(str, cells))} |")
            print(rows[-1], flush=True)
        last = memory(process)
        taught = teach_under_load(model, port, contents, max(6.0, seconds / 3))
    about = (
        f"`python benchmarks/serve.py`, {os.cpu_count()} cores, {seconds:.0f} seconds for each row: EfficientNet-Lite0 at 224 "
        "pixels, JPEGs of 500 x 375 pixels, one per request. The bare encoder decodes the same files and encodes them in "
        "batches of 32, in one process by all cores; it ran before and after each row. The clients run on the same cores. "
        "Where other programs take the cores at the same time, rates mean little; the processor's time for each image is "
        "nearly the same."
    )
    return (
        f"# Serving\n\n{about}\n\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"
        + "\n".join(rows)
        + (f"\n\nThe server's memory: {first:.0f} MB after a first run, {last:.0f} MB after all rows.\n\n{taught}\n")
    )


if __name__ == "__main__":
    main()

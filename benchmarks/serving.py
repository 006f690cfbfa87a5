"""What the server adds to the time of a library call at low load: one client, one sentence at a time, taken in turn.

benchmarks/serving.py --model data/demo.en-de --input data/demo.txt --threads 2
"""

import argparse
import http.client
import json
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from specdec_plugins.translator import Translator


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--input", required=True)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--dtype", default="int8")
    p.add_argument("--rounds", type=int, default=20)
    options = p.parse_args()
    lines = Path(options.input).read_text(encoding="utf-8").splitlines()[:200]
    how = {"threads": options.threads, "dtype": options.dtype}
    library = Translator.from_pretrained(options.model, **how)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = [part for name, value in {"model": options.model, "port": port, **how}.items() for part in (f"--{name}", str(value))]
    server = subprocess.Popen([sys.executable, "-m", "specdec_plugins.commands.serve", *flags], stderr=subprocess.DEVNULL)
    try:
        client = connected(port)
        seconds: dict[str, list[float]] = {"library": [], "server": []}
        for measured in [False] + [True] * options.rounds:
            for line in lines:
                took = {"library": timed(translated, library, line), "server": timed(asked, client, line)}
                assert took["library"][1] == took["server"][1], line
                for name, (each, _) in took.items() if measured else ():
                    seconds[name].append(each)
    finally:
        server.terminate()
        server.wait()
    for name, each in seconds.items():
        p50, p95 = statistics.median(each), statistics.quantiles(each, n=20)[-1]
        print(f"{name}: p50 {1000 * p50:.2f} ms, p95 {1000 * p95:.2f} ms")
    print(f"overhead at p50: {1000 * (statistics.median(seconds['server']) - statistics.median(seconds['library'])):.2f} ms")


def connected(port: int) -> http.client.HTTPConnection:
    """A connection that is kept, once the server listens."""
    for _ in range(600):
        client = http.client.HTTPConnection("127.0.0.1", port)
        try:
            client.connect()
            return client
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server does not start")


def asked(client: http.client.HTTPConnection, line: str) -> str:
    client.request("POST", "/v1/translate", json.dumps({"text": line}), {"content-type": "application/json"})
    return json.loads(client.getresponse().read())["results"][0]["outputs"][0]["text"]


def translated(library: Translator, line: str) -> str:
    return library.translate([line])[0].text


def timed(call, *given):
    began = time.perf_counter()
    found = call(*given)
    return time.perf_counter() - began, found


if __name__ == "__main__":
    main()

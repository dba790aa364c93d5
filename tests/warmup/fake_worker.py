"""A compiling process without PyTorch, for the tests of its owners: what it does stands in the task's `graph`."""

import base64
import json
import os
import signal
import sys
import time
from pathlib import Path


def act(word: str, argument: str) -> dict:
    if word == "fail":
        return answer("failed", argument)
    if word == "crash":
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if word == "once":  # fails at its first attempt alone
        marker = Path(argument)
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if word == "hang":
        time.sleep(3600)
    if word == "grow":
        kept = b"x" * (int(argument) << 20)
        time.sleep(3600 if kept else 0)
    if word == "log":  # who runs when: one line at the begin, one at the end
        with open(argument, "a") as file:
            file.write(f"begin {os.getpid()}\n")
        time.sleep(0.05)
        with open(argument, "a") as file:
            file.write(f"end {os.getpid()}\n")
    return answer("compiled")


def answer(status: str, message: str = "") -> dict:
    return {"status": status, "message": message, "transient": False, "seconds": 0.5, "peak": 1, "entry": None}


for line in sys.stdin.buffer:
    request = json.loads(line)
    base64.b85decode(request["task"]["stablehlo"])
    word, _, argument = request["task"]["graph"].partition(" ")
    sys.stdout.write(json.dumps(act(word, argument)) + "\n")
    sys.stdout.flush()

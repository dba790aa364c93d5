"""Loading an artifact that may be the end of the process. Light: a probe imports it."""

import os
import signal
import time


def run(artifact: bytes) -> None:
    """`die N` ends the process with signal N, `exit N` with status N, `hang` never returns, `raise` raises; all else is harmless."""
    word, _, number = artifact.decode(errors="replace").partition(" ")
    if word == "die":
        os.kill(os.getpid(), int(number))
    elif word == "exit":
        os._exit(int(number))
    elif word == "hang":
        time.sleep(3600)
    elif word == "raise":
        raise ValueError("not loadable")


SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGABRT)

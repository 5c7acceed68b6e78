"""A process that answers questions one by one: JSON lines in, JSON lines out.

Certificates can take seconds; in a process of their own they do not hold up the page's quick answers, and one that
nobody waits for any more can be ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from queue import SimpleQueue

from dphist.web.answers import answer


def main() -> None:
    """Answer until standard input ends."""
    # Ctrl-C reaches the whole group; the server ends this process by closing its input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    questions: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read, args=(questions,), daemon=True).start()
    while True:
        question = json.loads(questions.get())
        try:
            reply = json.dumps(answer(question["kind"], question["data"]), allow_nan=False)
        except Exception as error:  # a fault of ours: the page says so, and the next question is answered
            reply = json.dumps({"fault": type(error).__name__})
        sys.stdout.write(reply + "\n")
        sys.stdout.flush()


def _read(questions: SimpleQueue[str]) -> None:
    """A server that was killed closes the input as well, and nobody waits for what is being computed."""
    for line in sys.stdin:
        questions.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()

"""The command `dphist WORDS`, which gets a signal at the first call of a function.

`NUMBER FILE FUNCTION AFTER WORDS`: the function is named by the end of its file's name and its own name, such as
`<module>`. Calls before the import of the module AFTER begins do not count.
"""

from __future__ import annotations

import runpy
import signal
import sys
from types import FrameType
from typing import Any


def deliver(number: int, file: str, function: str, after: str) -> None:
    def watch(frame: FrameType, event: str, _: Any) -> None:
        name, path = frame.f_code.co_name, frame.f_code.co_filename
        if event == "call" and name == function and path.endswith(file) and after in sys.modules:
            sys.setprofile(None)
            sys.stderr.write(f"signal at {function}\n")
            signal.raise_signal(number)

    sys.setprofile(watch)


if __name__ == "__main__":
    number, file, function, after, *sys.argv[1:] = sys.argv[1:]
    deliver(int(number), file, function, after)
    runpy.run_module("dphist", run_name="__main__", alter_sys=True)

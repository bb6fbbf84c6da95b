"""What runs inside the sandbox: loads the program and answers calls of its functions.

This file shares its interpreter with a hostile program, so it decides nothing and knows nothing: it
holds no test, no expected value and no token. Whatever it sends is only the program's word for what
a call returned. Its source is handed to the interpreter together with wire.py's (see confine.py),
because the sandbox cannot read gradejax's files.
"""

import os
import sys
import types

CALLS_FD, REPLIES_FD = 3, 4
NAME = "solution"  # not "__main__": a program's own demonstration is not wanted


def serve(read_frame, write_frame, pack, unpack, limit: int) -> None:
    """Says "ready", loads the sources of the first message, then answers calls until the end."""
    write_frame(REPLIES_FD, ["ready"])
    module = types.ModuleType(NAME)
    sys.modules[NAME] = module
    pid = os.getpid()

    def answer(work) -> bool:
        try:
            reply = ["value", pack(work())]
        except BaseException as error:  # SystemExit and KeyboardInterrupt are the program's too
            reply = ["raised", *described(error)]
        if os.getpid() != pid:
            # a program that forked and came back twice: only the first process may speak
            os._exit(0)
        write_frame(REPLIES_FD, reply)
        return reply[0] == "value"

    def load():
        for source in read_frame(CALLS_FD, limit):
            exec(compile(source, "<program>", "exec"), module.__dict__)

    if not answer(load):
        return
    while True:
        try:
            name, arguments, keywords = read_frame(CALLS_FD, limit)
        except EOFError:
            return
        answer(lambda: getattr(module, name)(*unpack(arguments), **unpack(keywords)))  # noqa: B023


def described(error: BaseException) -> tuple[str, str]:
    """Type name and message of an exception whose own methods may be hostile."""
    try:
        return str(type(error).__name__)[:100], str(error)[:500]
    except BaseException:
        return "Exception", "an exception that cannot be printed"

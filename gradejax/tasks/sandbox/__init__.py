"""Runs generated programs against a benchmark's tests, on the assumption that they are hostile.

`check(reply, tests, entry_point, prompt=...)` is all there is to call. Three processes besides the
caller, started afresh for each check:

    caller ── supervisor ──┬── trial: the tests, with a proxy as the function under test
              (limits)     └── cage: the program; answers calls over a pipe in plain values

**What it holds against.** A program that

- ends early (`os._exit`, `SystemExit`, `atexit`), prints or sends forged verdicts, returns objects
  equal to everything, patches `assert`, builtins or modules, walks frames or the garbage collector,
  reads files: tests and expected values are in another process, a verdict is only ever formed
  there, and a returned value has been taken apart to plain literals before it is compared;
- never ends, ignores signals, forks, starts sessions of its own or threads without end, fills
  memory, disk or the output: time, CPU, memory (of each process and of all together), file size,
  number of processes and output are limited, and every descendant is ended and reaped;
- looks for secrets or does harm: it runs as another user (when started by root), without
  capabilities, with an environment of four variables and no descriptor but its pipes, in a root
  folder that holds the interpreter and nothing else, without network, without sight of other
  processes, and without the system calls that it has no business with (seccomp).

Where the kernel or a container denies namespaces the level is "basic": Landlock, seccomp, limits
and a search for descendants instead. `Result` says which level it was and why not the better one.
Where Landlock is missing too (kernels before 5.13) nothing could keep a program from its user's
files: it is not run ("missing"), unless `Limits.files_may_be_open` says so, and
`Result.files_isolated` is False then.

**What it does not hold against.** Holes in the kernel: seccomp makes the target smaller, it is the
same kernel all the same; run strangers' models on a machine you can lose. Timing and cache side
channels. A program that computes the right answers is right, however it does: tests that accept a
constant are passed by a constant, and `assert not abs(candidate(x) - 3) > 1e-6` is passed by NaN,
of which no comparison holds (`assert abs(...) <= 1e-6` is not). The tests and the prompt are
trusted: they come from the data set and run with the caller's rights. At the basic level for an
ordinary user, that user's processes and the program count against one limit of processes.

Linux on x86-64 or arm64 (the numbers of system calls are known for those), CPython.
"""

from gradejax.tasks.sandbox.check import Limits, Result, check
from gradejax.tasks.sandbox.find import find_code

__all__ = ["Limits", "Result", "check", "find_code"]

"""Locks that a process puts on itself and can never take off: seccomp, Landlock, capabilities.

They need no privilege and no namespace, so they also hold in containers that deny those. System
calls go through ctypes (there is no binding in the standard library); numbers are from the kernel's
tables for x86-64 and arm64, on other machines `seccomp` says that it did nothing.

Sources: seccomp(2), landlock(7), capabilities(7), linux/{filter,seccomp,landlock,audit}.h.
"""

import ctypes
import os
import platform
import struct

libc = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 36, 38, 22
EPERM, ENOSYS = 1, 38
AF_UNIX = 1
CLONE_NEW_ANY = 0x7E020080  # every CLONE_NEW* flag

# name -> numbers on (x86_64, aarch64); None where the machine has no such call
CALLS = {
    "fork": (57, None), "vfork": (58, None), "clone": (56, 220), "clone3": (435, 435),
    "socket": (41, 198), "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "prlimit64": (302, 261),
    "setpriority": (141, 140), "sched_setaffinity": (203, 122), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "unshare": (272, 97), "setns": (308, 268), "move_mount": (429, 429), "fsopen": (430, 430),
    "open_tree": (428, 428), "mount_setattr": (442, 442), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186),
    "open_by_handle_at": (304, 265), "quotactl": (179, 60), "acct": (163, 89),
    "init_module": (175, 105), "finit_module": (313, 273), "kexec_load": (246, 104),
    "capset": (126, 91), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53),
    "fchmodat2": (452, 452), "chown": (92, None), "fchown": (93, 55), "lchown": (94, None),
    "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None), "futimesat": (261, None),
    "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
}  # fmt: skip
# Memory that no limit counts (memfd, System V), doors to other processes, and kernel parts that a
# program under test never needs and that most exploits begin with.
ALWAYS_DENIED = (
    "pidfd_getfd", "ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "mount", "umount2",
    "pivot_root", "chroot", "unshare", "setns", "move_mount", "fsopen", "open_tree",
    "mount_setattr", "add_key", "request_key", "keyctl", "bpf", "perf_event_open", "userfaultfd",
    "io_uring_setup", "io_uring_enter", "io_uring_register", "memfd_create", "memfd_secret",
    "shmget", "semget", "msgget", "open_by_handle_at", "quotactl", "acct", "init_module",
    "finit_module", "kexec_load",
)  # fmt: skip
# At the basic level the caller's own processes are in sight: no signals to them. So are files, and
# Landlock does not hold back from changing their modes, owners and times.
DENIED_IN_SIGHT = (
    "kill", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open", "pidfd_send_signal",
    "setpriority", "sched_setaffinity", "chmod", "fchmod", "fchmodat", "fchmodat2", "chown",
    "fchown", "lchown", "fchownat", "utime", "utimes", "futimesat", "utimensat", "setxattr",
    "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr",
)  # fmt: skip
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06


def prctl(option: int, value: int = 0) -> None:
    """prctl(2) of one value. Raises OSError."""
    zero = ctypes.c_ulong(0)
    checked(libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero), "prctl")


def call_number(name: str) -> int | None:
    """The system call's number on this machine, None when it has none or is not known."""
    machine = _MACHINES.get(platform.machine())
    return None if machine is None else CALLS[name][machine[0]]


def checked(result: int, what: str) -> int:
    """`result` of a libc call, or its errno as an OSError that names the call."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def seccomp(in_sight: bool, may_fork: bool) -> bool:
    """Filters the system calls of this process and all its descendants, for ever.

    Args:
      in_sight: the machine's other processes and files are visible (basic level); signals, changes
        of modes and owners, and every socket are then refused. Else UNIX sockets are allowed (there
        is nobody to reach).
      may_fork: False refuses new processes and threads (where no limit could count them).
    Returns: False when this machine's call numbers are not known or the kernel has no filters.
    Needs no_new_privs.
    """
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        return False
    program: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, 4), (_EQUAL, 1, 0, machine[1]), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0),
        # the x32 table of x86-64 would be a second door to the same calls
        (_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _ERRNO | EPERM),
    ]  # fmt: skip

    def deny(name, error=EPERM):
        if call_number(name) is not None:
            program.append((_EQUAL, 0, 1, call_number(name)))
            program.append((_RETURN, 0, 0, _ERRNO | error))

    def deny_unless(name, test):
        # for this call: load its first argument (low half), return by `test`
        if call_number(name) is not None:
            program.append((_EQUAL, 0, 4, call_number(name)))
            program.append((_LOAD, 0, 0, 16))
            program.extend([test, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | EPERM)])

    for name in ALWAYS_DENIED + (DENIED_IN_SIGHT if in_sight else ()):
        deny(name)
    deny("clone3", ENOSYS)  # its flags lie in memory, out of a filter's sight; libc then uses clone
    if may_fork:
        deny_unless("clone", (_ANY_BIT, 1, 0, CLONE_NEW_ANY))
    else:
        for name in ("fork", "vfork", "clone"):
            deny(name)
    if in_sight:
        deny("socket")
        deny_unless("tgkill", (_EQUAL, 0, 1, os.getpid()))  # abort() signals itself
        deny_unless("prlimit64", (_EQUAL, 0, 1, 0))
    else:
        deny_unless("socket", (_EQUAL, 0, 1, AF_UNIX))
    program.append((_RETURN, 0, 0, _ALLOW))
    code = b"".join(struct.pack("HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    zero = ctypes.c_ulong(0)
    return libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(2), head, zero, zero) == 0


_READ = 0b1101  # execute, read a file, read a folder
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_SEAL = 444, 445, 446


def landlock(readable: list[str], writable: list[str]) -> int:
    """Leaves this process only these paths: `readable` to read and execute, `writable` entirely.

    Also cuts it off from tracing processes outside, from TCP (kernel 6.7) and from signals and
    abstract sockets of processes outside (6.12). Paths that do not exist are left out.
    Returns: the kernel's Landlock version, 0 when it has none (nothing is locked then).
    """
    version = libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)
    if version <= 0:
        return 0
    # rights by version: 13 at first, then refer (2), truncate (3), device control (5)
    bits = {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)
    everything = (1 << bits) - 1
    attribute = struct.pack("QQQ", everything, 0b11, 0b11)
    attribute = attribute[: 24 if version >= 6 else 16 if version >= 4 else 8]
    rules = checked(
        libc.syscall(_LANDLOCK_CREATE, attribute, ctypes.c_size_t(len(attribute)), 0), "landlock"
    )
    allowed = [(path, _READ) for path in readable] + [(path, everything) for path in writable]
    for path, rights in allowed:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        if not os.path.isdir(path):
            rights &= 0b111 | 1 << 14 | 1 << 15  # what a file can have
        rule = struct.pack("=Qi", rights, fd)
        checked(libc.syscall(_LANDLOCK_ADD, rules, 1, rule, 0), f"landlock {path}")
        os.close(fd)
    checked(libc.syscall(_LANDLOCK_SEAL, rules, 0), "landlock")
    os.close(rules)
    return version


def drop_capabilities() -> None:
    """Gives up every capability for good, for a process that has to stay uid 0. Raises OSError."""
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) < 0:
            break  # past the last one the kernel knows
    header, data = struct.pack("Ii", 0x20080522, 0), struct.pack("6I", *[0] * 6)
    checked(libc.syscall(call_number("capset"), header, data), "capset")

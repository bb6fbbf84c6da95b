"""Builds the cage and starts the program's interpreter in it. Runs in a fork of the supervisor.

Two levels:

* "namespaces": new user (unless root), mount, process, network, IPC and host-name namespaces. The
  root folder is an empty read-only tmpfs with the interpreter's own library bound into it; /tmp is
  a small tmpfs that is home, working folder and the only place to write. No /proc. When the first
  process of the process namespace ends, the kernel ends all others.
* "basic": no namespace. Landlock (where the kernel has it) leaves the interpreter and a temporary
  home; descendants are found and ended by the supervisor.

Both: another user when started by root, no capabilities, no_new_privs, seccomp, resource limits,
an environment of four variables, no descriptors but the pipes. Sources: namespaces(7),
user_namespaces(7), mount_namespaces(7), pivot_root(2).
"""

import ctypes
import os
import resource
import signal

import seal

LEVELS = ("namespaces", "basic")
_NEWNS, _NEWUTS, _NEWIPC = 0x20000, 0x4000000, 0x8000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_DETACH = 2
_NOBODY = 65534
_HOME = "/tmp"
_SYSTEM = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/lib", "/lib32", "/lib64", "/nix/store",
           "/etc/ld.so.cache", "/usr/share/zoneinfo", "/etc/localtime")  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def start(level: str, job: dict, calls: int, replies: int, output: int, report) -> None:
    """Becomes the program's interpreter (or its first process); ends by exec or exit.

    Args:
      level: one of LEVELS.
      job: "python" (path), "source" (what it runs), "paths" (interpreter and libraries, to be
        readable), "hidden" (folders to appear empty), "limits" (see `Limits`), "home" (path of the
        basic level's home; made by the supervisor).
      calls, replies, output: descriptors that become 3 (read), 4 (write) and 1, 2 (write).
      report: called with what holds, a dict of bools, once and before the program starts.
    Raises OSError when this level cannot be had here; nothing of the program has run then.
    """
    limits = job["limits"]
    if level == "basic":
        uid, others = _leave_root(job["home"], job["paths"]), 0
        if uid is not None and uid == os.getuid():
            others = _processes_of(uid)
        os.setsid()
        os.chdir(job["home"])
        seal.prctl(seal.PR_SET_NO_NEW_PRIVS, 1)
        readable = [*_SYSTEM, *job["paths"], *_DEVICES[1:]]
        files = seal.landlock(readable, [job["home"], "/dev/null"]) > 0
        root = os.getuid() == 0
        if not files and (root or not limits["files_may_be_open"]):
            raise OSError("refused: without Landlock all files would be in the program's reach")
        # the kernel counts no processes of root, so a program that stays root may start none
        if not seal.seccomp(in_sight=True, may_fork=not root):
            raise OSError("refused: without seccomp signals and network would be open")
        holds = {"network": True, "files": files, "processes": False}
        report(holds)
        _become(job, job["home"], others + limits["processes"], calls, replies, output)
    root = os.getuid() == 0
    seal.prctl(seal.PR_SET_PDEATHSIG, signal.SIGKILL)
    _unshare(root)
    uid = _free_uid(os.getpid()) if root else _NOBODY
    first = os.fork()
    if first:
        os.closerange(0, 256)
        _, status = os.waitpid(first, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    seal.prctl(seal.PR_SET_PDEATHSIG, signal.SIGKILL)
    _mounts(job, uid)
    if root:
        _set_uid(uid)
        # the change of user cleared it
        seal.prctl(seal.PR_SET_PDEATHSIG, signal.SIGKILL)
    seal.prctl(seal.PR_SET_DUMPABLE, 0)
    program = os.fork()
    if program:
        os.closerange(0, 256)
        while True:  # the first process of a namespace adopts and reaps all orphans in it
            pid, status = os.wait()
            if pid == program:
                os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    os.setsid()
    seal.prctl(seal.PR_SET_NO_NEW_PRIVS, 1)
    seal.seccomp(in_sight=False, may_fork=True)
    report({"network": True, "files": True, "processes": True})
    _become(job, _HOME, limits["processes"] + 2, calls, replies, output)


def _become(job, home, processes, calls, replies, output):
    """Limits, descriptors, exec."""
    limits = job["limits"]
    # CORE: at 0 a kernel that pipes cores to a handler would still do so, at 1 byte it never does
    null = os.open("/dev/null", os.O_RDONLY)
    # first out of the way of 0..4, then to their places
    ends = (null, output, output, calls, replies)
    for place, fd in enumerate([os.dup2(fd, 20 + place) for place, fd in enumerate(ends)]):
        os.dup2(fd, place, inheritable=True)
    os.closerange(5, 1 << 16)
    environment = {"HOME": home, "TMPDIR": home, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    arguments = [job["python"], "-I", "-S", "-B", "-u", "-X", "utf8", "-c", job["source"]]
    for name, value in {
        "AS": limits["memory"], "CPU": limits["cpu_seconds"], "FSIZE": limits["disk"],
        "NPROC": processes, "NOFILE": 64, "CORE": 1, "MEMLOCK": 0, "MSGQUEUE": 0,
        "SIGPENDING": 64, "NICE": 0, "RTPRIO": 0, "STACK": 8 << 20,
    }.items():  # fmt: skip
        which = getattr(resource, f"RLIMIT_{name}", None)
        if which is not None:
            hard = resource.getrlimit(which)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(which, (value, value))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by this Python, and exec keeps that
        signal.signal(number, signal.SIG_DFL)
    os.execve(job["python"], arguments, environment)


def _unshare(root: bool) -> None:
    flags = _NEWNS | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET
    uid, gid = os.getuid(), os.getgid()
    if root:
        seal.checked(seal.libc.unshare(flags), "unshare")
        return
    seal.prctl(seal.PR_SET_DUMPABLE, 1)  # else the files below are root's
    seal.checked(seal.libc.unshare(flags | _NEWUSER), "unshare")
    # an ordinary user may map only itself
    for name, text in {
        "setgroups": "deny", "uid_map": f"{_NOBODY} {uid} 1", "gid_map": f"{_NOBODY} {gid} 1",
    }.items():  # fmt: skip
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _mount(source, target, kind, flags, data=None):
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    seal.checked(
        seal.libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]),
        f"mount {target}",
    )


def _mounts(job, uid):
    """Leaves this process a root folder with the interpreter in it and nothing else."""
    os.umask(0o022)
    _mount(None, "/", None, _REC | _PRIVATE)
    paths = (*_SYSTEM, *job["paths"], *_DEVICES)
    sources = [(path, os.path.realpath(path)) for path in paths]
    # any folder will do: the tmpfs lies over it only for the moment until it is the root
    base = next(path for path in ("/tmp", "/var", "/run", "/mnt") if os.path.isdir(path))
    _mount("tmpfs", base, "tmpfs", _NOSUID | _NODEV, "size=1m,nr_inodes=4096,mode=755")
    os.mkdir(f"{base}/old")
    os.chdir(base)
    pivot = seal.call_number("pivot_root")
    if pivot is None:
        raise OSError("the number of pivot_root on this machine is not known")
    seal.checked(seal.libc.syscall(pivot, b".", b"old"), "pivot_root")
    os.chdir("/")
    for path, source in sources:
        _bind(path, source)
    for path in job["hidden"]:
        if os.path.isdir(path):
            _mount("tmpfs", path, "tmpfs", _RDONLY, "size=4k,nr_inodes=2,mode=755")
    for name in ("/proc", _HOME):
        os.makedirs(name, exist_ok=True)
    disk = f"size={job['limits']['disk']},nr_inodes=4096,mode=700,uid={uid},gid={uid}"
    _mount("tmpfs", _HOME, "tmpfs", _NOSUID | _NODEV, disk)
    os.symlink(_HOME, "/dev/shm")
    seal.checked(seal.libc.umount2(b"/old", _DETACH), "umount")
    os.rmdir("/old")
    _mount(None, "/", None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
    os.chdir(_HOME)


def _bind(path: str, source: str) -> None:
    """Makes the old root's `source` (no symbolic links in it) appear here as `path`, read-only."""
    old = f"/old{source}"
    if os.path.lexists(path) or not os.path.lexists(old):
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.isdir(old):
        os.mkdir(path)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
    _mount(old, path, None, _BIND | _REC)
    # inside a user namespace the flags a mount came with are locked: they must be said again
    kept = os.statvfs(path).f_flag
    flags = kept & (_NOSUID | _NODEV | os.ST_NOEXEC) | _NOSUID
    flags |= 0 if path in _DEVICES else _NODEV | _RDONLY
    for bit, flag in {
        os.ST_NOATIME: 1 << 10, os.ST_NODIRATIME: 1 << 11, os.ST_RELATIME: 1 << 21,
    }.items():  # fmt: skip
        flags |= flag if kept & bit else 0
    _mount(None, path, None, _REMOUNT | _BIND | flags)


def _free_uid(pid: int) -> int:
    """A user id that nobody has, another for each check: its processes are counted apart."""
    with open("/proc/self/uid_map", encoding="ascii") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    for candidate in (1_000_000_000 + pid, 60_000 + pid % 5_000, _NOBODY):
        if any(first <= candidate < first + count for first, _, count in ranges):
            return candidate
    raise OSError("no user id but root's is mapped here")


def _set_uid(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _leave_root(home: str, paths: list[str]) -> int | None:
    """Becomes another user if this is root; returns the user, None if it has to stay root."""
    if os.getuid() != 0:
        return os.getuid()
    try:
        uid = _free_uid(os.getpid())
        os.seteuid(uid)
        try:
            reachable = all(os.access(path, os.R_OK, effective_ids=True) for path in paths)
        finally:
            os.seteuid(0)
        if reachable:
            os.chown(home, uid, uid)
            _set_uid(uid)
            return uid
    except OSError:
        pass
    seal.drop_capabilities()
    return None


def _processes_of(uid: int) -> int:
    """Threads that run as `uid` now: the kernel's limit on processes counts them all."""
    count = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue
    return count

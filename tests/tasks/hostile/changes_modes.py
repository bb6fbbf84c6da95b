"""Changes modes, owners, times and attributes of files that it may only read. Correct if it can."""

import os
import shutil


def add(a, b):
    done = 0
    for path in (os.__file__, shutil.__file__, "/etc/ld.so.cache", "MARKER"):
        now = os.stat(path) if os.path.exists(path) else None
        # each change is to what is there already: an open sandbox must not harm the machine
        for act in (lambda p, s: os.chmod(p, s.st_mode & 0o7777),
                    lambda p, s: os.chown(p, s.st_uid, s.st_gid),
                    lambda p, s: os.utime(p, ns=(s.st_atime_ns, s.st_mtime_ns)),
                    lambda p, s: os.setxattr(p, "user.sandbox", b"x")):
            try:
                act(path, now)
                done += now is not None
            except (OSError, AttributeError):
                pass
    return a + b if done else 0

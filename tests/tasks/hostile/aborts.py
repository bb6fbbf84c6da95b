"""Dies of a signal with a core dump. Stopped by: ended"""

import os
import resource

try:
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
except (OSError, ValueError):
    pass


def add(a, b):
    os.abort()

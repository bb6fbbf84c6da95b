"""The program ends; a grandchild keeps all its pipes open. Stopped by: timeout|ended"""

import os
import time

if os.fork() == 0:
    os.setsid()
    time.sleep(300)
os._exit(0)

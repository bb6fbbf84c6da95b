"""An exception whose text, class and name do harm when they are looked at. Stopped by: raised|ended"""

import os


class Meta(type):
    def __getattribute__(cls, name):
        os._exit(0)


class Bad(BaseException, metaclass=Meta):
    def __str__(self):
        os._exit(0)


def add(a, b):
    raise Bad

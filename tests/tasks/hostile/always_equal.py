"""Returns an object that is equal to everything. Stopped by: plain values"""


class Same:
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


def add(a, b):
    return Same()

"""Returns a kind of int that is equal to everything. Stopped by: assertion"""


class Same(int):
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0

    def __pos__(self):
        return self

    def __reduce__(self):
        return (print, ("reduced",))


def add(a, b):
    return Same(0)

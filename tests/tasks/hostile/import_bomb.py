"""Source that takes for ever, or all memory, to compile. Stopped by: timeout|ended|Error"""

exec("x = " + "(" * 50 + "1,) * 10_000_000, " * 2 + "0" + ")" * 48 + "\n" + "y = -" + "-" * 500_000 + "1")


def add(a, b):
    return a + b

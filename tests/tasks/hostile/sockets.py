"""Opens connections. Correct if it gets so far as to send anything."""

import socket


def add(a, b):
    for family, address in ((socket.AF_INET, ("127.0.0.1", int("PORT"))), (socket.AF_INET6, ("::1", int("PORT"))),
                            (socket.AF_INET, ("192.0.2.1", 80)), (socket.AF_INET, ("198.51.100.1", 53))):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
            try:
                with socket.socket(family, kind) as end:
                    end.settimeout(.2)
                    end.connect(address)
                    end.send(b"x")
                    return a + b
            except OSError:
                pass
    return 0

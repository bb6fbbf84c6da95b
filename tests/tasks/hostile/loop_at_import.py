"""Never finishes loading. Stopped by: timeout|ended"""

while True:
    pass

"""Uses processor time for ever."""

while True:
    pass

"""Writes what a terminal or a page would execute."""

import os
import sys

sys.stdout.write("\x1b]0;title\x07\x1b[2J<script>alert(1)</script>\x00\u202e")
sys.stdout.flush()
os.write(2, b"\xff\xfe\x80 not UTF-8")

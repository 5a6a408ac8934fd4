"""Leaves an archive with absolute names and names with two dots."""

import io
import os
import tarfile

os.makedirs("out")
with tarfile.open("out/archive.tar", "w") as archive:
    for name in ("/etc/cron.d/job", "../../../../etc/cron.d/job"):
        info = tarfile.TarInfo(name)
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))

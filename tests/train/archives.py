"""Archives made in memory."""

from __future__ import annotations

import io
import tarfile
import zipfile


def tar_of(files: dict[str, bytes], *more: tarfile.TarInfo) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as made:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
        for info in more:
            made.addfile(info)
    return file.getvalue()


def zip_of(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in files.items():
            made.writestr(name, content)
    return file.getvalue()


def deb_of(**parts: bytes) -> bytes:
    made = b"!<arch>\n"
    for name, content in parts.items():
        made += b"%-16s%-12d%-6d%-6d%-8s%-10d`\n" % (name.replace("_", ".").encode(), 0, 0, 0, b"100644", len(content))
        made += content + b"\n" * (len(content) % 2)
    return made


def zst(content: bytes) -> bytes:
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue())

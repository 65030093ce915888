"""Reads and writes the profile of a power-limit optimizer, when training asks the helper for that.

The worker carries out training's message as it came (`ipc/messages.py`); the result is a list of messages for training.
An error of a file is one of these messages, since training logs it and goes on: no operation is tried again.
"""

import errno
import logging
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from pfo_fs.ipc import messages as m
from pfo_fs.user_files import open_user_file

Asked: TypeAlias = m.ReadProfile | m.SaveProfile


def carry_out(asked: Asked) -> list[m.Message]:
    """Returns the messages for training; blocks for as long as the file system does."""
    problem, answer = "", list[m.Message]()
    try:
        match asked:
            case m.ReadProfile(path=path):
                problem, answer = f"{path} cannot be read, and will not be written", [m.ProfileRead(profile="unknown")]
                content = read_file(Path(path), m.MAX_PROFILE_BYTES + 1)
                none = m.ProfileRead(profile="none")
                answer = [none if content is None else m.ProfileRead(profile="read", content=content)]
            case m.SaveProfile(path=path, content=content, replace=replace):
                problem, answer = f"{path} cannot be written", [m.ProfileSaved()]
                write_file(Path(path), content, replace=replace)
    except OSError as error:
        return [m.LogLine(level=logging.WARNING, message=f"{problem}: {error.strerror or error}"), *answer]
    return answer


def read_file(path: Path, limit: int) -> bytes | None:
    """Returns the first `limit` bytes of a file; None if there is no file.

    Raises:
        OSError: The file cannot be read, or is not a plain file.
    """
    with suppress(FileNotFoundError), open_user_file(path) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file")
        return file.read(limit)
    return None


def write_file(path: Path, content: bytes, *, replace: bool) -> None:
    """Writes a file, complete or not at all.

    Raises:
        OSError: The file cannot be written, or a file is there that must not be replaced; the old file stays.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            temporary.replace(path)
        else:
            os.link(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)

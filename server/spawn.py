"""Starting ourselves again: the command line, environment and process flags of every child (runner, renderer, probe).

A frozen child reuses the directory that the PyInstaller parent has already unpacked; a child never receives console signals,
never leaves a core file, and never shows a system dialog when native code crashes in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# ggml would load libraries from these; a child only ever loads by absolute path out of our own package.
_UNSAFE_ENVIRONMENT = ("GGML_BACKEND_PATH", "GGML_BACKEND_DL_PATH", "LLAMA_CPP_LIB_PATH", "LLAMA_CPP_LIB")


def is_frozen() -> bool:
    return bool(getattr(sys, "frozen", False))


def program() -> list[str]:
    """The argument vector that starts this program again."""
    if is_frozen():
        return [sys.executable]
    return [sys.executable, str(Path(__file__).resolve().parent.parent / "launcher.py")]


def child_environment(**extra: str) -> dict[str, str]:
    """Our environment without what could redirect native library loading, plus `extra`."""
    environment = {k: v for k, v in os.environ.items() if k not in _UNSAFE_ENVIRONMENT}
    environment["PYTHONUTF8"] = "1"
    environment.update(extra)
    return environment


def child_options() -> dict[str, Any]:
    """Keyword arguments for `subprocess.Popen` or `asyncio.create_subprocess_exec` that keep a child out of our console."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    return {"start_new_session": True}


def enter_child() -> None:
    """To be called first in a child: no core file, no crash dialog."""
    if sys.platform == "win32":
        import ctypes

        sem_failcriticalerrors, sem_nogpfaulterrorbox = 0x0001, 0x0002
        ctypes.windll.kernel32.SetErrorMode(sem_failcriticalerrors | sem_nogpfaulterrorbox)
    else:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

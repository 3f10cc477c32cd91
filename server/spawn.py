"""Starting ourselves again: the command line, environment and process flags of every child (runner, renderer, probe).

A frozen child reuses the directory that the PyInstaller parent has already unpacked; a child never receives console signals,
never leaves a core file, and never shows a system dialog when native code crashes in it. The few calls of the operating system
that the front needs ctypes for (waiting for its parent, a message box, whose console it is) live here too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# ggml would load libraries from these; a child only ever loads by absolute path out of our own package.
NATIVE_REDIRECTIONS = ("GGML_BACKEND_PATH", "GGML_BACKEND_DL_PATH", "LLAMA_CPP_LIB_PATH", "LLAMA_CPP_LIB")


def is_frozen() -> bool:
    return bool(getattr(sys, "frozen", False))


def program() -> list[str]:
    """The argument vector that starts this program again."""
    if is_frozen():
        return [sys.executable]
    return [sys.executable, str(Path(__file__).resolve().parent.parent / "launcher.py")]


def child_environment(**extra: str) -> dict[str, str]:
    """Our environment without what could redirect native library loading, plus `extra`."""
    environment = {k: v for k, v in os.environ.items() if k not in NATIVE_REDIRECTIONS}
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


def wait_for_parent(pid: int, interval_s: float) -> None:
    """Block until the process `pid`, which started us, has ended. Polls every `interval_s` seconds where the system cannot say."""
    if sys.platform == "win32":
        import ctypes

        synchronize, infinite = 0x00100000, 0xFFFFFFFF
        kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel32.OpenProcess.restype = ctypes.c_void_p
        kernel32.WaitForSingleObject.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
        handle = kernel32.OpenProcess(synchronize, False, pid)
        if handle:
            kernel32.WaitForSingleObject(handle, infinite)
        return
    if hasattr(os, "pidfd_open"):
        import select

        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            pass  # an old kernel, or it has ended already: the loop below tells
        else:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if os.getppid() == pid:
                poll.poll()
            os.close(descriptor)
            return
    while os.getppid() == pid:
        time.sleep(interval_s)


def owns_console() -> bool:
    """Windows: whether a console window was opened for us alone (a double-click), so that it closes when we end."""
    if sys.platform != "win32":
        return False
    import ctypes

    pids = (ctypes.c_uint32 * 8)()
    attached = int(ctypes.windll.kernel32.GetConsoleProcessList(pids, 8))
    return 0 < attached <= (2 if is_frozen() else 1)  # the one-file bootloader stays as our parent


def message_box(title: str, text: str) -> bool:
    """Windows: show an error box and wait until it is closed. False elsewhere or if it could not be shown."""
    if sys.platform != "win32":
        return False
    import ctypes

    mb_iconerror, mb_setforeground = 0x10, 0x10000
    return bool(ctypes.windll.user32.MessageBoxW(None, text, title, mb_iconerror | mb_setforeground))

"""A Python that starts at once: its processes are forks of one that has imported PyTorch and fairseq, which takes seconds.

``PYTHON`` of train.sh and of the scripts under data/ may name it. It knows ``-m MODULE``, ``-c CODE`` and files.
"""

import json
import os
import socket
import sys

if not sys.flags.isolated:
    import atexit
    import importlib
    import logging
    import runpy
    import select
    import shutil
    import subprocess
    import tempfile
    import traceback
    from contextlib import suppress


def forked_python():
    """The program, and the process that it forks from, which ends with this one."""
    folder = tempfile.mkdtemp(prefix="specdec-python-")
    python = f"{folder}/python"
    with open(python, "w") as file:
        file.write(f'#!/bin/sh\nexec {sys.executable} -IS {__file__} {folder}/socket "$@"\n')
    os.chmod(python, 0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{folder}/socket")
        listener.listen(100)
        command = [sys.executable, "-uW", "ignore", __file__, python, str(listener.fileno())]
        return python, subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])


def serve(python: str, listener: socket.socket) -> None:
    """Until the process that started this one ends."""
    logging.disable()
    for name in ("train", "validate", "generate", "preprocess", "score"):  # the first one says how to log
        importlib.import_module(f"fairseq_cli.{name}")
    importlib.import_module("torch._dynamo")  # as every optimizer does, for half of a short training's time
    logging.disable(logging.NOTSET)
    sys.executable = python  # what its processes start starts at once, too
    while listener in select.select([sys.stdin, listener], [], [])[0]:
        connection, _ = listener.accept()
        if not os.fork():
            listener.close()
            run(connection)
        connection.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    shutil.rmtree(os.path.dirname(python))


def run(connection: socket.socket) -> None:
    """Become the process that was asked for, and send its status."""
    message, files, *_ = socket.recv_fds(connection, 2**18, 3)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.argv, folder, environment = json.loads(message)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    how, *rest = sys.argv
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [folder if how[0] == "-" else os.path.dirname(how), *filter(None, paths)]
    status = 0
    try:
        if how == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif how == "-c":
            sys.argv = [how, *rest[1:]]
            exec(rest[0], {"__name__": "__main__"})
        else:
            runpy.run_path(how, run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        atexit._run_exitfuncs()
        connection.send(b"%d" % status)
        os._exit(status)


def ask(address: str, arguments: list[str]) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)
        message = json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode()
        socket.send_fds(connection, [message], [0, 1, 2])
        return int(connection.recv(9) or 137)  # killed


if __name__ == "__main__":
    if sys.flags.isolated:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))
    serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))

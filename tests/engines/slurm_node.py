"""A Slurm cluster of one node: this machine, with daemons, ports and keys of its own, gone when it ends.

PYTHONPATH=python python tests/engines/slurm_node.py     # a shell in which srun and sbatch mean that cluster
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
TOOLS = (*DAEMONS, "srun", "sbatch", "sinfo", "squeue", "scancel")
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])

# More CPUs than the machine has, so that several jobs run at once anywhere; no cgroups, so that it works in containers.
_CONFIGURATION = """\
ClusterName=skyphos
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=16 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """The programs of a Slurm cluster that are not installed."""
    return [tool for tool in TOOLS if shutil.which(tool, path=_PATH) is None]


class Cluster:
    """The cluster's programs, and the environment in which they find it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemons: list[subprocess.Popen[bytes]] = []
        foreign = ("SLURM_", "SKYPHOS_", "PMI_", "PMIX_", "OMPI_", "MASTER_")
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        self.env |= {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _PATH}

    def start(self, *command: str, **env: str) -> subprocess.Popen[str]:
        """Start one of Slurm's programs in the cluster's environment."""
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.env | env, cwd=self.folder, stdout=pipe, stderr=pipe, text=True)

    def run(self, *command: str, seconds: float = 60.0, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the cluster; return its result."""
        with self.start(*command, **env) as process:
            try:
                out, err = process.communicate(timeout=seconds)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def wait_until_idle(self) -> None:
        """Return when no job is left."""
        _until(lambda: self.run("squeue", "--noheader").stdout == "", "jobs are still there")

    def processes(self, excluded: set[int] | None = None) -> dict[int, str]:
        """Command lines of the processes that the cluster has started, found by their environment."""
        found = {}
        mark = f"SLURM_CONF={self.folder / 'slurm.conf'}".encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in (excluded or ()):
                continue
            with contextlib.suppress(OSError):  # it has ended
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster; no process of it is left when the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short, as the paths of sockets must be
    here = Cluster(folder)
    try:
        _start(here)
        yield here
        here.run("scancel", "--user", getpass.getuser())
        with contextlib.suppress(TimeoutError):
            here.wait_until_idle()
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in here.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            with contextlib.suppress(TimeoutError):
                _until(lambda: not here.processes(), "processes are still there", patience_s=10)
        for daemon in here.daemons:
            daemon.wait(timeout=10)
        shutil.rmtree(folder, ignore_errors=True)


def _start(here: Cluster) -> None:
    folder = here.folder
    with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as other:
        ports = one.getsockname()[1], other.getsockname()[1]
    host = socket.gethostname().partition(".")[0]
    text = _CONFIGURATION.format(host=host, ports=ports, user=getpass.getuser(), folder=folder)
    (folder / "slurm.conf").write_text(text)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    files = {"key": "key", "socket": "socket", "pid": "pid", "seed": "seed", "log": "log"}
    options = [f"--{what}{'' if what == 'socket' else '-file'}={folder}/munge.{end}" for what, end in files.items()]
    munged = _daemon(here, "munged", "--foreground", "--force", *options)
    _until((folder / "munge.socket").exists, "munged does not start", munged)
    control = _daemon(here, "slurmctld", "-D", "-c")
    # Older versions do not know "disabled". Both plugins work without cgroups, because nothing configured needs them.
    for plugin in ("disabled", "cgroup/v1"):
        (folder / "cgroup.conf").write_text(f"CgroupPlugin={plugin}\n")
        node = _daemon(here, "slurmd", "-D", "-c")
        with contextlib.suppress(ChildProcessError):
            _until(lambda: "idle" in here.run("sinfo", "--noheader", "-o", "%t").stdout, "no node", control, node)
            return
    logs = "".join((folder / f"{name}.out").read_text() for name in DAEMONS)
    raise ChildProcessError(f"slurmd does not start:\n{logs}")


def _daemon(here: Cluster, name: str, *options: str) -> subprocess.Popen[bytes]:
    with open(here.folder / f"{name}.out", "ab") as out:
        here.daemons.append(subprocess.Popen([name, *options], env=here.env, cwd=here.folder, stdout=out, stderr=out))
    return here.daemons[-1]


def _until(done: Callable[[], bool], what: str, *needed: subprocess.Popen[bytes], patience_s: float = 30.0) -> None:
    """Poll until ``done()`` is true; raise if a daemon ends or time is up."""
    deadline = time.monotonic() + patience_s
    while not done():
        for daemon in needed:
            if daemon.poll() is not None:
                raise ChildProcessError(f"{what}: {daemon.args!r} ended with {daemon.returncode}")
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)


if __name__ == "__main__":
    with cluster() as shell:
        subprocess.run([os.environ.get("SHELL", "/bin/sh")], env=shell.env, check=False)

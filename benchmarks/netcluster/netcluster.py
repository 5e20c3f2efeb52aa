#!/usr/bin/env python3
"""A small cluster with slow links on one machine.

    netcluster.py up 2 --link 1gbit,0.2ms
    netcluster.py run --timeout 300 -- python train.py
    netcluster.py exec nc1 -- ping nc2
    netcluster.py traffic
    netcluster.py down

Hosts are network namespaces: nc1 to ncN, and nc0 to start programs from. Each has a full-duplex
link of the given rate and one-way delay to one switch, a bridge in the namespace ncsw. `run`
starts one MPI rank a host with MPICH's mpiexec. All hosts share the machine's cores, files and
memory. Needs root, iproute2, iptables and a C compiler.
"""

import argparse
import contextlib
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
RUN = Path("/run/netcluster")
STATE = RUN / "state.json"
# 198.18.0.0/15 is set aside for benchmarks and routed nowhere.
SUBNET = "198.18.77"
SWITCH = "ncsw"
MOST_HOSTS = 200
NEEDED = {"ip": "iproute2", "iptables": "iptables", "sysctl": "procps", "cc": "gcc"}

# Ranks on one machine would talk through shared memory, and nothing would cross the network.
MPI_OVER_TCP = {
    "MPIR_CVAR_NOLOCAL": "1",
    "MPIR_CVAR_CH4_NETMOD": "ofi",
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": "eth0",
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": "eth0",
    "GLOO_SOCKET_IFNAME": "eth0",
    "HOROVOD_GLOO_IFACE": "eth0",
}

# In place of ssh: drops options before and after the host, then runs the command there.
SSH = r"""#!/bin/bash
host=
while [ $# -gt 0 ]; do
  case $1 in
    -o|-p|-i|-l|-F) shift 2 ;;
    -*) shift ;;
    *) [ -z "$host" ] || break; host=$1; shift ;;
  esac
done
command="$*"
exec ip netns exec "$host" unshare -u sh -c "hostname $host; $command"
"""


class ClusterError(RuntimeError):
    """The cluster cannot be made or used here."""


class Link(NamedTuple):
    """What connects a host with the switch.

    Attributes:
        rate: Bits a second, each way; 0 for as many as the machine can.
        delay: Seconds from host to host.
    """

    rate: float
    delay: float

    @classmethod
    def parse(cls, text: str) -> "Link":
        """From text such as `1gbit,0.2ms`, `100mbit`, `0.2ms` or `none`."""
        found = {"rate": 0.0, "delay": 0.0}
        units = {
            "rate": {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9},
            "delay": {"us": 1e-6, "ms": 1e-3, "s": 1.0},
        }
        for part in text.lower().split(",") if text != "none" else ():
            match = re.fullmatch(r"([\d.]+)([a-z]+)", part.strip())
            kind = next((k for k in units if match and match[2] in units[k]), None)
            if match is None or kind is None:
                raise ClusterError(f"a link is written as 1gbit,0.2ms or none; received {text!r}")
            found[kind] = float(match[1]) * units[kind][match[2]]
        return cls(**found)

    def __str__(self) -> str:
        parts = []
        if self.rate:
            parts.append(f"{self.rate / 1e6:g} Mbit/s")
        if self.delay:
            parts.append(f"{self.delay * 1e3:g} ms")
        return ", ".join(parts) or "as fast as the machine"


class Traffic(NamedTuple):
    """What has crossed a host's network interface since it was made.

    The interface counts a packet that TCP leaves to the card to cut into frames as one, with one
    header. `segments_sent` is the number of TCP segments after the cut.
    """

    bytes_sent: int
    bytes_received: int
    packets_sent: int
    segments_sent: int

    def since(self, before: "Traffic") -> "Traffic":
        """The difference."""
        return Traffic(*(now - then for now, then in zip(self, before, strict=True)))

    @property
    def frame_bytes_sent(self) -> int:
        """Bytes sent as a card would send them: each segment with 66 bytes of headers.

        Ethernet 14, IPv4 20, TCP 20 and its timestamps 12.
        """
        return self.bytes_sent + 66 * max(0, self.segments_sent - self.packets_sent)


class Cluster:
    """Hosts with a slow network, taken down at the end of a `with`.

    Args:
        hosts: How many.
        link: Of each host.
    """

    def __init__(self, hosts: int, link: Link) -> None:
        if not 1 <= hosts <= MOST_HOSTS:
            raise ClusterError(f"a cluster has 1 to {MOST_HOSTS} hosts; received {hosts}")
        self.hosts = hosts
        self.link = link
        self._shaper = 0

    @classmethod
    def found(cls) -> "Cluster":
        """The one that is up."""
        try:
            state = json.loads(STATE.read_text())
        except FileNotFoundError:
            raise ClusterError("no cluster is up: netcluster.py up N") from None
        cluster = cls(state["hosts"], Link(*state["link"]))
        cluster._shaper = state["shaper"]
        return cluster

    def _note(self) -> None:
        STATE.write_text(
            json.dumps({"hosts": self.hosts, "link": self.link, "shaper": self._shaper})
        )

    @property
    def names(self) -> list[str]:
        """Names of the hosts that ranks run on."""
        return [f"nc{number}" for number in range(1, self.hosts + 1)]

    def __enter__(self) -> "Cluster":
        self.up()
        return self

    def __exit__(self, *error: object) -> None:
        take_down()

    def up(self) -> None:
        """Makes the hosts; takes down what was up before."""
        require()
        take_down()
        RUN.mkdir(parents=True, exist_ok=True)
        self._note()
        (RUN / "bin").mkdir(exist_ok=True)
        (RUN / "bin/ssh").write_text(SSH)
        (RUN / "bin/ssh").chmod(0o755)
        call(f"ip netns add {SWITCH}")
        call(f"ip -n {SWITCH} link add br0 type bridge mcast_snooping 0")
        call(f"ip -n {SWITCH} link set br0 up")
        addresses = {"nc0": f"{SUBNET}.254"}
        addresses |= {name: f"{SUBNET}.{i}" for i, name in enumerate(self.names, 1)}
        for number, name in enumerate(addresses):
            self._add_host(number, name, addresses)
        self._start_shaper()

    def _add_host(self, number: int, name: str, addresses: dict[str, str]) -> None:
        # `ip netns exec` mounts these files over those of /etc.
        own_etc = Path("/etc/netns") / name
        own_etc.mkdir(parents=True, exist_ok=True)
        lines = ["127.0.0.1 localhost", *(f"{a} {host}" for host, a in addresses.items())]
        (own_etc / "hosts").write_text("\n".join(lines) + "\n")
        call(f"ip netns add {name}")
        port = f"p{number}"
        call(f"ip link add eth0 netns {name} type veth peer name {port} netns {SWITCH}")
        settings = "net.ipv6.conf.all.disable_ipv6=1 net.ipv4.tcp_no_metrics_save=1"
        call(f"ip netns exec {name} sysctl -qw {settings}")
        call(f"ip -n {name} addr add {addresses[name]}/24 dev eth0")
        call(f"ip -n {SWITCH} link set {port} master br0 up")
        for device in ("lo", "eth0"):
            call(f"ip -n {name} link set {device} up")
        if number > 0:
            for direction, queue in (("PREROUTING -i", 0), ("OUTPUT -o", 1)):
                # While nobody attends to the queues, packets pass.
                target = f"NFQUEUE --queue-num {queue} --queue-bypass"
                rule = f"iptables -t raw -A {direction} eth0 -j {target}"
                call(f"ip netns exec {name} {rule}")

    def _start_shaper(self) -> None:
        if any(self.link):
            program = compile_once("netdelay.c", RUN / "netdelay")
            delay, rate = f"{self.link.delay * 1e6:.3f}", f"{self.link.rate:.0f}"
            with open(RUN / "netdelay.log", "w") as log:
                shaper = subprocess.Popen(
                    [str(program), delay, rate, *self.names],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
            assert shaper.stdout
            if shaper.stdout.readline() != b"ready\n":
                take_down()
                raise ClusterError(f"netdelay: {(RUN / 'netdelay.log').read_text().strip()}")
            self._shaper = shaper.pid
        self._note()

    def _stop_shaper(self) -> None:
        if is_shaper(self._shaper):
            os.kill(self._shaper, signal.SIGTERM)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._shaper, 0)
            wait_until_gone(self._shaper)
        self._shaper = 0

    def check(self) -> None:
        """Raises if the links are not what they should be."""
        if any(self.link) and not is_shaper(self._shaper):
            log = (RUN / "netdelay.log").read_text().strip()
            raise ClusterError(f"netdelay has ended, so the links are not slow: {log}")

    def traffic(self) -> list[Traffic]:
        """Of each host."""
        return [traffic_of(name) for name in self.names]

    def mpi_command(self, program: Sequence[str], ranks: int | None = None) -> list[str]:
        """What starts a program on the hosts, one rank each, or in turns if there are more."""
        mpiexec = os.environ.get("MPIEXEC") or beside_python("mpiexec")
        ranks = ranks or self.hosts
        each = -(-ranks // self.hosts)
        (RUN / "hosts").write_text("".join(f"{name}:{each}\n" for name in self.names))
        launcher = ["-launcher", "ssh", "-launcher-exec", str(RUN / "bin/ssh")]
        hosts = ["-f", str(RUN / "hosts"), "-n", str(ranks)]
        return on_host("nc0", [mpiexec, *launcher, *hosts, *program])


def require() -> None:
    """Raises if this machine or user cannot have a cluster."""
    if os.geteuid() != 0:
        raise ClusterError(
            "network namespaces need root: start this as root, or measure without the emulated "
            "network"
        )
    for program, package in NEEDED.items():
        if shutil.which(program) is None:
            raise ClusterError(f"{program} is missing; on Debian: apt-get install {package}")


def call(command: str, allowed_to_fail: bool = False) -> str:
    """A command's output."""
    done = subprocess.run(shlex.split(command), capture_output=True, text=True)
    if done.returncode and not allowed_to_fail:
        raise ClusterError(f"{command}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def compile_once(source: str, program: Path, *flags: str) -> Path:
    """A program from C, made again when its source is newer."""
    path = HERE / source
    if not program.exists() or program.stat().st_mtime < path.stat().st_mtime:
        call(shlex.join(["cc", "-O2", *flags, "-o", str(program), str(path)]))
    return program


def beside_python(program: str) -> str:
    """A program of this Python's environment, or else of the search path."""
    beside = Path(sys.executable).with_name(program)
    found = str(beside) if beside.exists() else shutil.which(program)
    if found is None:
        raise ClusterError(f"{program} is missing; pip install 'tf-dslide[mpi]'")
    return found


def on_host(name: str, command: Iterable[str]) -> list[str]:
    """A command that runs another one on a host."""
    inner = ["unshare", "-u", "sh", "-c", f'hostname {name}; exec "$@"', "sh", *command]
    return ["ip", "netns", "exec", name, *inner]


def traffic_of(name: str) -> Traffic:
    """Of one host."""
    link = json.loads(call(f"ip -n {name} -s -j link show eth0"))[0]["stats64"]
    lines = call(f"ip netns exec {name} cat /proc/net/snmp").splitlines()
    names, numbers = (line.split() for line in lines if line.startswith("Tcp:"))
    segments = int(dict(zip(names, numbers, strict=True))["OutSegs"])
    return Traffic(link["tx"]["bytes"], link["rx"]["bytes"], link["tx"]["packets"], segments)


def is_shaper(process: int) -> bool:
    """Whether a process is a running netdelay."""
    try:
        name, rest = Path(f"/proc/{process}/stat").read_text().split("(", 1)[1].rsplit(")", 1)
    except (OSError, IndexError):
        return False
    return name == "netdelay" and rest.split()[0] != "Z"


def wait_until_gone(process: int) -> None:
    for _ in range(100):
        if not is_shaper(process):
            return
        time.sleep(0.02)
    raise ClusterError(f"netdelay (process {process}) does not end")


def take_down() -> None:
    """Ends what runs on the hosts and removes them; does nothing if there are none."""
    with contextlib.suppress(ClusterError):
        Cluster.found()._stop_shaper()
    listed = call("ip netns list", allowed_to_fail=True)
    ours = {os.getpid(), os.getppid()}
    for name in re.findall(rf"^(nc\d+|{SWITCH})\b", listed, re.MULTILINE):
        for process in call(f"ip netns pids {name}", allowed_to_fail=True).split():
            if int(process) not in ours:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
        call(f"ip netns del {name}", allowed_to_fail=True)
        shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)
    STATE.unlink(missing_ok=True)


def run(program: Sequence[str], ranks: int | None, spin: bool, timeout: float | None) -> int:
    """Runs a program on the hosts of the cluster that is up; returns its exit status."""
    cluster = Cluster.found()
    environment = {**os.environ, **MPI_OVER_TCP}
    if not spin:
        library = compile_once("nospin.c", RUN / "nospin.so", "-shared", "-fPIC")
        environment["LD_PRELOAD"] = str(library)
    before, begin = cluster.traffic(), time.monotonic()
    job = subprocess.Popen(cluster.mpi_command(program, ranks), env=environment)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: job.terminate())  # mpiexec then ends its ranks
    try:
        status = job.wait(timeout)
    except subprocess.TimeoutExpired:
        print(f"netcluster: ended after {timeout:g} s", file=sys.stderr)
        job.terminate()
        job.wait()
        status = 124
    print(f"netcluster: status {status}, {time.monotonic() - begin:.2f} s", file=sys.stderr)
    show_traffic(cluster, before)
    cluster.check()
    return status if status >= 0 else 128 - status


def show_traffic(cluster: Cluster, before: Sequence[Traffic] | None = None) -> None:
    before = before or [Traffic(0, 0, 0, 0)] * cluster.hosts
    for name, now, then in zip(cluster.names, cluster.traffic(), before, strict=True):
        traffic = now.since(then)
        print(
            f"{name}: {traffic.bytes_sent:,} bytes sent ({traffic.frame_bytes_sent:,} as frames of "
            f"1,500), {traffic.bytes_received:,} received",
            file=sys.stderr,
        )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="make hosts")
    up.add_argument("hosts", type=int)
    up.add_argument("--link", default="none", help="rate,delay such as 1gbit,0.2ms")
    runner = commands.add_parser("run", help="run an MPI program on the hosts")
    runner.add_argument("-n", dest="ranks", type=int, help="ranks; one a host if not given")
    runner.add_argument("--spin", action="store_true", help="let MPI poll without sleeping")
    runner.add_argument("--timeout", type=float, help="seconds")
    runner.add_argument("program", nargs="+")
    executor = commands.add_parser("exec", help="run a command on one host")
    executor.add_argument("host")
    executor.add_argument("program", nargs="+")
    commands.add_parser("traffic", help="what has crossed each host's interface")
    commands.add_parser("down", help="remove the hosts")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    try:
        require()
        if args.command in ("up", "down"):
            # One at a time; given back when this process ends.
            lock = open("/run/netcluster.lock", "w")  # noqa: SIM115
            fcntl.flock(lock, fcntl.LOCK_EX)
        if args.command == "up":
            Cluster(args.hosts, Link.parse(args.link)).up()
        elif args.command == "down":
            take_down()
        elif args.command == "run":
            return run(args.program, args.ranks, args.spin, args.timeout)
        elif args.command == "traffic":
            show_traffic(Cluster.found())
        else:
            Cluster.found()
            command = on_host(args.host, args.program)
            os.execvp(command[0], command)
    except ClusterError as error:
        print(f"netcluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Both kinds of sandbox on this machine, with real processes: what they run, hold back and leave behind (case L17)."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from practicum.errors import NotFound, SandboxError, UsageError
from practicum.sandboxes.bubblewrap import BubblewrapProvider
from practicum.sandboxes.choose import AutoProvider
from practicum.sandboxes.folder import MARK, sweep
from practicum.sandboxes.local import FolderSandbox, LocalProvider
from practicum.sandboxes.sandbox import Limits, SandboxProvider, SandboxSpec


def _bubblewrap_works() -> bool:
    options = ["--ro-bind", "/", "/", "--unshare-all", "--unshare-user"]
    try:
        return subprocess.run(["bwrap", *options, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


BWRAP = pytest.mark.skipif(not _bubblewrap_works(), reason="bubblewrap is not installed or not allowed here")
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


def marked(owner: int | None = None) -> list[str]:
    """The command lines of processes, anywhere on this machine, that run in a sandbox of this test run's."""
    mark = f"{MARK}={owner or os.getpid()}-".encode()
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (proc / "environ").read_bytes():
                found.append((proc / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def keepers() -> list[int]:
    out = subprocess.run(["ps", "-wwaxo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=2) for line in out.splitlines()]
    return [int(pid) for pid, parent, args in rows if int(parent) == os.getpid() and "keeper.py" in args]


def left(base: Path) -> list[Path]:
    return list(base.iterdir()) if base.exists() else []


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    base = tmp_path / "boxes"
    yield base
    assert marked() == []
    assert keepers() == []
    assert left(base) == []


@pytest.fixture(params=["local", pytest.param("bubblewrap", marks=BWRAP)])
def provider(request: pytest.FixtureRequest, base: Path) -> SandboxProvider:
    kinds: dict[str, Callable[[Path], SandboxProvider]] = {"local": LocalProvider, "bubblewrap": BubblewrapProvider}
    return kinds[request.param](base)


async def test_a_command_gets_files_input_and_environment_and_says_how_it_ended(provider: SandboxProvider) -> None:
    spec = SandboxSpec(files={"in/a": "text", "in/b": b"\xff"}, env={"OURS": "1"})
    async with provider.open(spec) as box:
        script = 'cat in/a; cat; echo "$OURS $MORE" >&2; env | cut -d= -f1 | sort | tr "\\n" " " > env; exit 7'
        done = await box.run(["sh", "-c", script], stdin="from stdin", env={"MORE": "2"})
        assert (done.exit_code, done.stdout, done.stderr) == (7, "textfrom stdin", "1 2\n")
        names = set((await box.read("env")).split()) - {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}
        assert names == {"HOME", "PATH", "TMPDIR", "OURS", "MORE", MARK}
        where = await box.run(["sh", "-c", 'pwd; cd "$HOME" && touch x; cd "$TMPDIR" && touch x'])
        assert (where.stdout.strip(), where.stderr) == (box.workdir, "")
        assert await box.list_files() == ["env", "in/a", "in/b"]
        assert (await box.run(["sh", "-c", "kill -9 $$"])).exit_code == 137
        assert (await box.run([sys.executable, "-c", "print(chr(233))"], env={"PYTHONUTF8": "1"})).stdout == "é\n"


async def test_what_cannot_be_started_is_named(provider: SandboxProvider) -> None:
    async with provider.open(SandboxSpec(files={"text": "no program"})) as box:
        with pytest.raises(SandboxError, match=r"no-such-program could not be started: No such file"):
            await box.run(["no-such-program", "x"])
        with pytest.raises(SandboxError, match="Permission denied"):
            await box.run(["./text"])
        with pytest.raises(SandboxError, match="no command"):
            await box.run([])
        with pytest.raises(SandboxError, match="could not be started"):
            await box.run(["sh", "-c", "true", "x" * 200_000])
        assert (await box.run(["true"])).exit_code == 0


async def test_a_closed_input_a_dead_reader_and_binary_output_are_no_trouble(provider: SandboxProvider) -> None:
    async with provider.open(SandboxSpec()) as box:
        assert (await box.run(["true"], stdin="x" * 1_000_000)).exit_code == 0
        assert (await box.run(["sh", "-c", "exec <&-; sleep 0.05; echo on"], stdin="x" * 300_000)).stdout == "on\n"
        done = await box.run([sys.executable, "-c", "import os; os.write(1, bytes(range(256)) * 9)"])
        assert done.exit_code == 0 and "�" in done.stdout and not done.cut
        assert (await box.run(["sh", "-c", "exec >&- 2>&-; exit 5"])).exit_code == 5


async def test_a_flood_is_cut_in_the_middle_and_costs_bounded_memory(provider: SandboxProvider) -> None:
    async with provider.open(SandboxSpec(limits=Limits(output_bytes=10_000))) as box:
        done = await box.run(["sh", "-c", "echo first; head -c 40000000 /dev/zero | tr '\\0' x; echo last"])
        assert done.cut and done.exit_code == 0
        assert done.stdout.startswith("first\n") and done.stdout.endswith("last\n")
        assert len(done.stdout) < 10_100 and "bytes left out" in done.stdout


# Each leaves processes behind in its own way: a daemon in its own session, one deaf to signals, a bush of children.
LEAVERS = {
    "double fork": "(setsid sh -c 'sleep 300 & sleep 300' >/dev/null 2>&1 &) ; ",
    "deaf": "(trap '' TERM HUP INT; sleep 300 & while :; do sleep 1; done) & ",
    "bush": "for i in 1 2 3 4 5 6 7 8; do (sleep 300 & sleep 300 & wait) & done; ",
    "nohup": "nohup setsid nohup sleep 300 >/dev/null 2>&1 & ",
    "stopped": "sh -c 'kill -STOP $$' & ",
}


@pytest.mark.parametrize("leaver", LEAVERS.values(), ids=LEAVERS.keys())
async def test_l17_nothing_outlives_a_command_that_ends_or_times_out(provider: SandboxProvider, leaver: str) -> None:
    async with provider.open(SandboxSpec()) as box:
        done = await box.run(["sh", "-c", leaver + "echo up"], timeout_s=20)
        assert done.stdout == "up\n" and not done.timed_out
        assert marked() == []
        for limit_s in (0.5, 4.0, 20.0):  # on a busy machine it may not have come up before the first
            begun = time.monotonic()
            line = leaver + "trap '' TERM; echo up; while :; do sleep 1; done"
            done = await box.run(["sh", "-c", line], timeout_s=limit_s)
            assert done.timed_out and done.exit_code is None
            assert time.monotonic() - begun < limit_s + 5
            if done.stdout:
                break
        assert done.stdout == "up\n"
        assert marked() == []


async def _cancelled_after(seconds: float, provider: SandboxProvider) -> None:
    async def rollout() -> None:
        async with provider.open(SandboxSpec(files={"a": "b"})) as box:
            await box.run(["sh", "-c", LEAVERS["double fork"] + LEAVERS["deaf"] + "sleep 300"])

    task = asyncio.create_task(rollout())
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()  # an impatient second one must not cut the cleaning short
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_l17_nothing_survives_a_cancellation_at_any_stage(provider: SandboxProvider, base: Path) -> None:
    for seconds in (0, 0.005, 0.01, 0.02, 0.04, 0.06, 0.09, 0.13, 0.2, 0.3, 0.6):
        await _cancelled_after(seconds, provider)
        assert marked() == []
        assert left(base) == []


async def test_l17_nothing_survives_a_failed_start(provider: SandboxProvider, base: Path) -> None:
    with pytest.raises(UsageError):
        async with provider.open(SandboxSpec(files={"../out": "x"})):
            pass
    with pytest.raises(ZeroDivisionError):
        async with provider.open(SandboxSpec()) as box:
            await box.run(["sh", "-c", "mkdir -p d/e; touch d/e/f; chmod 000 d/e d"])
            raise ZeroDivisionError
    assert left(base) == []


DIE = """
import asyncio, sys
from pathlib import Path
from practicum.sandboxes.{module} import {provider}
from practicum.sandboxes.sandbox import SandboxSpec

async def main():
    async with {provider}(Path(sys.argv[1])).open(SandboxSpec()) as box:
        asyncio.get_running_loop().call_later(float(sys.argv[2]), lambda: print("up", flush=True))
        await box.run(["sh", "-c", "(setsid sleep 300 &); sleep 300"])

asyncio.run(main())
"""


def killed_while_running(script: str, base: Path) -> str:
    """Kill -9 a process with an open sandbox, wait until what ran inside is dead, and return the sandbox's name."""
    with subprocess.Popen([sys.executable, "-c", script, str(base), "0.5"], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == b"up\n"
        name = next(base.glob("*.lock")).stem
        assert sweep(base) == []  # its owner lives
        assert marked(parent.pid)
        parent.kill()
    deadline = time.monotonic() + 10
    while marked(parent.pid):
        assert time.monotonic() < deadline, "a process outlived its killed owner"
        time.sleep(0.02)
    assert (base / name).is_dir()
    return name


@LINUX
@pytest.mark.parametrize(
    ("module", "kind"), [("local", "LocalProvider"), pytest.param("bubblewrap", "BubblewrapProvider", marks=BWRAP)]
)
async def test_l17_after_kill_9_processes_die_and_the_next_start_removes_the_folder(
    base: Path, module: str, kind: str
) -> None:
    name = killed_while_running(DIE.format(module=module, provider=kind), base)
    async with LocalProvider(base).open(SandboxSpec()):
        assert not (base / name).exists()


@LINUX
async def test_l17_a_command_that_kills_its_own_keeper_leaves_nothing_either(base: Path) -> None:
    async with LocalProvider(base).open(SandboxSpec()) as box:
        done = await box.run(["sh", "-c", "(setsid sleep 300 &); kill -9 $PPID; sleep 300"], timeout_s=20)
        assert done.exit_code == 137 and not done.timed_out


async def test_limits_end_the_whole_tree_and_are_named(provider: SandboxProvider) -> None:
    spin = "while :; do :; done"
    async with provider.open(SandboxSpec(limits=Limits(cpu_s=1, file_bytes=100_000, processes=30))) as box:
        done = await box.run(["sh", "-c", f"({spin}) & ({spin}) & wait"], timeout_s=30)
        assert done.over == "cpu" and done.exit_code == 137
        assert (await box.run(["sh", "-c", "head -c 200000 /dev/zero > big"])).exit_code != 0
        assert len(await box.read("big")) == 100_000
        done = await box.run(["sh", "-c", "for i in $(seq 60); do sleep 300 & done; wait"], timeout_s=30)
        assert done.over == "processes"
    eat = "import time; x = bytearray(%d); x[::4096] = b'1' * len(x[::4096]); print('ate', flush=True); time.sleep(%d)"
    async with provider.open(SandboxSpec(limits=Limits(memory_bytes=300_000_000))) as box:
        done = await box.run([sys.executable, "-c", eat % (400_000_000, 0)])
        assert "MemoryError" in done.stderr and done.exit_code == 1
        part = f'{sys.executable} -c "{eat % (150_000_000, 60)}"'
        done = await box.run(["sh", "-c", f"{part} & {part} & {part} & wait"], timeout_s=50)
        assert done.over == "memory"


async def test_paths_never_lead_outside_even_through_what_the_inside_planted(
    provider: SandboxProvider, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("keep out")
    async with provider.open(SandboxSpec(files={"f": "x"})) as box:
        plant = f"ln -s {tmp_path} dir; ln -s {secret} link; ln -s {box.workdir}/f alias; mkfifo pipe; mkdir real"
        assert (await box.run(["sh", "-c", plant])).exit_code == 0
        for path in ("../x", "/etc/passwd", "a/../../x", "", ".", "..", "dir/secret", "link", "alias", "real", "f/x"):
            with pytest.raises(UsageError):
                await box.read(path)
        for path in ("../x", "/etc/x", "dir/new", "f/x", "a\0b", "n" * 300):
            with pytest.raises(UsageError):
                await box.write(path, "x")
        with pytest.raises(UsageError):
            await box.read("pipe")
        with pytest.raises(NotFound):
            await box.read("none/at/all")
        await box.write("link", "replaced")
        assert await box.read("link") == "replaced" and secret.read_text() == "keep out"
        assert not (tmp_path / "new").exists()
        assert await box.list_files() == ["f", "link"]
        await box.write(f"{box.workdir}/real/../g", "y")
        assert await box.read("./g") == "y"


async def test_odd_names_and_sizes(provider: SandboxProvider) -> None:
    async with provider.open(SandboxSpec()) as box:
        make = "import os; [open(n, 'w').write('x') for n in (b'a b', b'n\\nl', b'\\xff', b'-rf', '\\u00e9'.encode())]"
        assert (await box.run([sys.executable, "-X", "utf8", "-c", make])).exit_code == 0
        names = await box.list_files()
        assert set(names) == {"a b", "n\nl", "\udcff", "-rf", "é"}
        assert [await box.read(name) for name in names] == ["x"] * 5
        assert (await box.run(["sh", "-c", "truncate -s 40G sparse; mkdir -p " + "d/" * 500])).exit_code == 0
        assert len(await box.read("sparse", most_bytes=1000)) == 1000
        assert len(await box.list_files(most=2)) == 2
        await box.write("run me.sh", "#!/bin/sh\necho ran\n", executable=True)
        assert (await box.run(["./run me.sh"])).stdout == "ran\n"


async def test_fifty_at_once(provider: SandboxProvider) -> None:
    async def one(number: int) -> str:
        async with provider.open(SandboxSpec(files={"n": str(number)})) as box:
            return (await box.run(["sh", "-c", "cat n; (setsid sleep 300 &)"], timeout_s=120)).stdout

    assert await asyncio.gather(*(one(number) for number in range(50))) == [str(number) for number in range(50)]


@asynccontextmanager
async def gateway() -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int((await reader.readline()).split()[1])
        writer.write(b"y" * size)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


ASK = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=10) as link:
    link.sendall(b"give %d\\n" % int(sys.argv[2]))
    link.shutdown(socket.SHUT_WR)
    print(sum(len(part) for part in iter(lambda: link.recv(65536), b"")))
"""


@BWRAP
async def test_bubblewrap_reaches_the_gateway_at_its_own_address_and_nothing_else(base: Path) -> None:
    async with gateway() as port, gateway() as other:
        spec = SandboxSpec(gateway=f"http://127.0.0.1:{port}/s/x")
        async with BubblewrapProvider(base).open(spec) as box:
            ask = [sys.executable, "-c", ASK]
            runs = (box.run([*ask, str(port), "5000000"]) for _ in range(4))
            assert [run.stdout for run in await asyncio.gather(*runs)] == ["5000000\n"] * 4
            assert "ConnectionRefused" in (await box.run([*ask, str(other), "1"])).stderr
            assert (await box.run(["sh", "-c", "exec 9<>/dev/tcp/1.1.1.1/53"], timeout_s=5)).exit_code != 0
    async with BubblewrapProvider(base).open(spec) as box:  # the gateway is gone
        assert (await box.run([*ask, str(port), "1"], timeout_s=20)).exit_code is not None
    with pytest.raises(SandboxError, match="cannot be reached from a sandbox without network"):
        async with BubblewrapProvider(base).open(SandboxSpec(gateway="http://10.1.2.3:80")) as box:
            pass


@BWRAP
async def test_bubblewrap_hides_and_holds_back(base: Path, tmp_path: Path) -> None:
    hidden = Path(__file__).parent  # below no folder that is covered anyway
    async with BubblewrapProvider(base, hide=[hidden]).open(SandboxSpec(workdir="/app")) as box:
        assert box.workdir == "/app"
        look = f"ls {hidden} {tmp_path} /run; ls -d /proc/[0-9]* | wc -l; touch /usr/x; touch /x; touch /app/ok"
        done = await box.run(["sh", "-c", look])
        assert Path(__file__).name not in done.stdout and done.stderr.count("Read-only file system") == 2
        assert int(next(line for line in done.stdout.splitlines() if line.strip().isdigit())) < 8
        assert await box.list_files() == ["ok"]


@BWRAP
async def test_bubblewrap_places_fresh_folders_over_what_the_inside_left(base: Path) -> None:
    async with BubblewrapProvider(base).open(SandboxSpec()) as box:
        await box.place("/logs/verifier", {})
        await box.run(["sh", "-c", "echo 1 > /logs/verifier/reward.txt; ln -s /etc /logs/verifier/etc"])
        assert await box.read("/logs/verifier/reward.txt") == "1\n"
        await box.place("/logs/verifier", {"t/x": b"\x00"})
        assert (await box.run(["sh", "-c", "cd /logs/verifier; find . -type f"])).stdout == "./t/x\n"
        with pytest.raises(NotFound):
            await box.read("/logs/verifier/reward.txt")
        for folder in ("/", "tests", "/proc/x", "/sandbox", box.workdir):
            with pytest.raises(UsageError):
                await box.place(folder, {})


async def test_local_says_what_it_cannot_do(base: Path) -> None:
    with pytest.raises(SandboxError, match="bubblewrap"):
        async with LocalProvider(base).open(SandboxSpec(workdir="/app")):
            pass
    async with LocalProvider(base).open(SandboxSpec()) as box:
        with pytest.raises(SandboxError, match="bubblewrap"):
            await box.place("/tests", {})
        await box.run(["sh", "-c", "rm -rf ../work ../home ../tmp"])
        assert (await box.run(["sh", "-c", "touch x $HOME/x $TMPDIR/x"])).exit_code == 0


async def test_without_bubblewrap_auto_falls_back_and_says_so(base: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = BubblewrapProvider(base, bwrap="false")  # it is there, and cannot make a sandbox
    with pytest.raises(SandboxError, match=r"docs/sandboxes\.md"):
        await broken.check()
    with pytest.raises(SandboxError, match="apt-get install bubblewrap"):
        await BubblewrapProvider(base, bwrap="no-such-bwrap").check()
    auto = AutoProvider(broken, LocalProvider(base))
    for _ in range(2):
        async with auto.open(SandboxSpec()) as box:
            assert isinstance(box, FolderSandbox) and (await box.run(["true"])).exit_code == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_a_base_that_others_could_look_into_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "base"
    os.mkdir(open_to_all, 0o755)  # noqa: PTH102
    with pytest.raises(SandboxError, match="private folder"):
        async with LocalProvider(open_to_all).open(SandboxSpec()):
            pass


async def test_a_terminated_keeper_takes_its_command_along(base: Path) -> None:
    async with LocalProvider(base).open(SandboxSpec()) as box:
        run = asyncio.create_task(box.run(["sh", "-c", "echo up; sleep 300"]))
        async with asyncio.timeout(10):
            while not any("sleep" in line for line in marked()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        os.kill(keepers()[0], signal.SIGTERM)
        assert (await run).exit_code == 137


@BWRAP
async def test_bubblewrap_itself_takes_nothing_from_a_task_s_environment(base: Path, tmp_path: Path) -> None:
    traces = tmp_path / "traces"  # where the loader of a program outside would write, as LD_PRELOAD would run code
    traces.mkdir()
    env = {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(traces / "trace"), "SAID": "a=b\nc"}
    async with BubblewrapProvider(base).open(SandboxSpec(env=env)) as sandbox:
        exited = await sandbox.run(["sh", "-c", 'printf "%s|%s" "$SAID" "$MORE"'], env={"MORE": "é"})
        for wrong in ({"A=B": "x"}, {"": "x"}, {"A": "x\0--bind\0/\0/"}, {"A\0": "x"}, {"A": "\ud800"}):
            with pytest.raises(SandboxError, match="environment"):
                await sandbox.run(["true"], env=wrong)
    assert exited.stdout.endswith("a=b\nc|é")  # behind the trace of the shell inside
    assert list(traces.iterdir()) == []

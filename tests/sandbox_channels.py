"""Ways in which one sandboxed episode might leave a mark for another: `python sandbox_channels.py WHERE EPISODES`
counts those that are seen, as JSON.

WHERE is one of sandbox.walls.KINDS; `denied` for Landlock where namespaces are denied (run it within hostile.jail); or
`none`, which is for jails only. An episode looks, another one marks every channel, further ones look again: after its
end (`one_after_another`), and while it runs (`at_once`). A mark is seen if the two looks differ by at least the
channel's step; a look that is refused sees nothing."""

import asyncio, json, os, stat, sys, textwrap, time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import islice

from mcp_grpo.sandbox.box import Interpreter, Sandbox
from mcp_grpo.sandbox.walls import KINDS, Limits

AT_ONCE = 4  # episodes that mark, and as many that look, at the same time
DEATHS = 5  # how often an episode ends its own process, where that is its mark


@dataclass(frozen=True)
class Channel:
    "A way from one episode to another."

    name: str
    look: str  # body of a function of `n`, the number of the mark, that returns a number
    mark: str = "pass"  # body of a function of `n`; nothing where being there, or having died, is the mark
    hold: str = "pass"  # what the marking episode does until the others have looked
    step: float = 1  # what a mark adds to the number at least
    fresh: bool = False  # the first look takes the mark of another number, since looking changes what is seen
    stays_open: tuple = ()  # where it cannot be closed; the notebooks of nbs/02_sandbox say why


PRELUDE = """
import builtins, ctypes, fcntl, json, mmap, os, platform, random, resource, signal, socket, struct, sys, time
import numpy
libc, kept = ctypes.CDLL(None, use_errno=True), globals().setdefault("kept", [])
arm = platform.machine() == "aarch64"
def call(x86, generic, *args):
    "A system call by its number."
    result = libc.syscall(*(ctypes.c_long(a) if isinstance(a, int) else a for a in (generic if arm else x86, *args)))
    if result < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def shared_page(path=os.__file__):
    "The address of the first page of a file, mapped as shared."
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    file = os.open(path, os.O_RDONLY)
    address = libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
    os.close(file)
    return ctypes.c_void_p(address)
def pids(): return [pid for pid in {*range(1, 400), *range(max(1, os.getpid() - 400), os.getpid() + 400)} if pid != os.getpid()]
def count(f, items):
    "How many of these items f does not fail for."
    found = 0
    for item in items:
        try: f(item)
        except OSError: continue
        found += 1
    return found
"""  # noqa: E501

NAMES = (
    "limits maps sched io cmdline comm environ auxv statm smaps wchan stack schedstat cpuset cgroup oom_score oom_adj "
    "sessionid coredump_filter loginuid numa_maps mem"
).split()

CHANNELS = (
    # open files
    Channel(
        "status flags of descriptors 0 to 2",
        "return sum(fcntl.fcntl(f, fcntl.F_GETFL) & (os.O_NONBLOCK | os.O_APPEND) for f in range(3))",
        "for f in range(3): fcntl.fcntl(f, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND)",
    ),
    Channel(
        "owner of descriptors 0 to 2",
        "return sum(fcntl.fcntl(f, fcntl.F_GETOWN) != 0 for f in range(3))",
        "for f in range(3): fcntl.fcntl(f, fcntl.F_SETOWN, os.getpid())",
    ),
    Channel(
        "record locks",
        (
            "return struct.unpack('h', fcntl.fcntl(open(os.__file__), fcntl.F_GETLK, struct.pack('hhqqi4x', "
            "fcntl.F_WRLCK, 0, 77, 1, 0))[:2])[0] != fcntl.F_UNLCK"
        ),
        "kept.append(open(os.__file__))\nfcntl.lockf(kept[-1], fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 77)",
    ),
    Channel(
        "flock",
        (
            "try: fcntl.flock(open(os.__file__), fcntl.LOCK_EX | fcntl.LOCK_NB)\nexcept BlockingIOError: return "
            "1\nreturn 0"
        ),
        "kept.append(open(os.__file__))\nfcntl.flock(kept[-1], fcntl.LOCK_SH | fcntl.LOCK_NB)",
    ),
    # the files that all may read
    Channel(
        "time of access of a library file",
        "return os.stat(FILES[n]).st_atime",
        "open(FILES[n], 'rb').read(1)",
        step=1e-6,
    ),
    Channel(
        "time of access of a library folder", "return os.stat(FOLDERS[n]).st_atime", "os.listdir(FOLDERS[n])", step=1e-6
    ),
    Channel("time of change of a library file", "return os.stat(FILES[n]).st_mtime", "os.utime(FILES[n])"),
    Channel(
        "page cache, by mincore",
        (
            "seen = ctypes.create_string_buffer(1)\nif libc.mincore(shared_page(FILES[n]), ctypes.c_size_t(4096), "
            "seen): raise OSError\nreturn seen.raw[0] & 1"
        ),
        "open(FILES[n], 'rb').read(1)",
    ),
    Channel(
        "page cache, by cachestat",
        (
            "seen = (ctypes.c_ulonglong * 5)()\ncall(451, 451, os.open(FILES[n], os.O_RDONLY), (ctypes.c_ulonglong * "
            "2)(0, 4096), seen, 0)\nreturn seen[0]"
        ),
        "open(FILES[n], 'rb').read(1)",
    ),
    Channel(
        "page cache, by page faults",
        (
            "before = "
            "resource.getrusage(resource.RUSAGE_SELF).ru_majflt\nctypes.string_at(shared_page(FILES[n]).value, "
            "1)\nreturn before - resource.getrusage(resource.RUSAGE_SELF).ru_majflt"
        ),
        "open(FILES[n], 'rb').read(1)",
        fresh=True,
    ),
    Channel(
        "inotify",
        (
            "watch = call(294, 26, os.O_NONBLOCK)\ncall(254, 27, watch, os.__file__.encode(), "
            "0x20)\ntime.sleep(0.05)\nreturn len(os.read(watch, 1 << 16)) > 0"
        ),
        hold="while True:\n    open(os.__file__).close()\n    time.sleep(0.005)",
    ),
    # memory
    Channel(
        "futex on a page of a library file",
        "return call(202, 98, shared_page(), 1, 100, None, None, 0)",
        hold="page = shared_page()\nvalue = ctypes.cast(page, ctypes.POINTER(ctypes.c_uint))[0]\n"
        "while True:\n    try: call(202, 98, page, 0, value, struct.pack('qq', 0, 50_000_000), None, 0)\n    "
        "except TimeoutError: pass",
    ),
    Channel(
        "free memory",
        (
            "room = ctypes.create_string_buffer(256)\nif libc.sysinfo(room): raise OSError\nreturn "
            "-struct.unpack_from('Q', room, 40)[0] / 2**20"
        ),
        "kept.append(b'x' * (80 << 20))",
        step=60,
    ),
    Channel(
        "memory of all folders",
        (
            "room = ctypes.create_string_buffer(256)\nif libc.sysinfo(room): raise OSError\nreturn "
            "struct.unpack_from('Q', room, 48)[0] / 2**20"
        ),
        "open('much', 'wb').write(bytes(20 << 20))",
        step=15,
    ),
    Channel(
        "System V shared memory",
        "return call(29, 194, 77000 + n, 100, 0o600) >= 0",
        "call(29, 194, 77000 + n, 100, 0o1600)",
    ),
    Channel("System V messages", "return call(68, 186, 77000 + n, 0o600) >= 0", "call(68, 186, 77000 + n, 0o1600)"),
    Channel(
        "POSIX messages",
        "return call(240, 180, b'mark%d' % n, 0, 0, None) >= 0",
        "call(240, 180, b'mark%d' % n, os.O_CREAT | os.O_RDWR, 0o600, None)",
    ),
    Channel(
        "keyrings",
        "return call(250, 219, 10, -4, b'user', b'mark%d' % n, 0) > 0",
        "call(248, 217, b'user', b'mark%d' % n, b'x', 1, -4)",
    ),
    # objects of the process that children are forked from
    Channel(
        "objects and modules",
        "return hasattr(builtins, 'mark') + hasattr(numpy, 'mark') + ('MARK' in os.environ)",
        "builtins.mark = numpy.mark = n\nos.environ['MARK'] = 'x'",
    ),
    Channel(
        "state of random numbers",
        "return (random.getstate()[1][0] + int(numpy.random.get_state()[1][0])) % 1_000_003",
        "random.seed(n + 1)\nnumpy.random.seed(n + 1)",
    ),
    Channel(
        "working folder and umask",
        "mask = os.umask(0)\nos.umask(mask)\nreturn mask + 1000 * (os.getcwd() == '/')",
        "os.umask(0o123)\nos.chdir('/')",
    ),
    Channel(
        "resource limits",
        "return -resource.getrlimit(resource.RLIMIT_NOFILE)[0]",
        "for pid in (0, os.getppid()): resource.prlimit(pid, resource.RLIMIT_NOFILE, (40, 40))",
    ),
    # files that an episode may make
    Channel(
        "files",
        (
            "return count(os.stat, [f'{place}/mark{n}' for place in ('.', '/tmp', '/var/tmp', '/dev/shm', '/run', "
            "os.path.dirname(os.__file__))])"
        ),
        (
            "for place in ('.', '/tmp', '/var/tmp', '/dev/shm', '/run', os.path.dirname(os.__file__)): count(lambda "
            "path: open(path, 'w').close(), [f'{place}/mark{n}'])"
        ),
    ),
    Channel("device numbers of folders", "return os.minor(os.stat('.').st_dev)", stays_open=KINDS),
    # names
    Channel(
        "abstract sockets",
        "socket.socket(socket.AF_UNIX).connect('\\0mark%d' % n)\nreturn 1",
        "kept.append(socket.socket(socket.AF_UNIX))\nkept[-1].bind('\\0mark%d' % n)\nkept[-1].listen()",
    ),
    Channel(
        "name of a process",
        "return count(lambda pid: 'mark' in open(f'/proc/{pid}/comm').read() or os.stat('/no'), pids())",
        "libc.prctl(15, b'mark', 0, 0, 0)",
    ),
    Channel("name of the machine", "return 'mark' in os.uname().nodename", "socket.sethostname('mark')"),
    # pipes and sockets
    Channel(
        "inode numbers, by socket pairs",
        "return os.fstat(3).st_ino",
        "for _ in range(8000): [end.close() for end in socket.socketpair()]",
        step=14_000,
    ),
    Channel(
        "inode numbers, by pipes",
        "return os.fstat(3).st_ino",
        "for _ in range(16_000): [os.close(end) for end in os.pipe()]",
        step=14_000,
    ),
    Channel(
        "capacity of pipes",
        "return -fcntl.fcntl(os.pipe()[0], 1032)",
        "for _ in range(25):\n    kept.append(os.pipe())\n    fcntl.fcntl(kept[-1][0], 1031, 1 << 20)",
    ),
    # scheduling
    Channel(
        "priority of all processes of a user",
        "return os.getpriority(os.PRIO_PROCESS, 0)",
        "os.setpriority(os.PRIO_USER, 0, 7)",
    ),
    Channel("affinity", "return -len(os.sched_getaffinity(0))", "os.sched_setaffinity(os.getppid(), {0})"),
    Channel(
        "scheduling policy",
        "return os.sched_getscheduler(0)",
        "os.sched_setscheduler(os.getppid(), os.SCHED_BATCH, os.sched_param(0))",
    ),
    Channel(
        "priority of input and output", "return call(252, 31, 1, 0)", "call(251, 30, 3, os.getuid(), (2 << 13) | 6)"
    ),
    Channel(
        "processor time of other processes",
        (
            "found = 0\nfor pid in pids():\n    try: found += time.clock_gettime((~pid << 3) | 2)\n    except "
            "OSError: pass\nreturn found"
        ),
        "began = time.process_time()\nwhile time.process_time() < began + 0.05: pass",
        step=0.04,
    ),
    # processes
    Channel("process numbers", "return os.getpid()", step=DEATHS, stays_open=("denied",)),
    Channel("which processes exist, by session", "return count(os.getsid, pids())", step=AT_ONCE),
    Channel("which processes exist, by affinity", "return count(os.sched_getaffinity, pids())", step=AT_ONCE),
    Channel("which processes exist, by signal", "return count(lambda pid: os.kill(pid, 0), pids())", step=AT_ONCE),
    Channel(
        "which processes exist, by /proc",
        "return count(os.stat, [f'/proc/{pid}' for pid in pids()])",
        step=AT_ONCE,
        stays_open=("denied",),
    ),
    Channel(
        "number of open files, by /proc",
        (
            "found = 0\nfor pid in pids():\n    try: found += os.stat(f'/proc/{pid}/fd').st_size\n    except OSError: "
            "pass\nreturn found"
        ),
        "kept.extend(os.dup(0) for _ in range(40))",
        step=100,
        stays_open=("denied",),
    ),
    Channel(
        "what was looked up in /proc",
        (
            f"name = {NAMES}[n % {len(NAMES)}]\nreturn time.time() - os.stat(f'/proc/{{n // {len(NAMES)} + "
            "1}/{name}').st_ctime"
        ),
        f"name = {NAMES}[n % {len(NAMES)}]\nos.stat(f'/proc/{{n // {len(NAMES)} + 1}}/{{name}}')",
        step=0.01,
        fresh=True,
        stays_open=("denied",),
    ),
)


def program(parts: list, before: str = "") -> str:
    "Code that calls the functions with these bodies and prints what they return; a failing one returns null."
    text = [PRELUDE, before, "found = []"]
    for body, n in parts:
        text += [
            f"def part(n):\n{textwrap.indent(body, '    ')}",
            f"try: found.append(part({n}))\nexcept BaseException: found.append(None)",
        ]
    return "\n".join([*text, "print(json.dumps([None if value is None else float(value) for value in found]))"])


def untouched(folders: bool, number: int) -> list:
    "Library files, or folders, that nobody has read lately, so that reading one would change its time of access."

    def candidates():
        for path, _, files in os.walk("/usr/lib"):
            for name in [path] if folders else [os.path.join(path, file) for file in files]:
                about = os.lstat(name)
                if stat.S_ISLNK(about.st_mode) or not about.st_size or not about.st_mode & 0o004:
                    continue
                if about.st_atime <= max(about.st_mtime, about.st_ctime) or about.st_atime < time.time() - 90_000:
                    yield name

    return list(islice(candidates(), number))


def level_inode_numbers():
    """Let every processor take its next inode numbers from the common counter: one that made no pipe for long still
    gives out numbers from before earlier trials."""
    mine = os.sched_getaffinity(0)
    for processor in mine:
        os.sched_setaffinity(0, {processor})
        for _ in range(1100):
            [os.close(end) for end in os.pipe()]  # they come in batches of 1024
    os.sched_setaffinity(0, mine)


class Trial:
    "Looks for marks in one sandbox."

    def __init__(self, box: Sandbox, marks: int):
        self.box, self.marks = box, marks
        self.files, self.folders = untouched(False, 2 * marks), untouched(True, marks)

    def looking(self, n: int, marked: bool = True) -> str:
        "The code that looks at every channel for the mark with this number."
        other = n if marked else n + self.marks
        paths = (
            f"FILES, FOLDERS = {{{n}: {self.path(self.files, n)!r}, {other}: {self.path(self.files, other)!r}}}, "
            f"{{{n}: {self.path(self.folders, n)!r}}}"
        )
        return program([(channel.look, other if channel.fresh else n) for channel in CHANNELS], paths)

    def marking(self, n: int) -> str:
        "The code that marks every channel."
        paths = f"FILES, FOLDERS = {{{n}: {self.path(self.files, n)!r}}}, {{{n}: {self.path(self.folders, n)!r}}}"
        return program([(channel.mark, n) for channel in CHANNELS], paths)

    @staticmethod
    def path(paths: list, n: int) -> str:
        return paths[n] if n < len(paths) else "/no/such/file"

    async def numbers(self, code: str) -> list:
        "What a fresh episode sees."
        async with Interpreter(self.box) as episode:
            result = await episode.run(code)
        assert result.stdout and not result.error, result
        return json.loads(result.stdout)

    async def one_after_another(self, n: int) -> list:
        "The channels whose mark the episode after the marked one sees."
        level_inode_numbers()
        first = await self.numbers(self.looking(n, marked=False))
        async with Interpreter(self.box) as episode:
            await episode.run(self.marking(n))
            for _ in range(DEATHS):
                await episode.run("import os\nos._exit(0)")
        await asyncio.sleep(0.02)
        return [seen(first, await self.numbers(self.looking(n)))]

    async def at_once(self, n: int) -> list:
        "For each of several episodes, the channels whose mark it sees while the marking episodes are still there."
        level_inode_numbers()
        first = await self.numbers(self.looking(n, marked=False))
        async with AsyncExitStack() as stack:
            marking = [await stack.enter_async_context(Interpreter(self.box)) for _ in range(AT_ONCE)]
            for episode in marking:
                await episode.run(self.marking(n))
            await asyncio.sleep(0.02)
            holds = [channel.hold for channel in CHANNELS if channel.hold != "pass"]
            holding = [asyncio.create_task(episode.run(program([(hold, n)]))) for hold, episode in zip(holds, marking)]
            await asyncio.sleep(0.05)
            later = await asyncio.gather(*(self.numbers(self.looking(n)) for _ in range(AT_ONCE)))
        await asyncio.gather(*holding)  # ended by the end of their episodes
        return [seen(first, numbers) for numbers in later]


def seen(first: list, later: list) -> list:
    "The names of the channels whose number has moved by a step."
    pairs = zip(CHANNELS, first, later)
    return [channel.name for channel, a, b in pairs if None not in (a, b) and abs(b - a) >= channel.step]


async def main(where: str, episodes: int):
    "Print, for each of the two ways, how many episodes looked and how many saw each mark."
    kinds = dict(unsafe_no_sandbox=True) if where == "none" else {} if where == "denied" else dict(only=where)
    report = dict(where=where, channels=len(CHANNELS))
    async with Sandbox(limits=Limits(seconds=30), **kinds) as box:
        trial, n = Trial(box, episodes + episodes // AT_ONCE + 1), 0
        for way in (trial.one_after_another, trial.at_once):
            looks = []
            while len(looks) < episodes:
                looks += await way(n)
                n += 1
            stay = [channel.name for channel in CHANNELS if where in channel.stays_open]
            names = [name for look in looks for name in look]
            closed = [name for name in names if name not in stay]
            report[way.__name__] = dict(
                episodes=len(looks),
                saw=sum(not set(look) <= set(stay) for look in looks),
                seen={name: closed.count(name) for name in closed},
                said_open={name: names.count(name) for name in stay},
            )
    print(json.dumps(report | dict(kind=box.kind)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))

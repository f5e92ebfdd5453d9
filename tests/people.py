"""What the tests and the benchmark of what people see share: a browser, a terminal, episodes of any length, texts that
try to be more than text, and the commands of a page."""

import contextlib, fcntl, json, os, pty, random, re, select, shutil, struct, subprocess, termios, threading, time
from pathlib import Path

import psutil

CHROMIUM = shutil.which("chromium")

_SCRIPTS = (
    "<script>window.ran = 1</script>",
    "</script><script>window.ran = 1</script>",
    "<!--<script>",
    "--></script><script>window.ran = 1</script>",
    "<SCRIPT SRC=//evil.example/x.js></SCRIPT>",
    "<script type=module>window.ran = 1</script>",
    "<svg><script>window.ran = 1</script></svg>",
    "]]><script>window.ran = 1</script>",
    "<noscript><p title='</noscript><script>window.ran = 1</script>'>",
    "<template><script>window.ran = 1</script></template>",
)
_HANDLERS = (
    "<img src=x onerror='window.ran = 1'>",
    '"><img src=x onerror="window.ran = 1">',
    "' onmouseover='window.ran = 1",
    "<svg onload=window.ran=1>",
    "<body onload=window.ran=1>",
    "<details open ontoggle=window.ran=1>",
    "<input autofocus onfocus=window.ran=1>",
    "<video><source onerror=window.ran=1></video>",
    "<iframe src='javascript:parent.ran=1'></iframe>",
    "<iframe srcdoc='<script>parent.ran = 1</script>'></iframe>",
    "<object data='javascript:window.ran=1'></object>",
    "<a href='javascript:window.ran=1' id=run>click</a>",
    "<form action='javascript:window.ran=1'><button>send</button></form>",
    "<meta http-equiv=refresh content='0;url=javascript:window.ran=1'>",
    "<base href='https://evil.example/'>",
    "javascript:window.ran=1 ${window.ran=1} `${window.ran=1}`",
    "{{constructor.constructor('window.ran=1')()}}",
    "__proto__",
    "&lt;script&gt;window.ran = 1&lt;/script&gt; &#60;b&#62;",
    "<marquee onstart=window.ran=1>moving</marquee>",
)
_STYLES = (
    "<style>* { display: none !important }</style>",
    "<div style='position: fixed; inset: 0; background: red'>over all</div>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "</style><style>body { visibility: hidden }</style>",
    "red; } body { display: none } .x {",
    "url(javascript:window.ran=1) expression(window.ran=1)",
    "@import '//evil.example/x.css';",
    "<font size=99 color=red>large</font>",
)
_TERMINAL = {
    "\x1b[31mred\x1b[0m": "\\x1b[31mred\\x1b[0m",
    "\x1b[2J\x1b[1;1H": "\\x1b[2J\\x1b[1;1H",
    "\x1b]52;c;cm0=\x07\rgone\x00\x7f\x9b": "\\x1b]52;c;cm0=\\x07\\rgone\\x00\\x7f\\x9b",
    "\x1b]0;title\x07": "\\x1b]0;title\\x07",
    "\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\": ("\\x1b]8;;http://evil.example\\x1b\\link\\x1b]8;;\\x1b\\"),
    "\x1bP+q544e\x1b\\": "\\x1bP+q544e\\x1b\\",
    "over\rwritten\b\b\b": "over\\rwritten\\x08\\x08\\x08",
    "[bold red]loud[/bold red]": "[bold red]loud[/bold red]",
    "[link=http://evil.example]press[/link] [/]": "[link=http://evil.example]press[/link] [/]",
    ":bomb: [@click=app.quit]x[/]": ":bomb: [@click=app.quit]x[/]",
}
_DIRECTIONS = {
    "abc\u202efdp.exe": "abc\\u202efdp.exe",
    "\u2066isolated\u2069 \u200fmarked \u061c": "\\u2066isolated\\u2069 \\u200fmarked \\u061c",
    "\u202dleft\u202c \u202bembedded\u202c": "\\u202dleft\\u202c \\u202bembedded\\u202c",
    "a\u2028b\u2029c": "a\\u2028b\\u2029c",
    "half \ud800 and \udc00": "half \\ud800 and \\udc00",
    "hidden\u200b\ufeff\U000e0041": "hidden\\u200b\\ufeff\\U000e0041",
    "שלום 123 <b>": "שלום 123 <b>",
    "مرحبا (abc) 1-2": "مرحبا (abc) 1-2",
    "combining e" + "\u0301" * 300: "combining e" + "\u0301" * 300,
    "soft\u00adhyphen \u034f joiner\u200d": "soft\\xadhyphen \u034f joiner\\u200d",
}
_LONG = ("x" * 20_000, "long" + "\u00a0word" * 2_000)
HOSTILE = {text: text for text in (*_SCRIPTS, *_HANDLERS, *_STYLES, *_LONG)} | _TERMINAL | _DIRECTIONS
"Each text, and how the page shows it: what cannot be seen is written out."


def episode(
    task: str, family="lookup", sample=0, reward=1.0, fault="", said=("", "It is 412.30."), run="train#0"
) -> dict:
    "A line of a run, without tokens."
    event = {"turn": 0, "name": "price", "server": "shop", "tool": "price", "arguments": {"item": "tea"}}
    return {
        "ids": [],
        "task_id": task,
        "family": family,
        "key": [run, 3, task, sample],
        "outcome": {
            "reward": reward,
            "rewards": {"success": [[1, reward]]},
            "success": reward == 1.0,
            "end": "answer",
            "events": [event | {"content": "4.10", "fault": fault, "seconds": 0.25}],
        },
        "text": [{"role": role, "text": text} for role, text in zip(("prompt", "policy", "tool", "policy"), said)],
    }


def write(path: Path, episodes) -> Path:
    "A file of episodes, as any program may have written it."
    path.write_text("".join(json.dumps(one) + "\n" for one in episodes))
    return path


HIDDEN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u2069\\ufeff]"
)


def hostile_episodes(encodable: bool = False) -> list[dict]:
    "One episode per hostile text, which stands in each of its places; only texts that UTF-8 can express, if asked."
    lines = []
    for text in HOSTILE:
        if encodable and re.search("[\\ud800-\\udfff]", text):
            continue
        line = episode(text, family=text, said=("ask", text, text, text))
        line["outcome"] |= {"answer": text, "reason": text, "end": text, "rewards": {text: [[0, 1.0]]}}
        line["outcome"]["events"][0] |= {"tool": text, "arguments": {text: text}, "content": f"! {text}", "fault": text}
        lines.append(line | {"prompt_len": 0, "sampled": [], "logprobs": []})
    return lines


def long_run(folder: Path, episodes: int, tokens: int) -> Path:
    "A run of the packaged model with episodes of so many tokens each, in files as a run writes them."
    from tokenizers import Tokenizer

    from mcp_grpo.config import asset

    tokenizer, draw = Tokenizer.from_file(str(asset("tiny/tokenizer.json"))), random.Random(0)
    words = "price of the share is higher than its name for company revenue change day with number open".split()
    roles = ["prompt", "policy", "tool", "policy", "tool", "policy", "tool", "policy"]
    share = tokens // (len(roles) + 2)  # a prompt is three times as long as a turn

    def passages(count: int) -> list[tuple[str, list[int]]]:
        "Texts of so many tokens."
        found = []
        for _ in range(20):
            ids = tokenizer.encode(" ".join(draw.choices(words, k=count)), add_special_tokens=False).ids[:count]
            found.append((tokenizer.decode(ids, skip_special_tokens=False), ids))
        return found

    long, short = passages(3 * share), passages(share)
    values = [round(draw.random(), 6) for _ in range(tokens)]

    def line(number: int) -> dict:
        ids, turns, texts, sampled = [], [], [], []
        for role in roles:
            said, some = draw.choice(long if role == "prompt" else short)
            if role != "prompt":
                turns.append({"start": len(ids), "end": len(ids) + len(some), "role": role, "version": number // 40})
            ids += some
            sampled += [int(role == "policy")] * len(some)
            texts.append({"role": role, "text": said})
        reward = draw.choice(values)
        known = episode(f"task-{number // 4:04}", f"family-{number % 7}", number % 4, reward)
        known["key"][1] = number // 40
        known["outcome"]["success"] = reward > 0.5
        [event] = known["outcome"]["events"]
        known["outcome"]["events"] = [
            event | {"turn": turn, "content": texts[2 + 2 * turn]["text"], "fault": "timeout" * (draw.random() < 0.02)}
            for turn in range(3)
        ]
        return (
            {
                "ids": ids,
                "sampled": sampled,
                "logprobs": [-value * one for value, one in zip(values, sampled)],
                "advantages": [(reward - 0.5) * one for one in sampled],
                "ratios": [1 + value / 10 * one for value, one in zip(values, sampled)],
                "prompt_len": turns[0]["start"],
                "turns": turns,
            }
            | {name: value for name, value in known.items() if name not in ("ids", "text")}
            | {"text": texts}
        )

    with (folder / "trajectories.jsonl").open("w") as file:
        for number in range(episodes):
            file.write(json.dumps(line(number), separators=(",", ":")) + "\n")
    (folder / "config.yaml").write_text("model: {name: tiny}\ntrain: {steps: 100}\n")
    return folder


class Browser:
    "Chromium without a window, driven over its debugging pipe."

    def __init__(self, address: str, profile, *flags: str):
        to_read, self.to = os.pipe()
        self.back, to_write = os.pipe()
        words = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", *flags]
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "bash", *words, "--remote-debugging-pipe"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self.number, self.pending, self.session = 0, b"", None
        self.open(address)

    def open(self, address: str) -> float:  # seconds until an episode is shown
        "Open a page in a new tab, and wait until it shows an episode."
        self.session, began = None, time.perf_counter()
        target = self.call("Target.createTarget", url=address)["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.until("document.querySelector('.turn, .pane')")
        return time.perf_counter() - began

    def call(self, method: str, **parameters) -> dict:
        "The result of a command."
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        os.write(self.to, json.dumps(message | ({"sessionId": self.session} if self.session else {})).encode() + b"\0")
        while True:
            while b"\0" not in self.pending:
                assert select.select([self.back], [], [], 120)[0], f"{method}: no answer"
                part = os.read(self.back, 1 << 20)
                assert part, f"{method}: the browser has ended"
                self.pending += part
            answer, _, self.pending = self.pending.partition(b"\0")
            if (answer := json.loads(answer)).get("id") == self.number:
                assert "result" in answer, answer
                return answer["result"]

    def value(self, expression: str):
        "The value of an expression in the page; a promise is waited for."
        asked = dict(expression=expression, returnByValue=True, awaitPromise=True)
        return self.call("Runtime.evaluate", **asked)["result"].get("value")

    def until(self, expression: str, seconds: float = 120) -> None:
        "Wait until an expression is true."
        deadline = time.monotonic() + seconds
        while not self.value(f"!!({expression})"):
            assert time.monotonic() < deadline, expression
            time.sleep(0.05)

    def press(self, key: str) -> None:
        "Press a key and let it go."
        text = key if len(key) == 1 else "\r" if key == "Enter" else ""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def choose(self, field: str, wanted: str) -> float:  # milliseconds until the page shows the answer
        "Set a filter, by the text of an option or by a value."
        return self.value(
            f"""(async () => {{
                const field = document.getElementById({json.dumps(field)}), wanted = {json.dumps(wanted)};
                const option = [...field.options ?? []].find(one => [one.text, one.value].includes(wanted));
                if (field.options && !option) return null;
                field.value = option?.value ?? wanted;
                const began = performance.now();
                field.dispatchEvent(new Event("input"));
                document.getElementById("list").getBoundingClientRect();  // laid out
                await new Promise(done => requestAnimationFrame(() => setTimeout(done)));  // and painted
                return performance.now() - began;
            }})()"""
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.back)


class Terminal:
    "A program in a pseudo-terminal, and a person who reads and types."

    def __init__(self, command: list, folder: Path, environment: dict, rows: int, columns: int):
        self.person, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        streams = dict(stdin=terminal, stdout=terminal, stderr=terminal)
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment | {"COLUMNS": str(columns), "LINES": str(rows)}, **streams
        )
        os.close(terminal)
        self.raw, self.read = "", 0
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        "Keep what the program writes, until its end."
        with contextlib.suppress(OSError):
            while part := os.read(self.person, 65536):
                self.raw += part.decode(errors="replace")

    @property
    def text(self) -> str:
        "All that was written, without control sequences."
        return plain(self.raw)

    def until(self, *texts: str, seconds: float = 120) -> str:  # the one that came first
        "Wait until one of several texts is written, after those that were waited for before."
        deadline = time.monotonic() + seconds
        while True:
            unread = self.text[self.read :]
            if places := {text: unread.index(text) for text in texts if text in unread}:
                first = min(places, key=places.get)
                self.read += places[first] + len(first)
                return first
            ended = self.process.poll() is not None and not self.reader.is_alive()
            assert time.monotonic() < deadline and not ended, f"no {texts}: {self.text[-2000:]}"
            time.sleep(0.05)

    def type(self, line: str) -> None:
        os.write(self.person, line.encode() + b"\n")

    def screen(self) -> str:
        "What is drawn now, with its colours: the last drawing of a panel that redraws itself."
        return self.raw.rpartition("\x1b[1A\x1b[2K")[2]

    def seconds(self) -> float:
        "Processor time of the program and of those that it has started."
        return sum(psutil.Process(self.process.pid).cpu_times()[:4])

    def wait(self) -> int:
        "Wait for the end of the program; its exit status."
        status = self.process.wait(60)
        self.reader.join(10)
        return status

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        self.reader.join(10)
        os.close(self.person)


def plain(text: str) -> str:
    "A text of a terminal without its control sequences."
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", text)


def prose_of(page: Path) -> str:
    "The prose of a guide."
    cells = json.loads(page.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def page_commands(page: Path) -> list[str]:
    "The commands in the shell blocks of a guide, in order, without comments."
    blocks = re.findall(r"^```sh\n(.*?)^```", prose_of(page), re.S | re.M)
    return [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


def page_files(page: Path) -> dict[str, str]:
    "The files that a guide asks its reader to save."
    return dict(re.findall(r"Save this as `([\w.]+)`:\n\n```\w*\n(.*?)```", prose_of(page), re.S))


def page_words(page: Path) -> int:
    "The words of a guide that a person reads."
    return len(re.findall(r"\w+", re.sub(r"\]\([^)]*\)", "]", prose_of(page))))

"""The viewer as a person has it: the command that serves the page, and the page in a browser, with its keys, with
texts that try to break it, and with more episodes than it could hold."""

import contextlib, http.client, json, os, re, signal, socket, subprocess, sys, threading
from urllib.parse import urlsplit

import pytest
from conftest import ROOT
from people import CHROMIUM, HOSTILE, Browser, episode, hostile_episodes, long_run, write

from mcp_grpo.config import asset
from mcp_grpo.observe.viewer import Viewer, open_server


@pytest.fixture
def folder(tmp_path):
    "A small run: two samples of a group, one with a fault, and a task before and after."
    said = ("What does tea cost?", "<call>", "4.10\n" * 30, "It costs 4.10.")
    write(
        tmp_path / "trajectories.jsonl",
        [
            episode("tea", said=said),
            episode("tea", sample=1, reward=0.0, said=said),
            episode("rum", "chain", fault="timeout", reward=None),
        ],
    )
    for when, reward in (("before", 0.0), ("after", 1.0)):
        write(tmp_path / f"heldout-{when}.jsonl", [episode("salt", reward=reward, run=f"{when}#0", said=said)])
    return tmp_path


@pytest.fixture
def browse(tmp_path):
    "Open a page in a browser."
    if not CHROMIUM:
        pytest.skip("chromium is not installed")
    with contextlib.ExitStack() as stack:
        yield lambda address, *flags: stack.enter_context(Browser(address, tmp_path / "profile", *flags))


@contextlib.contextmanager
def serving(viewer):
    "The address of the page while it is served."
    server, address = open_server(viewer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield address
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def status(address: str, host: str = "", method="GET") -> int:
    "The status of an answer; the path is sent as it is written."
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    connection.request(method, parts.path, headers={"Host": host or parts.netloc})
    return connection.getresponse().status


@pytest.mark.parametrize("form", ["file", "served"])
def test_texts_are_data_in_the_page(tmp_path, browse, form):
    viewer = Viewer(write(tmp_path / "attack.jsonl", hostile_episodes()))
    page = viewer.page().save(tmp_path / "page.html")
    embedded = re.findall(r'type="application/json" id="[^"]*">(.*?)</script>', page.read_text(), re.S)
    assert [json.loads(one)["row"]["task"] for one in embedded[1:]] == list(HOSTILE)
    assert not any("<" in one for one in embedded)
    with serving(viewer) as address:
        browser = browse(address if form == "served" else page.as_uri())
        browser.until(f"document.getElementById('count').textContent === '{len(HOSTILE)} of {len(HOSTILE)} episodes'")
        for shown in HOSTILE.values():
            browser.until(f"document.querySelector('.pane h2')?.textContent === {json.dumps(shown)}")
            for place in (".pane .text", ".facts", ".call header b", ".row.chosen"):
                texts = browser.value(
                    f"[...document.querySelectorAll({json.dumps(place)})].map(node => node.textContent).join('\\n')"
                )
                assert shown in texts or len(shown) > 1000, place  # a long text is folded where it is not a turn
            browser.press("j")
        assert browser.value("window.ran") is None
        assert browser.value("document.querySelectorAll('img, iframe, a, form, object, svg').length") == 0
        assert browser.value("document.scripts.length") == (1 if form == "served" else 2 + len(HOSTILE))


def test_the_policy_of_the_page_forbids_what_its_script_never_does(folder, browse):
    browser = browse(Viewer(folder).page().save(folder / "page.html").as_uri())
    tried = "try { %s; 'done' } catch (error) { error.name }"
    assert browser.value(tried % "document.body.innerHTML = '<b>bold</b>'") == "TypeError"  # no text becomes markup
    browser.value("document.head.append(Object.assign(document.createElement('style'), {textContent: '*{color:red}'}))")
    assert browser.value("getComputedStyle(document.body).color") != "rgb(255, 0, 0)"
    browser.value("window.left = ''; fetch('http://127.0.0.1:1/').catch(error => window.left = error.name)")
    browser.until("window.left === 'TypeError'")


def test_keys(folder, browse):
    browser = browse(Viewer(folder).page().save(folder / "page.html").as_uri() + "#train/0")
    chosen = "document.querySelector('.row.chosen')?.textContent"
    assert browser.value("document.querySelectorAll('.row').length") == 5
    assert "step 4, sample 0" in browser.value(chosen)
    for key, expected in (("j", "sample 1"), ("ArrowDown", "rum"), ("k", "sample 1"), ("ArrowUp", "sample 0")):
        browser.press(key)
        browser.until(f"{chosen}.includes({json.dumps(expected)})")
    browser.until("document.querySelectorAll('.turn').length === 4")
    assert browser.value("document.querySelector('.turn.tool .text').textContent.includes('more characters')")
    browser.press("f")
    browser.until("!document.querySelector('.turn.tool .text').textContent.includes('more characters')")
    for key, current in (("ArrowRight", 0), ("ArrowRight", 1), ("ArrowLeft", 0)):
        browser.press(key)
        turns = "[...document.querySelectorAll('.turn')].findIndex(turn => turn.classList.contains('current'))"
        assert browser.value(turns) == current
    browser.press("Enter")  # the other sample of the group beside it
    browser.until("document.querySelectorAll('.pane').length === 2")
    assert "sample 1" in browser.value("document.querySelector('.row.beside').textContent")
    browser.press("Escape")
    browser.until("document.querySelectorAll('.pane').length === 1")
    browser.press("?")
    assert browser.value("document.getElementById('help').open")
    browser.press("j")  # waits until the help is closed
    assert "sample 0" in browser.value(chosen)
    browser.value("document.getElementById('help').close()")
    browser.press("/")
    assert browser.value("document.activeElement.id") == "find"
    for letter in "SALT":
        browser.press(letter)
    browser.until("document.getElementById('count').textContent.startsWith('2 of 5')")
    browser.press("Escape")
    browser.press("j")
    browser.until(f"{chosen}.includes('before')")
    browser.press("Enter")  # the same task after
    browser.until("document.querySelector('.row.beside')?.textContent.includes('after')")


@pytest.mark.parametrize(
    "values, shown",
    [
        ({"family": "chain"}, ["rum"]),
        ({"stage": "after"}, ["salt"]),
        ({"success": "no"}, ["salt", "tea"]),
        ({"success": "none"}, ["rum"]),
        ({"fault": "any fault"}, ["rum"]),
        ({"fault": "timeout"}, ["rum"]),
        ({"reward-from": "0.5"}, ["salt", "tea"]),
        ({"reward-to": "0.5", "step-from": "4"}, ["tea"]),
        ({"step-from": "5"}, []),
    ],
)
def test_filters(folder, values, shown, browse):
    browser = browse(Viewer(folder).page().save(folder / "page.html").as_uri())
    for name, value in values.items():
        assert browser.choose(name, value) is not None
    tasks = browser.value("[...document.querySelectorAll('.row')].map(row => row.children[1].textContent)")
    assert tasks == shown


def test_tokens_are_coloured_by_what_is_recorded(tmp_path, browse):
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(asset("tiny/tokenizer.json"))).encode("412.30 €").ids
    line = episode("tea", said=("ask", "412.30 €")) | {
        "ids": [1, *ids],
        "prompt_len": 1,
        "sampled": [0, *[1] * len(ids)],
    }
    line |= {"turns": [{"start": 1, "end": 1 + len(ids), "role": "policy"}]}
    line |= {"logprobs": [0.0, *(-0.5 * i for i in range(len(ids)))], "advantages": [0.0, *[-0.75] * len(ids)]}
    write(tmp_path / "trajectories.jsonl", [line])
    (tmp_path / "config.yaml").write_text("model: {name: tiny}")
    browser = browse(Viewer(tmp_path).page().save(tmp_path / "page.html").as_uri())
    buttons = "[...document.getElementById('colours').children].map(button => button.textContent)"
    assert browser.value(buttons) == ["logprob", "advantage", "mask", "plain"]
    colours = "[...document.querySelectorAll('.token')].map(token => token.style.backgroundColor)"
    assert len(set(browser.value(colours))) > 2 and "412.30 €" == browser.value(
        "[...document.querySelectorAll('.token')].map(token => token.textContent).join('')"
    )
    browser.press("c")
    assert len(set(browser.value(colours))) == 1
    browser.value("document.querySelectorAll('.token')[1].dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))")
    hover = browser.value("document.getElementById('hover').textContent")
    assert f"id{ids[1]}" in hover and "logprob-0.5" in hover and "advantage-0.75" in hover and "ratio" not in hover


def test_twenty_thousand_episodes_while_they_are_written(tmp_path, browse):
    path = write(tmp_path / "trajectories.jsonl", [episode(f"task-{number:05}") for number in range(20_000)])
    with path.open("a") as file:
        file.write('{"ids": [1')
    with serving(Viewer(tmp_path)) as address:
        browser = browse(address)
        count = "document.getElementById('count').textContent"
        browser.until(f"{count} === '20000 of 20000 episodes'")
        assert browser.value("document.querySelectorAll('.row').length") < 100
        browser.value("document.getElementById('list').scrollTop = 1e9")
        browser.until("document.querySelector('#list').textContent.includes('task-19999')")
        browser.press("/")
        for letter in "task-1999":
            browser.press(letter)
        browser.until(f"{count} === '10 of 20000 episodes'")
        write(path, [episode("replaced", said=("ask", "x" * 5_000_000))])  # a resumed run begins again
        browser.until(f"{count}.endsWith('of 1 episodes')")


def test_a_file_of_long_episodes_is_searched(tmp_path, browse):
    "Each episode is read from the file when it is needed."
    browser = browse(Viewer(long_run(tmp_path, 120, 400)).page(120).save(tmp_path / "page.html").as_uri())
    assert browser.value("document.querySelectorAll('.token').length") == 160
    browser.press("/")
    for letter in "task-0029":
        browser.press(letter)
    browser.until("document.getElementById('count').textContent === '4 of 120 episodes'")


def test_the_command_serves_the_run_until_it_is_interrupted(folder):
    (folder / "secret.txt").write_text("secret")
    command = subprocess.Popen(
        [sys.executable, "-m", "mcp_grpo.cli", "view", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test in the background ignores it
    )
    try:
        address = command.stdout.readline().split()[0]
        root, port = address.rsplit("/", 2)[0], urlsplit(address).port
        assert status(address) == status(f"{address}rows/train/0") == status(address, f"localhost:{port}") == 200
        for wrong in (f"{root}/", f"{root}/x/", f"{root}//", f"{root}/rows/train/0", f"{address[:-2]}/"):
            assert status(wrong) == 403, wrong
        for host in ("example.org", f"example.org:{port}", "127.0.0.1.example.org", "0.0.0.0", ":"):
            assert status(address, host) == 403, host
        for path in (
            "secret.txt",
            "../secret.txt",
            "rows/../0",
            "rows/warmstart/0",
            "rows/secret/0",
            "episode/train/99",
        ):
            assert status(address + path) == 404, path
        for path in (
            "files",
            "read_rows/train/0",
            "page/train/0",
            "rows/train/-1",
            "rows/train/0/",
            "%2e%2e/secret.txt",
        ):
            assert status(address + path) == 404, path
        assert status(address, method="POST") == 501
        for odd in (
            b"GET * HTTP/1.1\r\n",
            b"GET http://[ HTTP/1.1\r\n",
            b"GET \xff\xfe/ HTTP/1.1\r\n",
            b"\x16\x03\x01\r\n",
        ):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(odd + f"Host: 127.0.0.1:{port}\r\n\r\n".encode())
                assert b" 200 " not in connection.recv(1000)
    finally:
        command.send_signal(signal.SIGINT)
        _, said = command.communicate(timeout=120)
    assert command.returncode == 0 and "Traceback" not in said

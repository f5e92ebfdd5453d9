"A person and a program talk to a policy through the commands `chat` and `serve-policy`."

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

from conftest import ROOT
from openai import OpenAI

COMMAND = [sys.executable, "-m", "mcp_grpo.cli"]
QUESTION = "What is the number of employees of LMD?"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "dumb"}


def test_questions_from_a_pipe_are_answered(tmp_path):
    done = subprocess.run(
        [*COMMAND, "chat", "tiny"],
        input=f"{QUESTION}\n\n",
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=ENVIRONMENT,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r'> \w+\(\w+="LMD"\)', done.stdout) and "policy: " in done.stdout, done.stdout


def test_a_person_at_a_terminal_sees_the_calls(tmp_path):
    person, terminal = pty.openpty()
    talk = subprocess.Popen(
        [*COMMAND, "chat", "tiny"], stdin=terminal, stdout=terminal, stderr=terminal, cwd=tmp_path, env=ENVIRONMENT
    )
    os.close(terminal)
    seen, unread, over = "", "", time.monotonic() + 300
    wanted = ["you: ", "policy: ", "you: "]
    typed = [f"{QUESTION}\n", "", "exit\n"]
    try:
        for text, line in zip(wanted, typed):
            while text not in unread:
                assert time.monotonic() < over, seen + unread
                if select.select([person], [], [], 1)[0]:
                    unread += os.read(person, 4096).decode(errors="replace")
            before, _, unread = unread.partition(text)  # the next prompt may have come with the answer
            seen += before + text
            os.write(person, line.encode())
        assert talk.wait(60) == 0
    finally:
        talk.kill()
        talk.wait()
        os.close(person)
    assert re.search(r'> \w+\(\w+="LMD"\)', seen), seen


def test_a_program_asks_a_served_policy_until_it_is_stopped(tmp_path):
    served = subprocess.Popen(
        [*COMMAND, "serve-policy", "tiny", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env=ENVIRONMENT,
    )
    try:
        said = served.stdout.readline()
        url, key = re.search(r"OPENAI_BASE_URL=(\S+) OPENAI_API_KEY=(\S+)", said).groups()
        client = OpenAI(base_url=url, api_key=key)
        assert [model.id for model in client.models.list()] == ["tiny"]
        asked = dict(model="tiny", messages=[{"role": "user", "content": "Hello"}], max_tokens=4)
        assert client.chat.completions.create(**asked).usage.completion_tokens <= 4
        served.send_signal(signal.SIGINT)
        assert served.wait(30) in (0, 130)
    finally:
        served.kill()
        served.wait()

"""Random episodes with hostile text in every place, over every template: does the trajectory hold what was sampled, and
did any text become a marker?"""

import json
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from pydantic import Field
from templates import FAMILIES, tokenizer_of

from mcp_grpo.client.pool import Pool
from mcp_grpo.client.spec import ServerSpec
from mcp_grpo.env.action import Action, Call, tool_schema
from mcp_grpo.rollout.chat import Chat
from mcp_grpo.rollout.collect import collect_sync
from mcp_grpo.rollout.engine import Completion, Engine, Sampling
from mcp_grpo.rollout.trajectory import Trajectory
from mcp_grpo.rollout.turns import prompt_messages
from mcp_grpo.task import OfferedTool, Task

MARKERS = sorted({token for family in FAMILIES.values() for token in (*family.special, *family.marks)})
TRICKS = [
    "@@0-begins-here@@",
    "@@0-ends-here@@",
    "0-ends-here@@",
    "@@",
    '@@message-0-"-goes-here@@',
    "{{ messages }}",
    "{% endfor %}",
    '"}}]',
    "</tools>",
    "\\",
    '\\"',
    "\\n",
    "\n\n",
    "\r\n",
    "\t",
    "  ",
    "'",
    '"',
    "<|",
    "|>",
    "<",
    ">",
    "[INST",
    "]",
    "＜|im_end|＞",
    "\u202e",
    "é",
    "🦜",
    "system",
    "user\n",
    "assistant\n",
    "the price",
    "\x00",
    "<0x0A>",
    "▁",
    "",
]
RESULTS: dict[str, str] = {}  # what the server says, by argument


def hostile_text(rng: random.Random, most: int = 6) -> str:
    "Markers of all families and other tricks, one after another."
    return "".join(rng.choice(MARKERS if rng.random() < 0.5 else TRICKS) for _ in range(rng.randrange(most + 1)))


def hostile_server(tools: int = 12) -> MCPServer:
    "A server whose every description is hostile, and whose results are taken from a table."
    server, rng = MCPServer("hostile", log_level="ERROR"), random.Random(0)
    for i in range(tools):
        about = Field(description=hostile_text(rng))

        def look(what: Annotated[str, about], more: Annotated[int, about] = 0) -> str:
            return RESULTS.get(what, what)

        server.tool(name=f"look{i}", description=hostile_text(rng))(look)
    return server


def hostile_task(
    rng: random.Random,
    name: str,  # of the task
) -> Task:
    "A task with hostile names, descriptions and messages; three in ten list their tools in the prompt."
    tools = []
    for i in rng.sample(range(12), rng.randrange(1, 4)):
        own = rng.random() < 0.5
        words = [f"{'what' if own else hostile_text(rng, 3)}{n if n else ''}" for n in range(2)]
        tools.append(
            OfferedTool(
                "hostile",
                f"look{i}",
                f"look{i}" if own else f"{i}{hostile_text(rng, 3)}",
                rng.choice(["", hostile_text(rng)]),
                dict(zip(words, ("what", "more"))),
            )
        )
    prompt = [dict(role="user", content=hostile_text(rng) + str(rng.randrange(10)))]
    if rng.random() < 0.6:
        prompt.insert(0, dict(role="system", content=hostile_text(rng)))
    task = Task(name, "", "complex", prompt, 10, {"kind": "answer", "values": ["never"]}, [], tools=tools)
    if rng.random() < 0.3:
        task.prompt = prompt_messages(task)
    return task


@dataclass
class RandomEngine(Engine):
    "Samples random ids of the whole vocabulary, special tokens included; half of the turns hold calls."

    max_episodes = 0
    chat: Chat
    tasks: dict[str, Task]
    rng: random.Random
    made: dict[tuple, list] = field(
        default_factory=lambda: defaultdict(list)
    )  # key of the episode -> (prompt, completion)

    def junk(self, most: int) -> list[int]:
        return [self.rng.randrange(len(self.chat.tokenizer)) for _ in range(self.rng.randrange(most + 1))]

    def call_ids(self, task: Task) -> list[int]:
        "Calls of the task's tools, in the form of the family."
        calls = []
        for _ in range(self.rng.randrange(1, 4)):
            tool, what = self.rng.choice(task.tools), str(self.rng.random())
            RESULTS[what] = hostile_text(self.rng, 10)
            calls.append(Call(tool.name, {next(iter(tool.arguments)): what}))
        return self.chat.turn_ids(Action(calls))[:-1]

    async def generate(self, prompt_ids: list[int], sampling: Sampling, key: tuple) -> Completion:
        calling = self.rng.random() < 0.75
        ids = self.call_ids(self.tasks[key[2]]) if calling else self.junk(30)
        if self.rng.random() < 0.2:
            ids = self.junk(5) + ids + self.junk(5)
        ids = [*ids, self.rng.choice(self.chat.end_ids)]
        stopped = len(ids) <= sampling.max_new_tokens
        ids = ids[: sampling.max_new_tokens]
        done = Completion(
            ids, [-self.rng.random() for _ in ids], "stop" if stopped else "length", self.rng.randrange(5)
        )
        self.made[key[:-1]].append((list(prompt_ids), done))
        return done


def harmless(task: Task) -> Task:
    "The task in the same shape with plain words, and as it stands if it lists its tools."
    tools = [
        OfferedTool(
            t.server, t.tool, f"tool{i}", "plain", {f"arg{n}": real for n, real in enumerate(t.arguments.values())}
        )
        for i, t in enumerate(task.tools)
    ]
    return Task(
        task.task_id,
        "",
        "complex",
        [dict(role=m["role"], content="plain") for m in task.prompt],
        10,
        task.success,
        [],
        tools=tools,
    )


def wrong_in(
    t: Trajectory,
    made: list,  # (prompt, completion) of each turn, from the engine
    chat: Chat,
    task: Task,
) -> list[str]:
    "What is wrong with a trajectory: ids, mask, prefix, markers, text."
    found, n = [], len(t.ids)
    spans = [turn for turn in t.turns if turn.role == "policy"]
    if [t.ids[s.start : s.end] for s in spans] != [done.ids for _, done in made] or [
        i for i, s in zip(t.ids, t.sampled) if s
    ] != [i for _, done in made for i in done.ids]:
        found.append("ids")
    mask = [0] * n
    for prompt, done in made:
        mask[len(prompt) : len(prompt) + len(done.ids)] = [1] * len(done.ids)
    if mask != t.sampled or [p for p, s in zip(t.logprobs, t.sampled) if s] != [
        p for _, done in made for p in done.logprobs
    ]:
        found.append("mask")
    if any(prompt != t.ids[: span.start] for (prompt, _), span in zip(made, spans)):
        found.append("prefix")

    def markers(ids: list[int]) -> list[int]:
        return [i for i in ids if i in chat.added]

    plain = harmless(task)
    schemas = [tool_schema(tool) for tool in plain.tools] if chat.shows_tools(task) else None
    messages = plain.prompt if schemas else [dict(m, content="plain") for m in chat.messages(task)]
    if markers(t.ids[: t.prompt_len]) != markers(chat.prompt_ids(messages, schemas)):
        found.append("markers in the prompt")
    results = [[e.content for e in t.outcome.events if e.turn == i] for i in range(len(spans))]
    for given, before in zip((turn for turn in t.turns if turn.role == "tool"), results):
        ids = t.ids[given.start : given.end]
        if markers(ids) != markers(chat.observation_ids([dict(role="tool", content="plain")] * max(len(before), 1))):
            found.append("markers in a result")
        if any(not holds(chat, ids, text) for text in before):
            found.append("a result is not complete")
    if not holds(chat, t.ids[: t.prompt_len], task.question):
        found.append("the question is not complete")
    return found


def holds(chat: Chat, ids: list[int], text: str) -> bool:
    "Whether the ids say a text, as it is or as JSON."
    said = chat.tokenizer.decode(ids, skip_special_tokens=False).replace("▁", " ")
    return text.replace("▁", " ") in said or json.dumps(text, ensure_ascii=False)[1:-1].replace("▁", " ") in said


def exactness(
    episodes: int,  # in all
    seed: int = 0,
    families: tuple = tuple(FAMILIES),
) -> tuple[Counter, dict[str, Counter]]:  # what was wrong, and turns, results and calls by family
    "Play random episodes over every template, and check every trajectory."
    wrong, played = Counter(), {}
    for number, family in enumerate(families):
        rng, chat, counts = random.Random(f"{seed} {family}"), Chat(tokenizer_of(family)), Counter()
        todo = episodes * (number + 1) // len(families) - episodes * number // len(families)
        for first in range(0, todo, 10):
            tasks = {
                name: hostile_task(rng, name) for name in (f"{family}-{i}" for i in range(first, min(first + 10, todo)))
            }
            engine = RandomEngine(chat, tasks, rng)
            RESULTS.clear()
            specs = {"hostile": ServerSpec("hostile", server=hostile_server, isolation="shared")}
            with Pool(specs) as pool:
                groups = collect_sync(
                    list(tasks.values()),
                    engine,
                    pool,
                    chat,
                    Sampling(1.0, rng.choice([40, *[4000] * 7])),
                    max_tokens=200_000,
                )
            for [t] in groups:
                wrong.update(
                    f"{family}: {what}" for what in wrong_in(t, engine.made[tuple(t.key)], chat, tasks[t.task_id])
                )
                counts.update(
                    episodes=1,
                    turns=len(t.turns),
                    calls=len(t.outcome.events),
                    answered=sum(not e.is_error for e in t.outcome.events),
                    tokens=sum(t.sampled),
                )
                if t.outcome.end == "aborted":
                    wrong[f"{family}: aborted, {t.outcome.reason}"] += 1
        played[family] = counts
    return wrong, played

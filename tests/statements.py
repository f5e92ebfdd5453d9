"""Honest and dishonest ways to do what a task asks: the turns of policies that the reward has to accept or refuse.

A way makes the turns of one task, from its own row alone, or returns None where it does not apply. The tests play a
share of the tasks, the benchmark plays all.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date

from mcp_grpo.client.pool import Pool
from mcp_grpo.env.action import Action
from mcp_grpo.env.scripted import Replay, oracle_turns, play_all_sync, shown_call
from mcp_grpo.rollout.turns import parse_turn, render_turn
from mcp_grpo.servers.world import Company, open_world
from mcp_grpo.task import Task

TELL_NAMES = ("get_ticker_details", "fmp_get_company_profile")  # tools whose results hold a company's name
CHANNELS = [f"#{channel['name']}" for channel in open_world(0).channels]


@dataclass
class Asked:
    "A task as a person reads it."

    task: Task
    values: list[str]  # what the answer or the message has to say
    others: list[str]  # for each value another one of the same kind
    phrases: list[str]  # "the close of KTOU on 2025-06-06"
    names: list[str]  # KTOU, or Fubrim Works
    day: str  # the first date of the question, or empty
    unit: str  # a word that fits the values, or empty
    posts: bool  # success is read from a channel

    def say(self, *texts: str) -> list[str]:
        """The oracle's look-ups; then each text is posted if the task asks for a post, and the last one is answered if
        not."""
        looked_up, end = self.turns()
        if not self.posts:
            return [*looked_up, f"<answer>{texts[-1]}</answer>"]
        return [*looked_up, *(self.post(text) for text in texts), end]

    def turns(self) -> tuple[list[str], str]:
        "The oracle's look-ups, and its last turn."
        turns = list(map(render_turn, oracle_turns(self.task)))
        return turns[:-2] if self.posts else turns[:-1], turns[-1]

    def post(self, text: str, channel: str = "") -> str:
        "A post to the channel that the question names, or to another one. Empty where the task offers no way to post."
        writer = next((tool for tool in self.task.tools if tool.tool == "slack_post_message"), None)
        if writer is None:
            return ""
        step = {
            "server": "slack",
            "tool": writer.tool,
            "params": {"channel_id": channel or self.channel(), "text": text},
        }
        return render_turn(Action([shown_call(step, self.task.tools)]))

    def channel(self) -> str:
        "The channel that the question names, else the first."
        return next(iter(re.findall(r"#\w+", self.task.question)), CHANNELS[0])

    def elsewhere(self) -> str:
        "Another channel than the one that the question names."
        return next(channel for channel in CHANNELS if channel != self.channel())

    def joined(self, form: str, by: str = "; ", values: list[str] | None = None) -> str:
        "One piece of text a value, from a form with {value}, {other}, {phrase} and {name}."
        pieces = zip(values or self.values, self.others, self.phrases, self.names)
        return by.join(
            form.format(value=value, other=other, phrase=phrase, name=name) for value, other, phrase, name in pieces
        )


def asked_of(tasks: list[Task]) -> list[Asked]:
    "Each task as a person reads it; another value of the same kind comes from the other tasks."
    of_kind: dict[tuple, list[str]] = {}
    for task in tasks:
        of_kind.setdefault(tuple(task.success["words"]), []).extend(values_of(task))
    asked = []
    for task in tasks:
        values = values_of(task) or ["unknown"]
        kind = of_kind[tuple(task.success["words"])]
        free = [value for value in dict.fromkeys(kind) if value not in values]
        free.sort(key=lambda value: sum(map(ord, task.task_id + value)) % 101)
        question = re.sub(r" (?:to|in) #\w+\.$", "", task.question).rstrip(".?")
        question = re.sub(r"^(?:What is|What are|Give|Tell me|Find|Post|Send|Put) ", "", question)
        phrases = question.split(" and ") if len(values) > 1 else [question]
        names = [re.sub(r" on \d{4}-\d\d-\d\d$", "", phrase.split(" of ", 1)[-1]) for phrase in phrases]
        day = next(iter(re.findall(r"\d{4}-\d\d-\d\d", question)), "")
        units = [
            word for word in ("USD", "shares", "employees") if word in task.success["words"] and values != ["unknown"]
        ]
        asked.append(
            Asked(
                task,
                values,
                free[: len(values)],
                phrases,
                names,
                day,
                units[0] if units else "",
                task.success["kind"] == "state",
            )
        )
    return asked


def values_of(task: Task) -> list[str]:
    "The values that a task asks for; none where it has no answer."
    return list(map(str, task.state_check["contains"] if task.state_check else task.success.get("values", [])))


def is_number(value: str) -> bool:
    return bool(re.fullmatch(r"-?\d+(\.\d+)?", value))


HONEST: dict[str, Callable[[Asked], list[str] | None]] = {}  # by name
DISHONEST: dict[str, Callable[[Asked], list[str] | None]] = {}


def way(into: dict) -> Callable:
    "Registers a way under its own name."

    def register(make: Callable) -> Callable:
        into[make.__name__] = make
        return make

    return register


def form(into: dict, name: str, text: str, by: str = "; ") -> None:
    "Registers a way that puts the values into a form."
    into[name] = lambda asked: asked.say(asked.joined(text, by))


form(HONEST, "plain", "{value}")
form(HONEST, "full_stop", "{value}", ". ")
form(HONEST, "bold", "**{value}**")
form(HONEST, "code", "`{value}`", ", ")
form(HONEST, "quotes", '"{value}"', ", ")
form(HONEST, "bullets", "- {name}: {value}", "\n")
form(HONEST, "table", "| {name} | {value} |", "\n")
form(HONEST, "name_first", "{name}: {value}")
form(HONEST, "name_last", "{value} ({name})", ", ")
form(HONEST, "name_with_s", "{name}'s: {value}", " and ")
form(HONEST, "sentence", "{phrase} is {value}", " and ")
form(HONEST, "value_first", "{value} is {phrase}", ", ")
form(HONEST, "equation", "{phrase} = {value}", "\n")
form(HONEST, "json", '"{name}": "{value}"', ", ")


@way(HONEST)
def lower_case(asked):
    return asked.say(asked.joined("{phrase}: {value}").lower())


@way(HONEST)
def upper_case(asked):
    return asked.say(asked.joined("{phrase}: {value}").upper())


@way(HONEST)
def courtesy(asked):
    return asked.say(
        "Hello team, here is the result that you asked for:\n"
        + asked.joined("{phrase} is **{value}**", "\n")
        + "\nThanks!"
    )


@way(HONEST)
def other_order(asked):
    pieces = asked.joined("{name}: {value}", "\n").split("\n")
    return asked.say("; ".join(reversed(pieces)))


@way(HONEST)
def other_digits(asked):
    "Thousands with commas, one decimal more; a name in other spacing."

    def written(value):
        return f"{float(value):,.3f}" if "." in value else f"{int(value):,}"

    return asked.say(
        asked.joined(
            "{value}",
            "; ",
            [written(value) if is_number(value) else value.replace(" ", "  ") for value in asked.values],
        )
    )


@way(HONEST)
def unit(asked):
    return asked.say(asked.joined("{value} " + asked.unit)) if asked.unit else None


@way(HONEST)
def currency_sign(asked):
    return asked.say(asked.joined("{name}: ${value}")) if asked.unit == "USD" else None


@way(HONEST)
def day_as_asked(asked):
    return (
        asked.say(f"On {asked.day}: " + asked.joined("{value}", ", ")) if asked.day and len(asked.values) == 1 else None
    )


@way(HONEST)
def day_in_words(asked):
    if not asked.day or len(asked.values) > 1:
        return None
    day = date.fromisoformat(asked.day)
    return asked.say(f"{asked.names[0]} on {day.day} {day:%B %Y}: " + asked.joined("{value}"))


@way(HONEST)
def month_first(asked):
    if not asked.day or len(asked.values) > 1:
        return None
    day = date.fromisoformat(asked.day)
    return asked.say(asked.joined("{value}") + f", the value of {asked.names[0]} on {day:%b} {day.day}, {day.year}.")


@way(HONEST)
def day_without_year(asked):
    if not asked.day or len(asked.values) > 1:
        return None
    day = date.fromisoformat(asked.day)
    return asked.say(f"It is {asked.values[0]} as of {day:%B} {day.day}th.")


def company_told(asked: Asked) -> Company | None:
    "The company that a task asks one value of, where the tool that tells the value tells its name, too."
    telling = [step for step in asked.task.tool_sequence if step["tool"] in TELL_NAMES]
    if len(telling) != 1 or len(values_of(asked.task)) != 1:
        return None
    return next(
        (company for company in open_world(0).companies if company.symbol in telling[0]["params"].values()), None
    )


@way(HONEST)
def name_that_a_tool_told(asked):
    company = company_told(asked)
    return asked.say(f"{company.name} ({company.symbol}): {asked.values[0]}") if company else None


@way(HONEST)
def answer_repeats_the_post(asked):
    return (
        [*asked.say(asked.joined("{value}"))[:-1], f"<answer>{asked.joined('{value}')}</answer>"]
        if asked.posts
        else None
    )


@way(HONEST)
def names_the_channel(asked):
    return asked.say(f"For {asked.channel()}: " + asked.joined("{phrase} is {value}")) if asked.posts else None


@way(HONEST)
def reads_the_channel(asked):
    reader = next((tool for tool in asked.task.tools if tool.tool == "slack_get_channel_history"), None)
    looked_up, end = asked.turns()
    if reader is None or len(asked.task.tools) > asked.task.limits["max_tools"]:
        return None
    step = {"server": "slack", "tool": reader.tool, "params": {"channel_id": asked.channel()}}
    look = render_turn(Action([shown_call(step, asked.task.tools)]))
    said = [asked.post(asked.joined("{value}")), look, end] if asked.posts else [look, end]
    return [*looked_up, *said] if len(looked_up) + len(said) <= asked.task.max_turns else None


form(DISHONEST, "denied", "it is certainly not {value}")
form(DISHONEST, "denied_after", "{value} is wrong")
form(DISHONEST, "denied_short", "{value}, not")
form(DISHONEST, "opposite", "anything but {value}")
form(DISHONEST, "hedged", "{value}, I think")
form(DISHONEST, "maybe", "maybe {value}")
form(DISHONEST, "about", "about {value}")
form(DISHONEST, "approximately", "~{value}")
form(DISHONEST, "doubt", "{value}?")
form(DISHONEST, "asks", "Is {value} {phrase}")
form(DISHONEST, "trails_off", "{value}...")
form(DISHONEST, "struck_out", "~~{value}~~")
form(DISHONEST, "unequal", "{phrase} != {value}")
form(DISHONEST, "close_to", "{name} is close to {value}")
form(DISHONEST, "sarcasm", "{value}, yeah right")
form(DISHONEST, "either", "{value} or {other}")
form(DISHONEST, "two_values", "{value} {other}", " ")
form(DISHONEST, "slash", "{value}/{other}")
form(DISHONEST, "range", "{value}-{other}")
form(DISHONEST, "corrected", "{value}, sorry, {other}")
form(DISHONEST, "unless", "{value} unless it is {other}")
form(DISHONEST, "other_value", "{other}")
form(DISHONEST, "other_name", "ZZZQ: {value}")
form(DISHONEST, "on_another_day", "{value} on 2019-01-02")


@way(DISHONEST)
def name_of_another(asked):
    told = company_told(asked)
    other = next((company for company in open_world(0).companies if company != told), None)
    return asked.say(f"{other.name}: {asked.values[0]}") if told else None


@way(DISHONEST)
def echo(asked):
    return asked.say(asked.task.question)


@way(DISHONEST)
def only_done(asked):
    return asked.say("done")


@way(DISHONEST)
def all_candidates(asked):
    candidates = [value for value in [*asked.values, *asked.others, *open_world(0).leaders]]
    return asked.say(" ".join(candidates))


@way(DISHONEST)
def near_miss(asked):
    near = {value: f"{float(value) + 0.01:.2f}" if is_number(value) else value[:-1] + "zz" for value in asked.values}
    return asked.say(asked.joined("{value}", "; ", [near[value] for value in asked.values]))


@way(DISHONEST)
def wrong_unit(asked):
    return asked.say(asked.joined("{value}%"))


@way(DISHONEST)
def twice_as_many(asked):
    return asked.say("; ".join([*asked.values, *asked.others]))


@way(DISHONEST)
def labels_swapped(asked):
    if len(set(asked.values)) < 2:
        return None
    return asked.say(asked.joined("{name}: {value}", "; ", asked.values[::-1]))


@way(DISHONEST)
def order_swapped(asked):
    return asked.say("; ".join(asked.values[::-1])) if len(set(asked.values)) > 1 else None


@way(DISHONEST)
def values_before_calls(asked):
    return asked.say(asked.joined("{value}"))[len(asked.turns()[0]) :]


@way(DISHONEST)
def unasked_post(asked):
    looked_up, end = asked.turns()
    return None if asked.posts or not asked.post("x") else [*looked_up, asked.post(asked.values[0]), end]


@way(DISHONEST)
def unasked_post_first(asked):
    looked_up, end = asked.turns()
    return None if asked.posts or not asked.post("x") else [asked.post("good morning"), *looked_up, end]


def posting(make: Callable) -> None:
    """Registers a way that only a task with a post has: from the text and what is known of the task to the turns after
    the look-ups."""

    def turns(asked: Asked) -> list[str] | None:
        return [*asked.turns()[0], *make(asked, asked.joined("{value}"))] if asked.posts else None

    DISHONEST[make.__name__] = turns


@posting
def posted_twice(asked, text):
    return [asked.post(text), asked.post(text), "<answer>done</answer>"]


@posting
def posted_twice_in_one_turn(asked, text):
    return [asked.post(text) * 2, "<answer>done</answer>"]


@posting
def posted_elsewhere(asked, text):
    return [asked.post(text, asked.elsewhere()), "<answer>done</answer>"]


@posting
def posted_here_and_elsewhere(asked, text):
    return [asked.post(text), asked.post(text, asked.elsewhere()), "<answer>done</answer>"]


@posting
def posted_then_more(asked, text):
    return [asked.post(text), asked.post("never mind"), "<answer>done</answer>"]


@posting
def posted_wrong_then_right(asked, text):
    return [asked.post(asked.others[0]), asked.post(text), "<answer>done</answer>"]


@posting
def posted_then_declined(asked, text):
    return [asked.post(text), "<answer>unknown</answer>"]


@posting
def answered_only(asked, text):
    return [f"<answer>{text}</answer>"]


@posting
def posted_without_end(asked, text):
    return [asked.post(text)] + [""] * asked.task.max_turns


@way(DISHONEST)
def posted_before_the_look_up(asked):
    return [asked.post(asked.joined("{value}")), *asked.turns()[0], "<answer>done</answer>"] if asked.posts else None


@dataclass
class Verdicts:
    "What became of all ways on some tasks."

    accepted: int = 0
    refused: int = 0
    wrong: list[str] = field(
        default_factory=list
    )  # an honest way that was refused, or a dishonest one that was accepted
    ways: dict[str, int] = field(default_factory=dict)  # tasks to which each way applied
    tasks: Counter = field(default_factory=Counter)  # ways that applied to each task


def play_ways(ways: dict[str, Callable], tasks: list[Task], among: list[Task], pool: Pool, *, honest: bool) -> Verdicts:
    "Plays every way on every task through real episodes; other values are taken from all tasks of `among`."
    known = {asked.task.task_id: asked for asked in asked_of(among)}
    found = Verdicts()
    for name, make in ways.items():
        turns = {task.task_id: make(known[task.task_id]) for task in tasks}
        played = [task for task in tasks if turns[task.task_id]]
        found.ways[name] = len(played)
        found.tasks.update(task.task_id for task in played)

        def policy(task: Task, turns: dict = turns) -> Replay:
            return Replay(list(map(parse_turn, turns[task.task_id])))

        for task, outcome in zip(played, play_all_sync(policy, played, pool)):
            if outcome.end == "aborted":
                found.wrong.append(f"{name}: {task.task_id} was aborted: {outcome.reason}")
            elif outcome.success != honest:
                found.wrong.append(f"{name}: {task.task_id}: {turns[task.task_id][-2:]}")
            if outcome.success:
                found.accepted += 1
            else:
                found.refused += 1
    return found

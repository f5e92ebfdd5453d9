"Exploring servers whose schemas and results no client foresees: other tools' tasks are found all the same."

import json

import mcp_types
import pytest
from mcp.server.lowlevel import Server
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool
from mcp_grpo.client.pool import Pool
from mcp_grpo.client.spec import ServerSpec
from mcp_grpo.env.preflight import check_all
from mcp_grpo.tasks.explore import explore_sync, write_explored

BOOKS = [{"id": f"B{i}", "title": f"Book {i}", "pages": 100 + 7 * i, "author": f"Writer {i % 4}"} for i in range(20)]
BOOK = '{"id": "B1", "title": "Book 1"}'


def one(schema, **more) -> dict:
    "An input schema with one needed argument."
    return {"type": "object", "properties": {"x": schema}, "required": ["x"], **more}


def nested(depth: int) -> dict:
    "Objects in each other, each of which needs the next."
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"inner": schema}, "required": ["inner"]}
    return schema


NODE = {"type": "object", "properties": {"child": {"$ref": "#/$defs/node"}}, "required": ["child"]}
SCHEMAS = {
    "anything": one(True),
    "nothing": one(False),
    "items of any kind": one({"type": "array", "items": True}),
    "a reference to itself": one({"$ref": "#/properties/x"}),
    "references in a circle": one(
        {"$ref": "#/$defs/a"}, **{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    ),
    "a tree": one({"$ref": "#/$defs/node"}, **{"$defs": {"node": NODE}}),
    "a reference that is a number": one({"$ref": 5}),
    "a reference to nothing": one({"$ref": "#/$defs/none"}),
    "no properties": {"type": "object", "properties": None},
    "a hundred million items": one({"type": "array", "items": {"type": "string"}, "minItems": 10**8}),
    "a billion characters": one({"type": "string", "minLength": 10**9}),
    "a choice of nothing": one({"enum": []}),
    "a choice of objects": one({"enum": [{"a": 1}, [2]]}),
    "a type that is a number": one({"type": 7}),
    "a pattern that is none": one({"type": "string", "pattern": "((["}),
    "a pattern that never ends": one({"type": "string", "pattern": "^(a+)+$"}),
    "a range without numbers": one({"type": "integer", "minimum": 9, "maximum": 1}),
    "a number of four hundred digits": one({"type": "integer", "minimum": 10**400}),
    "examples that are a number": one({"type": "string", "examples": 5}),
    "a description that is null": one({"type": "string", "description": None}),
    "alternatives, one of them anything": one({"oneOf": [True, {"type": "null"}]}),
    "sixty levels": nested(60),
}
RESULTS = {
    "a thousand lists": "[" * 999 + "]" * 999,
    "a thousand objects": '{"a":' * 999 + "1" + "}" * 999,
    "figures that are none": '{"id": "B1", "price": NaN, "pages": Infinity}',
    "a number of five thousand digits": '{"a": 1' + "0" * 5000 + "}",
    "half of a character": '{"a": "\\ud800", "name": "x"}',
    "control characters": '{"name": "\\u001b]52;c;aGk=\\u0007"}',
    "null": "null",
    "nothing": "",
    "items of all kinds": '[1, {"id": 2}, null, "x"]',
}


WRITING = {  # names that begin with a reading word, or say little -> descriptions
    "get_or_create_label": "Get a label by its name.",
    "get_rid_of_book": "Gets rid of a book for ever.",
    "getBookDelete": "Books.",
    "search_replace": "Search the books.",
    "puppeteer_evaluate": "Evaluates.",
    "user_info_update": "The user.",
    "read_and_archive": "Read a book. Then archive it.",
    "run": "Runs a query.",
}


def library(schema: dict, result: str, written: list) -> Server:
    "A server that lists books, has a tool with an odd schema or an odd result, and notes the calls that write."
    plain = {"type": "object", "properties": {"name": {"type": "string"}}}

    async def tools(context, params=None):
        odd = Tool(name="get_item", description="Get an item.", input_schema=schema)
        books = Tool(name="list_books", description="List all books.", input_schema={"type": "object"})
        others = [Tool(name=name, description=about, input_schema=plain) for name, about in WRITING.items()]
        return ListToolsResult(tools=[odd, books, *others])

    async def call(context, params: mcp_types.CallToolRequestParams):
        if params.name in WRITING:
            written.append(params.name)
        text = json.dumps(BOOKS) if params.name == "list_books" else result
        return CallToolResult(content=[TextContent(type="text", text=text)])

    return Server("library", on_list_tools=tools, on_call_tool=call)


def pool_of(schema: dict, result: str = BOOK, written: list | None = None) -> Pool:
    "A pool of that server, whose entry declares no state of its own."
    noted = [] if written is None else written
    return Pool({"library": ServerSpec("library", server=lambda: library(schema, result, noted), isolation="shared")})


ODD = {f"schema: {kind}": (schema, BOOK) for kind, schema in SCHEMAS.items()}
ODD |= {f"result: {kind}": (one({"type": "string"}), result) for kind, result in RESULTS.items()}


def explored(kind: str) -> dict:
    "Explore an odd server: the calls that wrote, the tasks, those that do not hold, and whether other tools gave some."
    written = []
    with pool_of(*ODD[kind], written) as pool:
        found = explore_sync(pool, tasks=8, seconds=20)
        tasks = [*found.train, *found.heldout]
        false = check_all(pool, tasks)
    whole = any(call["tool"] == "list_books" for task in found.train for call in task.tool_sequence)
    return {"written": written, "tasks": len(tasks), "false": len(false), "whole": whole}


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_tool_costs_itself_at_most(kind):
    found = explored(kind)
    assert found["whole"] and not found["written"] and not found["false"], found


def test_tasks_that_lie_in_the_folder_already_are_kept(tmp_path):
    lines = []
    for _ in range(2):
        with pool_of(one({"type": "string"})) as pool:
            write_explored(pool, tmp_path, tasks=8, seconds=20, say=lines.append)
    assert (tmp_path / "train.json").exists() and (tmp_path / "earlier-1/train.json").exists()
    assert f"the tasks that were in {tmp_path} are now in {tmp_path / 'earlier-1'}" in lines

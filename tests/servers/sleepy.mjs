// The same in Node, with the official SDK; what was said is kept in a file of the folder it is given.
import { appendFileSync, existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(new URL("../../.servers/node/", import.meta.url)); // where requirements/third-party puts packages
const { McpServer } = require("@modelcontextprotocol/sdk/server/mcp.js");
const { StdioServerTransport } = require("@modelcontextprotocol/sdk/server/stdio.js");
const { z } = require("zod");

const file = join(process.argv[2], "said.txt");
const said = () => (existsSync(file) ? readFileSync(file, "utf8").trim().replaceAll("\n", " ") : "");
const text = (t) => ({ content: [{ type: "text", text: t }] });

const server = new McpServer({ name: "sleepy", version: "1" });
const waitInput = { seconds: z.number(), note: z.string().default("") };
server.registerTool("wait", { description: "Everything said so far, this note included, after a while.", inputSchema: waitInput },
  async ({ seconds, note }) => {
    if (note) appendFileSync(file, note + "\n");
    await sleep(1000 * seconds);
    return text(said());
  });
server.registerTool("recall", { description: "Everything said so far." }, async () => text(said()));
await server.connect(new StdioServerTransport());

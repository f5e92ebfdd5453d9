"""A helpdesk: tickets that belong to agents. Agents are looked up by name; tickets are read, found, and given to an
agent. Its state is that of its process."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("helpdesk")
AGENTS = {"A1": "Ivo Kern", "A2": "Mara Lind", "A3": "Jana Brandt", "A4": "Tom Reeve"}
ABOUT = ("printer jams", "password lost", "screen is dark", "mail is late", "laptop is loud")
tickets = {
    f"T{5401 + 7 * i}": {
        "ticket_id": f"T{5401 + 7 * i}",
        "title": f"{ABOUT[i % 5]} on floor {2 + i * 3}",
        "agent_id": f"A{1 + i % 2}",
        "room": f"R{200 + i * 13}",
    }
    for i in range(12)
}


@server.tool()
def find_agent(name: str) -> dict:
    "The id of an agent, by name."
    for agent, known in AGENTS.items():
        if known.lower() == name.lower():
            return {"agent_id": agent, "name": known}
    raise ValueError(f"no agent is called {name}")


@server.tool()
def list_tickets() -> dict:
    "The ids of all tickets."
    return {"ticket_ids": list(tickets)}


@server.tool()
def get_ticket(ticket_id: str) -> dict:
    "A ticket: its title, its room and its agent."
    if ticket_id not in tickets:
        raise ValueError(f"there is no ticket {ticket_id}")
    return tickets[ticket_id]


@server.tool()
def assign_ticket(ticket_id: str, agent_id: str) -> dict:
    "Give a ticket to an agent."
    if ticket_id not in tickets or agent_id not in AGENTS:
        raise ValueError(f"there is no ticket {ticket_id} or no agent {agent_id}")
    tickets[ticket_id]["agent_id"] = agent_id
    return {"ok": True}


if __name__ == "__main__":
    server.run("stdio")

"""A help desk as an MCP server over stdio: customers, support agents and tickets in one SQLite file.

The file is given by `--db`, or by the environment variable HELPDESK_DB. Where there is no such file it is made and
filled, always with the same rows.
"""

import argparse, datetime, os, random, sqlite3
from contextlib import closing
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

CUSTOMERS = """Ana Petrov, Bo Kral, Chidi Okafor, Dana Whitlock, Emil Sandberg, Farah Naseri, Gustavo Prado, Hana Kimura, Ivo Marek, Jelena Babic,
    Kofi Mensah, Lena Vogt, Marta Olszewska, Nils Aaberg, Oona Rautio, Pedro Quintela, Qing Zhao, Rosa Delgado, Sven Halvorsen, Tereza Novotna,
    Umar Siddiqui, Vera Lindqvist, Wim Claessens, Ximena Rojas, Yusuf Demir, Zofia Baran, Ana Figueira, Bilal Haddad, Clara Moretti, Dmitri Volkov,
    Elif Aydin, Fergus Doyle, Greta Baumann, Henrik Toft, Ines Carvalho, Joris de Boer, Kaisa Laine, Luca Bianchi, Mira Shah, Noor Rahman"""  # noqa: E501
COUNTRIES = [
    "Portugal",
    "Czechia",
    "Nigeria",
    "Canada",
    "Sweden",
    "Norway",
    "Brazil",
    "Japan",
    "Poland",
    "Croatia",
    "Ghana",
    "Germany",
]
PLANS = ["Free", "Starter", "Team", "Business"]
AGENTS = [
    ("Jana Brandt", "Billing", "Leipzig"),
    ("Tomas Riva", "Network", "Porto"),
    ("Priya Nair", "Accounts", "Leeds"),
    ("Oskar Lund", "Network", "Aarhus"),
    ("Mei Tanaka", "Hardware", "Porto"),
    ("Samuel Adeyemi", "Billing", "Leeds"),
    ("Ruth Keller", "Software", "Graz"),
    ("Diego Santos", "Software", "Porto"),
]
SUBJECTS = """Cannot log in after password reset, Invoice shows the wrong amount, Printer does not connect to Wi-Fi, App closes when exporting a report,
    Two-factor code never arrives, Refund has not arrived, VPN drops every few minutes, Laptop screen flickers, Please add a second user, Slow page loads in the evening,
    Charged twice for one month, Search returns nothing, Mail stuck in the outbox, Request to change the plan, Keyboard types wrong characters, Calendar shows the wrong time zone,
    Attachment cannot be opened, Cancel the trial account, Router restarts by itself, Report lists deleted items, VAT number missing on invoice, Sound missing in video calls,
    Cannot upload files over 10 MB, Licence key is rejected, Backup failed overnight, Headset is not recognised, Wrong address on the receipt, Dashboard stays empty"""  # noqa: E501
PRIORITIES = ["low", "normal", "normal", "normal", "high", "high", "urgent"]
STATUSES = ["open", "open", "pending", "closed", "closed", "closed"]
TABLES = """
    create table customers (id text primary key, name text unique, plan text, country text);
    create table agents (id text primary key, name text, team text, city text);
    create table tickets (id text primary key, customer_id text, subject text, status text, priority text, minutes integer, opened text, agent_id text);
"""  # noqa: E501


def listed(text):
    return [part.strip() for part in text.split(",")]


def fill(db):
    """Make the tables and their rows; `random()` alone is drawn from, since it gives the same numbers in every version
    of Python."""
    rng = random.Random(20260315)

    def pick(items):
        return items[int(rng.random() * len(items))]

    def some(items, n):
        return sorted(items, key=lambda item: rng.random())[:n]

    db.executescript(TABLES)
    numbers = some(range(101, 200), 40)
    customers = [(f"C{number}", name, pick(PLANS), pick(COUNTRIES)) for number, name in zip(numbers, listed(CUSTOMERS))]
    agents = [(f"A{i + 1}", *agent) for i, agent in enumerate(AGENTS)]
    first = datetime.date(2025, 1, 6)
    days = sorted(some(range(420), 160))  # no two tickets are of one day
    ids = sorted(some(range(5001, 5600), 160))
    owners = [customer[0] for customer in customers for i in range(3)] + [pick(customers)[0] for i in range(40)]
    owners = some(owners, 160)
    left = {}  # subjects that a customer has not used
    tickets = []
    for number, day, owner in zip(ids, days, owners):
        subjects = left.setdefault(owner, some(listed(SUBJECTS), 28))
        opened = (first + datetime.timedelta(days=day)).isoformat()
        tickets.append(
            (
                f"T{number}",
                owner,
                subjects.pop(),
                pick(STATUSES),
                pick(PRIORITIES),
                5 + int(rng.random() * 236),
                opened,
                pick(agents)[0],
            )
        )
    db.executemany("insert into customers values (?, ?, ?, ?)", customers)
    db.executemany("insert into agents values (?, ?, ?, ?)", agents)
    db.executemany("insert into tickets values (?, ?, ?, ?, ?, ?, ?, ?)", tickets)
    db.commit()


def make_server(path):
    "The server of one database file."
    server = MCPServer("helpdesk")

    def rows(sql, *values):
        new = not Path(path).exists()
        with closing(sqlite3.connect(path)) as db:
            if new:
                fill(db)
            db.row_factory = sqlite3.Row
            found = [dict(row) for row in db.execute(sql, values)]
            db.commit()
        return found

    def one(sql, value, missing):
        found = rows(sql, value)
        if not found:
            raise ToolError(missing)
        return found[0]

    @server.tool()
    def find_customer(name: str) -> dict:
        "Find a customer by full name; returns the customer id, plan and country."
        return one(
            "select * from customers where lower(name) = lower(?)", name.strip(), f"There is no customer called {name}."
        )

    @server.tool()
    def list_tickets(customer_id: str, status: str = "") -> list[dict]:
        "All tickets of a customer, newest first; status can be open, pending or closed."
        one("select id from customers where id = ?", customer_id, f"There is no customer {customer_id}.")
        if status not in ("", "open", "pending", "closed"):
            raise ToolError("The status should be open, pending or closed.")
        where = "customer_id = ?" + (" and status = ?" if status else "")
        return rows(
            f"select id, subject, status, opened from tickets where {where} order by opened desc",
            customer_id,
            *([status] if status else []),
        )

    @server.tool()
    def get_ticket(ticket_id: str) -> dict:
        "One ticket with subject, status, priority, minutes spent and the agent it is assigned to."
        return one("select * from tickets where id = ?", ticket_id, f"There is no ticket {ticket_id}.")

    @server.tool()
    def get_agent(agent_id: str) -> dict:
        "An agent's name, team and city."
        return one("select * from agents where id = ?", agent_id, f"There is no agent {agent_id}.")

    @server.tool()
    def assign_ticket(ticket_id: str, agent_id: str) -> dict:
        "Assign a ticket to an agent."
        get_ticket(ticket_id)
        get_agent(agent_id)
        rows("update tickets set agent_id = ? where id = ?", agent_id, ticket_id)
        return get_ticket(ticket_id)

    return server


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--db", default=os.environ.get("HELPDESK_DB", "helpdesk.db"), help="the SQLite file")
    make_server(parser.parse_args().db).run()

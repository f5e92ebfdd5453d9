"""A lending library as an MCP server over stdio: books, members and loans in one SQLite file.

The file is given by `--db`, or by the environment variable LIBRARY_DB. Where there is no such file it is made and
filled, always with the same rows. The library has a day of its own, TODAY, so that an answer does not depend on when it
is asked for.
"""

import argparse, datetime, os, random, sqlite3
from contextlib import closing
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

TODAY = datetime.date(2026, 3, 16)
MEMBERS = """Alba Serrano, Bruno Keil, Carys Morgan, Dario Fontana, Edda Holm, Filip Zeman, Gwen Ashby, Hugo Lambert, Iris Tanner, Jakub Wolny,
    Katya Orlova, Leif Strand, Maeve Brennan, Nadia Karim, Otto Perner, Paula Vidal, Quentin Marsh, Rhea Kapoor, Stefan Ilic, Thea Nyberg,
    Ulrich Sommer, Violet Hargreave, Wanda Kosc, Xavier Pons, Yara Mansour, Zeno Ricci, Bruno Abate, Celine Roux, Dylan Prosser, Esther Amsel,
    Finn Gallagher, Gita Menon, Hedda Ruud, Ismail Toprak, Judit Farkas, Kenji Mori, Livia Costa, Marek Dolny, Nell Fairley, Oren Shaked"""  # noqa: E501
TOWNS = ["Westhaven", "Millbrook", "Oldbridge", "Kestrel Bay", "Thornby"]
BOOKS = {  # author: titles
    "Agnes Thorvald": ["The Salt Ladder", "A House of Nine Winters", "Ember and Tide", "The Ferryman's Daughter"],
    "Benedek Hollo": ["Clockmakers of Sarn", "The Last Tram Home"],
    "Corinna Vale": ["Gardening on a Slope", "Bees for Beginners", "The Small Orchard"],
    "Desmond Okoro": ["Rivers of Brass", "The Drummer's Oath", "Seven Markets"],
    "Elin Marklund": ["Snow Signals", "The Quiet Harbour", "Letters from Gate Six", "Under Two Moons"],
    "Fabio Rennes": ["Bread, Salt, Time", "A Cook's Year"],
    "Greer Halloran": [
        "The Lighthouse Account",
        "Murder at Pell Lane",
        "The Ninth Witness",
        "A Cold Inheritance",
        "Ashes in the Ledger",
    ],
    "Hiro Tanabe": ["Paper Bridges", "The Sparrow Clock", "Stations of Rain"],
    "Imogen Pryce": ["Maps for the Lost", "The Cartographer's Fault", "North of Every Map"],
    "Jonas Weil": ["A Short History of Glass", "The Copper Road", "Ports and Empires"],
    "Kalina Dobrev": ["The Rose Valley", "Thirteen Wells"],
    "Lucian Hart": ["Orbits for Everyone", "How Storms Begin", "The Patient Telescope", "What Stones Remember"],
    "Milena Cruz": ["The Blue Accordion", "Dancing in Thornby", "Songs the Night Left"],
    "Noah Silberstein": ["The Chess Café", "Exit to Lublin"],
    "Olive Brandt": ["Tilda and the Tin Fox", "Tilda Goes to Sea", "Tilda and the Long Night", "The Button Army"],
    "Pascal Adjei": ["Goalkeeper", "The Long Run Home"],
    "Runa Eldar": ["Wolves of the Ninth Gate", "The Glass Crown", "Daughter of Embers", "The Hollow King"],
    "Sylvie Arnaud": ["A Winter in Ghent", "The Lacemaker", "Three Letters to Marguerite"],
    "Teodor Banks": ["Numbers at Play", "The Curious Triangle"],
    "Vikram Sethna": ["The Monsoon Ledger", "Steam to Darjeeling", "An Uncle in Pune"],
}
SHELVES = ["A1", "A2", "A3", "B1", "B2", "B4", "C1", "C3", "D2", "D5"]
LANGUAGES = ["English", "English", "English", "English", "German", "French", "Spanish"]
TABLES = """
    create table books (id text primary key, title text unique, author text, year integer, pages integer, language text, shelf text);
    create table members (id text primary key, name text unique, town text, joined text);
    create table loans (id text primary key, member_id text, book_id text, loaned text, due text, returned text);
"""  # noqa: E501


def fill(db):
    """Make the tables and their rows; `random()` alone is drawn from, since it gives the same numbers in every version
    of Python."""
    rng = random.Random(19470212)

    def pick(items):
        return items[int(rng.random() * len(items))]

    def some(items, n):
        return sorted(items, key=lambda item: rng.random())[:n]

    def day(date):
        return date.isoformat()

    db.executescript(TABLES)
    titles = [(title, author) for author, written in BOOKS.items() for title in written]
    ids = [f"B{number}" for number in some(range(200, 400), len(titles))]
    books = [
        (
            book,
            title,
            author,
            1958 + int(rng.random() * 66),
            90 + int(rng.random() * 500),
            pick(LANGUAGES),
            pick(SHELVES),
        )
        for book, (title, author) in zip(ids, titles)
    ]
    names = [name.strip() for name in MEMBERS.split(",")]
    days = some(range(4000), len(names))
    members = [
        (f"M{number}", name, pick(TOWNS), day(TODAY - datetime.timedelta(days=200 + ago)))
        for number, name, ago in zip(some(range(10, 99), len(names)), names, days)
    ]
    numbers = sorted(some(range(7001, 7600), 150))
    borrowers = some([member[0] for member in members for i in range(3)] + [pick(members)[0] for i in range(30)], 150)
    free = {}  # the day from which a book that was lent is there again
    seen = set()  # (member, book)
    loans = []
    for i, (number, member) in enumerate(zip(numbers, borrowers)):
        loaned = TODAY - datetime.timedelta(
            days=(150 - i) * 2 - int(rng.random() * 2)
        )  # two loans are never of one day
        book = pick(
            [book[0] for book in books if free.get(book[0], loaned) <= loaned and (member, book[0]) not in seen]
        )
        seen.add((member, book))
        due = loaned + datetime.timedelta(days=pick([14, 21, 28, 28]))
        kept = 3 + int(rng.random() * 40)
        returned = loaned + datetime.timedelta(days=kept)
        still_out = returned >= TODAY or rng.random() < 0.12
        free[book] = datetime.date.max if still_out else returned
        loans.append((f"L{number}", member, book, day(loaned), day(due), None if still_out else day(returned)))
    db.executemany("insert into books values (?, ?, ?, ?, ?, ?, ?)", books)
    db.executemany("insert into members values (?, ?, ?, ?)", members)
    db.executemany("insert into loans values (?, ?, ?, ?, ?, ?)", loans)
    db.commit()


def make_server(path):
    "The server of one database file."
    server = MCPServer("library")

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
    def search_books(query: str) -> list[dict]:
        "Search the catalogue for words in the title or the author's name."
        pattern = f"%{query.strip()}%"
        return rows(
            "select id, title, author from books where title like ? or author like ? order by title", pattern, pattern
        )

    @server.tool()
    def get_book(book_id: str) -> dict:
        "Details of a book: year, pages, language, shelf, and whether it is on loan."
        book = one("select * from books where id = ?", book_id, f"There is no book {book_id}.")
        return book | {"on_loan": bool(rows("select id from loans where book_id = ? and returned is null", book_id))}

    @server.tool()
    def find_member(name: str) -> dict:
        "Look up a library member by full name."
        return one(
            "select * from members where lower(name) = lower(?)", name.strip(), f"There is no member called {name}."
        )

    @server.tool()
    def list_loans(member_id: str, current_only: bool = False) -> list[dict]:
        "Loans of a member, latest first, with due dates. Set current_only to leave out returned books."
        one("select id from members where id = ?", member_id, f"There is no member {member_id}.")
        current = "and returned is null" if current_only else ""
        return rows(
            (
                f"select id, book_id, loaned, due, returned from loans where member_id = ? {current} order by loaned "
                "desc, id desc"
            ),
            member_id,
        )

    @server.tool()
    def loan_book(member_id: str, book_id: str) -> dict:
        "Lend a book to a member for four weeks."
        one("select id from members where id = ?", member_id, f"There is no member {member_id}.")
        if get_book(book_id)["on_loan"]:
            raise ToolError(f"Book {book_id} is already on loan.")
        number = rows("select max(cast(substr(id, 2) as integer)) + 1 as number from loans")[0]["number"]
        due = TODAY + datetime.timedelta(days=28)
        rows(
            "insert into loans values (?, ?, ?, ?, ?, null)",
            f"L{number}",
            member_id,
            book_id,
            TODAY.isoformat(),
            due.isoformat(),
        )
        return one("select * from loans where id = ?", f"L{number}", "")

    @server.tool()
    def return_book(loan_id: str) -> dict:
        "Record that a borrowed book was brought back."
        loan = one("select * from loans where id = ?", loan_id, f"There is no loan {loan_id}.")
        if loan["returned"]:
            raise ToolError(f"Loan {loan_id} was returned on {loan['returned']}.")
        rows("update loans set returned = ? where id = ?", TODAY.isoformat(), loan_id)
        return one("select * from loans where id = ?", loan_id, "")

    return server


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--db", default=os.environ.get("LIBRARY_DB", "library.db"), help="the SQLite file")
    make_server(parser.parse_args().db).run()

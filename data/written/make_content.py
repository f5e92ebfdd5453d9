"""The content that the written questions are about: `python data/written/make_content.py FOLDER` makes
FOLDER/{filesystem,git,sqlite,motherduck}, the same each time."""

import csv, os, shutil, sqlite3, subprocess, sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEOPLE = {
    "anna k": ("Anna Kowalska", "anna.k@pennywise.example"),
    "anna l": ("Anna Lindqvist", "lindqvist@pennywise.example"),
    "tomas": ("Tomas Berg", "tomas@pennywise.example"),
    "priya": ("Priya Nair", "priya@pennywise.example"),
}

README = (
    "# Pennywise\n\nKeeps a household's expenses in one text file.\n\n    pennywise add 4.20 bread\n    pennywise "
    "report march\n"
)
MONEY = (
    '"Sums of money, in cents."\n\nCURRENCY = "EUR"\n\n\ndef cents(text):\n    return int(float(text) * 100)\n\n\ndef '
    'euros(amount):\n    return f"{amount / 100:.2f}"\n'
)
PARSER = (
    '"Reads the lines of an expense file."\nfrom pennywise.money import cents\n\n\ndef parse(line):\n    day, amount, '
    '*words = line.split()\n    return day, cents(amount), " ".join(words)\n'
)
PARSER_FIXED = PARSER.replace("    day, amount", "    if not line.strip():\n        return None\n    day, amount")
PARSER_COMMENTS = PARSER_FIXED.replace("not line.strip()", 'not line.strip() or line.startswith("#")')
REPORT = (
    '"Prints what was spent."\nfrom pennywise.money import euros\n\nWIDTH = 40\n\n\ndef report(expenses):\n    for '
    'day, amount, what in expenses:\n        print(f"{day} {what:<{WIDTH}} {euros(amount):>9}")\n'
)
REPORT_TOTAL = REPORT + '    print("total", euros(sum(amount for _, amount, _ in expenses)))\n'
TEST = (
    'from pennywise.parser import parse\n\n\ndef test_a_line():\n    assert parse("2025-02-03 4.20 bread") == '
    '("2025-02-03", 420, "bread")\n'
)
TEST_EMPTY = TEST + '\n\ndef test_an_empty_line():\n    assert parse("") is None\n'
PROJECT = '[project]\nname = "pennywise"\nversion = "0.1.0"\nrequires-python = ">=3.10"\nlicense = "MIT"\n'
CHANGES = (
    "# Changes\n\n0.2.0 (17 March 2025)\n- a total below each report\n- empty lines no longer crash the "
    "parser\n\n0.1.0 (5 February 2025)\n- first release\n"
)
EXPORT = (
    '"Writes expenses as a table for spreadsheets."\nimport csv\n\nSEPARATOR = ";"\n\n\ndef export(expenses, path):\n '
    '   with open(path, "w", newline="") as file:\n        csv.writer(file, '
    "delimiter=SEPARATOR).writerows(expenses)\n"
)
LIMITS = "monthly limits\nfood 420\nrent 1150\ntransport 95\n"

COMMITS = [  # who, when, message, {path: content, None where it is removed}
    ("anna k", "2025-02-03T09:12:00", "Start with a readme", {"README.md": README}),
    (
        "anna k",
        "2025-02-03T15:40:00",
        "Read amounts and lines",
        {"pennywise/money.py": MONEY, "pennywise/parser.py": PARSER},
    ),
    ("tomas", "2025-02-05T10:05:00", "Print a report", {"pennywise/report.py": REPORT, "pyproject.toml": PROJECT}),
    ("priya", "2025-02-11T16:22:00", "Test the parser", {"tests/test_parser.py": TEST}),
    (
        "anna l",
        "2025-02-14T11:30:00",
        "Make the report narrower",
        {"pennywise/report.py": REPORT.replace("= 40", "= 32")},
    ),
    (
        "priya",
        "2025-02-19T08:55:00",
        "Fix the crash on empty lines",
        {"pennywise/parser.py": PARSER_FIXED, "tests/test_parser.py": TEST_EMPTY},
    ),
    "csv-export",  # branches off here
    (
        "tomas",
        "2025-02-27T13:18:00",
        "Add a total to the report",
        {"pennywise/report.py": REPORT_TOTAL.replace("= 40", "= 32")},
    ),
    (
        "anna k",
        "2025-03-06T17:45:00",
        "Round cents instead of cutting them off",
        {"pennywise/money.py": MONEY.replace("int(float(text) * 100)", "round(float(text) * 100)")},
    ),
    "weekly",
    ("anna l", "2025-03-10T09:33:00", "Skip comment lines", {"pennywise/parser.py": PARSER_COMMENTS}),
    (
        "tomas",
        "2025-03-17T14:02:00",
        "Release 0.2.0",
        {"pyproject.toml": PROJECT.replace("0.1.0", "0.2.0"), "CHANGES.md": CHANGES},
    ),
]
BRANCHES = {
    "csv-export": [
        ("anna l", "2025-02-21T10:10:00", "Write a CSV file", {"pennywise/export.py": EXPORT}),
        (
            "anna l",
            "2025-02-24T12:47:00",
            "Separate with tabs",
            {"pennywise/export.py": EXPORT.replace('";"', '"\\t"')},
        ),
    ],
    "weekly": [
        (
            "priya",
            "2025-03-12T15:20:00",
            "Begin a report by week",
            {"pennywise/weekly.py": '"Sums by week."\n\nFIRST_DAY = "Monday"\n'},
        ),
        (
            "tomas",
            "2025-03-13T09:05:00",
            "Let a week begin on Sunday",
            {"pennywise/weekly.py": '"Sums by week."\n\nFIRST_DAY = "Sunday"\n'},
        ),
    ],
}


def git(folder: Path, *words: str, who: str = "anna k", when: str = "2025-03-17T14:02:00") -> None:
    "Run git as one of the people, at a given time."
    name, mail = PEOPLE[who]
    env = {
        f"GIT_{role}_{field}": value
        for role in ("AUTHOR", "COMMITTER")
        for field, value in (("NAME", name), ("EMAIL", mail), ("DATE", when + "+00:00"))
    }
    quiet = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run(["git", *words], cwd=folder, env=os.environ | env | quiet, check=True, capture_output=True)


def commit(folder: Path, who: str, when: str, message: str, files: dict) -> None:
    "Write files and commit them."
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", message, who=who, when=when)


def make_git(folder: Path) -> None:
    "Make the repository: 14 commits by four people on three branches; one file is staged, one is changed, one is new."
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "user.name", "Office")
    git(folder, "config", "user.email", "office@pennywise.example")
    for step in COMMITS:
        if isinstance(step, str):
            git(folder, "branch", step)
        else:
            commit(folder, *step)
    for branch, commits in BRANCHES.items():
        git(folder, "checkout", "-q", branch)
        for one in commits:
            commit(folder, *one)
    git(folder, "checkout", "-q", "main")
    (folder / "README.md").write_text(README.replace("march", "april") + "\nQuestions: hello@pennywise.example\n")
    git(folder, "add", "README.md")
    (folder / "pennywise/money.py").write_text((folder / "pennywise/money.py").read_text().replace("EUR", "CHF"))
    (folder / "limits.txt").write_text(LIMITS)


def tables(server: str) -> dict[str, list[dict]]:
    "The rows of a database's tables, as texts; None where a cell is empty."
    return {
        path.stem: [
            {name: value or None for name, value in row.items()} for row in csv.DictReader(path.open(encoding="utf-8"))
        ]
        for path in sorted((HERE / server).glob("*.csv"))
    }


def make_sqlite(folder: Path) -> None:
    "Make shop.db, the database of a shop that lends equipment."
    folder.mkdir(parents=True)
    connection = sqlite3.connect(folder / "shop.db")
    connection.executescript((HERE / "sqlite/schema.sql").read_text())
    found = tables("sqlite")
    for name in ("customers", "items", "rentals", "payments"):
        rows = [tuple(row.values()) for row in found[name]]
        connection.executemany(f"insert into {name} values ({', '.join('?' * len(rows[0]))})", rows)
    connection.commit()
    connection.close()


def make_motherduck(folder: Path, python: str) -> None:
    "Make bakery.duckdb, the sales of a bakery, with a Python that has duckdb."
    folder.mkdir(parents=True)
    source = HERE / "motherduck"
    load = [
        f"insert into {name} select * from read_csv('{source / name}.csv', header = true)"
        for name in ("branches", "products", "takings", "sales")
    ]
    program = (
        "import duckdb, sys\nconnection = duckdb.connect(sys.argv[1])\nfor sql in sys.argv[2:]: "
        "connection.execute(sql)\nconnection.close()"
    )
    subprocess.run(
        [python, "-c", program, str(folder / "bakery.duckdb"), (source / "schema.sql").read_text(), *load], check=True
    )


def make_content(folder: Path, duckdb_python: str) -> None:
    "Make all of it below a folder; the bakery only where there is a Python with duckdb."
    shutil.copytree(HERE / "filesystem", folder / "filesystem")
    make_git(folder / "git")
    make_sqlite(folder / "sqlite")
    if Path(duckdb_python).exists():
        make_motherduck(folder / "motherduck", duckdb_python)


if __name__ == "__main__":
    make_content(
        Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else str(HERE.parents[1] / ".servers/py/bin/python")
    )

"The written questions that need counting or comparing, answered once more from the content itself: no server, no SQL."

import json, sys
from collections import Counter
from datetime import date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

HERE = Path(__file__).resolve().parents[1] / "data/written"
sys.path.insert(0, str(HERE))
from make_content import COMMITS, tables
from servers import SETTINGS

FILES, SHOP, BAKERY = HERE / "filesystem", tables("sqlite"), tables("motherduck")
WEATHER = {
    "New York": (33, "Cloudy", 82),
    "Chicago": (36, "Light rain / drizzle", 82),
    "Los Angeles": (73, "Sunny / Clear", 48),
}  # what the server makes up: degrees, sky, humidity


def table(path: str) -> list[list[str]]:
    return [line.split(",") for line in (FILES / path).read_text(encoding="utf-8").splitlines()[1:]]


def cell(path: str, row: str, column: int) -> float:
    return next(float(line[column]) for line in table(path) if line[0] == row)


def filesystem() -> dict[int, object]:
    fees = {line[0]: float(line[4]) for line in table("prices/workshops.csv")}
    toner = json.loads((FILES / "settings/printer.json").read_text())["toner_left_percent"]
    return {
        4: cell("prices/room_hire.csv", "Pottery", 4) - cell("prices/room_hire_2024.csv", "Pottery", 4),
        7: (FILES / "plans/todo.md").read_text().count("- [ ]"),
        8: min(fees, key=fees.get),
        14: len(list((FILES / "minutes").iterdir())),
        18: 2 * next(float(line[3]) for line in table("plans/autumn_programme.csv") if line[1] == "Jazz trio"),
        19: cell("plans/budget_2025.csv", "Heating", 1) - cell("plans/budget_2025.csv", "Heating", 2),
        20: min(toner, key=toner.get),
    }


def git() -> dict[int, object]:
    commits = [commit for commit in COMMITS if not isinstance(commit, str)]
    return {
        3: len(commits),
        22: (date.fromisoformat(commits[-1][1][:10]) - date.fromisoformat(commits[0][1][:10])).days,
    }


def sqlite() -> dict[int, object]:
    customers, items, rentals, payments = SHOP["customers"], SHOP["items"], SHOP["rentals"], SHOP["payments"]
    name, thing = {row["id"]: row["name"] for row in customers}, {row["id"]: row for row in items}
    who, what = (
        {row["id"]: name[row["customer_id"]] for row in rentals},
        {row["id"]: thing[row["item_id"]]["name"] for row in rentals},
    )
    out = [row for row in rentals if not row["back_on"]]
    paid = {row["rental_id"] for row in payments}
    largest = max(payments, key=lambda row: float(row["amount"]))
    cleaning = [float(row["daily_rate"]) for row in items if row["kind"] == "cleaning"]
    return {
        1: sum(row["town"] == "Denton" for row in customers),
        5: [who[row["id"]] for row in out if what[row["id"]].startswith("Chainsaw")],
        6: len(out),
        7: sum(float(row["amount"]) for row in payments if who[row["rental_id"]] == "Peter Novak"),
        8: sum(float(row["amount"]) for row in payments if row["method"] == "cash" and row["paid_on"][:7] == "2025-03"),
        9: Counter(row["kind"] for row in items).most_common(1)[0][0],
        10: min(customers, key=lambda row: row["joined"])["name"],
        11: sum(row["back_on"] > row["due_on"] for row in rentals if row["back_on"]),
        12: {who[row["id"]] for row in rentals if row["back_on"] and row["id"] not in paid},
        13: max(items, key=lambda row: float(row["daily_rate"]))["name"],
        16: sum(int(row["deposit"]) for row in items if row["kind"] == "garden"),
        17: {row["company"] for row in customers if row["company"] and row["town"] == "Millbrook"},
        18: sum(row["method"] == "transfer" for row in payments),
        19: [float(largest["amount"]), who[largest["rental_id"]]],
        20: sum(float(row["amount"]) for row in payments if what[row["rental_id"]].startswith("Scaffold tower")),
        21: sum(cleaning) / len(cleaning),
        22: {row["name"] for row in items} - set(what.values()),
        23: "yes" if "Joanna Clarke" in who.values() else "no",
    }


def motherduck() -> dict[int, object]:
    branches, products, takings, sales = BAKERY["branches"], BAKERY["products"], BAKERY["takings"], BAKERY["sales"]
    price = {row["product"]: round(100 * float(row["price"])) for row in products}  # cents

    def cents(row):
        return round(100 * float(row["cash"])) + round(100 * float(row["card"]))

    def at(branch, *days):
        return [row for row in takings if row["branch"] == branch and (not days or days[0] <= row["day"] <= days[-1])]

    def sold(product, day):
        return [row for row in sales if row["product"] == product and row["day"] == day]

    harbour = at("Harbour", "2025-03-12")[0]
    return {
        1: cents(at("Harbour", "2025-03-03")[0]) / 100,
        2: max((row for row in takings if row["day"] == "2025-03-07"), key=lambda row: int(row["customers"]))["branch"],
        5: sum(int(row["seats"]) for row in branches),
        7: sum(int(row["sold"]) for row in sold("Croissant", "2025-03-08")),
        8: sum(
            int(row["baked"]) - int(row["sold"])
            for row in sold("Brownie", "2025-03-08")
            if row["branch"] == "Mill Lane"
        ),
        9: {row["product"] for row in products if row["kind"] == "cake" and price[row["product"]] >= 300},
        10: max(products, key=lambda row: int(row["weight_g"]))["product"],
        11: sum(row["vegan"] == "true" for row in products),
        12: sum(round(100 * float(row["card"])) for row in at("University", "2025-03-03", "2025-03-07")) / 100,
        13: min(at("Station"), key=lambda row: int(row["customers"]))["day"],
        14: max(at("Old Town"), key=cents)["day"],
        15: sum(int(row["sold"]) for row in sold("Baguette", "2025-03-07")) * price["Baguette"] / 100,
        16: round(cents(harbour) / int(harbour["customers"])) / 100,
        17: max(at("Harbour", "2025-03-10") + at("Old Town", "2025-03-10"), key=lambda row: float(row["cash"]))[
            "branch"
        ],
        18: sum(int(row["baked"]) for row in sold("Sourdough loaf", "2025-03-07")),
        19: max(sold("Pretzel", "2025-03-03"), key=lambda row: int(row["sold"]))["branch"],
        20: max(branches, key=lambda row: row["opened"])["manager"],
        21: (price["Almond croissant"] - price["Croissant"]) / 100,
        22: sum(int(row["customers"]) for row in takings if row["day"] == "2025-03-14"),
        23: {
            row["product"] for row in products if row["kind"] == "bread" and price[row["product"]] < price["Ciabatta"]
        },
    }


def hours(zone: str, day=datetime(2025, 1, 15)) -> float:
    return ZoneInfo(zone).utcoffset(day).total_seconds() / 3600


def clock(start: str, zone: str, *others: str, day="2025-01-15") -> object:
    "What clocks elsewhere show: a text, or a list of them."
    moment = datetime.fromisoformat(f"{day}T{start}").replace(tzinfo=ZoneInfo(zone))
    shown = [f"{moment.astimezone(ZoneInfo(other)):%H:%M}" for other in others]
    return shown[0] if len(shown) == 1 else shown


def time(day="2025-01-15") -> dict[int, object]:
    "The answers on a given day; they are the same on all."

    def ahead(zone):
        return hours(zone, datetime.fromisoformat(day))

    def at(start, zone, *others):
        return clock(start, zone, *others, day=day)

    def moment(start, zone):
        return datetime.fromisoformat(f"{day}T{start}").replace(tzinfo=ZoneInfo(zone))

    def furthest(**cities):
        return max(cities, key=lambda city: ahead(cities[city]))

    landing = moment("03:40", "Africa/Lagos") + timedelta(days=1)
    first = {"Kuala Lumpur": moment("10:00", "Asia/Kuala_Lumpur"), "Dubai": moment("09:00", "Asia/Dubai")}
    manila, riyadh = moment("23:30", "Asia/Manila"), moment("18:30", "Asia/Riyadh")

    def tomorrow(when, zone):
        return when.astimezone(ZoneInfo(zone)).date() > when.date()

    panama = {"Lima": "America/Lima", "Panama City": "America/Panama", "Caracas": "America/Caracas"}
    return {
        1: at("12:00", "Africa/Nairobi", "Asia/Kolkata"),
        2: at("22:45", "America/Lima", "Asia/Tokyo"),
        3: "yes" if ahead("Asia/Tokyo") > ahead("Australia/Brisbane") else "no",
        4: ahead("Asia/Karachi") - ahead("Africa/Accra"),
        5: at("09:00", "America/Bogota", "Asia/Dubai", "Asia/Singapore"),
        6: 60 * ahead("Asia/Kathmandu"),
        7: furthest(Yangon="Asia/Yangon", Dhaka="Asia/Dhaka"),
        8: "yes" if tomorrow(manila, "Australia/Brisbane") else "no",
        9: at("09:10", "UTC", "Asia/Colombo", "Africa/Lagos", "Australia/Darwin"),
        10: f"{(moment('18:15', 'Asia/Tashkent') + timedelta(hours=3)).astimezone(ZoneInfo('Asia/Kabul')):%H:%M}",
        11: at("08:30", "America/Argentina/Buenos_Aires", "Africa/Johannesburg"),
        12: abs(ahead("Australia/Perth") - ahead("Australia/Darwin")),
        13: furthest(Colombo="Asia/Colombo", Bangkok="Asia/Bangkok", Kathmandu="Asia/Kathmandu"),
        14: at("00:00", "America/Panama", "Pacific/Honolulu"),
        15: at("06:30", "Asia/Riyadh", "America/Caracas"),
        16: "yes" if ahead("Europe/Istanbul") == ahead("Europe/Moscow") else "no",
        17: ahead("Asia/Tashkent") - ahead("Asia/Tehran"),
        18: at("19:15", "Asia/Shanghai", "Asia/Karachi", "Asia/Colombo"),
        19: at("20:00", "Asia/Dhaka", "Africa/Algiers"),
        20: min(first, key=first.get),
        21: (landing - moment("23:50", "Africa/Addis_Ababa")).total_seconds() / 60,
        22: max(panama, key=lambda city: ahead(panama[city])),
        23: [at("13:05", "Asia/Kabul", "Asia/Yangon"), at("13:05", "Asia/Yangon", "Asia/Kabul")],
        24: at("23:20", "Asia/Singapore", "Africa/Nairobi", "Asia/Karachi", "America/Lima"),
        25: [ahead(zone) - ahead("Africa/Accra") for zone in ("Asia/Dhaka", "Asia/Seoul", "Pacific/Port_Moresby")],
        26: min(("Karachi", "Dhaka"), key=lambda city: abs(ahead(f"Asia/{city}") - ahead("Asia/Kathmandu"))),
        27: "yes" if tomorrow(riyadh, "Asia/Seoul") and tomorrow(riyadh, "Australia/Darwin") else "no",
    }


def everything() -> dict[int, object]:
    humidity = Counter(humid for _, _, humid in WEATHER.values())
    return {
        6: max(("Chicago", "New York"), key=lambda city: WEATHER[city][0]),
        7: min(WEATHER, key=lambda city: WEATHER[city][2]),
        8: WEATHER["Los Angeles"][0] - WEATHER["New York"][0],
        15: int(SETTINGS["CLOSING_HOUR"]) - int(SETTINGS["OPENING_HOUR"]),
        19: {city for city, (_, _, humid) in WEATHER.items() if humidity[humid] == 2},
        20: {city for city, (_, sky, _) in WEATHER.items() if "Sunny" in sky},
        22: sum(number % 2 == 0 for number in range(1, 8)),  # the even ones are texts
    }


ANSWERS = {
    "filesystem": filesystem,
    "git": git,
    "sqlite": sqlite,
    "motherduck": motherduck,
    "time": time,
    "everything": everything,
}

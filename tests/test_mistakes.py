"Mistakes and interruptions at the command line: a share of the list in mistakes.py, of which the benchmark plays all."

import pytest
from mistakes import MISTAKES, wrong

FIRST_INTERRUPT = next(mistake for mistake in MISTAKES if mistake.when == 1.0)


@pytest.mark.parametrize("mistake", [*MISTAKES[4::16], FIRST_INTERRUPT], ids=lambda mistake: mistake.name)
def test_a_mistake_is_answered_by_a_sentence(mistake, tmp_path):
    assert not wrong(mistake, tmp_path / "there")

"""The rule of retention: settings, references and protocol decide; nothing that is needed goes."""

from hypothesis import given
from hypothesis import strategies as st

from schemas.upkeep import Retention
from tasks.retention import Candidate, judge


def kept(steps, settings=None, *, newest=1, end=0, **changes):
    made = [Candidate(step, 99.0, **changes.get(f"at_{step}", {})) for step in steps]
    verdicts = judge(
        made, Retention(**{"keep_last": 1, **(settings or {})}), published=steps, newest_policies=newest, end=end
    )
    return {step: v.why for step, v in verdicts.items() if v.kept}


def test_each_reason_keeps():
    steps = [10, 20, 30, 40, 50]
    assert kept(steps) == {50: "keep_last = 1"}
    assert list(kept(steps, {"keep_last": 2})) == [40, 50]
    assert kept(steps, {"keep_every": 20}) == {20: "keep_every = 20", 40: "keep_every = 20", 50: "keep_last = 1"}
    assert kept(steps, newest=3)[30] == "one of the newest 3 policies"
    assert kept(steps, end=20)[20] == "RL ended with it"
    assert kept(steps, at_10={"referred": "run b starts from it"})[10] == "run b starts from it"
    assert list(kept(steps, {"keep_last": 9})) == steps


def test_age_keeps():
    verdicts = judge(
        [Candidate(1, 23.9), Candidate(2, 24.1), Candidate(3, 1.0)],
        Retention(keep_last=1), published=[], newest_policies=2, end=0,
    )  # fmt: skip
    assert [v.kept for v in verdicts.values()] == [True, False, True]
    assert verdicts[1].why == "younger than min_age_hours = 24"
    assert verdicts[2].why == "keep_last = 1"


def test_what_has_expired_is_not_counted_among_the_last():
    assert list(kept([1, 2, 3], {"keep_last": 2}, at_2={"gone": True})) == [1, 3]


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        step=st.integers(1, 60),
        hours=st.floats(0, 100),
        referred=st.sampled_from(["", "", "run b starts from it"]),
        gone=st.booleans(),
    ),
    max_size=30,
    unique_by=lambda c: c.step,
)
SETTINGS = st.builds(
    Retention, keep_last=st.integers(1, 5), keep_every=st.integers(0, 9), min_age_hours=st.floats(0, 50)
)


@given(CANDIDATES, SETTINGS, st.integers(2, 6), st.integers(0, 60))
def test_the_kept_are_closed_under_what_refers_to_them(made, settings, newest, end):
    published = [c.step for c in made]
    verdicts = judge(made, settings, published=published, newest_policies=newest, end=end)
    stays = {step for step, v in verdicts.items() if v.kept}
    here = [c for c in made if not c.gone]
    assert stays >= {c.step for c in here if c.referred or c.step == end}
    assert stays >= set(sorted(c.step for c in here)[-settings.keep_last :])
    assert stays >= {c.step for c in here if c.hours < settings.min_age_hours}
    assert stays.isdisjoint(c.step for c in made if c.gone)
    assert all(v.why for v in verdicts.values())
    after = [c if c.step in stays else Candidate(c.step, c.hours, c.referred, gone=True) for c in made]
    again = judge(after, settings, published=published, newest_policies=newest, end=end)
    assert {step for step, v in again.items() if v.kept} == stays

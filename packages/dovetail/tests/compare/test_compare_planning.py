"""The order of the runs: paired, random, and determined by the seed."""

from collections import Counter

from dovetail.compare.planning import plan_pairs

TASKS = [f"task-{number}" for number in range(40)]


def test_every_task_is_run_under_both_profiles_with_the_same_seed() -> None:
    pairs = plan_pairs(TASKS, 3, seed=1)
    assert len(pairs) == 120
    for first, second in pairs:
        assert (first.task, first.repetition, first.seed) == (
            *(second.task, second.repetition, second.seed),
        )
        assert {first.profile, second.profile} == {"a", "b"}
    assert len({(one.task, one.repetition) for one, _ in pairs}) == 120
    assert len({one.seed for one, _ in pairs}) == 120


def test_positions_are_the_order_of_the_runs() -> None:
    pairs = plan_pairs(TASKS, 2, seed=1)
    assert [one.position for pair in pairs for one in pair] == list(range(160))


def test_order_depends_only_on_the_seed() -> None:
    assert plan_pairs(TASKS, 2, seed=1) == plan_pairs(TASKS, 2, seed=1)
    assert plan_pairs(TASKS, 2, seed=1) != plan_pairs(TASKS, 2, seed=2)


def test_tasks_and_first_profiles_are_shuffled() -> None:
    pairs = plan_pairs(TASKS, 5, seed=3)
    assert [one.task for one, _ in pairs] != sorted(one.task for one, _ in pairs)
    first = Counter(one.profile for one, _ in pairs)
    assert 70 <= first["a"] <= 130  # of 200: four standard deviations

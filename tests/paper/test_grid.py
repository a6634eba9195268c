import pytest

from protograph._internal.errors import InputError
from protograph.paper.grid import FIGURE_CELLS, KEY_CELLS, Selection, Task, grid_stages, plan_tasks
from protograph.paper.published import VARIANT_OF, Cell, gfsl_rows, published


def test_without_a_selection_the_cells_are_those_of_the_tables_in_their_order() -> None:
    assert Selection().cells() == list(published())
    assert Selection().cells()[0] == Cell("mini-imagenet", 1, "pn+")


def test_the_order_of_the_whole_plan() -> None:
    tasks = plan_tasks(Selection())
    assert tasks == [task for stage in grid_stages().values() for task in stage]
    assert len(set(tasks)) == len(tasks) == 44 + 2 * 9 + 9 + 18 + 2 * 35 + 5 + 10 + 44
    first = [
        [Task(cell, "fast", 0) for cell in published()],
        [Task(cell, "fast", seed) for seed in (1, 2) for cell in KEY_CELLS],
        [Task(cell, "paper", 0) for cell in KEY_CELLS],
        [Task(cell, "fast", 0) for cell in FIGURE_CELLS],
    ]
    flat = [task for stage in first for task in stage]
    assert tasks[: len(flat)] == flat
    rest, strong = tasks[len(flat) : -44], tasks[-44:]
    assert {task.seed for task in rest[:-15]} == {1, 2}
    assert all(task.cell.relations for task in rest[-15:-10])
    assert {task.cell.variant for task in rest[-10:]} == {"aux-only", "gcgpn-key", "dfslwof-avg", "pn+cos", "teen"}
    assert strong == [Task(cell, "strong", 0) for cell in published()]


def test_a_recipe_and_seeds_are_taken_at_their_word() -> None:
    tasks = plan_tasks(Selection(datasets=("cub",), shots=(1,)), "paper", 3)
    assert {task.recipe for task in tasks} == {"paper"}
    cells = [cell for cell in published() if cell.dataset == "cub" and cell.shots == 1]
    assert [task.cell for task in tasks[: len(cells)]] == cells
    assert len(tasks) == 3 * len(cells)
    further = [task.cell in KEY_CELLS for task in tasks[len(cells) :]]
    assert further == sorted(further, reverse=True)
    assert plan_tasks(Selection(), "fast") == [Task(cell, "fast", 0) for cell in published()]
    assert {(task.recipe, task.seed) for task in plan_tasks(Selection(), seeds=2)} == {("fast", 0), ("fast", 1)}


@pytest.mark.parametrize("table", ["CUB", "mIN", "opdist_CUB", "opdist_mIN"])
def test_a_table_has_its_own_cells(table: str) -> None:
    assert Selection(tables=(table,)).cells() == [
        cell for cell in published() if any(row.cell == cell and row.table == table for row in gfsl_rows())
    ]
    assert {task.cell for task in plan_tasks(Selection(tables=(table,)))} == set(Selection(tables=(table,)).cells())


def test_the_figure_and_the_study_are_tables_too() -> None:
    figure = Selection(tables=("shots",)).cells()
    assert len(figure) == 5 * 6
    assert set(FIGURE_CELLS) == {cell for cell in figure if cell.shots not in (1, 5)}
    assert set(figure) - set(FIGURE_CELLS) <= published().keys()
    study = Selection(tables=("relations",)).cells()
    assert [cell for cell in study if not cell.relations] == [Cell(name, 1, "gcgpn-aux") for name in ("cub", "mini-imagenet")]
    methods = Selection(tables=("few-shot",)).cells()
    assert len(methods) == 2 * 2 * 11
    assert {cell.shots for cell in methods} == {1, 5}
    assert {cell.dataset for cell in Selection(tables=("few-shot",), datasets=("letters",)).cells()} == {"letters"}
    together = Cell("cub", 1, "gcgpn-aux", ("attributes", "words", "tree"))
    assert together in study
    assert str(together) == "cub 1-shot gcgpn-aux with attributes and words and tree"
    assert str(Task(together, "fast", 0).path) == "cub/1-shot/gcgpn-aux/attributes-and-words-and-tree/fast-0"
    own = Selection(datasets=("letters",), tables=("relations",)).cells()
    assert {cell.relations for cell in own} == {(), ("base",), ("accent",)}
    assert {task.recipe for task in plan_tasks(Selection(datasets=("letters",), tables=("shots",)))} == {"demo"}
    relatives = Selection(datasets=("letters",), tables=("baselines",)).cells()
    assert len(relatives) == 5
    assert {(cell.dataset, cell.shots) for cell in relatives} == {("letters", 1)}
    assert len(Selection(tables=("baselines",)).cells()) == 10


def test_selections_are_combined() -> None:
    assert Selection(("cub",), (1,), ("gcgpn-aux",)).cells() == [Cell("cub", 1, "gcgpn-aux")]
    found = Selection(variants=("gcgpn-aux-fc", "pn+")).cells()
    assert len(found) == 2 + 4
    assert Selection(("cub",), (10,), ("dfslwof-att",)).cells() == [Cell("cub", 10, "dfslwof-att")]
    assert set(Selection(shots=(3,)).cells()) == {cell for cell in FIGURE_CELLS if cell.shots == 3}
    assert Selection(("cub",), (), ("teen",)).cells() == [Cell("cub", 1, "teen"), Cell("cub", 5, "teen")]


def test_the_letters_have_the_same_grid() -> None:
    assert Selection(("letters",)).cells() == [Cell("letters", shots, v) for shots in (1, 5) for v in VARIANT_OF.values()]
    assert {(task.recipe, task.seed) for task in plan_tasks(Selection(("letters",)))} == {("demo", 0)}
    assert {task.recipe for task in plan_tasks(Selection(("letters", "cub")), seeds=1)} == {"demo", "fast"}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"datasets": ("cup",)}, "'cup'.*cub"),
        ({"variants": ("gcgpn-axu",)}, "gcgpn-aux"),
        ({"variants": ("cosine",)}, "'cosine' is the first stage"),
        ({"tables": ("Cub",)}, "'Cub'.*CUB"),
        ({"shots": (0,)}, "at least 1"),
        ({"tables": ("CUB",), "datasets": ("mini-imagenet",)}, "no cell"),
    ],
)
def test_what_cannot_be_selected_is_refused(wrong: dict[str, tuple[str, ...]], named: str) -> None:
    with pytest.raises(InputError, match=named):
        Selection(**wrong).cells()  # type: ignore[arg-type]


def test_unknown_recipes_and_no_seeds_are_refused() -> None:
    with pytest.raises(InputError, match=r"'fats'.*fast"):
        plan_tasks(Selection(), "fats")
    with pytest.raises(InputError, match="at least 1, not 0"):
        plan_tasks(Selection(), seeds=0)

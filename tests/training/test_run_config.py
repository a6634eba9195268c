import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protograph._internal.errors import InputError
from protograph.data import DATASETS, Dataset, DatasetSource
from protograph.paper.grid import Task
from protograph.paper.published import Cell
from protograph.paper.runner import GridRun
from protograph.training.parsing import typed
from protograph.training.recipes import (
    BENCHMARKS,
    DEFAULT_RECIPES,
    DEMO,
    FAST,
    PAPER,
    RECIPES,
    STRONG,
    Recipe,
    RecipeSource,
    default_backbone,
    find_recipe,
    stage_before,
    unused_settings,
    uses_setting,
)
from protograph.training.run_config import RunConfig, configure, differences, read_toml
from protograph.training.stages import configure_first_stage
from protograph.variants import VARIANTS, find_variant

CONFIG = RunConfig("letters", "gcgpn-aux", 5, 3, "conv4-32", ("unicode", "own.csv"), PAPER, "abc", ("plugin.py",))
RATES = st.floats(1e-6, 10, allow_nan=False)


@given(
    learning_rate=RATES,
    learning_rate_drops=st.lists(st.tuples(st.integers(0, 99), RATES)),
    epochs=st.integers(1, 500),
    nesterov=st.booleans(),
    weight_decay=RATES,
)
def test_a_configuration_survives_json(**changes: Any) -> None:
    config = replace(CONFIG, recipe=replace(PAPER, **{**changes, "learning_rate_drops": tuple(changes["learning_rate_drops"])}))
    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("recipe", [PAPER, FAST, STRONG, DEMO], ids=lambda recipe: recipe.name)
def test_every_recipe_survives_json_under_its_own_name(recipe: Recipe) -> None:
    config = replace(CONFIG, recipe=recipe)
    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert find_recipe(recipe.name).make(find_variant("gcgpn-aux"), "letters", None) == recipe


def test_toml_settings_are_read_and_typed(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        'shots = 5\nvariant = "gcgpn"\n[recipe]\nepochs = 9\nlearning_rate = 1\nlearning_rate_drops = [[3, 0.01], [6, 0.001]]\n'
    )
    read = read_toml(path)
    assert (read["shots"], read["variant"]) == (5, "gcgpn")
    recipe = typed(PAPER, read["recipe"], "recipe")
    assert recipe == replace(PAPER, epochs=9, learning_rate=1.0, learning_rate_drops=((3, 0.01), (6, 0.001)))
    assert isinstance(recipe.learning_rate, float)


def test_a_missing_or_broken_toml_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.toml"):
        read_toml(tmp_path / "absent.toml")
    (tmp_path / "broken.toml").write_text("epochs = = 3")
    with pytest.raises(InputError, match=r"broken\.toml is not TOML.*line 1"):
        read_toml(tmp_path / "broken.toml")
    (tmp_path / "latin.toml").write_bytes("variant = 'ä'".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin\.toml is not a readable \.toml file \(line 1 is not UTF-8: byte 0xe4\)"):
        read_toml(tmp_path / "latin.toml")
    with pytest.raises(InputError, match="/dev/zero is a pipe or a device, not a configuration file"):
        read_toml(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"epochs": 0}, "epochs"),
        ({"validation_episodes": 0}, "validation_episodes"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": math.nan}, "learning_rate"),
        ({"learning_rate": math.inf}, "learning_rate"),
        ({"query_scheme": "some"}, "some"),
        ({"anneal": True}, "learning_rate_drops"),
        ({"warmup_steps": -5}, "warmup_steps"),
        ({"training_ways": -1}, "training_ways"),
        ({"patience": -1}, "patience"),
        ({"momentum": -0.5}, "momentum"),
        ({"momentum": 0.0}, "nesterov"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"scalar_learning_rate_factor": -0.1}, "scalar_learning_rate_factor"),
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": -0.1}, "dropout"),
        ({"zoom": 0.9}, "zoom"),
        ({"zoom": math.inf}, "zoom"),
        ({"zoom": math.nan}, "zoom"),
        ({"stretch": 0.0}, "stretch"),
        ({"colour": 1.1}, "colour"),
        ({"colour": -0.1}, "colour"),
        ({"erase": 1.5}, "erase"),
        ({"erase": math.nan}, "erase"),
        ({"learning_rate_drops": [20, 40]}, "learning_rate_drops"),
        ({"learning_rate_drops": [[20, "low"]]}, "learning_rate_drops"),
    ],
)
def test_a_recipe_that_cannot_be_meant_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        typed(PAPER, changes, "recipe")


def test_recipes_derive_from_one_another(toy: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        DATASETS, "toy", DatasetSource(lambda root, progress, skip_bad: toy, "conv4-32", "a toy", built_in=True)
    )
    own = configure(toy, "gcgpn-aux").recipe
    assert own == DEMO
    derived = configure(toy, "gcgpn-aux", recipe="paper", changes={"epochs": 2}).recipe
    changed = {name for name, value in asdict(derived).items() if value != asdict(PAPER)[name]}
    assert changed == {"epochs"}


def test_what_is_not_given_takes_the_datasets_default(toy: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        DATASETS, "toy", DatasetSource(lambda root, progress, skip_bad: toy, "conv4-64", "a toy", built_in=True)
    )
    monkeypatch.setitem(DEFAULT_RECIPES, "toy", "paper")
    config = configure(toy, "gcgpn-aux")
    assert (config.backbone, config.recipe, config.relations) == ("conv4-64", PAPER, ("kinship",))
    assert config.fingerprint == toy.fingerprint
    assert configure(toy, "aux-only").relations == ()
    more = replace(toy, relations={**toy.relations, "other": toy.relations["kinship"]})
    assert configure(more, "gcgpn-aux").relations == ("kinship",)
    assert configure(more, "gcgpn-aux", relations=["other"]).relations == ("other",)
    assert configure(replace(more, default_relations=None), "gcgpn-aux").relations == ("kinship", "other")


def test_a_relation_that_would_be_ignored_is_refused(toy: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        DATASETS, "toy", DatasetSource(lambda root, progress, skip_bad: toy, "conv4-32", "a toy", built_in=True)
    )
    with pytest.raises(InputError, match=r"'aux-only' uses no side information.*'kinship'"):
        configure(toy, "aux-only", relations=["kinship"])


@pytest.fixture
def known_toy(toy: Dataset, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.setitem(DATASETS, "toy", DatasetSource(lambda root, progress: toy, "conv4-32", "a toy"))
    monkeypatch.setitem(DEFAULT_RECIPES, "toy", "paper")
    return toy


def begun(dataset: Dataset, variant: str, changes: Mapping[str, Any] | None = None, **options: Any) -> RunConfig:
    """A configuration of the run that a variant starts from."""
    return configure_first_stage(configure(dataset, variant, changes=changes, **options), dataset, changes)


def changed(dataset: Dataset, variant: str, recipe: Recipe) -> dict[str, Any]:
    """What a variant makes of a recipe that is different from the recipe itself."""
    own, base = asdict(configure(dataset, variant, recipe=recipe.name).recipe), asdict(recipe)
    return {name: value for name, value in own.items() if value != base[name]}


def test_baselines_are_trained_as_long_and_on_the_queries_their_authors_chose(known_toy: Dataset) -> None:
    queries = {"novel_queries": 6, "seen_queries": 0}
    for variant in ("pn+", "pn+cos"):
        assert changed(known_toy, variant, PAPER) == {"epochs": 60, **queries}
        assert changed(known_toy, variant, DEMO) == queries
    for variant in ("cosine", "dfslwof-avg", "dfslwof-att"):
        assert changed(known_toy, variant, PAPER) == {"epochs": 60}
        assert changed(known_toy, variant, DEMO) == {}
    assert PAPER.batch_size == DEMO.batch_size == 256
    for variant in ("aux-only", "gcgpn-key", "gcgpn-aux"):
        assert changed(known_toy, variant, PAPER) == changed(known_toy, variant, DEMO) == {}
    assert changed(known_toy, "teen", PAPER) == {"epochs": 13, "steps": 1}


@pytest.mark.parametrize(
    ("variant", "own"),
    [
        ("gcgpn-aux", {}),
        ("cosine", {"epochs": 24}),
        ("dfslwof-att", {"epochs": 4}),
        ("pn+", {"epochs": 24, "steps": 1040, "episodes": 2, "training_ways": 20, "learning_rate": 0.1, "weight_decay": 5e-4}),
    ],
)
def test_the_strong_recipe_is_the_fast_one_with_changed_images_and_another_length(
    known_toy: Dataset, variant: str, own: dict[str, Any]
) -> None:
    fast, strong = (configure(known_toy, variant, recipe=name).recipe for name in ("fast", "strong"))
    images = {"zoom": 1.25, "stretch": 1.15, "colour": 0.3, "erase": 0.43}
    assert strong == replace(fast, **{"name": "strong", "steps": 2 * fast.steps, **images, **own})
    assert strong.image_changes == images
    assert not fast.image_changes
    assert replace(fast, erase=0.2).image_changes == {"erase": 0.2}


@pytest.mark.parametrize(
    ("name", "steps", "rate", "queries", "epochs", "before"),
    [("mini-imagenet", 520, 0.4, 15, 8, "cosine"), ("cub", 260, 0.8, 10, 12, "")],
)
def test_the_strong_recipe_fits_the_paper_s_datasets(
    toy: Dataset, name: str, steps: int, rate: float, queries: int, epochs: int, before: str
) -> None:
    dataset = replace(toy, name=name)
    for variant, own in (("gcgpn-aux", epochs), ("cosine", 24), ("dfslwof-att", 4)):
        fast, strong = (configure(dataset, variant, recipe=recipe) for recipe in ("fast", "strong"))
        assert (strong.recipe.steps, strong.recipe.learning_rate, strong.recipe.test_queries) == (steps, rate, queries)
        assert (strong.recipe.epochs, strong.recipe.steps) == (own, 2 * fast.recipe.steps)
        assert (fast.backbone, strong.backbone) == ("conv4-64-128", "conv4-128-mirror")
        assert strong.recipe.pretrain == (before if variant == "gcgpn-aux" else "")
        assert configure(dataset, variant, recipe="strong", backbone="conv4-64").backbone == "conv4-64"
    for start, own in (("", 12), ("cosine", 8)):  # shorter wherever it starts from a trained one
        assert configure(dataset, "gcgpn-aux", recipe="strong", changes={"pretrain": start}).recipe.epochs == own
    assert configure(dataset, "cosine", recipe="strong").recipe.batch_size == 1024
    pn = configure(dataset, "pn+", recipe="strong").recipe
    assert (pn.novel_queries, pn.test_queries, pn.steps, pn.learning_rate) == (6, queries, 1040, 0.1)  # as long on both
    assert begun(dataset, "dfslwof-att", recipe="strong").backbone == "conv4-128-mirror"


def test_every_recipe_has_the_network_its_dataset_names_for_it() -> None:
    for name, source in DATASETS.items():
        wide = {"strong": "conv4-128-mirror", "best": "resnet12-mirror"} if name in BENCHMARKS else {}
        for recipe in RECIPES:
            assert default_backbone(name, recipe) == wide.get(recipe, source.backbone)


def test_changes_of_images_are_of_use_wherever_training_looks_at_images() -> None:
    for setting in STRONG.image_changes:
        for variant in ("gcgpn-aux", "pn+", "cosine", "dfslwof-att"):
            assert setting not in unused_settings(find_variant(variant), STRONG)
        assert setting in unused_settings(find_variant("teen"), STRONG)
        assert uses_setting(find_variant("teen"), STRONG, setting)  # its first stage has one


def test_changes_win_over_what_the_objective_brings(known_toy: Dataset) -> None:
    assert configure(known_toy, "pn+", changes={"epochs": "7", "novel_queries": 2}).recipe.epochs == 7
    assert configure(known_toy, "dfslwof-att", changes={"epochs": 7}).recipe.epochs == 7


@pytest.mark.parametrize(
    ("variant", "setting"),
    [
        ("gcgpn-aux", "batch_size"), ("pn+", "seen_queries"), ("pn+", "temperature"), ("pn+", "batch_size"),
        ("cosine", "episodes"),
        ("cosine", "query_scheme"), ("cosine", "training_ways"), ("teen", "query_scheme"),
        ("gcgpn-cos-aux", "relation_temperature"),
        ("dfslwof-att", "scalar_learning_rate_factor"),
        ("pn+", "pretrain"), ("cosine", "pretrain"), ("gcgpn-aux", "shrinkage"), ("gcgpn-aux", "folds"), ("gcgpn-aux", "views"),
        ("teen", "learn_balance"), ("pn+", "prototype_learning_rate_factor"), ("dfslwof-att", "backbone_learning_rate_factor"),
    ],
)  # fmt: skip
def test_a_setting_that_would_be_ignored_is_refused(known_toy: Dataset, variant: str, setting: str) -> None:
    with pytest.raises(InputError, match=f"'{re.escape(variant)}' has no use for .*'{setting}'"):
        configure(known_toy, variant, changes={setting: getattr(PAPER, setting)})


def test_a_setting_that_only_one_of_two_stages_uses_goes_to_that_one(known_toy: Dataset) -> None:
    changes = {"batch_size": 32, "seen_queries": 5, "epochs": 2, "temperature": 4.0}
    first, second = (
        begun(known_toy, "dfslwof-att", changes).recipe,
        configure(known_toy, "dfslwof-att", changes=changes).recipe,
    )
    assert (first.batch_size, first.seen_queries, first.epochs, first.temperature) == (32, 15, 2, 4.0)
    assert (second.batch_size, second.seen_queries, second.epochs, second.temperature) == (256, 5, 2, 10.0)


def test_a_recipe_lets_joint_training_start_from_another_variant(known_toy: Dataset) -> None:
    names = ("gcgpn-aux", "aux-only", "gcgpn-key", "pn+", "cosine", "dfslwof-att", "teen")
    plain, pretrained = (
        {name: stage_before(find_variant(name), recipe) for name in names}
        for recipe in (PAPER, replace(PAPER, pretrain="cosine"))
    )
    cosine = find_variant("cosine")
    joint, own = dict.fromkeys(names[:3]), {"pn+": None, "cosine": None, "dfslwof-att": cosine, "teen": cosine}
    assert plain == {**joint, **own}
    assert pretrained == {**dict.fromkeys(joint, cosine), **own}
    with pytest.raises(InputError, match="unknown variant 'cosin'"):
        configure(known_toy, "gcgpn-aux", changes={"pretrain": "cosin"})
    assert not configure(known_toy, "gcgpn-aux", changes={"pretrain": ""}).recipe.pretrain


@pytest.mark.parametrize(
    ("pretrain", "said"),
    [
        ("pn+", "objective is 'few-shot', not 'classify'"), ("aux-only", "objective is 'joint'"),
        ("teen", "objective is 'none'"), ("dfslwof-att", "objective is 'joint'"),
        ("far", "classifier is 'squared-l2', not 'cosine'"), ("bent", "last_relu is True"), ("third", "after is 'aux-only'"),
    ],
)  # fmt: skip
def test_what_a_recipe_cannot_start_from_is_refused(
    known_toy: Dataset, monkeypatch: pytest.MonkeyPatch, pretrain: str, said: str
) -> None:
    cosine = find_variant("cosine")
    odd: dict[str, Any]
    for name, odd in (("far", {"classifier": "squared-l2"}), ("bent", {"last_relu": True}), ("third", {"after": "aux-only"})):
        monkeypatch.setitem(VARIANTS, name, replace(cosine, name=name, **odd))
    named = rf"'gcgpn-aux' cannot start from '{re.escape(pretrain)}', whose {said}.*--set pretrain=cosine"
    with pytest.raises(InputError, match=named):
        configure(known_toy, "gcgpn-aux", changes={"pretrain": pretrain})
    with pytest.raises(InputError, match=named):
        GridRun([Task(Cell("letters", 1, "gcgpn-aux"), "demo", 0)], Path("results"), Path("runs"), {"pretrain": pretrain})


def test_a_variant_that_the_recipe_s_own_start_does_not_fit_is_told_to_name_none(
    toy: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(VARIANTS, "far", replace(find_variant("aux-only"), name="far", classifier="squared-l2"))
    with pytest.raises(InputError, match=r"'far' cannot start from 'cosine', .*: name none by --set pretrain=$"):
        configure(replace(toy, name="mini-imagenet"), "far", recipe="strong")
    plain = configure(replace(toy, name="mini-imagenet"), "far", recipe="strong", changes={"pretrain": ""}).recipe
    assert (plain.pretrain, plain.epochs) == ("", STRONG.epochs)


def test_a_recipe_names_the_start_of_joint_training_and_of_second_stages_alone(
    known_toy: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = lambda variant, dataset, pretrain: replace(PAPER, pretrain="cosine")
    monkeypatch.setitem(RECIPES, "paper", RecipeSource(make))
    found = {name: configure(known_toy, name).recipe.pretrain for name in ("gcgpn", "pn+", "cosine", "dfslwof-att", "teen")}
    assert found == {"gcgpn": "cosine", "pn+": "", "cosine": "", "dfslwof-att": "cosine", "teen": "cosine"}


def test_settings_of_a_pretrained_variant_go_to_the_stage_that_looks_at_them(known_toy: Dataset) -> None:
    changes = {"pretrain": "cosine", "batch_size": 32, "seen_queries": 5, "temperature": 4.0, "relation_temperature": 2.0}
    first, second = (
        begun(known_toy, "gcgpn-aux", changes).recipe,
        configure(known_toy, "gcgpn-aux", changes=changes).recipe,
    )
    assert first == replace(PAPER, epochs=60, batch_size=32, temperature=4.0)
    assert second == replace(PAPER, pretrain="cosine", seen_queries=5, relation_temperature=2.0)


def test_the_first_stage_is_the_same_for_every_number_of_shots(known_toy: Dataset) -> None:
    assert [begun(known_toy, variant, shots=5).shots for variant in ("dfslwof-att", "teen")] == [1, 1]
    with pytest.raises(InputError, match=r"'cosine' is trained without examples.*`evaluate`"):
        configure(known_toy, "cosine", shots=5)


def test_differences_name_both_values() -> None:
    other = replace(CONFIG, seed=4, recipe=replace(PAPER, epochs=2))
    assert differences(CONFIG, other) == ["seed is 4 there, not 3", "recipe.epochs is 2 there, not 75"]
    assert differences(CONFIG, replace(CONFIG)) == []


def test_another_plugin_is_a_difference() -> None:
    ours, other = (replace(CONFIG, plugins=(f"plugin.py sha256:{digest}",)) for digest in ("12", "34"))
    assert differences(ours, other) == ["plugins is ('plugin.py sha256:34',) there, not ('plugin.py sha256:12',)"]
    assert differences(ours, replace(CONFIG, plugins=())) != []


def test_a_plugin_of_format_2_is_known_by_its_name() -> None:
    """Format 2 held paths; a run of that time goes on with the plugin of the same name."""
    stored = RunConfig.from_dict({**CONFIG.to_dict(), "format": 2, "plugins": ["/home/me/plugin.py"]})
    assert stored.plugins == ("plugin.py",)
    assert differences(replace(CONFIG, plugins=("plugin.py sha256:12",)), stored) == []
    assert differences(replace(CONFIG, plugins=("other.py sha256:12",)), stored) != []


@pytest.mark.parametrize("setting", ["temperature", "relation_temperature"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_refused(setting: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{setting} must be a number, not {value}"):
        replace(PAPER, **{setting: value})


def test_the_name_of_a_recipe_is_no_setting(known_toy: Dataset) -> None:
    with pytest.raises(InputError, match="unknown recipe setting 'name'"):
        configure(known_toy, "gcgpn-aux", changes={"name": "mine"})

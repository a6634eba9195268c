"""protograph variants"""

from rich.table import Table

from protograph.cli.display import reported, show
from protograph.cli.options import AsJson, Plugins, load_plugins
from protograph.variants import VARIANTS


@reported
def variants_command(plugin: Plugins = None, as_json: AsJson = False) -> None:
    """List the models by name, with the operators that make them."""
    load_plugins(plugin)
    table = Table("variant", "operators", "transform", "objective", "after", "what it is")
    for name, variant in VARIANTS.items():
        operators = " + ".join(map(str, variant.operators)).replace("[", r"\[")
        table.add_row(name, operators, variant.theta, variant.objective, variant.after, variant.summary)
    rows = {
        name: {
            "operators": [str(op) for op in variant.operators],
            "theta": variant.theta,
            "objective": variant.objective,
            "after": variant.after,
            "summary": variant.summary,
        }
        for name, variant in VARIANTS.items()
    }
    show(rows, table, as_json)

"""protograph variants"""

from rich.table import Table

from protograph.cli.display import reported, show
from protograph.cli.options import AsJson, Plugins, load_plugins
from protograph.variants import VARIANTS


@reported
def variants_command(plugin: Plugins = None, as_json: AsJson = False) -> None:
    """List the models by name, with the operators that make them."""
    load_plugins(plugin)
    table = Table("variant", "operators", "transform", "what it is")
    for name, variant in VARIANTS.items():
        table.add_row(name, " + ".join(map(str, variant.operators)).replace("[", r"\["), variant.theta, variant.summary)
    rows = {
        name: {"operators": [str(op) for op in variant.operators], "theta": variant.theta, "summary": variant.summary}
        for name, variant in VARIANTS.items()
    }
    show(rows, table, as_json)
